// Simulator: a virtual clock and the events that move it. One seed, one run.
//
//   Simulator simulator(seed);
//   simulator.After(absl::Milliseconds(5), [&] { core.OnTimer(); }, "timer");
//   simulator.RunUntil(simulator.Now() + absl::Seconds(1));
//
// Nothing in a run may depend on anything but the seed: no real clock, no
// addresses, no order of a hash table. trace_hash() tells whether it does.

#ifndef WEFT_SIM_SIMULATOR_H_
#define WEFT_SIM_SIMULATOR_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/executor.h"
#include "weft/sim/random.h"

namespace weft::sim {

// Stands still until its Simulator moves it. Thread-safety: one at a time.
class SimClock final : public Clock {
 public:
  Instant Now() const override { return now_; }

 private:
  friend class Simulator;
  Instant now_;
};

// Thread-safety: one thread at a time, which a BatonScheduler sees to.
class Simulator {
 public:
  using EventId = uint64_t;
  static constexpr size_t kTraceLines = 4096;

  explicit Simulator(uint64_t seed) : seed_(seed), random_(seed) {}
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  uint64_t seed() const { return seed_; }
  Random& random() { return random_; }
  SimClock& clock() { return clock_; }
  Instant Now() const { return clock_.Now(); }

  // Runs `event` at `at`, or as soon as may be if that has passed. Events of
  // one instant run in an order that the seed picks. An event is inline code:
  // in it a Future that is not ready cannot be waited for.
  EventId Schedule(Instant at, Task event, std::string label = "event");
  EventId After(absl::Duration delay, Task event, std::string label = "event") {
    return Schedule(Now() + delay, std::move(event), std::move(label));
  }
  // Returns false if it has run or was cancelled.
  bool Cancel(EventId id);

  // When the next event is due; Infinite() if there is none.
  Instant NextAt() const;
  // Moves the clock to the next event and runs it; false if there is none.
  bool Step();
  // Runs what is due until `deadline` and moves the clock there; returns how
  // many events ran.
  int64_t RunUntil(Instant deadline);
  // Runs until nothing is left or `max_events` have run; returns how many.
  int64_t RunUntilIdle(int64_t max_events = 1000000);
  // REQUIRES: no event is due before `at`.
  void AdvanceTo(Instant at);

  // Adds a line to the trace, as each event does with its label.
  void Note(absl::string_view what);
  // The hash of all lines with their times. Equal hashes: equal runs.
  uint64_t trace_hash() const { return trace_hash_; }
  // The last kTraceLines of them.
  const std::deque<std::string>& trace() const { return trace_; }

 private:
  // Time, then what the seed says, then first come.
  using Key = std::tuple<Instant, uint64_t, EventId>;
  struct Event {
    Task run;
    std::string label;
  };

  const uint64_t seed_;
  SimClock clock_;
  Random random_;
  EventId next_id_ = 1;
  std::map<Key, Event> events_;
  std::unordered_map<EventId, Key> keys_;  // looked up, never iterated
  uint64_t trace_hash_ = 0;  // each line's is the seed of the next
  std::deque<std::string> trace_;
};

}  // namespace weft::sim

#endif  // WEFT_SIM_SIMULATOR_H_
