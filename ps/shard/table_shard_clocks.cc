#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/ps/shard/table_shard.h"

// ASYNC with a staleness: clocks, and pulls that wait for them.

namespace weft::ps {

absl::Status TableShard::CheckClock(const v1::Request& request) const {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("request to table '", spec().name(), "' on server ",
                     server_, ": ", why...));
  };
  if (!request.has_clock()) {
    return request.tick() ? refuse("wanted a clock with the tick, found none")
                          : absl::OkStatus();
  }
  if (!spec().has_staleness()) {
    return refuse("wanted no clock, found ", request.clock(),
                  ": the table has no staleness; set TableSpec.staleness of an "
                  "ASYNC table");
  }
  if (request.clock() < 0 || request.clock() > ClockGate::kMostClock) {
    return refuse("clock is ", request.clock(), ", wanted 0 to ",
                  ClockGate::kMostClock);
  }
  MutexLock lock(mu_);
  return CheckClockLocked(request);
}

absl::Status TableShard::CheckClockLocked(const v1::Request& request) const {
  const int rank = request.rank();
  ClockGate::Answer answer =
      clocks_.CheckPull(rank, request.client(), request.clock());
  if (answer == ClockGate::Answer::kOk && request.tick() &&
      request.clock() < clocks_.Find(rank)->at) {
    answer = ClockGate::Answer::kBack;
  }
  return WhyNotClock(answer, rank, request.clock());
}

absl::Status TableShard::WhyNotClock(ClockGate::Answer answer, int rank,
                                     int64_t clock) const {
  return clocks_.StatusOf(
      answer, absl::StrCat("table '", spec().name(), "' on server ", server_),
      rank, clock);
}

absl::StatusOr<v1::ClockReply> TableShard::JoinClocks(
    const Caller& caller, const v1::ClockRequest& request) {
  if (!spec().has_staleness()) {
    return absl::FailedPreconditionError(
        absl::StrCat("table '", spec().name(), "' on server ", server_,
                     " has no clocks: its spec has no staleness"));
  }
  if (request.rank() < 0 || request.at() < 0 ||
      request.at() > ClockGate::kMostClock) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", spec().name(), "' on server ", server_, ": clock ",
        request.at(), " of rank ", request.rank(), ": wanted 0 to ",
        ClockGate::kMostClock, ", and a rank of at least 0"));
  }
  v1::ClockReply reply;
  std::vector<Parked> readable;
  absl::Status joined;
  {
    MutexLock lock(mu_);
    if (!shut_down_.ok()) return shut_down_;
    if (request.leave()) {
      (void)clocks_.Leave(request.rank(), request.client());
      reply.set_clock(clocks_.least());
    } else {
      joined = WhyNotClock(
          clocks_.Join(request.rank(),
                       {caller.key, request.client(), std::string(caller.name)},
                       request.at()),
          request.rank(), request.at());
      if (joined.ok()) reply.set_clock(clocks_.Find(request.rank())->at);
    }
    readable = TakeReadable();
  }
  AnswerReadable(std::move(readable));
  WEFT_RETURN_IF_ERROR(joined);
  return reply;
}

Future<ShardReply> TableShard::HandleAtClock(const v1::Request& request,
                                             const Tensor& pull_keys,
                                             v1::Reply reply,
                                             Instant deadline) {
  std::vector<Parked> readable;
  std::optional<Future<ShardReply>> parked;
  {
    MutexLock lock(mu_);
    // The worker may have been closed while its push was applied.
    absl::Status fit = shut_down_;
    if (fit.ok()) fit = CheckClockLocked(request);
    if (!fit.ok()) return MakeReady<ShardReply>(fit);
    if (request.tick()) {
      (void)clocks_.Tick(request.rank(), request.client(), request.clock());
      readable = TakeReadable();
    }
    const int64_t needed = clocks_.NeededFor(request.clock());
    if (request.pull() && !clocks_.MayRead(needed)) {
      Parked waiting;
      waiting.version = needed;
      waiting.client = request.client();
      waiting.deadline = deadline;
      waiting.keys = pull_keys;
      absl::StatusOr<Future<ShardReply>> waits = Park(std::move(waiting));
      parked = waits.ok() ? *std::move(waits)
                          : MakeReady<ShardReply>(waits.status());
    }
  }
  AnswerReadable(std::move(readable));
  if (parked.has_value()) return *std::move(parked);
  return AnswerNow(request, pull_keys, std::move(reply));
}

std::vector<TableShard::Parked> TableShard::TakeReadable() {
  std::vector<Parked> readable;
  if (is_sync()) return readable;
  const auto first =
      std::partition(parked_.begin(), parked_.end(),
                     [this](const Parked& p) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                       return !clocks_.MayRead(p.version);
                     });
  std::move(first, parked_.end(), std::back_inserter(readable));
  parked_.erase(first, parked_.end());
  return readable;
}

void TableShard::AnswerReadable(std::vector<Parked> readable) {
  if (readable.empty()) return;
  int64_t version = 0;
  {
    MutexLock lock(mu_);
    version = VersionLocked();
  }
  for (Parked& parked : readable) {
    metrics_.PulledAt(parked.client, version);
    parked.promise.Set(Pulled(parked.keys, Read(parked.keys, version)));
  }
}

std::string TableShard::SlowestClock() const {
  const ClockGate::Clock* const slowest = clocks_.Find(clocks_.slowest());
  if (slowest == nullptr) return "no worker has a clock";
  return absl::StrCat("of ", clocks_.size(), " workers rank ",
                      clocks_.slowest(), ", ", slowest->holder.name, " (",
                      slowest->holder.worker.ToString(),
                      "), is the slowest, at clock ", slowest->at,
                      ", and staleness is ", clocks_.staleness());
}

}  // namespace weft::ps
