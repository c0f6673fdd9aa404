#include "weft/ps/shard/table_shard.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/ps/shard/shard_tensors.h"

namespace weft::ps {
namespace {

using internal::BytesOf;
using internal::Found;
using internal::IsFlat;
using internal::KeysOf;

}  // namespace

absl::StatusOr<std::unique_ptr<TableShard>> TableShard::Create(
    v1::TableSpec spec, int server, int servers,
    std::shared_ptr<ByteBudget> budget, std::shared_ptr<ByteBudget> memory) {
  WEFT_CHECK(server >= 0 && server < servers);
  WEFT_ASSIGN_OR_RETURN(auto layout, TableLayout::Create(std::move(spec)));
  return std::unique_ptr<TableShard>(new TableShard(std::move(layout), server,
                                                    servers, std::move(budget),
                                                    std::move(memory)));
}

TableShard::TableShard(std::unique_ptr<TableLayout> layout, int server,
                       int servers, std::shared_ptr<ByteBudget> budget,
                       std::shared_ptr<ByteBudget> memory)
    : layout_(std::move(layout)),
      server_(server),
      placement_(spec().name(), spec().partitions(), servers),
      budget_(std::move(budget)),
      memory_(std::move(memory)),
      dense_(layout_->is_dense() ? CutDense(*layout_, placement_)[server]
                                 : DensePart{}),
      dense_group_(layout_->is_dense() ? spec().partitions() : 0, -1),
      load_(spec().partitions(), server, servers),
      gate_(MakeGate(spec(), 0)),
      clocks_(spec().staleness()) {
  for (size_t i = 0; i < dense_.groups.size(); ++i) {
    dense_group_[dense_.groups[i].partition] = static_cast<int>(i);
  }
  partitions_.resize(spec().partitions());
  for (int p = 0; p < spec().partitions(); ++p) {
    const bool holds_rows = !layout_->is_dense() || DenseGroup(p) != nullptr;
    if (placement_.ServerOf(p) == server_ && holds_rows) {
      partitions_[p] = std::make_unique<Partition>(layout_.get(), memory_);
    }
  }
}

TableShard::~TableShard() {
  Shutdown(absl::CancelledError("the table was dropped"));
}

bool TableShard::Owns(uint32_t partition) const {
  return partition < partitions_.size() && partitions_[partition] != nullptr;
}

const DensePart::Group* TableShard::DenseGroup(uint32_t partition) const {
  if (partition >= dense_group_.size() || dense_group_[partition] < 0) {
    return nullptr;
  }
  return &dense_.groups[dense_group_[partition]];
}

RoundGate<TableShard::Part> TableShard::MakeGate(const v1::TableSpec& spec,
                                                 int64_t open) {
  const int shards = spec.mode() == v1::TableSpec::SYNC ? spec.shards() : 0;
  return RoundGate<Part>(
      shards,
      spec.orphans() == v1::TableSpec::WAIT ? Orphans::kWait : Orphans::kRetire,
      open, Quorum{spec.quorum(), spec.late() == v1::TableSpec::FOLD});
}

void TableShard::Open(const Caller& caller, uint64_t client) {
  MutexLock lock(mu_);
  openings_.Open(caller, client);
}

absl::StatusOr<uint64_t> TableShard::NumberOf(const Caller& caller,
                                              uint64_t client) const {
  absl::StatusOr<uint64_t> number;
  {
    MutexLock lock(mu_);
    number = openings_.NumberOf(caller, client);
  }
  if (number.ok()) return number;
  return Reworded(number.status(),
                  absl::StrCat("table '", spec().name(), "' on server ",
                               server_, ": ", number.status().message()));
}

void TableShard::Forget(WorkerKey worker) {
  std::vector<Parked> readable;
  {
    MutexLock lock(mu_);
    openings_.Forget(worker);
    clocks_.Forget(worker);
    readable = TakeReadable();
  }
  AnswerReadable(std::move(readable));
}

absl::Status TableShard::SetLearningRateScale(double scale,
                                              int64_t from_round) {
  absl::Status set;
  {
    MutexLock lock(mu_);
    set = is_sync() ? rates_.Set(from_round, scale, gate_.open())
                    : rates_.SetAlways(scale);
  }
  return Reworded(set, absl::StrCat("table '", spec().name(), "' on server ",
                                    server_, ": ", set.message()));
}

absl::StatusOr<ByteBudget::Hold> TableShard::Hold(
    int64_t bytes, int64_t most, absl::string_view what) const {
  if (budget_ == nullptr) return ByteBudget::Hold();
  std::optional<ByteBudget::Hold> hold = budget_->Take(bytes, most);
  if (hold.has_value()) return *std::move(hold);
  return absl::ResourceExhaustedError(absl::StrCat(
      "table '", spec().name(), "' on server ", server_, ": ", what, " of ",
      bytes, " bytes would wait beside ", budget_->held(),
      " bytes that do already, and ", most,
      " are the most; pull what was pushed before pushing more, use more "
      "servers, or raise --round-budget there"));
}

absl::StatusOr<ByteBudget::Hold> TableShard::HoldRows(const Part& part) {
  if (memory_ == nullptr || layout_->is_dense()) return ByteBudget::Hold();
  const std::vector<PushSpan> spans = SpansOf(part);
  int64_t all = 0;
  int64_t most = 0;
  uint32_t largest = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const uint32_t p = part.spans[i].partition;
    if (partitions_[p]->Applied(part.client, spans[i].sequence)) continue;
    const int64_t bytes = partitions_[p]->GrowthOf(spans[i].keys);
    all += bytes;
    if (bytes > most) largest = p;
    most = std::max(most, bytes);
  }
  if (all == 0) return ByteBudget::Hold();
  std::optional<ByteBudget::Hold> hold = memory_->Take(all, memory_->most());
  if (hold.has_value()) return *std::move(hold);
  ++refused_pushes_;
  return OutOfTableMemory(
      absl::StrCat("table '", spec().name(), "' on server ", server_), largest,
      all, *memory_);
}

absl::Status TableShard::Initialize(const Tensor& values) {
  if (!layout_->is_dense()) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", spec().name(),
                     "' is sparse: its rows begin as its initializer says"));
  }
  if (!IsFlat(values, DType::kF32, 1) || values.numel() != dense_.elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "first values of table '", spec().name(), "' on server ", server_,
        ": wanted f32[", dense_.elements, "], found ", Found(values)));
  }
  MutexLock lock(mu_);
  if (initialized_) return absl::OkStatus();
  const float* at = values.data<float>();
  for (const DensePart::Group& group : dense_.groups) {
    for (uint64_t slice : group.slices) {
      const int64_t length = layout_->RowLength(slice);
      partitions_[group.partition]->Put(slice, absl::MakeConstSpan(at, length));
      at += length;
    }
  }
  initialized_ = true;
  return absl::OkStatus();
}

absl::Status TableShard::CheckServing() const {
  if (!shut_down_.ok()) return shut_down_;
  if (initialized_ || !layout_->is_dense()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("table '", spec().name(), "' on server ", server_,
                   " has no values yet; call Initialize first"));
}

Future<ShardReply> TableShard::Handle(const v1::Request& request,
                                      Tensor push_keys, Tensor push_values,
                                      Tensor pull_keys, Instant deadline) {
  absl::Status checked;
  if (request.push()) checked = CheckPush(request, push_keys, push_values);
  if (checked.ok() && request.pull()) checked = CheckPull(pull_keys);
  if (checked.ok()) checked = CheckClock(request);
  if (!checked.ok()) return MakeReady<ShardReply>(checked);
  Part part;
  part.client = request.client();
  // Only CheckPush compares the lengths of the three lists.
  const int spans = request.push() ? request.partitions_size() : 0;
  part.spans.reserve(spans);
  for (int i = 0; i < spans; ++i) {
    part.spans.push_back(
        {request.partitions(i), request.rows(i),
         is_sync() ? PushSpan::kUnnumbered : request.sequences(i)});
  }
  if (request.push()) {
    CountPush(part, push_keys, push_values);
    metrics_.Pushed(BytesOf(push_keys) + BytesOf(push_values));
    part.values = FloatsOf(request, push_keys, std::move(push_values));
  }
  part.keys = std::move(push_keys);
  return is_sync()
             ? HandleInRound(request, std::move(part), pull_keys, deadline)
             : HandleAtOnce(request, part, pull_keys, deadline);
}

Future<ShardReply> TableShard::HandleAtOnce(const v1::Request& request,
                                            const Part& part,
                                            const Tensor& pull_keys,
                                            Instant deadline) {
  double lr_scale = 1;
  {
    MutexLock lock(mu_);
    const absl::Status serving = CheckServing();
    if (!serving.ok()) return MakeReady<ShardReply>(serving);
    lr_scale = rates_.At(0);
  }
  v1::Reply reply;
  if (request.push()) {
    const absl::StatusOr<ByteBudget::Hold> rows = HoldRows(part);
    if (!rows.ok()) return MakeReady<ShardReply>(rows.status());
    const absl::Status pushed = PushNow(request, part, lr_scale, reply);
    if (!pushed.ok()) return MakeReady<ShardReply>(pushed);
  }
  if (request.has_clock()) {
    return HandleAtClock(request, pull_keys, std::move(reply), deadline);
  }
  return AnswerNow(request, pull_keys, std::move(reply));
}

Future<ShardReply> TableShard::AnswerNow(const v1::Request& request,
                                         const Tensor& pull_keys,
                                         v1::Reply reply) {
  {
    MutexLock lock(mu_);
    reply.set_version(VersionLocked());
  }
  ShardReply now;
  if (request.pull()) {
    now = Pulled(pull_keys, Read(pull_keys, reply.version()));
    if (!is_sync()) metrics_.PulledAt(request.client(), reply.version());
  }
  now.reply = std::move(reply);
  return MakeReady<ShardReply>(std::move(now));
}

ShardReply TableShard::Pulled(const Tensor& keys, ShardReply read) {
  metrics_.Pulled(BytesOf(keys) + BytesOf(read.values));
  return read;
}

std::vector<PushSpan> TableShard::SpansOf(const Part& part) const {
  std::vector<PushSpan> spans;
  spans.reserve(part.spans.size());
  absl::Span<const uint64_t> keys = KeysOf(part.keys);
  const float* values = part.values.data<float>();
  for (const Span& span : part.spans) {
    PushSpan push;
    push.client = part.client;
    push.sequence = span.sequence;
    push.values = values;
    if (layout_->is_dense()) {
      const DensePart::Group* group = DenseGroup(span.partition);
      push.keys = group->slices;
      values += group->elements;
    } else {
      push.keys = keys.first(span.rows);
      keys.remove_prefix(span.rows);
      values += span.rows * layout_->dim();
    }
    spans.push_back(push);
  }
  return spans;
}

void TableShard::CountPush(const Part& part, const Tensor& keys,
                           const Tensor& values) {
  int64_t rows = 0;
  for (const Span& span : part.spans) rows += span.rows;
  // Rows of one message are alike.
  const int64_t bytes =
      (BytesOf(keys) + BytesOf(values)) / std::max(rows, int64_t{1});
  for (const Span& span : part.spans) {
    load_.Count(static_cast<int>(span.partition), span.rows, bytes * span.rows);
  }
}

absl::Status TableShard::PushNow(const v1::Request& request, const Part& part,
                                 double lr_scale, v1::Reply& reply) {
  const Instant began = SteadyClock().Now();
  const std::vector<PushSpan> spans = SpansOf(part);
  int64_t applied = 0;
  int64_t repeated = 0;
  const size_t measured = metrics_.NextMeasured(spans.size());
  absl::Duration lock_wait;
  absl::Status refused;
  for (size_t i = 0; i < spans.size() && refused.ok(); ++i) {
    const uint32_t partition = part.spans[i].partition;
    const absl::StatusOr<bool> is_new = partitions_[partition]->ApplyOnce(
        spans[i], lr_scale, i == measured ? &lock_wait : nullptr);
    if (is_new.ok()) {
      ++(*is_new ? applied : repeated);
    } else {
      refused =
          Reworded(is_new.status(),
                   absl::StrCat("table '", request.table(), "' partition ",
                                partition, ": ", is_new.status().message()));
    }
  }
  std::vector<LoadMeter::Share> shares;
  shares.reserve(spans.size());
  for (const Span& span : part.spans) {
    shares.push_back({static_cast<int>(span.partition), span.rows});
  }
  load_.Busy(shares, SteadyClock().Now() - began);
  if (!spans.empty()) metrics_.AwaitedLock(lock_wait);
  metrics_.Repeated(repeated);
  reply.set_duplicates(static_cast<int64_t>(spans.size()) - applied);
  MutexLock lock(mu_);
  openings_.Use(request.client());
  if (!refused.ok() || applied == 0) return refused;
  if (request.continues()) return absl::OkStatus();
  metrics_.PushedAt(request.client(), pushes_);
  ++pushes_;
  return absl::OkStatus();
}

ShardReply TableShard::Read(const Tensor& keys, int64_t version) const {
  return ReplyOf(keys, ReadFloats(keys), version);
}

ShardReply TableShard::ReplyOf(const Tensor& keys, Tensor floats,
                               int64_t version) const {
  ShardReply result;
  result.reply.set_version(version);
  result.values = std::move(floats);
  const WireDtype dtype = spec().wire().pull();
  if (dtype == v1::WireValues::F32) return result;
  const std::vector<uint64_t> slices = SlicesOf(dense_.groups);
  const absl::Span<const uint64_t> rows =
      layout_->is_dense() ? slices : KeysOf(keys);
  Tensor encoded =
      Tensor::Empty({WireBytes(*layout_, dtype, rows)}, DType::kU8);
  WriteWire(*layout_, dtype, rows, result.values.data<float>(),
            reinterpret_cast<char*>(encoded.data<uint8_t>()));
  result.values = std::move(encoded);
  return result;
}

Tensor TableShard::ReadFloats(const Tensor& keys) const {
  const Instant began = SteadyClock().Now();
  absl::Duration lock_wait;
  std::vector<LoadMeter::Share> shares;
  const auto count = [&](int partition, absl::Span<const uint64_t> rows) {
    const int64_t n = static_cast<int64_t>(rows.size());
    shares.push_back({partition, n});
    load_.Count(partition, n,
                WireBytes(*layout_, spec().wire().pull(), rows) +
                    (layout_->is_dense() ? 0 : n * int64_t{sizeof(uint64_t)}));
  };
  if (layout_->is_dense()) {
    Tensor values = Tensor::Empty({dense_.elements});
    float* out = values.data<float>();
    const size_t measured = metrics_.NextMeasured(dense_.groups.size());
    for (const DensePart::Group& group : dense_.groups) {
      const bool is_measured = &group == &dense_.groups[measured];
      out = partitions_[group.partition]->Read(
          group.slices, out, is_measured ? &lock_wait : nullptr);
      count(group.partition, group.slices);
    }
    load_.Busy(shares, SteadyClock().Now() - began);
    if (!dense_.groups.empty()) metrics_.AwaitedLock(lock_wait);
    return values;
  }
  const absl::Span<const uint64_t> all = KeysOf(keys);
  Tensor values =
      Tensor::Empty({static_cast<int64_t>(all.size()), layout_->dim()});
  float* out = values.data<float>();
  size_t begin = 0;
  const size_t measured = metrics_.NextMeasured(all.size());
  while (begin < all.size()) {  // a lock for each run of one partition
    const int partition = placement_.PartitionOfKey(all[begin]);
    size_t end = begin + 1;
    while (end < all.size() &&
           placement_.PartitionOfKey(all[end]) == partition) {
      ++end;
    }
    const bool is_measured = begin <= measured && measured < end;
    out = partitions_[partition]->Read(all.subspan(begin, end - begin), out,
                                       is_measured ? &lock_wait : nullptr);
    count(partition, all.subspan(begin, end - begin));
    begin = end;
  }
  load_.Busy(shares, SteadyClock().Now() - began);
  if (!all.empty()) metrics_.AwaitedLock(lock_wait);
  return values;
}

int64_t TableShard::VersionLocked() const {
  return is_sync() ? gate_.open() : pushes_;
}

void TableShard::Expire(Instant now) {
  load_.Advance(now);
  std::vector<Parked> expired, readable;
  std::vector<uint64_t> closed;
  std::string missing;
  {
    MutexLock lock(mu_);
    closed = openings_.TakeClosed();
    if (!closed.empty()) clocks_.Close(closed);
    if (!is_sync()) readable = TakeReadable();
    const auto alive = std::partition(
        parked_.begin(), parked_.end(),
        [now](const Parked& parked) { return now < parked.deadline; });
    std::move(alive, parked_.end(), std::back_inserter(expired));
    parked_.erase(alive, parked_.end());
    if (!expired.empty()) missing = WaitsFor();
  }
  AnswerReadable(std::move(readable));
  for (const auto& partition : partitions_) {
    if (closed.empty() || is_sync()) break;  // there are no windows
    if (partition != nullptr) partition->Forget(closed);
  }
  for (Parked& parked : expired) {
    parked.promise.Set(absl::DeadlineExceededError(absl::StrCat(
        "table '", spec().name(), "' on server ", server_, " did not reach ",
        is_sync() ? "version " : "clock ", parked.version, ": ", missing)));
  }
}

void TableShard::Shutdown(const absl::Status& reason) {
  std::vector<Parked> parked;
  {
    MutexLock lock(mu_);
    if (shut_down_.ok()) shut_down_ = reason;
    parked.swap(parked_);
  }
  for (Parked& p : parked) p.promise.Set(reason);
}

v1::TableStats TableShard::Stats() const {
  v1::TableStats stats;
  *stats.mutable_spec() = spec();
  *stats.mutable_wire() = spec().wire();
  for (const auto& partition : partitions_) {
    if (partition == nullptr) continue;
    stats.set_rows(stats.rows() + partition->rows());
    stats.set_memory_bytes(stats.memory_bytes() + partition->memory_bytes());
    stats.set_windows(stats.windows() + partition->windows());
    AddCounts(partition->counts(), stats);
  }
  stats.set_refused_pushes(refused_pushes_);
  MutexLock lock(mu_);
  stats.set_version(VersionLocked());
  stats.set_learning_rate_scale(rates_.At(is_sync() ? gate_.open() : 0));
  stats.set_initialized(initialized_ || !layout_->is_dense());
  stats.set_waiting_pulls(static_cast<int64_t>(parked_.size()));
  stats.set_late_folded(late_folded_);
  stats.set_late_dropped(late_dropped_);
  if (!spec().has_staleness()) return stats;
  stats.set_clocks(static_cast<int32_t>(clocks_.size()));
  stats.set_least_clock(clocks_.least());
  stats.set_most_clock(clocks_.most());
  stats.set_slowest_rank(clocks_.slowest());
  if (const ClockGate::Clock* slowest = clocks_.Find(clocks_.slowest())) {
    stats.set_slowest_worker(slowest->holder.name);
  }
  return stats;
}

std::unique_ptr<TableSnapshot> TableShard::Freeze(
    std::shared_ptr<ByteBudget> copies, SavedAs as) {
  std::vector<int> here;
  for (size_t p = 0; p < partitions_.size(); ++p) {
    if (partitions_[p] != nullptr) here.push_back(static_cast<int>(p));
  }
  const auto reach = [this](int p, absl::FunctionRef<void(Partition&)> fn) {
    fn(*partitions_[p]);
    return absl::OkStatus();
  };
  MutexLock lock(mu_);  // no round closes
  auto snapshot = std::make_unique<TableSnapshot>(
      *layout_, TableSnapshot::Moment{VersionLocked(), rates_}, std::move(here),
      TableSnapshot::Access{reach, reach}, std::move(copies), std::move(as));
  if (is_sync()) WEFT_CHECK(snapshot->FreezeAll().ok());
  return snapshot;
}

TableShard::Image TableShard::Save() {
  const std::unique_ptr<TableSnapshot> snapshot = Freeze();
  Image image;
  image.version = snapshot->moment().version;
  image.rates = snapshot->moment().rates;
  while (!snapshot->is_done()) {
    auto next = snapshot->Next();
    WEFT_CHECK(next.ok()) << next.status();  // nothing bounds its copies
    image.partitions.push_back(*std::move(next));
  }
  return image;
}

absl::Status TableShard::Restore(const Image& image) {
  for (const auto& [p, partition] : image.partitions) {
    if (p < 0 || static_cast<size_t>(p) >= partitions_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("table '", spec().name(), "' has no partition ", p));
    }
    WEFT_RETURN_IF_ERROR(CheckImage(*layout_, placement_, p, partition));
  }
  MutexLock lock(mu_);
  size_t rows = 0;
  for (const auto& [p, partition] : image.partitions) {
    if (partitions_[p] == nullptr) continue;
    partitions_[p]->Load(partition);
    rows += partition.keys.size();
  }
  size_t slices = 0;
  for (const DensePart::Group& group : dense_.groups) {
    slices += group.slices.size();
  }
  gate_ = MakeGate(spec(), image.version);
  rates_ = image.rates;
  pushes_ = image.version;
  initialized_ = rows >= slices;  // it may have been saved before it was
  return absl::OkStatus();
}

}  // namespace weft::ps
