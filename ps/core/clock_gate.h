// ClockGate: when a worker may read an asynchronous table whose staleness is
// bounded by s.
//
// Each worker that joins has a clock by its rank, and ticks it with the last
// push of its step: a clock of c says that all pushes of steps before c are
// applied here. A pull at clock c waits until no clock is below c - s. So with
// s = 0 a worker reads what all others have pushed in the steps before its own,
// and a fast one is never more than s + 1 steps ahead of the slowest that it
// waits for.
//
// A worker that leaves, dies, or whose client is closed has no clock from then
// on, and nobody waits for it. One that joins, or comes back, begins at the
// lowest clock, so that it holds nobody back for what it has missed: least()
// never falls.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time.
//
// Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous
// Parallel Parameter Server", NIPS 2013.

#ifndef WEFT_PS_CORE_CLOCK_GATE_H_
#define WEFT_PS_CORE_CLOCK_GATE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::ps {

class ClockGate {
 public:
  using WorkerKey = rendezvous::WorkerKey;

  // Limits: the number of clocks; and the highest value of a clock or of a
  // bound.
  static constexpr size_t kMostClocks = 65536;
  static constexpr int64_t kMostClock = int64_t{1} << 60;
  // How many ticks a pull may be ahead of its own worker's clock.
  static constexpr int64_t kMostAhead = 64;

  // The holder of a clock: the worker, and its client by the number of its
  // opening.
  struct Holder {
    WorkerKey worker;
    uint64_t client = 0;
    std::string name = {};  // of the worker, for messages
  };
  struct Clock {
    Holder holder;
    int64_t at = 0;
  };

  enum class Answer {
    kOk,         // done, or it was before
    kBack,       // the clock is further on: clocks do not go back
    kTooFar,     // beyond kMostClock, kMostAhead or kMostClocks
    kNotHolder,  // the rank has no clock, or it is another client's
  };

  explicit ClockGate(int64_t staleness) : staleness_(staleness) {}

  // Where the clock of `rank` begins, or goes on, if `holder` joins with it at
  // `at`. A new clock starts at `at`, or at the slowest of the others if that
  // is more. A clock that the same worker or an earlier incarnation of it had
  // is taken over; kNotHolder if another worker has it.
  Answer CheckJoin(int rank, const Holder& holder, int64_t at,
                   int64_t& begins) const {
    if (at > kMostClock) return Answer::kTooFar;
    const Clock* const had = Find(rank);
    if (had == nullptr) {
      if (clocks_.size() >= kMostClocks) return Answer::kTooFar;
      begins = std::max(at, floor_);
      return Answer::kOk;
    }
    const WorkerKey& worker = had->holder.worker;
    if (worker.id != holder.worker.id || holder.worker.epoch < worker.epoch) {
      return Answer::kNotHolder;
    }
    begins = std::max(at, had->at);
    return Answer::kOk;
  }

  // `holder` has the clock of `rank` from now on, as CheckJoin says.
  Answer Join(int rank, Holder holder, int64_t at) {
    int64_t begins = 0;
    const Answer answer = CheckJoin(rank, holder, at, begins);
    if (answer == Answer::kOk) Set(rank, std::move(holder), begins);
    return answer;
  }

  // The same of a join that another copy has checked: it is not checked here,
  // and the lowest clock falls if this one is lower.
  void Set(int rank, Holder holder, int64_t at) {
    clocks_[rank] = {std::move(holder), at};
    Advance();
  }

  // All that `client` pushed in steps before `clock` is applied.
  Answer Tick(int rank, uint64_t client, int64_t clock) {
    Clock* const mine = FindOf(rank, client);
    if (mine == nullptr) return Answer::kNotHolder;
    if (clock > kMostClock) return Answer::kTooFar;
    if (clock < mine->at) return Answer::kBack;
    if (clock == mine->at) return Answer::kOk;
    const bool was_slowest = mine->at == least_;
    mine->at = clock;
    if (was_slowest) Advance();
    return Answer::kOk;
  }

  // Whether `client` may ask for what a pull at `clock` sees; now or later.
  Answer CheckPull(int rank, uint64_t client, int64_t clock) const {
    const Clock* const mine = Find(rank);
    if (mine == nullptr || mine->holder.client != client) {
      return Answer::kNotHolder;
    }
    if (clock > kMostClock || clock - mine->at > kMostAhead) {
      return Answer::kTooFar;
    }
    return Answer::kOk;
  }

  // The least clock at which a pull at `clock` is answered.
  int64_t NeededFor(int64_t clock) const {
    return std::max(clock - staleness_, int64_t{0});
  }
  bool MayRead(int64_t needed) const {
    return clocks_.empty() || needed <= least_;
  }

  // Nobody waits for it any more. False if it has no clock.
  bool Leave(int rank, uint64_t client) {
    if (FindOf(rank, client) == nullptr) return false;
    clocks_.erase(rank);
    Advance();
    return true;
  }
  // That incarnation of a worker is gone, and so are those before it.
  void Forget(WorkerKey worker) {
    EraseIf([worker](const Holder& holder) {
      return holder.worker.id == worker.id &&
             holder.worker.epoch <= worker.epoch;
    });
  }
  // Those clients are closed.
  void Close(const std::vector<uint64_t>& clients) {
    CloseIf([&clients](uint64_t client) {
      return std::find(clients.begin(), clients.end(), client) != clients.end();
    });
  }
  // Those clients are closed for which `is_closed(client)`.
  template <typename IsClosed>
  void CloseIf(IsClosed is_closed) {
    EraseIf([&is_closed](const Holder& holder) {
      return is_closed(holder.client);
    });
  }

  int64_t staleness() const { return staleness_; }
  size_t size() const { return clocks_.size(); }
  // The lowest clock; if there is none, what it was last.
  int64_t least() const { return least_; }
  // The highest that was, at which new clocks begin. It never falls.
  int64_t floor() const { return floor_; }
  void RaiseFloor(int64_t floor) { floor_ = std::max(floor_, floor); }
  const std::map<int, Clock>& clocks() const { return clocks_; }  // by rank
  int64_t most() const {
    int64_t most = least_;
    for (const auto& [rank, clock] : clocks_) most = std::max(most, clock.at);
    return most;
  }
  // The lowest rank whose clock is the lowest; negative if there is none.
  int slowest() const {
    for (const auto& [rank, clock] : clocks_) {
      if (clock.at == least_) return rank;
    }
    return -1;
  }
  // Null if the rank has none.
  const Clock* Find(int rank) const {
    const auto it = clocks_.find(rank);
    return it == clocks_.end() ? nullptr : &it->second;
  }

  // What a caller is told of `answer` to a clock of `rank`, after `where`, the
  // table and who has it. kFailedPrecondition; kResourceExhausted if there are
  // as many clocks as may be.
  absl::Status StatusOf(Answer answer, absl::string_view where, int rank,
                        int64_t clock) const;

 private:
  Clock* FindOf(int rank, uint64_t client) {
    const auto it = clocks_.find(rank);
    if (it == clocks_.end() || it->second.holder.client != client) {
      return nullptr;
    }
    return &it->second;
  }

  template <typename Gone>
  void EraseIf(Gone gone) {
    for (auto it = clocks_.begin(); it != clocks_.end();) {
      it = gone(it->second.holder) ? clocks_.erase(it) : std::next(it);
    }
    Advance();
  }

  void Advance() {
    if (clocks_.empty()) return;
    int64_t least = clocks_.begin()->second.at;
    for (const auto& [rank, clock] : clocks_) {
      least = std::min(least, clock.at);
    }
    least_ = least;
    floor_ = std::max(floor_, least_);
  }

  int64_t staleness_;
  int64_t least_ = 0;
  int64_t floor_ = 0;            // the highest least_ that was
  std::map<int, Clock> clocks_;  // by rank
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_CLOCK_GATE_H_
