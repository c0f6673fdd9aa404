#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/ps/replicated/cell.h"
#include "weft/ps/replicated/replicated_table.h"
#include "weft/ps/wire/wire_values.h"

// Pushes and pulls: what is checked before a partition sees them.

namespace weft::ps {
namespace {

// How many pulls of a partition may wait.
constexpr size_t kMostReads = 8192;

// The keys of a pull that was checked.
absl::Span<const uint64_t> KeysIn(const Bytes& aligned) {
  return {reinterpret_cast<const uint64_t*>(aligned.data()),
          aligned.size() / sizeof(uint64_t)};
}

// A copy in memory of its own: the rest of the request is not kept with it.
Bytes Alone(const Bytes& bytes) {
  std::vector<uint64_t> words((bytes.size() + sizeof(uint64_t) - 1) /
                              sizeof(uint64_t));
  if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  return Bytes::Own(std::move(words)).subspan(0, bytes.size());
}

// Why the round's gate did not take a part; `missing`: what the open round
// waits for.
std::string WhyRefused(const RoundGate<RoundPayload>& gate, int shard,
                       RoundGate<RoundPayload>::Answer given,
                       const std::string& missing) {
  using Given = RoundGate<RoundPayload>::Answer;
  switch (given) {
    case Given::kDuplicate:
      return " was given by another client; each worker needs a rank of its "
             "own, and a table that is opened again goes on with the next "
             "round";
    case Given::kMissed:
      return absl::StrCat(
          " came after the round had closed without it: the rank had been "
          "declared dead; pull and go on with round ",
          gate.open());
    case Given::kTooFar:
      return absl::StrCat(" is too far ahead: round ", gate.open(),
                          " is open, and waits for ", missing);
    case Given::kNotOwner:
      return absl::StrCat(
          ": rank ", gate.OwnerOf(shard),
          " serves this shard; leave it to that one, or take it over if that "
          "one died");
    case Given::kUnknown:
      return absl::StrCat(
          ": no such shard, or its rank was declared dead; the table was made "
          "for ",
          gate.shards(), " shards, ", gate.counted(), " of them count");
    case Given::kKept:
    case Given::kInherited:
    case Given::kApplied:
    case Given::kFolded:  // there is no quorum
    case Given::kDropped:
      break;
  }
  return "";
}

}  // namespace

absl::Status ReplicatedTable::StatusNow() const {
  MutexLock lock(mu_);
  return shut_down_;
}

absl::Status ReplicatedTable::CheckGeneration(uint64_t generation) const {
  WEFT_RETURN_IF_ERROR(StatusNow());
  if (generation == options_.generation) return absl::OkStatus();
  if (generation > options_.generation) {
    return absl::UnavailableError(absl::StrCat(
        "table '", spec().name(), "' is not yet restored on this server"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("table '", spec().name(),
                   "': a checkpoint was restored since; open it again"));
}

absl::Status ReplicatedTable::CheckFilled(const Cell& cell) const
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (!layout_->is_dense() || !cell.replica.is_primary() ||
      cell.rows.rows() > 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "table '", spec().name(), "' has no values yet; call Initialize first"));
}

absl::StatusOr<ByteBudget::Hold> ReplicatedTable::HoldRows(
    const Cell& cell, const Frame& frame) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (options_.memory == nullptr || layout_->is_dense() ||
      !cell.replica.is_primary()) {
    return ByteBudget::Hold();
  }
  const int64_t bytes = cell.rows.GrowthOf(frame.keys);
  if (bytes == 0) return ByteBudget::Hold();
  std::optional<ByteBudget::Hold> hold =
      options_.memory->Take(bytes, options_.memory->most());
  if (hold.has_value()) return *std::move(hold);
  ++refused_pushes_;
  return OutOfTableMemory(
      absl::StrCat("table '", spec().name(), "' on ", options_.self.ToString()),
      static_cast<uint32_t>(cell.partition), bytes, *options_.memory);
}

// --- Pushes ------------------------------------------------------------------

struct ReplicatedTable::PushedSpans {
  std::vector<Bytes> payloads;
  std::vector<Frame> frames;  // they point into the payloads
};

absl::StatusOr<ReplicatedTable::PushedSpans> ReplicatedTable::CheckPush(
    const v1::PushRequest& request, const std::vector<Bytes>& payloads) const {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("push to table '", spec().name(), "': ", why...));
  };
  WEFT_RETURN_IF_ERROR(CheckGeneration(request.generation()));
  const int spans = request.spans_size();
  if (static_cast<size_t>(spans) != payloads.size() || spans == 0) {
    return refuse("wanted a payload for each span, and one at least, found ",
                  payloads.size(), " and ", spans);
  }
  PushedSpans pushed = {AlignedAll(payloads), std::vector<Frame>(spans)};
  for (int i = 0; i < spans; ++i) {
    const v1::PushSpan& span = request.spans(i);
    if (span.partition() >= cells_.size() ||
        cells_[span.partition()] == nullptr) {
      return refuse("there is no partition ", span.partition(),
                    ", or it has no rows");
    }
    if (span.sequence() == 0) continue;
    WEFT_ASSIGN_OR_RETURN(pushed.frames[i],
                          DecodeFrame(pushed.payloads[i], *layout_, placement_,
                                      static_cast<int>(span.partition())));
    const bool is_gradient = pushed.frames[i].kind == Frame::Kind::kGradient;
    if (is_gradient && pushed.frames[i].dtype != spec().wire().push()) {
      return refuse("partition ", span.partition(), ": wanted a gradient in ",
                    WireName(spec().wire().push()),
                    ", as wire.push says, found ",
                    WireName(pushed.frames[i].dtype));
    }
    const bool is_part = span.client() == kRounds;
    if (is_part != (is_sync() && is_gradient)) {
      return refuse("partition ", span.partition(),
                    " got a gradient by another client than rounds, or a part "
                    "of a round in ASYNC");
    }
  }
  return pushed;
}

Future<v1::PushReply> ReplicatedTable::Push(
    const Caller& caller, const v1::PushRequest& request,
    const std::vector<Bytes>& payloads) {
  const Instant began = SteadyClock().Now();
  const absl::StatusOr<PushedSpans> pushed = CheckPush(request, payloads);
  if (!pushed.ok()) return MakeReady<v1::PushReply>(pushed.status());
  const auto call = std::make_shared<PushCall>(request.spans_size());
  Future<v1::PushReply> future = call->future();
  std::vector<LoadMeter::Share> shares(request.spans_size());
  int64_t gradient_bytes = 0;
  for (int i = 0; i < request.spans_size(); ++i) {
    const int partition = static_cast<int>(request.spans(i).partition());
    call->SetPartition(i, request.spans(i).partition());
    const Frame& frame = pushed->frames[i];
    const auto bytes = static_cast<int64_t>(payloads[i].size());
    shares[i] = {partition, static_cast<int64_t>(frame.keys.size())};
    load_.Count(partition, shares[i].rows, bytes);
    if (request.spans(i).sequence() != 0 &&
        frame.kind == Frame::Kind::kGradient) {
      gradient_bytes += bytes;
    }
  }
  Work work;
  if (gradient_bytes > 0) {
    work.measured =
        static_cast<int>(metrics_.NextMeasured(request.spans_size()));
  }
  for (int i = 0; i < request.spans_size(); ++i) {
    On(
        static_cast<int>(request.spans(i).partition()),
        [&](Cell& cell, const Now& now, Work& to) {
          PushSpan(cell, caller, request, i, *pushed, call, now, to);
        },
        work);
  }
  load_.Busy(shares, SteadyClock().Now() - began);
  if (gradient_bytes > 0) CountPush(request, gradient_bytes, work);
  Finish(std::move(work));
  return future;
}

void ReplicatedTable::CountPush(const v1::PushRequest& request, int64_t bytes,
                                const Work& work) {
  metrics_.Pushed(bytes);
  metrics_.AwaitedLock(work.lock_wait);
  metrics_.Repeated(work.repeated);
  if (is_sync() || work.appended == 0) return;
  // The spans of a request are of one client.
  metrics_.PushedAt(request.spans(0).client(), pushes_.fetch_add(1));
}

void ReplicatedTable::PushToReplica(Cell& cell, const PushRequest& push,
                                    const Bytes& payload, bool is_gradient,
                                    const Now& now,
                                    Work& work) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const Replica& replica = cell.replica;
  bool is_repeated = false;
  if (is_gradient && replica.Accepts(push.entry, push.to, push.epoch, now)) {
    const auto window = replica.applied().find(push.mark.client);
    is_repeated = window != replica.applied().end() &&
                  window->second.Ask(push.mark.sequence) ==
                      SequenceWindow::Answer::kDuplicate;
  }
  const uint64_t end = replica.end();
  cell.replica.OnPush(push, payload, now);
  if (!is_gradient) return;
  work.repeated += is_repeated ? 1 : 0;
  work.appended += replica.end() > end ? 1 : 0;
}

void ReplicatedTable::PushSpan(Cell& cell, const Caller& caller,
                               const v1::PushRequest& request, int number,
                               const PushedSpans& pushed,
                               const std::shared_ptr<PushCall>& call,
                               const Now& now,
                               Work& work) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const v1::PushSpan& span = request.spans(number);
  const Frame& frame = pushed.frames[number];
  const bool is_gradient = frame.kind == Frame::Kind::kGradient;
  PushRequest push;
  push.token = ++cell.last_token;
  push.entry = EntryOf(cell.partition);
  push.to = KeyOf(request.to());
  push.epoch = span.epoch();
  push.mark = {span.client(), span.sequence(), span.first()};
  // With D1 a part of a round could reach a promoted backup before the
  // rate of that round, or before the first values, that its client
  // sends again. And ticks and pulls come after the join.
  push.until_stable = span.sequence() != 0 && !is_gradient &&
                      frame.kind != Frame::Kind::kTick &&
                      frame.kind != Frame::Kind::kLeave;
  if (span.sequence() == 0) {
    cell.pushes[push.token] = {call, number};
    return cell.replica.OnPush(push, Bytes(), now);
  }
  // Not taken, for it could not be answered.
  const absl::Status log = is_logged() ? LogStatus() : absl::OkStatus();
  if (!log.ok()) {
    if (call->Answer(number, Answer(), log)) work.End(call);
    return;
  }
  if (span.client() == kRounds) {
    cell.pushes[push.token] = {call, number};
    return GivePart(cell, request, push, pushed.payloads[number], now, work);
  }
  Bytes payload = pushed.payloads[number];
  absl::Status fits =
      is_gradient ? CheckFilled(cell)
      : frame.is_of_clock()
          ? CheckClock(cell, caller, request, push, frame, now, payload)
          : CheckChange(cell, span, frame);
  // One that was applied is only answered again.
  if (fits.ok() && is_gradient &&
      cell.replica.AppliedThrough(span.client()) < span.sequence()) {
    fits = HoldRows(cell, frame).status();  // it is applied under this lock
  }
  if (!fits.ok()) {
    if (call->Answer(number, Answer(), fits)) work.End(call);
    return;
  }
  Cell::Pushing& pushing = cell.pushes[push.token] = {call, number};
  if (frame.kind == Frame::Kind::kJoin) pushing.joins = frame.rank;
  pushing.client = span.client();
  // Until the backup has its copy the log keeps the payload.
  PushToReplica(cell, push,
                cell.replica.is_filling() ? Alone(payload) : payload,
                is_gradient, now, work);
}

absl::Status ReplicatedTable::CheckChange(
    const Cell& cell, const v1::PushSpan& span,
    const Frame& frame) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (frame.kind != Frame::Kind::kRate || !cell.replica.is_primary() ||
      cell.replica.AppliedThrough(span.client()) >= span.sequence()) {
    return absl::OkStatus();
  }
  RateChanges changed = cell.rates;
  if (is_sync()) {
    return changed.Set(frame.round, frame.scale, cell.gate.open());
  }
  if (frame.round >= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("table '", spec().name(), "': a learning rate from round ",
                     frame.round, " on, wanted none: it is ASYNC"));
  }
  return changed.SetAlways(frame.scale);
}

void ReplicatedTable::GivePart(Cell& cell, const v1::PushRequest& request,
                               const PushRequest& push, const Bytes& payload,
                               const Now& now,
                               Work& work) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  using Given = RoundGate<RoundPayload>::Answer;
  if (!cell.replica.OnPart(push, now)) return;
  const int64_t round = static_cast<int64_t>(push.mark.sequence) - 1;
  const Cell::Pushing pushing = cell.pushes.at(push.token);
  const auto answer =
      [&](Code code, const absl::Status& refused)
          ABSL_NO_THREAD_SAFETY_ANALYSIS {
            Answer to;
            to.code = code;
            to.epoch = push.epoch;
            to.sequence = push.mark.sequence;
            cell.pushes.erase(push.token);
            if (pushing.call->Answer(pushing.span, to, refused)) {
              work.End(pushing.call);
            }
          };
  const absl::Status filled = CheckFilled(cell);
  if (!filled.ok()) return answer(Code::kOk, filled);
  RoundPayload part;
  part.opening = request.opening();
  part.payload = payload;
  if (options_.budget != nullptr) {
    // Parts of later rounds may use half of the budget, so that the open round
    // can close.
    const int64_t most = options_.budget->most();
    auto hold =
        options_.budget->Take(static_cast<int64_t>(payload.size()),
                              round > cell.gate.open() ? most / 2 : most);
    if (!hold.has_value()) return answer(Code::kBusy, absl::OkStatus());
    part.hold = *std::move(hold);
  }
  // Checks the memory before the part is taken: afterwards the round waits for
  // it here, and both copies apply what is in the log.
  if (round >= cell.gate.open() &&
      cell.gate.Find(request.shard(), round) == nullptr) {
    auto rows = HoldRows(cell, DecodeCheckedFrame(payload));
    if (!rows.ok()) return answer(Code::kOk, rows.status());
    part.rows = *std::move(rows);
  }
  const Given given = cell.gate.Give(request.shard(), request.rank(), round,
                                     std::move(part), request.take_over());
  const bool is_repeated =
      given == Given::kInherited || given == Given::kApplied ||
      (given == Given::kDuplicate &&
       cell.gate.Find(request.shard(), round)->opening == request.opening());
  work.repeated += is_repeated ? 1 : 0;
  if (is_repeated || given == Given::kKept) {
    return cell.replica.AnswerPart(push, now);
  }
  answer(
      Code::kOk,
      absl::FailedPreconditionError(absl::StrCat(
          "table '", spec().name(), "': part of shard ", request.shard(),
          " by rank ", request.rank(), " in round ", round,
          WhyRefused(cell.gate, request.shard(), given, MissingParts(cell)))));
}

// --- Pulls -------------------------------------------------------------------

absl::StatusOr<std::vector<Bytes>> ReplicatedTable::CheckPull(
    const v1::PullRequest& request, const std::vector<Bytes>& payloads) const {
  WEFT_RETURN_IF_ERROR(CheckGeneration(request.generation()));
  const int spans = request.spans_size();
  if (request.has_clock() &&
      (!has_clocks() || request.clock() < 0 || request.rank() < 0 ||
       request.clock() > ClockGate::kMostClock)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pull from table '", spec().name(), "': clock ", request.clock(),
        " of rank ", request.rank(), ": wanted ",
        has_clocks() ? absl::StrCat("0 to ", ClockGate::kMostClock,
                                    ", and a rank of at least 0")
                     : std::string("none, for the table has no staleness")));
  }
  if (static_cast<size_t>(spans) != payloads.size() || spans == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pull from table '", spec().name(),
                     "': wanted keys for each span, and one at least, found ",
                     payloads.size(), " and ", spans));
  }
  std::vector<Bytes> aligned = AlignedAll(payloads);
  for (int i = 0; i < spans; ++i) {
    const uint32_t partition = request.spans(i).partition();
    if (partition >= cells_.size() || cells_[partition] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "pull from table '", spec().name(), "': there is no partition ",
          partition, ", or it has no rows"));
    }
    WEFT_RETURN_IF_ERROR(DecodeKeys(aligned[i], *layout_, placement_,
                                    static_cast<int>(partition))
                             .status());
  }
  return aligned;
}

Future<ReplicatedTable::Pulled> ReplicatedTable::Pull(
    const v1::PullRequest& request, const std::vector<Bytes>& payloads,
    Instant deadline) {
  const Instant began = SteadyClock().Now();
  const absl::StatusOr<std::vector<Bytes>> all = CheckPull(request, payloads);
  if (!all.ok()) return MakeReady<Pulled>(all.status());
  const auto call = std::make_shared<PullCall>(request.spans_size());
  Future<Pulled> future = call->future();
  std::vector<LoadMeter::Share> shares(request.spans_size());
  int64_t bytes = 0;
  for (int i = 0; i < request.spans_size(); ++i) {
    const int partition = static_cast<int>(request.spans(i).partition());
    call->SetPartition(i, request.spans(i).partition());
    const absl::Span<const uint64_t> keys = KeysIn((*all)[i]);
    shares[i] = {partition, static_cast<int64_t>(keys.size())};
    const int64_t its = static_cast<int64_t>((*all)[i].size()) +
                        WireBytes(*layout_, spec().wire().pull(), keys);
    load_.Count(partition, shares[i].rows, its);
    bytes += its;
  }
  metrics_.Pulled(bytes);
  Work work;
  work.measured = static_cast<int>(metrics_.NextMeasured(request.spans_size()));
  for (int i = 0; i < request.spans_size(); ++i) {
    const v1::PullSpan& span = request.spans(i);
    On(
        static_cast<int>(span.partition()),
        [&](Cell& cell, const Now& now,
            Work& to) ABSL_NO_THREAD_SAFETY_ANALYSIS {
          Cell::Reading reading;
          reading.call = call;
          reading.span = i;
          reading.request.token = ++cell.last_token;
          reading.request.entry = EntryOf(cell.partition);
          reading.request.to = KeyOf(request.to());
          reading.request.epoch = span.epoch();
          reading.request.client = span.client();
          reading.request.through = span.through();
          reading.keys = (*all)[i];
          reading.since = now.time;
          reading.deadline = deadline;
          if (request.has_clock()) reading.clock = request.clock();
          const ReadRequest read = reading.request;
          absl::Status fits = CheckFilled(cell);
          if (fits.ok()) fits = CheckPullClock(cell, request, read, now);
          if (cell.reads.size() >= kMostReads) {
            fits = absl::ResourceExhaustedError(absl::StrCat(
                "table '", spec().name(), "' partition ", cell.partition, ": ",
                cell.reads.size(), " pulls wait already; pull again later"));
          }
          if (!fits.ok()) {
            if (call->Answer(i, Answer(), fits)) to.End(call);
            return;
          }
          cell.reads[read.token] = std::move(reading);
          cell.replica.OnRead(
              read, now,
              request.has_clock() && !cell.clocks.MayRead(request.clock()));
        },
        work);
  }
  load_.Busy(shares, SteadyClock().Now() - began);
  metrics_.AwaitedLock(work.lock_wait);
  Finish(std::move(work));
  return future;
}

}  // namespace weft::ps
