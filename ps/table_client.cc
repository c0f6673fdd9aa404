#include "weft/ps/table_client.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/ps/core/sequence_window.h"
#include "weft/ps/operation.h"
#include "weft/ps/replicated/frame.h"
#include "weft/rpc/call.h"

namespace weft::ps::internal {
namespace {

// How often an opening looks whether the worker is asked to stop.
constexpr absl::Duration kLookAround = absl::Milliseconds(50);

}  // namespace

void TableClient::Close() {
  if (open_session_ == nullptr) return;
  ReplicaSession& session = *open_session_->session();
  // What is answered may still be on one copy only.
  if (!replicated_->AwaitStable(session.StableWithin())) session.NoteUnstable();
  open_session_.reset();
}

Future<void> TableClient::PushPieces(
    std::vector<ReplicatedTableClient::Piece> pieces, const RoundPart& part,
    bool closes) const {
  if (!is_sync()) return replicated_->Push(std::move(pieces));
  return replicated_->PushPart(part.shard, part.round, part.take_over, closes,
                               std::move(pieces));
}

void TableClient::AddTicks(
    std::vector<ReplicatedTableClient::Piece>& pieces) const {
  if (!has_clock()) return;
  const Bytes tick = EncodeTick(options_.rank, clock() + 1);
  for (const int partition : clock_partitions_) {
    pieces.push_back({partition, tick});
  }
}

template <typename T>
Result<T> TableClient::AwaitOpening(const Future<T>& operation) const {
  const Instant give_up = SteadyClock().Now() + options_.timeout;
  while (options_.is_asked_to_stop != nullptr && !operation.IsReady()) {
    const absl::Duration left = give_up - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) break;
    if (options_.is_asked_to_stop()) {
      open_session_->session()->GiveUpOnGoneServers();
    }
    (void)operation.Wait(std::min(left, kLookAround));
  }
  return operation.Wait(
      std::max(give_up - SteadyClock().Now(), absl::ZeroDuration()));
}

absl::Status TableClient::JoinClocks() {
  clock_partitions_ = PartitionsWithRows();
  WEFT_ASSIGN_OR_RETURN(const ReplicatedTableClient::Clocks clocks,
                        AwaitOpening(replicated_->Join(clock_partitions_)));
  int64_t at = 0;
  for (const auto& [partition, clock] : clocks) at = std::max(at, clock);
  // Partitions may have other lowest clocks, by what is under way. Where this
  // one is lower nobody passes it by more than the bound, so this ends.
  const Bytes tick = EncodeTick(options_.rank, at);
  std::vector<ReplicatedTableClient::Piece> pieces;
  for (const auto& [partition, clock] : clocks) {
    if (clock < at) pieces.push_back({partition, tick});
  }
  WEFT_RETURN_IF_ERROR(AwaitOpening(replicated_->Push(std::move(pieces))));
  BeginClock(at);
  return absl::OkStatus();
}

Future<std::vector<Bytes>> TableClient::PullPieces(
    const std::optional<Future<void>>& pushed,
    std::vector<ReplicatedTableClient::Piece> pieces) const {
  using Awaited = ReplicatedTableClient::Awaited;
  const auto what = pushed.has_value() ? Awaited::kBoth : Awaited::kPulls;
  if (!pushed.has_value() || is_sync()) {
    return replicated_->Watch(
        what, replicated_->Pull(round(), std::move(pieces), clock_));
  }
  // It is to see the push.
  auto [promise, future] = MakePromise<std::vector<Bytes>>();
  pushed->OnReady([table = replicated_, clock = clock_,
                   pieces = std::move(pieces), promise = std::move(promise)](
                      const absl::Status& status) mutable {
    if (!status.ok()) {
      promise.Set(status);
      return;
    }
    table->Pull(0, std::move(pieces), clock)
        .OnReady([promise = std::move(promise)](
                     const absl::StatusOr<std::vector<Bytes>>& values) mutable {
          promise.Set(values);
        });
  });
  return replicated_->Watch(what, std::move(future));
}

v1::Request TableClient::NewRequest(bool push, bool pull, const RoundPart& part,
                                    bool step) const {
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
  if (has_clock() && (pull || step)) {
    request.set_clock(clock() + (step ? 1 : 0));
    request.set_tick(step);
  }
  return request;
}

Future<void> TableClient::SetLearningRateScale(
    double scale, std::optional<int64_t> from_round) const {
  absl::Status fit = servers_status();
  if (fit.ok() && from_round.has_value()) fit = CheckRounds("a round");
  if (!fit.ok()) return MakeReady<void>(fit);
  if (replicated_ != nullptr && !(std::isfinite(scale) && scale >= 0)) {
    return MakeReady<void>(absl::InvalidArgumentError(absl::StrCat(
        "table '", layout_->spec().name(), "': learning rate times ", scale,
        ": wanted a finite number of at least 0")));
  }
  if (replicated_ != nullptr) {
    const Bytes change = EncodeRate(
        is_sync() ? from_round.value_or(round_) : int64_t{-1}, scale);
    std::vector<ReplicatedTableClient::Piece> pieces;
    for (int partition : PartitionsWithRows()) {
      pieces.push_back({partition, change});
    }
    return replicated_->Change(std::move(pieces));
  }
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
  return Watch("SetLearningRateScale", WhenAllOk(std::move(calls)));
}

absl::Status TableClient::AwaitRoom(absl::Duration timeout, bool all) {
  while (!under_way_.empty() && under_way_.front().IsReady()) {
    under_way_.pop_front();
  }
  while (all ? !under_way_.empty()
             : under_way_.size() >= SequenceWindow::kWidth) {
    WEFT_RETURN_IF_ERROR(under_way_.front().Wait(timeout));
    under_way_.pop_front();
  }
  return absl::OkStatus();
}

Future<void> TableClient::UnderWay() const {
  return WhenAllOk(
      std::vector<Future<void>>(under_way_.begin(), under_way_.end()));
}

absl::Status TableClient::CheckHasClock() const {
  if (has_clock()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "table '", layout_->spec().name(),
      "': wanted a clock to tick, found none: ",
      layout_->spec().has_staleness()
          ? "the client has left, or its rank is negative; open the table "
            "again with a rank"
          : "the table has no staleness; set TableSpec.staleness of an ASYNC "
            "table"));
}

void TableClient::NoteLate(const std::vector<ExchangeReply>& replies) {
  if (!layout_->spec().has_quorum() || replies.empty()) return;
  LateParts late;
  int64_t closed = std::numeric_limits<int64_t>::max();
  for (const ExchangeReply& reply : replies) {
    const v1::Reply& said = std::get<0>(reply);
    late.folded += said.late() == v1::Reply::FOLDED ? 1 : 0;
    late.dropped += said.late() == v1::Reply::DROPPED ? 1 : 0;
    closed = std::min(closed, said.version());
  }
  if (late.folded + late.dropped == 0) return;
  // A server that has not closed a round may need this client's part of it.
  int64_t behind = behind_.load();
  while (behind < closed && !behind_.compare_exchange_weak(behind, closed)) {
  }
  MutexLock lock(mu_);
  late_.folded += late.folded;
  late_.dropped += late.dropped;
}

Future<void> Tick(const std::shared_ptr<TableClient>& table) {
  absl::Status fit = table->status();
  if (fit.ok()) fit = table->CheckHasClock();
  if (fit.ok()) fit = table->AwaitRoom();
  if (!fit.ok()) return MakeReady<void>(fit);
  if (table->replicated() != nullptr) {
    // It counts once what was pushed before it is applied, whatever comes
    // first.
    std::vector<ReplicatedTableClient::Piece> ticks;
    table->AddTicks(ticks);
    table->EndStep();
    return table->replicated()->Push(std::move(ticks));
  }
  const v1::Request request = table->NewRequest(
      /*push=*/false, /*pull=*/false, table->OwnPart(), /*step=*/true);
  table->EndStep();
  Future<void> ticked = table->UnderWay().Then([table, request] {
    std::vector<Future<ExchangeReply>> calls;
    for (const int server :
         ServersWithRows(table->layout(), table->placement())) {
      Message message;
      message.request = request;
      calls.push_back(Send(table->To(server), std::move(message)));
    }
    return table->Watch("Tick", WhenAllOk(std::move(calls)))
        .Then([](const std::vector<ExchangeReply>&) {});
  });
  table->Ticks(ticked);
  ticked.OnReady([table](const absl::Status& status) {
    if (!status.ok()) table->Fail(status);
  });
  return ticked;
}

Future<void> LeaveClock(const std::shared_ptr<TableClient>& table) {
  if (!table->has_clock()) return MakeReady<void>(absl::OkStatus());
  if (table->replicated() != nullptr) {
    table->EndClock();
    return table->replicated()->Leave(table->clock_partitions());
  }
  v1::ClockRequest request;
  const v1::Request mine =
      table->NewRequest(/*push=*/false, /*pull=*/false, table->OwnPart());
  request.set_table(mine.table());
  request.set_client(mine.client());
  request.set_rank(mine.rank());
  request.set_leave(true);
  table->EndClock();
  const auto leave = [table, request] {
    std::vector<Future<v1::ClockReply>> calls;
    for (const int server :
         ServersWithRows(table->layout(), table->placement())) {
      calls.push_back(
          rpc::CallAsync(table->To(server), &ps::JoinClocks, request));
    }
    return table->Watch("LeaveClock", WhenAllOk(std::move(calls)))
        .Then([](const std::vector<v1::ClockReply>&) {});
  };
  // Whatever became of its pushes.
  if (!table->status().ok()) return leave();
  return table->UnderWay().Then(leave);
}

std::vector<int> ServersWithRows(const TableLayout& layout,
                                 const Placement& placement) {
  std::vector<int> servers;
  const std::vector<DensePart> cut = layout.is_dense()
                                         ? CutDense(layout, placement)
                                         : std::vector<DensePart>();
  for (int server = 0; server < placement.servers(); ++server) {
    if (layout.is_dense() && cut[server].groups.empty()) continue;
    servers.push_back(server);
  }
  return servers;
}

std::shared_ptr<const SparseCut> TableClient::Cut(
    const Tensor& keys, absl::FunctionRef<void(const SparseCut&)> grown) {
  const Tensor flat = keys.Contiguous();
  const absl::Span<const int64_t> wanted = flat.span<int64_t>();
  if (cut_ == nullptr || absl::MakeConstSpan(cut_keys_) != wanted) {
    cut_keys_.assign(wanted.begin(), wanted.end());
    cut_ =
        std::make_shared<const SparseCut>(CutSparse(wanted, placement_, grown));
  }
  return cut_;
}

absl::Status TableClient::CheckRounds(absl::string_view what) const {
  if (is_sync()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "table '", layout_->spec().name(), "': wanted a SYNC table for ", what,
      ", found ASYNC, which has no rounds"));
}

std::vector<int> TableClient::PartitionsWithRows() const {
  std::vector<int> partitions;
  if (layout_->is_dense()) {
    const std::vector<DensePart> cut = CutDense(*layout_, placement_);
    for (const DensePart::Group& group : cut[0].groups) {
      partitions.push_back(group.partition);
    }
    return partitions;
  }
  for (int i = 0; i < layout_->spec().partitions(); ++i) {
    partitions.push_back(i);
  }
  return partitions;
}

absl::Status TableClient::status() const {
  WEFT_RETURN_IF_ERROR(servers_status());
  absl::Status failure;
  if (replicated_ != nullptr) {
    failure = replicated_->status();
    if (absl::IsDataLoss(failure)) return failure;
  } else {
    MutexLock lock(mu_);
    failure = failure_;
  }
  if (failure.ok()) return failure;
  return absl::FailedPreconditionError(absl::StrCat(
      "table '", layout_->spec().name(),
      "': an earlier push failed, open the table again: ", failure.message()));
}

void WatchPush(const Future<std::vector<ExchangeReply>>& replies,
               const std::shared_ptr<TableClient>& table) {
  replies.OnReady(
      [table](const absl::StatusOr<std::vector<ExchangeReply>>& result) {
        if (!result.ok()) {
          table->Fail(result.status());
        } else {
          table->NoteLate(*result);
        }
      });
}

Future<ExchangeReply> Send(const rpc::Target& to, Message message) {
  return rpc::CallAsync(
      to, &ps::Exchange, message.request, std::move(message.push_keys),
      std::move(message.push_values), std::move(message.pull_keys));
}

absl::Status Unfit(const TableLayout& layout, absl::string_view what,
                   absl::string_view wanted, const Tensor& found) {
  return absl::InvalidArgumentError(absl::StrCat(
      "table '", layout.spec().name(), "': ", what, " wanted ", wanted,
      ", found ", found.defined() ? found.Describe() : "no tensor"));
}

namespace {

absl::Status WrongAnswer(const TableLayout& layout, absl::string_view wanted,
                         absl::string_view found) {
  return absl::InternalError(
      absl::StrCat("a server answered a pull from table '",
                   layout.spec().name(), "' with ", found, ", wanted ", wanted,
                   "; are client and server built from the same sources?"));
}

int64_t FloatsOfRows(const TableLayout& layout,
                     absl::Span<const uint64_t> keys) {
  return WireBytes(layout, v1::WireValues::F32, keys) /
         static_cast<int64_t>(sizeof(float));
}

}  // namespace

absl::StatusOr<Tensor> RowsOf(const ExchangeReply& reply,
                              const TableLayout& layout,
                              absl::Span<const uint64_t> keys,
                              const Shape& wanted) {
  const std::optional<Pulled>& pulled = std::get<1>(reply);
  const Tensor values = pulled.has_value() ? pulled->values : Tensor();
  const WireDtype dtype = layout.spec().wire().pull();
  const bool is_f32 = dtype == v1::WireValues::F32;
  const Shape shape = is_f32 ? wanted : Shape{WireBytes(layout, dtype, keys)};
  if (!values.defined() || !values.is_contiguous() ||
      values.dtype() != (is_f32 ? DType::kF32 : DType::kU8) ||
      values.shape() != shape) {
    return WrongAnswer(
        layout,
        is_f32 ? absl::StrCat(FloatsOfRows(layout, keys), " values f32")
               : absl::StrCat(shape[0], " bytes of ", WireName(dtype)),
        values.defined() ? values.Describe() : "no values");
  }
  if (is_f32) return values;
  Tensor rows = Tensor::Empty(wanted);
  ReadWire(layout, dtype, keys,
           reinterpret_cast<const char*>(values.data<uint8_t>()),
           rows.data<float>());
  return rows;
}

absl::StatusOr<const float*> FloatsOf(const Bytes& values,
                                      const TableLayout& layout,
                                      absl::Span<const uint64_t> keys,
                                      std::vector<float>& memory) {
  const WireDtype dtype = layout.spec().wire().pull();
  const int64_t wanted = WireBytes(layout, dtype, keys);
  if (static_cast<int64_t>(values.size()) != wanted) {
    return WrongAnswer(layout,
                       absl::StrCat(wanted, " of ", WireName(dtype), " for ",
                                    keys.size(), " rows"),
                       absl::StrCat(values.size(), " bytes"));
  }
  if (dtype == v1::WireValues::F32) {
    return reinterpret_cast<const float*>(values.data());
  }
  memory.resize(FloatsOfRows(layout, keys));
  ReadWire(layout, dtype, keys, values.view().data(), memory.data());
  return memory.data();
}

}  // namespace weft::ps::internal
