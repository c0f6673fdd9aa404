#include "weft/ps/client.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "weft/base/check.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/status_macros.h"
#include "weft/ps/core/copy_row.h"
#include "weft/ps/core/sequence_window.h"
#include "weft/ps/pinned_servers.h"
#include "weft/rpc/call.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/session/failure.h"

namespace weft::ps {

// Shards of a checkpoint are numbered; each server has a range of its own, one
// for each table it may hold.
constexpr int kShardsOfServer = 1024;

constexpr absl::Duration kServingPause = absl::Milliseconds(20);

namespace internal {

// The common part of dense and sparse tables: the calls, the numbers of pushes,
// rounds.
class TableClient {
 public:
  TableClient(const ClientOptions& options,
              std::shared_ptr<PinnedServers> servers,
              std::unique_ptr<TableLayout> layout, uint64_t identity,
              int64_t version)
      : options_(options),
        servers_(std::move(servers)),
        layout_(std::move(layout)),
        placement_(layout_->spec().name(), layout_->spec().partitions(),
                   static_cast<int>(options.servers.size())),
        identity_(identity),
        round_(version),
        pushed_(layout_->spec().partitions(), 0) {}

  const TableLayout& layout() const { return *layout_; }
  const Placement& placement() const { return placement_; }
  int servers() const { return placement_.servers(); }
  uint64_t identity() const { return identity_; }
  int64_t round() const { return round_; }
  bool is_sync() const { return layout_->spec().mode() == v1::TableSpec::SYNC; }

  rpc::Target To(int server) const {
    return (*servers_)[server].WithTimeout(options_.timeout);
  }

  // The result of calls To() servers.
  template <typename T>
  Future<T> Watch(Future<T> result) const {
    return PinnedServers::Watch(servers_, std::move(result));
  }

  // The part of this worker's own shard in the round that is its next. A worker
  // that was thought dead, or came back, takes its shard back.
  RoundPart OwnPart() const { return {options_.rank, round_, true}; }

  v1::Request NewRequest(bool push, bool pull, const RoundPart& part) const {
    v1::Request request;
    request.set_table(layout_->spec().name());
    request.set_client(identity_);
    request.set_rank(options_.rank);
    request.set_push(push);
    request.set_pull(pull);
    request.set_round(part.round);
    if (push) {
      request.set_shard(part.shard);
      request.set_take_over(part.take_over);
    }
    return request;
  }

  void AddSpan(v1::Request& request, int partition, int64_t rows) {
    request.add_partitions(partition);
    request.add_rows(static_cast<uint32_t>(rows));
    if (!is_sync()) request.add_sequences(++pushed_[partition]);
  }

  void EndRound() {
    if (is_sync()) ++round_;
  }

  // To every server: all must know it.
  Future<void> SetLearningRateScale(double scale,
                                    std::optional<int64_t> from_round) const {
    absl::Status fit = servers_status();
    if (fit.ok() && from_round.has_value()) fit = CheckRounds("a round");
    if (!fit.ok()) return MakeReady<void>(fit);
    v1::LearningRate rate;
    rate.set_table(layout_->spec().name());
    rate.set_client(identity_);
    rate.set_scale(scale);
    rate.set_from_round(from_round.value_or(round_));
    std::vector<Future<void>> calls;
    for (int server = 0; server < servers(); ++server) {
      calls.push_back(
          rpc::CallAsync(To(server), &ps::SetLearningRateScale, rate));
    }
    return Watch(WhenAllOk(std::move(calls)));
  }

  // ASYNC: no partition takes a push that is more than SequenceWindow::kWidth
  // after one that it has not applied. So waits for the oldest push that is
  // under way, if as many are; its error, which has closed the table.
  absl::Status AwaitRoom() {
    while (!under_way_.empty() && under_way_.front().IsReady()) {
      under_way_.pop_front();
    }
    if (under_way_.size() < SequenceWindow::kWidth) return absl::OkStatus();
    const absl::Status oldest = under_way_.front().Wait(options_.timeout);
    if (oldest.ok()) under_way_.pop_front();
    return oldest;
  }
  void Sent(const Future<std::vector<ExchangeReply>>& push) {
    if (is_sync()) return;
    // Without what it pulls, which nobody else is to hold.
    under_way_.push_back(push.Then([](const std::vector<ExchangeReply>&) {}));
  }

  // Whether an operation is under way, for which a server works already.
  bool has_pushes_under_way() const { return !under_way_.empty(); }
  bool has_pull_under_way() const {
    return last_pull_.has_value() && !last_pull_->IsReady();
  }
  void Pulls(const Future<void>& pull) { last_pull_ = pull; }

  // The cut of `keys`, which is kept for the next call: a worker pulls the rows
  // of a batch and then pushes to the same ones. `grown` as CutSparse: not
  // called if the last call had the same keys.
  std::shared_ptr<const SparseCut> Cut(
      const Tensor& keys, absl::FunctionRef<void(const SparseCut&)> grown) {
    const Tensor flat = keys.Contiguous();
    const absl::Span<const int64_t> wanted = flat.span<int64_t>();
    if (cut_ == nullptr || absl::MakeConstSpan(cut_keys_) != wanted) {
      cut_keys_.assign(wanted.begin(), wanted.end());
      cut_ = std::make_shared<const SparseCut>(
          CutSparse(wanted, placement_, grown));
    }
    return cut_;
  }
  std::shared_ptr<const SparseCut> Cut(const Tensor& keys) {
    return Cut(keys, [](const SparseCut&) {});
  }

  // kFailedPrecondition unless it has rounds.
  absl::Status CheckRounds(absl::string_view what) const {
    if (is_sync()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "table '", layout_->spec().name(), "': wanted a SYNC table for ", what,
        ", found ASYNC, which has no rounds"));
  }

  // kUnavailable once a server is gone.
  absl::Status servers_status() const { return servers_->status(); }

  // As servers_status(); kFailedPrecondition once a push has failed.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_) {
    WEFT_RETURN_IF_ERROR(servers_status());
    MutexLock lock(mu_);
    if (failure_.ok()) return failure_;
    return absl::FailedPreconditionError(
        absl::StrCat("table '", layout_->spec().name(),
                     "': an earlier push failed, open the table again: ",
                     failure_.message()));
  }
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (failure_.ok()) failure_ = status;
  }

 private:
  const ClientOptions options_;
  const std::shared_ptr<PinnedServers> servers_;
  const std::unique_ptr<TableLayout> layout_;
  const Placement placement_;
  const uint64_t identity_;
  int64_t round_;
  std::vector<uint64_t> pushed_;  // by partition: the last number given
  // ASYNC: pushes, in the order in which they were sent.
  std::deque<Future<void>> under_way_;
  std::optional<Future<void>> last_pull_;
  std::vector<int64_t> cut_keys_;  // of cut_
  std::shared_ptr<const SparseCut> cut_;

  mutable Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace internal

namespace {

using internal::TableClient;
using Replies = std::vector<ExchangeReply>;

// Remembers the failure of a push, on whichever thread it shows.
void Watch(const Future<Replies>& replies,
           const std::shared_ptr<TableClient>& table) {
  replies.OnReady([table](const absl::StatusOr<Replies>& result) {
    if (!result.ok()) table->Fail(result.status());
  });
}

absl::Status Unfit(const TableLayout& layout, absl::string_view what,
                   absl::string_view wanted, const Tensor& found) {
  return absl::InvalidArgumentError(absl::StrCat(
      "table '", layout.spec().name(), "': ", what, " wanted ", wanted,
      ", found ", found.defined() ? found.Describe() : "no tensor"));
}

absl::Status CheckFlat(const TableLayout& layout, absl::string_view what,
                       const Tensor& t) {
  const int64_t n = layout.spec().elements();
  if (t.defined() && t.dtype() == DType::kF32 && t.dim() == 1 &&
      t.numel() == n) {
    return absl::OkStatus();
  }
  return Unfit(layout, what, absl::StrCat("f32[", n, "]"), t);
}

absl::Status CheckKeys(const TableLayout& layout, const Tensor& keys) {
  if (keys.defined() && keys.dtype() == DType::kI64 && keys.dim() == 1) {
    return absl::OkStatus();
  }
  return Unfit(layout, "keys:", "i64[n]", keys);
}

absl::Status CheckRows(const TableLayout& layout, const Tensor& keys,
                       const Tensor& rows) {
  if (rows.defined() && rows.dtype() == DType::kF32 && rows.dim() == 2 &&
      rows.size(0) == keys.numel() && rows.size(1) == layout.dim()) {
    return absl::OkStatus();
  }
  return Unfit(layout, "gradients:",
               absl::StrCat("f32[", keys.numel(), ", ", layout.dim(), "]"),
               rows);
}

// The slices of one server out of the whole vector, one after another: the
// vector itself if that is all of it and nobody else has its memory. Else a
// copy, which is moved into the call: the call would make one, of memory that
// is not pooled.
Tensor Gather(Tensor& values, const TableLayout& layout,
              const DensePart& part) {
  if (part.is_whole) {
    return values.is_sole_owner() ? std::move(values) : values.Clone();
  }
  Tensor out = Tensor::Empty({part.elements});
  const float* from = values.data<float>();
  float* to = out.data<float>();
  for (const DensePart::Group& group : part.groups) {
    for (uint64_t slice : group.slices) {
      const int64_t begin = static_cast<int64_t>(slice) * layout.dim();
      const int64_t length = layout.RowLength(slice);
      std::copy_n(from + begin, length, to);
      to += length;
    }
  }
  return out;
}

Tensor KeyTensor(absl::Span<const uint64_t> keys) {
  Tensor out = Tensor::Empty({static_cast<int64_t>(keys.size())}, DType::kI64);
  std::copy(keys.begin(), keys.end(), out.data<int64_t>());
  return out;
}

// Where in cut.order the keys from unique number `unique` on begin.
size_t PlaceInOrder(const SparseCut& cut, int64_t unique) {
  if (cut.unique_of.empty()) return static_cast<size_t>(unique);
  const auto begin = cut.unique_of.begin();
  return std::lower_bound(begin, begin + cut.sorted, unique) - begin;
}

// Row i of the result is the sum of the rows of `gradients` whose key is unique
// number first + i.
Tensor SumByKey(const SparseCut& cut, const Tensor& gradients, int64_t first,
                int64_t rows) {
  const int64_t dim = gradients.size(1);
  Tensor sums = Tensor::Empty({rows, dim});
  const float* const from = gradients.data<float>();
  float* to = sums.data<float>();
  const size_t begin = PlaceInOrder(cut, first);
  const size_t end = PlaceInOrder(cut, first + rows);
  if (cut.unique_of.empty() && dim == 1) {
    for (size_t i = begin; i < end; ++i) *to++ = from[cut.order[i]];
    return sums;
  }
  to -= dim;
  int64_t last = first - 1;
  for (size_t i = begin; i < end; ++i) {
    const int64_t unique = cut.UniqueOf(i);
    const float* row = from + int64_t{cut.order[i]} * dim;
    if (unique != last) {
      last = unique;
      to += dim;
      CopyRow(row, dim, to);
    } else {
      for (int64_t j = 0; j < dim; ++j) to[j] += row[j];
    }
  }
  return sums;
}

}  // namespace

// --- DenseTable --------------------------------------------------------------

DenseTable::DenseTable(std::unique_ptr<TableClient> table)
    : table_(std::move(table)),
      cut_(std::make_shared<const std::vector<DensePart>>(
          CutDense(table_->layout(), table_->placement()))) {}
DenseTable::~DenseTable() = default;

int64_t DenseTable::elements() const {
  return table_->layout().spec().elements();
}
int64_t DenseTable::round() const { return table_->round(); }

Future<void> DenseTable::Initialize(const Tensor& values) {
  absl::Status fit = table_->servers_status();
  if (fit.ok()) fit = CheckFlat(table_->layout(), "first values:", values);
  if (!fit.ok()) return MakeReady<void>(fit);
  Tensor flat = values.Contiguous();
  std::vector<Future<void>> calls;
  for (int server = 0; server < table_->servers(); ++server) {
    if ((*cut_)[server].groups.empty()) continue;
    calls.push_back(rpc::CallAsync(
        table_->To(server), &ps::Initialize, table_->layout().spec().name(),
        table_->identity(), Gather(flat, table_->layout(), (*cut_)[server])));
  }
  return table_->Watch(WhenAllOk(std::move(calls)));
}

absl::Status DenseTable::CheckGradient(const Tensor& gradient) const {
  WEFT_RETURN_IF_ERROR(table_->status());
  return CheckFlat(table_->layout(), "gradient:", gradient);
}

std::vector<Future<ExchangeReply>> DenseTable::Send(
    std::optional<Tensor> gradient, bool pull, const RoundPart& of) {
  const bool push = gradient.has_value();
  if (push && !gradient->is_contiguous()) gradient = gradient->Contiguous();
  std::vector<Future<ExchangeReply>> calls;
  for (int server = 0; server < table_->servers(); ++server) {
    const DensePart& part = (*cut_)[server];
    if (part.groups.empty()) continue;
    v1::Request request = table_->NewRequest(push, pull, of);
    std::optional<Tensor> values;
    if (push) {
      for (const DensePart::Group& group : part.groups) {
        table_->AddSpan(request, group.partition, group.slices.size());
      }
      values = Gather(*gradient, table_->layout(), part);
    }
    calls.push_back(rpc::CallAsync(table_->To(server), &ps::Exchange, request,
                                   std::optional<Tensor>(), std::move(values),
                                   std::optional<Tensor>()));
  }
  return calls;
}

Future<Replies> DenseTable::Exchange(std::optional<Tensor> gradient,
                                     bool pull) {
  const bool push = gradient.has_value();
  absl::Status fit = push ? CheckGradient(*gradient) : table_->servers_status();
  if (fit.ok() && push) fit = table_->AwaitRoom();
  if (!fit.ok()) return MakeReady<Replies>(fit);
  Future<Replies> replies = table_->Watch(
      WhenAllOk(Send(std::move(gradient), pull, table_->OwnPart())));
  if (!push) return replies;
  table_->Sent(replies);
  table_->EndRound();
  Watch(replies, table_);
  return replies;
}

Future<void> DenseTable::PushShard(const RoundPart& part, Tensor gradient) {
  absl::Status fit = table_->CheckRounds("PushShard");
  if (fit.ok()) fit = CheckGradient(gradient);
  if (!fit.ok()) return MakeReady<void>(fit);
  return table_
      ->Watch(WhenAllOk(Send(std::move(gradient), /*pull=*/false, part)))
      .Then([](const Replies&) {});
}

Future<void> DenseTable::SetLearningRateScale(
    double scale, std::optional<int64_t> from_round) {
  return table_->SetLearningRateScale(scale, from_round);
}

void DenseTable::EndRound() { table_->EndRound(); }

namespace {

// Servers are not trusted to send tensors of the right shape.
absl::Status CheckReply(const ExchangeReply& reply, const Shape& wanted) {
  const std::optional<Pulled>& pulled = std::get<1>(reply);
  const Tensor values = pulled.has_value() ? pulled->values : Tensor();
  if (values.defined() && values.dtype() == DType::kF32 &&
      values.shape() == wanted && values.is_contiguous()) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("a server answered a pull with ",
                   values.defined() ? values.Describe() : "no values",
                   "; are client and server built from the same sources?"));
}

// The whole vector out of the servers' parts of it.
absl::StatusOr<Tensor> Assemble(const std::vector<DensePart>& cut,
                                const TableLayout& layout,
                                const Replies& replies) {
  for (const DensePart& part : cut) {
    if (!part.is_whole) continue;
    WEFT_RETURN_IF_ERROR(CheckReply(replies.front(), {part.elements}));
    return std::get<1>(replies.front())->values;
  }
  Tensor out = Tensor::Empty({layout.spec().elements()});
  float* to = out.data<float>();
  size_t next = 0;
  for (const DensePart& part : cut) {
    if (part.groups.empty()) continue;
    const ExchangeReply& reply = replies[next++];
    WEFT_RETURN_IF_ERROR(CheckReply(reply, {part.elements}));
    const float* from = std::get<1>(reply)->values.data<float>();
    for (const DensePart::Group& group : part.groups) {
      for (uint64_t slice : group.slices) {
        const int64_t begin = static_cast<int64_t>(slice) * layout.dim();
        const int64_t length = layout.RowLength(slice);
        std::copy_n(from, length, to + begin);
        from += length;
      }
    }
  }
  return out;
}

}  // namespace

Future<Tensor> DenseTable::PushPull(Tensor gradient) {
  return Exchange(std::move(gradient), /*pull=*/true)
      .Then([cut = cut_, table = table_](const Replies& replies) {
        return Assemble(*cut, table->layout(), replies);
      });
}

Future<Tensor> DenseTable::Pull() {
  return Exchange(std::nullopt, /*pull=*/true)
      .Then([cut = cut_, table = table_](const Replies& replies) {
        return Assemble(*cut, table->layout(), replies);
      });
}

Future<void> DenseTable::Push(Tensor gradient) {
  return Exchange(std::move(gradient), /*pull=*/false).Then([](const Replies&) {
  });
}

// --- SparseTable -------------------------------------------------------------

SparseTable::SparseTable(std::unique_ptr<TableClient> table)
    : table_(std::move(table)) {}
SparseTable::~SparseTable() = default;

int64_t SparseTable::dim() const { return table_->layout().dim(); }
int64_t SparseTable::round() const { return table_->round(); }

absl::Status SparseTable::CheckPush(const Tensor& keys,
                                    const Tensor& gradients) const {
  WEFT_RETURN_IF_ERROR(table_->status());
  WEFT_RETURN_IF_ERROR(CheckKeys(table_->layout(), keys));
  return CheckRows(table_->layout(), keys, gradients);
}

namespace {

// A call, and the rows that it pulls: so many from unique number `first` on.
struct Call {
  Future<ExchangeReply> reply;
  int64_t first;
  int64_t rows;
};

// One message to each server.
std::vector<Call> Send(TableClient& table, const SparseCut* pushed,
                       const Tensor& gradients, const SparseCut* pulled,
                       const RoundPart& of) {
  std::vector<Call> calls;
  for (int server = 0; server < table.servers(); ++server) {
    // A synchronous round needs a part of each shard at every server.
    const bool push_here =
        pushed != nullptr &&
        (table.is_sync() || pushed->parts[server].size() > 0);
    const bool pull_here =
        pulled != nullptr && pulled->parts[server].size() > 0;
    if (!push_here && !pull_here) continue;
    v1::Request request = table.NewRequest(push_here, pull_here, of);
    std::optional<Tensor> keys, values, wanted;
    if (push_here) {
      const SparsePart& part = pushed->parts[server];
      for (const SparsePart::Group& group : part.groups) {
        table.AddSpan(request, group.partition, group.end - group.begin);
      }
      keys = KeyTensor(pushed->KeysOf(server));
      values = SumByKey(*pushed, gradients, part.begin, part.size());
    }
    if (pull_here) wanted = KeyTensor(pulled->KeysOf(server));
    calls.push_back(
        {rpc::CallAsync(table.To(server), &ps::Exchange, request,
                        std::move(keys), std::move(values), std::move(wanted)),
         pull_here ? pulled->parts[server].begin : 0,
         pull_here ? pulled->parts[server].size() : 0});
  }
  return calls;
}

// ASYNC: a push or a pull in pieces, which are whole partitions of one server
// each, so that a server works on the first while the keys of the next are
// sorted.
class Pieces {
 public:
  // Of `keys` keys. `gradients`: of a push.
  Pieces(TableClient& table, int64_t keys, const Tensor* gradients)
      : table_(table), left_(keys), gradients_(gradients) {
    const bool serves_already = gradients != nullptr
                                    ? table.has_pushes_under_way()
                                    : table.has_pull_under_way();
    const int64_t pieces =
        serves_already ? 1
                       : std::clamp(keys / kLeastRows, int64_t{1}, kMostPieces);
    rows_ = (keys + pieces - 1) / pieces;
  }

  // Sends the pieces that are whole; all: also what is left.
  void Send(const SparseCut& cut, bool all) {
    for (; server_ < table_.servers(); ++server_, group_ = 0) {
      const std::vector<SparsePart::Group>& groups = cut.parts[server_].groups;
      const bool is_whole = all || HasGroupsAfter(cut, server_);
      while (group_ < groups.size()) {
        const int64_t begin = groups[group_].begin;
        size_t end = group_;
        while (end < groups.size() &&
               (groups[end].begin - begin < rows_ ||
                left_ - (groups[end].begin - begin) < rows_ / 2)) {
          ++end;
        }
        if (end == groups.size() && !is_whole) return;
        SendGroups(cut, group_, end);
        group_ = end;
      }
      if (!is_whole) return;
    }
  }

  std::vector<Call> Take() { return std::move(calls_); }

 private:
  // A call costs as much as some hundred rows.
  static constexpr int64_t kLeastRows = 3000;
  static constexpr int64_t kMostPieces = 12;

  static bool HasGroupsAfter(const SparseCut& cut, int server) {
    for (size_t s = server + 1; s < cut.parts.size(); ++s) {
      if (!cut.parts[s].groups.empty()) return true;
    }
    return false;
  }

  void SendGroups(const SparseCut& cut, size_t begin, size_t end) {
    const SparsePart& part = cut.parts[server_];
    const bool push = gradients_ != nullptr;
    v1::Request request = table_.NewRequest(push, !push, table_.OwnPart());
    request.set_continues(begin > 0);
    const int64_t first = part.begin + part.groups[begin].begin;
    const int64_t rows = part.groups[end - 1].end - part.groups[begin].begin;
    Tensor keys = KeyTensor(absl::MakeConstSpan(cut.keys).subspan(first, rows));
    std::optional<Tensor> pushed, values, pulled;
    if (push) {
      for (size_t g = begin; g < end; ++g) {
        table_.AddSpan(request, part.groups[g].partition,
                       part.groups[g].end - part.groups[g].begin);
      }
      pushed = std::move(keys);
      values = SumByKey(cut, *gradients_, first, rows);
    } else {
      pulled = std::move(keys);
    }
    calls_.push_back({rpc::CallAsync(table_.To(server_), &ps::Exchange, request,
                                     std::move(pushed), std::move(values),
                                     std::move(pulled)),
                      first, push ? 0 : rows});
    left_ -= rows;
  }

  TableClient& table_;
  int64_t left_;  // keys that were not sent, or repeat others
  const Tensor* const gradients_;
  int64_t rows_;  // of a piece, but for the last group and the last piece
  int server_ = 0;
  size_t group_ = 0;  // the server's next
  std::vector<Call> calls_;
};

// Puts pulled rows where the caller's keys are.
absl::Status Scatter(const SparseCut& cut, int64_t first, int64_t rows,
                     const ExchangeReply& reply, Tensor& out) {
  if (rows == 0) return absl::OkStatus();  // it was a push
  const int64_t dim = out.size(1);
  WEFT_RETURN_IF_ERROR(CheckReply(reply, {rows, dim}));
  const float* const from = std::get<1>(reply)->values.data<float>();
  float* const to = out.data<float>();
  const size_t begin = PlaceInOrder(cut, first);
  const size_t end = PlaceInOrder(cut, first + rows);
  if (cut.unique_of.empty() && dim == 1) {
    for (size_t i = begin; i < end; ++i) to[cut.order[i]] = from[i - begin];
    return absl::OkStatus();
  }
  for (size_t i = begin; i < end; ++i) {
    const int64_t row = int64_t{cut.UniqueOf(i)} - first;
    CopyRow(from + row * dim, dim, to + int64_t{cut.order[i]} * dim);
  }
  return absl::OkStatus();
}

}  // namespace

Future<Tensor> SparseTable::Exchange(const Tensor* push_keys,
                                     const Tensor* gradients,
                                     const Tensor* pull_keys) {
  const bool push = push_keys != nullptr;
  const bool pull = pull_keys != nullptr;
  absl::Status fit =
      push ? CheckPush(*push_keys, *gradients) : table_->servers_status();
  if (fit.ok() && pull) fit = CheckKeys(table_->layout(), *pull_keys);
  if (fit.ok() && push) fit = table_->AwaitRoom();
  if (!fit.ok()) return MakeReady<Tensor>(fit);
  const Tensor rows = push ? gradients->Contiguous() : Tensor();
  std::shared_ptr<const SparseCut> pulled;
  std::vector<Call> calls;
  if (!table_->is_sync() && push != pull) {
    const Tensor& keys = push ? *push_keys : *pull_keys;
    Pieces pieces(*table_, keys.numel(), push ? &rows : nullptr);
    const auto cut = table_->Cut(
        keys, [&](const SparseCut& grown) { pieces.Send(grown, false); });
    pieces.Send(*cut, true);
    calls = pieces.Take();
    if (pull) pulled = cut;
  } else {
    std::shared_ptr<const SparseCut> pushed;
    if (push) pushed = table_->Cut(*push_keys);
    if (pull) pulled = table_->Cut(*pull_keys);
    calls = Send(*table_, pushed.get(), rows, pulled.get(), table_->OwnPart());
  }

  const auto after_push = [this](std::vector<Future<ExchangeReply>> calls) {
    Future<Replies> replies = table_->Watch(WhenAllOk(std::move(calls)));
    table_->Sent(replies);
    table_->EndRound();
    Watch(replies, table_);
    return replies;
  };
  if (!pull) {
    std::vector<Future<ExchangeReply>> replies;
    for (Call& call : calls) replies.push_back(std::move(call.reply));
    return after_push(std::move(replies)).Then([](const Replies&) {
      return Tensor();
    });
  }
  // Rows are put in their places as they come.
  Tensor out = Tensor::Empty({pull_keys->numel(), dim()});
  std::vector<Future<ExchangeReply>> replies;
  std::vector<Future<void>> placed;
  for (Call& call : calls) {
    if (push) replies.push_back(call.reply);
    placed.push_back(
        std::move(call.reply)
            .Then([pulled, out, first = call.first,
                   rows = call.rows](const ExchangeReply& reply) mutable {
              return Scatter(*pulled, first, rows, reply, out);
            }));
  }
  if (push) (void)after_push(std::move(replies));
  Future<void> all = table_->Watch(WhenAllOk(std::move(placed)));
  table_->Pulls(all);
  return std::move(all).Then([out] { return out; });
}

Future<void> SparseTable::PushShard(const RoundPart& part, const Tensor& keys,
                                    const Tensor& gradients) {
  absl::Status fit = table_->CheckRounds("PushShard");
  if (fit.ok()) fit = CheckPush(keys, gradients);
  if (!fit.ok()) return MakeReady<void>(fit);
  std::vector<Future<ExchangeReply>> replies;
  for (Call& call : Send(*table_, table_->Cut(keys).get(),
                         gradients.Contiguous(), nullptr, part)) {
    replies.push_back(std::move(call.reply));
  }
  return table_->Watch(WhenAllOk(std::move(replies))).Then([](const Replies&) {
  });
}

Future<void> SparseTable::SetLearningRateScale(
    double scale, std::optional<int64_t> from_round) {
  return table_->SetLearningRateScale(scale, from_round);
}

void SparseTable::EndRound() { table_->EndRound(); }

Future<Tensor> SparseTable::Pull(const Tensor& keys) {
  return Exchange(nullptr, nullptr, &keys);
}

Future<void> SparseTable::Push(const Tensor& keys, const Tensor& gradients) {
  return Exchange(&keys, &gradients, nullptr).Then([](const Tensor&) {});
}

Future<Tensor> SparseTable::PushPull(const Tensor& push_keys,
                                     const Tensor& gradients,
                                     const Tensor& pull_keys) {
  return Exchange(&push_keys, &gradients, &pull_keys);
}

// --- Client ------------------------------------------------------------------

Client::Client(ClientOptions options) : options_(std::move(options)) {
  WEFT_CHECK(options_.agent != nullptr);
  WEFT_CHECK(!options_.servers.empty());
}

namespace {

// Whether `late` may be of the worker that `other` is of: it is, or it names
// none.
bool MayBeOfOneServer(const absl::Status& late, const absl::Status& other) {
  const std::vector<rpc::Failure> of_late = rpc::FailuresOf(late);
  const std::vector<rpc::Failure> of_other = rpc::FailuresOf(other);
  return of_late.empty() || of_other.empty() ||
         of_late.front().worker == of_other.front().worker;
}

}  // namespace

std::shared_ptr<PinnedServers> Client::Pin() const {
  std::vector<rpc::Target> servers;
  for (const std::string& server : options_.servers) {
    servers.push_back(options_.agent->To(server, options_.timeout));
  }
  return std::make_shared<PinnedServers>(servers);
}

template <typename T>
Result<T> Client::OnEach(
    std::shared_ptr<PinnedServers>& servers,
    absl::FunctionRef<Future<T>(const std::vector<rpc::Target>&)> call) {
  const Instant give_up = SteadyClock().Now() + options_.timeout;
  absl::Status not_serving;
  for (;;) {
    const absl::Duration left =
        std::max(give_up - SteadyClock().Now(), absl::ZeroDuration());
    const auto pinned = servers != nullptr ? servers : Pin();
    WEFT_RETURN_IF_ERROR(pinned->status());
    Result<T> result =
        call(pinned->WithTimeout(left)).Wait(left + absl::Seconds(1));
    const absl::Status status = weft::internal::StatusOf(result);
    if (status.ok()) {
      servers = pinned;
      return result;
    }
    // Of a server that does not serve yet that is the reason, also where the
    // time ran out within a later try of it, or within a try that had hardly
    // any time left, whichever server that names.
    if (absl::IsDeadlineExceeded(status) && !not_serving.ok() &&
        (left < options_.timeout / 10 ||
         MayBeOfOneServer(status, not_serving))) {
      return not_serving;
    }
    if (IsNotServing(status)) not_serving = status;
    // A worker that is faster than a server that has just joined waits here.
    if (!IsNotServing(status) ||
        SteadyClock().Now() + kServingPause >= give_up) {
      return pinned->Note(status);
    }
    const BlockingScope blocking;
    absl::SleepFor(kServingPause);
  }
}

absl::StatusOr<std::unique_ptr<TableClient>> Client::Open(v1::TableSpec spec) {
  WEFT_ASSIGN_OR_RETURN(auto layout, TableLayout::Create(std::move(spec)));
  // Numbers of pushes begin anew with each opening, and so does the identity.
  const uint64_t identity = Mix64(options_.client ^ Mix64(++opened_));
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<v1::TableStats> stats,
      OnEach<std::vector<v1::TableStats>>(servers_, [&](const auto& servers) {
        std::vector<Future<v1::TableStats>> calls;
        for (const rpc::Target& server : servers) {
          calls.push_back(
              rpc::CallAsync(server, &ps::OpenTable, layout->spec(), identity));
        }
        return WhenAllOk(std::move(calls));
      }));
  int64_t version = 0;
  for (const v1::TableStats& s : stats) {
    version = std::max(version, s.version());
  }
  return std::make_unique<TableClient>(options_, servers_, std::move(layout),
                                       identity, version);
}

absl::StatusOr<std::unique_ptr<DenseTable>> Client::Dense(v1::TableSpec spec) {
  if (spec.kind() != v1::TableSpec::DENSE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", spec.name(), "': Client::Dense wanted a DENSE spec"));
  }
  WEFT_ASSIGN_OR_RETURN(auto table, Open(std::move(spec)));
  return std::unique_ptr<DenseTable>(new DenseTable(std::move(table)));
}

absl::StatusOr<std::unique_ptr<SparseTable>> Client::Sparse(
    v1::TableSpec spec) {
  if (spec.kind() != v1::TableSpec::SPARSE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", spec.name(), "': Client::Sparse wanted a SPARSE spec"));
  }
  WEFT_ASSIGN_OR_RETURN(auto table, Open(std::move(spec)));
  return std::unique_ptr<SparseTable>(new SparseTable(std::move(table)));
}

absl::StatusOr<std::vector<checkpoint::FileRecord>> Client::Save(
    const std::string& path, const std::string& attempt, int64_t version) {
  // Of another incarnation's tables a checkpoint would be incomplete.
  const auto servers = servers_ != nullptr ? servers_ : Pin();
  WEFT_RETURN_IF_ERROR(servers->status());
  std::vector<Future<v1::SaveReply>> calls;
  for (size_t i = 0; i < options_.servers.size(); ++i) {
    v1::SaveRequest request;
    request.set_directory(path);
    request.set_attempt(attempt);
    request.set_first_shard(static_cast<int>(i) * kShardsOfServer);
    request.set_version(version);
    calls.push_back(
        rpc::CallAsync((*servers)[static_cast<int>(i)], &ps::Save, request));
  }
  WEFT_ASSIGN_OR_RETURN(
      std::vector<v1::SaveReply> replies,
      PinnedServers::Watch(servers, WhenAllOk(std::move(calls)))
          .Wait(options_.timeout + absl::Seconds(1)));
  std::vector<checkpoint::FileRecord> records;
  for (const v1::SaveReply& reply : replies) {
    for (const v1::SavedFile& file : reply.files()) {
      checkpoint::FileRecord record;
      record.name = file.name();
      record.writer = file.writer();
      record.digest.bytes = file.bytes();
      record.digest.sha256 = file.sha256();
      record.digest.xxh3 = file.xxh3();
      records.push_back(std::move(record));
    }
  }
  return records;
}

absl::Status Client::CheckCheckpointDirectory(const std::string& path) {
  std::shared_ptr<PinnedServers> asked = servers_;
  return OnEach<void>(asked, [&](const auto& servers) {
    std::vector<Future<void>> calls;
    for (const rpc::Target& server : servers) {
      calls.push_back(
          rpc::CallAsync(server, &ps::CheckCheckpointDirectory, path));
    }
    return WhenAllOk(std::move(calls));
  });
}

absl::Status Client::Restore(const std::string& path, const std::string& name) {
  // Of the servers that there are now. The tables are opened there: one that
  // ends before that has lost what was restored.
  std::shared_ptr<PinnedServers> restored;
  WEFT_RETURN_IF_ERROR(OnEach<void>(restored, [&](const auto& servers) {
    std::vector<Future<void>> calls;
    for (const rpc::Target& server : servers) {
      calls.push_back(rpc::CallAsync(server, &ps::Restore, path, name));
    }
    return WhenAllOk(std::move(calls));
  }));
  servers_ = std::move(restored);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::ServerStats>> Client::Describe() {
  std::shared_ptr<PinnedServers> described = servers_;
  return OnEach<std::vector<v1::ServerStats>>(
      described, [&](const auto& servers) {
        std::vector<Future<v1::ServerStats>> calls;
        for (const rpc::Target& server : servers) {
          calls.push_back(rpc::CallAsync(server, &ps::Describe));
        }
        return WhenAllOk(std::move(calls));
      });
}

}  // namespace weft::ps
