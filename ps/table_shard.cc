#include "weft/ps/table_shard.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/check.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"

namespace weft::ps {
namespace {

int64_t BytesOf(const Tensor& tensor) {
  return tensor.defined() ? tensor.bytes() : 0;
}

// The largest result of one pull of a sparse table.
constexpr int64_t kMaxPullBytes = int64_t{1} << 30;

absl::Span<const uint64_t> KeysOf(const Tensor& keys) {
  if (!keys.defined()) return {};
  // A key is 64 bits without a sign; tensors know only the signed type.
  return absl::MakeConstSpan(
      reinterpret_cast<const uint64_t*>(keys.data<int64_t>()), keys.numel());
}

bool IsFlat(const Tensor& t, DType dtype, int dims) {
  return t.defined() && t.dtype() == dtype && t.dim() == dims &&
         t.is_contiguous();
}

std::string Found(const Tensor& t) {
  return t.defined() ? t.Describe() : "no tensor";
}

}  // namespace

absl::StatusOr<std::unique_ptr<TableShard>> TableShard::Create(
    v1::TableSpec spec, int server, int servers,
    std::shared_ptr<ByteBudget> budget) {
  WEFT_CHECK(server >= 0 && server < servers);
  WEFT_ASSIGN_OR_RETURN(auto layout, TableLayout::Create(std::move(spec)));
  return std::unique_ptr<TableShard>(
      new TableShard(std::move(layout), server, servers, std::move(budget)));
}

TableShard::TableShard(std::unique_ptr<TableLayout> layout, int server,
                       int servers, std::shared_ptr<ByteBudget> budget)
    : layout_(std::move(layout)),
      server_(server),
      placement_(spec().name(), spec().partitions(), servers),
      budget_(std::move(budget)),
      dense_(layout_->is_dense() ? CutDense(*layout_, placement_)[server]
                                 : DensePart{}),
      dense_group_(layout_->is_dense() ? spec().partitions() : 0, -1),
      gate_(MakeGate(spec(), 0)) {
  for (size_t i = 0; i < dense_.groups.size(); ++i) {
    dense_group_[dense_.groups[i].partition] = static_cast<int>(i);
  }
  partitions_.resize(spec().partitions());
  for (int p = 0; p < spec().partitions(); ++p) {
    const bool holds_rows = !layout_->is_dense() || DenseGroup(p) != nullptr;
    if (placement_.ServerOf(p) == server_ && holds_rows) {
      partitions_[p] = std::make_unique<Partition>(layout_.get());
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
      open);
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
  MutexLock lock(mu_);
  openings_.Forget(worker);
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

absl::Status TableShard::CheckSpan(uint32_t partition,
                                   absl::Span<const uint64_t> keys) const {
  uint64_t last = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t mixed = Mix64(keys[i]);
    if (placement_.PartitionOfMixed(mixed) != static_cast<int>(partition)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "key ", keys[i], " came in partition ", partition, " but belongs to ",
          placement_.PartitionOfKey(keys[i]),
          "; client and server must be built from the same sources"));
    }
    if (i > 0 && mixed <= last) {
      return absl::InvalidArgumentError(
          absl::StrCat("keys of partition ", partition,
                       " do not strictly ascend, mixed, at ", keys[i]));
    }
    last = mixed;
  }
  return absl::OkStatus();
}

absl::Status TableShard::CheckPush(const v1::Request& request,
                                   const Tensor& keys,
                                   const Tensor& values) const {
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("push to table '", spec().name(), "' on server ", server_,
                     ": ", what...));
  };
  if (layout_->is_dense() && keys.defined()) {
    return refuse("wanted no keys, found ", Found(keys));
  }
  if (!layout_->is_dense() && !IsFlat(keys, DType::kI64, 1)) {
    return refuse("wanted keys i64[n], found ", Found(keys));
  }
  const int spans = request.partitions_size();
  if (request.rows_size() != spans ||
      request.sequences_size() != (is_sync() ? 0 : spans)) {
    return refuse("wanted rows for each of ", spans,
                  " spans, and sequences in ", "ASYNC only, found ",
                  request.rows_size(), " and ", request.sequences_size());
  }
  if (is_sync() && request.rank() < 0) {
    return refuse("wanted a rank of at least 0, found ", request.rank());
  }
  const absl::Span<const uint64_t> all = KeysOf(keys);
  size_t at = 0;
  int64_t elements = 0;
  int64_t previous = -1;
  for (int i = 0; i < spans; ++i) {
    const uint32_t partition = request.partitions(i);
    const size_t rows = request.rows(i);
    const bool is_here = Owns(partition);
    const int64_t place =
        is_here && layout_->is_dense() ? dense_group_[partition] : partition;
    if (!is_here || place <= previous) {
      return refuse("partition ", partition,
                    " is not held here, or is out of order");
    }
    previous = place;
    if (!is_sync() && request.sequences(i) == PushSpan::kUnnumbered) {
      return refuse("partition ", partition, " has no sequence number");
    }
    if (layout_->is_dense()) {
      const DensePart::Group* group = DenseGroup(partition);
      if (rows != group->slices.size()) {
        return refuse("partition ", partition, " has ", group->slices.size(),
                      " slices, ", rows, " were sent");
      }
      elements += group->elements;
      continue;
    }
    if (rows > all.size() - at) {
      return refuse("spans name more rows than the ", all.size(), " keys sent");
    }
    const absl::Status checked = CheckSpan(partition, all.subspan(at, rows));
    if (!checked.ok()) return refuse(checked.message());
    at += rows;
    elements += static_cast<int64_t>(rows) * layout_->dim();
  }
  if (at != all.size()) {
    return refuse(all.size(), " keys were sent, spans name ", at);
  }
  const int dims = layout_->is_dense() ? 1 : 2;
  const bool fits = IsFlat(values, DType::kF32, dims) &&
                    values.numel() == elements &&
                    (dims == 1 || values.size(1) == layout_->dim());
  if (!fits) {
    const std::string wanted =
        dims == 1 ? absl::StrCat("f32[", elements, "]")
                  : absl::StrCat("f32[", at, ", ", layout_->dim(), "]");
    return refuse("wanted values ", wanted, ", found ", Found(values));
  }
  return absl::OkStatus();
}

absl::Status TableShard::NotHere(uint64_t key) const {
  return absl::InvalidArgumentError(
      absl::StrCat("pull from table '", spec().name(), "' on server ", server_,
                   ": key ", key, " belongs to server ",
                   placement_.ServerOf(placement_.PartitionOfKey(key)),
                   "; client and server must agree on the number of servers"));
}

absl::Status TableShard::CheckPull(const Tensor& keys) const {
  if (layout_->is_dense()) return absl::OkStatus();
  const std::string where = absl::StrCat("pull from table '", spec().name(),
                                         "' on server ", server_, ": ");
  if (!IsFlat(keys, DType::kI64, 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "wanted keys i64[n], found ", Found(keys)));
  }
  // A key is 8 bytes, its row up to 256 KiB.
  if (keys.numel() > kMaxPullBytes / (4 * layout_->dim())) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, keys.numel(), " rows of ", layout_->dim(),
                     " floats were asked for at once; ", kMaxPullBytes,
                     " bytes are the most, ask in several pulls"));
  }
  if (placement_.servers() == 1) return absl::OkStatus();  // all keys are here
  for (uint64_t key : KeysOf(keys)) {
    if (!Owns(placement_.PartitionOfKey(key))) return NotHere(key);
  }
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
  part.keys = std::move(push_keys);
  part.values = std::move(push_values);
  if (request.push())
    metrics_.Pushed(BytesOf(part.keys) + BytesOf(part.values));
  return is_sync()
             ? HandleInRound(request, std::move(part), pull_keys, deadline)
             : HandleAtOnce(request, part, pull_keys);
}

Future<ShardReply> TableShard::HandleInRound(const v1::Request& request,
                                             Part part, const Tensor& pull_keys,
                                             Instant deadline) {
  int64_t wanted = request.round();
  std::vector<Parked> released;
  std::optional<Future<ShardReply>> parked;
  {
    MutexLock lock(mu_);
    const absl::Status serving = CheckServing();
    if (!serving.ok()) return MakeReady<ShardReply>(serving);
    if (request.push()) {
      const absl::Status given = GivePart(request, std::move(part));
      if (!given.ok()) return MakeReady<ShardReply>(given);
      released = CloseRounds();
      ++wanted;
    }
    if (request.pull() && gate_.open() < wanted) {
      absl::StatusOr<Future<ShardReply>> waits =
          Park(wanted, deadline, pull_keys);
      parked = waits.ok() ? *std::move(waits)
                          : MakeReady<ShardReply>(waits.status());
    }
  }
  Answer(std::move(released));
  if (parked.has_value()) return *std::move(parked);
  return AnswerNow(request, pull_keys, v1::Reply());
}

absl::StatusOr<Future<ShardReply>> TableShard::Park(int64_t wanted,
                                                    Instant deadline,
                                                    const Tensor& keys) {
  // Whoever has pushed to as many rounds as are kept waits for the last of
  // them.
  constexpr int64_t kFarthest = RoundGate<Part>::kLookahead + 1;
  if (wanted - gate_.open() > kFarthest) {
    return absl::FailedPreconditionError(
        absl::StrCat("pull from table '", spec().name(), "' on server ",
                     server_, ": version ", wanted, " is too far ahead: round ",
                     gate_.open(), " is open, and at most ", kFarthest,
                     " rounds are waited for; open the table again"));
  }
  if (parked_.size() >= kMostParked) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "pull from table '", spec().name(), "' on server ", server_, ": ",
        parked_.size(), " pulls wait already for round ", gate_.open(),
        ", which waits for ", MissingParts(), "; pull again later"));
  }
  WEFT_ASSIGN_OR_RETURN(
      ByteBudget::Hold hold,
      Hold(BytesOf(keys), budget_ == nullptr ? 0 : budget_->most(),
           "the keys of a pull"));
  auto [promise, future] = MakePromise<ShardReply>();
  parked_.push_back(
      {wanted, deadline, keys, std::move(promise), std::move(hold)});
  return std::move(future);
}

Future<ShardReply> TableShard::HandleAtOnce(const v1::Request& request,
                                            const Part& part,
                                            const Tensor& pull_keys) {
  double lr_scale = 1;
  {
    MutexLock lock(mu_);
    const absl::Status serving = CheckServing();
    if (!serving.ok()) return MakeReady<ShardReply>(serving);
    lr_scale = rates_.At(0);
  }
  v1::Reply reply;
  if (request.push()) {
    const absl::Status pushed = PushNow(request, part, lr_scale, reply);
    if (!pushed.ok()) return MakeReady<ShardReply>(pushed);
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
    absl::StatusOr<ShardReply> read = Read(pull_keys, reply.version());
    if (!read.ok()) return MakeReady<ShardReply>(read.status());
    now.values = std::move(read->values);
    metrics_.Pulled(BytesOf(pull_keys) + BytesOf(now.values));
    if (!is_sync()) metrics_.PulledAt(request.client(), reply.version());
  }
  now.reply = std::move(reply);
  return MakeReady<ShardReply>(std::move(now));
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

absl::Status TableShard::PushNow(const v1::Request& request, const Part& part,
                                 double lr_scale, v1::Reply& reply) {
  const std::vector<PushSpan> spans = SpansOf(part);
  int64_t applied = 0;
  absl::Status refused;
  for (size_t i = 0; i < spans.size() && refused.ok(); ++i) {
    const uint32_t partition = part.spans[i].partition;
    const absl::StatusOr<bool> is_new =
        partitions_[partition]->ApplyOnce(spans[i], lr_scale);
    if (is_new.ok()) {
      applied += *is_new ? 1 : 0;
    } else {
      refused =
          Reworded(is_new.status(),
                   absl::StrCat("table '", request.table(), "' partition ",
                                partition, ": ", is_new.status().message()));
    }
  }
  reply.set_duplicates(static_cast<int64_t>(spans.size()) - applied);
  MutexLock lock(mu_);
  openings_.Use(request.client());
  if (!refused.ok() || applied == 0) return refused;
  if (request.continues()) return absl::OkStatus();
  metrics_.PushedAt(request.client(), pushes_);
  ++pushes_;
  return absl::OkStatus();
}

absl::Status TableShard::GivePart(const v1::Request& request, Part part) {
  using Answer = RoundGate<Part>::Answer;
  const auto refuse = [&](const auto&... why) {
    return absl::FailedPreconditionError(absl::StrCat(
        "table '", spec().name(), "': part of shard ", request.shard(),
        " by rank ", request.rank(), " in round ", request.round(), why...));
  };
  // The open round's part is always one that it waits for.
  const bool is_ahead = request.round() > gate_.open();
  const int64_t most = budget_ == nullptr ? 0 : budget_->most();
  WEFT_ASSIGN_OR_RETURN(part.hold,
                        Hold(BytesOf(part.keys) + BytesOf(part.values),
                             is_ahead ? most / 2 : most,
                             is_ahead ? "a part of a round that is ahead"
                                      : "a part of the open round"));
  switch (gate_.Give(request.shard(), request.rank(), request.round(),
                     std::move(part), request.take_over())) {
    case Answer::kKept:
    case Answer::kInherited:
    case Answer::kApplied:
      return absl::OkStatus();
    case Answer::kDuplicate:
      if (gate_.Find(request.shard(), request.round())->client ==
          request.client()) {
        return absl::OkStatus();
      }
      return refuse(
          " was given by another client; each worker needs a rank of its own, "
          "and a table that is opened again goes on with the next round");
    case Answer::kMissed:
      return refuse(
          " came after the round had closed without it: the rank had "
          "been declared dead; pull and go on with round ",
          gate_.open());
    case Answer::kTooFar:
      return refuse(" is too far ahead: round ", gate_.open(),
                    " is open, and waits for ", MissingParts());
    case Answer::kNotOwner:
      return refuse(": rank ", gate_.OwnerOf(request.shard()),
                    " serves this shard; leave it to that one, or take it over "
                    "if that one died");
    case Answer::kUnknown:
      return refuse(
          ": no such shard, or its rank was declared dead; the table "
          "was made for ",
          gate_.shards(), " shards, ", gate_.counted(), " of them count");
  }
  return absl::InternalError("unreachable");
}

std::vector<TableShard::Parked> TableShard::CloseRounds() {
  if (round_holds_ > 0) return {};  // ResumeRounds() does it
  for (;;) {
    const int64_t round = gate_.open();
    const std::vector<Part> parts = gate_.Close();
    if (parts.empty()) break;
    ApplyRound(parts, rates_.At(round));
    rates_.Trim(gate_.open());
  }
  std::vector<Parked> released;
  const auto still_parked = std::partition(
      parked_.begin(), parked_.end(),
      [this](const Parked& p)
          ABSL_NO_THREAD_SAFETY_ANALYSIS { return p.version > gate_.open(); });
  std::move(still_parked, parked_.end(), std::back_inserter(released));
  parked_.erase(still_parked, parked_.end());
  return released;
}

void TableShard::ResumeRounds() {
  std::vector<Parked> released;
  {
    MutexLock lock(mu_);
    --round_holds_;
    released = CloseRounds();
  }
  Answer(std::move(released));
}

void TableShard::ApplyRound(const std::vector<Part>& parts, double lr_scale) {
  std::map<uint32_t, std::vector<PushSpan>> by_partition;
  for (const Part& part : parts) {
    const std::vector<PushSpan> spans = SpansOf(part);
    for (size_t i = 0; i < spans.size(); ++i) {
      by_partition[part.spans[i].partition].push_back(spans[i]);
    }
  }
  const float scale = spec().reduction() == v1::TableSpec::MEAN
                          ? 1.0f / static_cast<float>(parts.size())
                          : 1.0f;
  for (const auto& [partition, spans] : by_partition) {
    partitions_[partition]->ApplySum(spans, scale, lr_scale);
  }
}

void TableShard::Answer(std::vector<Parked> released) {
  int64_t version = 0;
  {
    MutexLock lock(mu_);
    version = VersionLocked();
  }
  for (Parked& parked : released) {
    absl::StatusOr<ShardReply> read = Read(parked.keys, version);
    if (read.ok()) {
      metrics_.Pulled(BytesOf(parked.keys) + BytesOf(read->values));
    }
    parked.promise.Set(std::move(read));
  }
}

absl::StatusOr<ShardReply> TableShard::Read(const Tensor& keys,
                                            int64_t version) const {
  ShardReply result;
  result.reply.set_version(version);
  if (layout_->is_dense()) {
    result.values = Tensor::Empty({dense_.elements});
    float* out = result.values.data<float>();
    for (const DensePart::Group& group : dense_.groups) {
      out = partitions_[group.partition]->Read(group.slices, out);
    }
    return result;
  }
  const absl::Span<const uint64_t> all = KeysOf(keys);
  result.values =
      Tensor::Empty({static_cast<int64_t>(all.size()), layout_->dim()});
  float* out = result.values.data<float>();
  size_t begin = 0;
  while (begin < all.size()) {  // a lock for each run of one partition
    const int partition = placement_.PartitionOfKey(all[begin]);
    size_t end = begin + 1;
    while (end < all.size() &&
           placement_.PartitionOfKey(all[end]) == partition) {
      ++end;
    }
    out = partitions_[partition]->Read(all.subspan(begin, end - begin), out);
    begin = end;
  }
  return result;
}

int64_t TableShard::VersionLocked() const {
  return is_sync() ? gate_.open() : pushes_;
}

std::string TableShard::MissingParts() const {
  constexpr size_t kShown = 16;
  std::vector<int> missing = gate_.Missing();
  const size_t more = missing.size() - std::min(missing.size(), kShown);
  missing.resize(missing.size() - more);
  std::string text = absl::StrJoin(
      missing, ", ",
      [this](std::string* out, int shard) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        const int owner = gate_.OwnerOf(shard);
        absl::StrAppend(out, "shard ", shard,
                        owner < 0 ? ", which nobody serves"
                                  : absl::StrCat(" of rank ", owner));
      });
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return text;
}

void TableShard::DeclareDead(int rank) {
  std::vector<Parked> released;
  {
    MutexLock lock(mu_);
    gate_.DeclareDead(rank);
    released = CloseRounds();
  }
  Answer(std::move(released));
}

void TableShard::Admit(int rank) {
  MutexLock lock(mu_);
  gate_.Admit(rank);
}

void TableShard::Expire(Instant now) {
  std::vector<Parked> expired;
  std::vector<uint64_t> closed;
  std::string missing;
  int64_t open = 0;
  {
    MutexLock lock(mu_);
    const auto alive = std::partition(
        parked_.begin(), parked_.end(),
        [now](const Parked& parked) { return now < parked.deadline; });
    std::move(alive, parked_.end(), std::back_inserter(expired));
    parked_.erase(alive, parked_.end());
    if (!expired.empty()) missing = MissingParts();
    open = gate_.open();
    closed = openings_.TakeClosed();
  }
  for (const auto& partition : partitions_) {
    if (closed.empty() || is_sync()) break;  // there are no windows
    if (partition != nullptr) partition->Forget(closed);
  }
  for (Parked& parked : expired) {
    parked.promise.Set(absl::DeadlineExceededError(
        absl::StrCat("table '", spec().name(), "' on server ", server_,
                     " did not reach version ", parked.version, ": round ",
                     open, " waits for ", missing)));
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
  for (const auto& partition : partitions_) {
    if (partition == nullptr) continue;
    stats.set_rows(stats.rows() + partition->rows());
    stats.set_memory_bytes(stats.memory_bytes() + partition->memory_bytes());
    stats.set_windows(stats.windows() + partition->windows());
  }
  MutexLock lock(mu_);
  stats.set_version(VersionLocked());
  stats.set_learning_rate_scale(rates_.At(is_sync() ? gate_.open() : 0));
  stats.set_initialized(initialized_ || !layout_->is_dense());
  return stats;
}

TableShard::Image TableShard::Save() {
  Image image;
  {
    MutexLock lock(mu_);
    if (is_sync()) HoldRounds();
    image.version = VersionLocked();
    image.rates = rates_;
  }
  const absl::Cleanup resume = [this] {
    if (is_sync()) ResumeRounds();
  };
  for (size_t p = 0; p < partitions_.size(); ++p) {
    if (partitions_[p] == nullptr) continue;
    image.partitions.emplace_back(static_cast<int>(p), partitions_[p]->Image());
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
