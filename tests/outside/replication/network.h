// Network: carries what is to be run, and loses, doubles, delays and repeats
// it.

#ifndef WEFT_TESTS_OUTSIDE_REPLICATION_NETWORK_H_
#define WEFT_TESTS_OUTSIDE_REPLICATION_NETWORK_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/sim/random.h"

namespace weft::outside {

// Thread-safety: one thread at a time.
class Network {
 public:
  // `random` must outlive it.
  explicit Network(sim::Random& random) : random_(random) {}

  // `deliver` may run never, twice, late, and again much later.
  void Carry(Instant now, std::function<void()> deliver, double loss) {
    if (random_.Chance(loss)) return;
    const absl::Duration delay =
        random_.Chance(0.04)
            ? random_.Between(absl::ZeroDuration(), absl::Milliseconds(900))
            : random_.Between(absl::ZeroDuration(), absl::Milliseconds(12));
    if (random_.Chance(0.05)) {
      RunAt(
          now + random_.Between(absl::ZeroDuration(), absl::Milliseconds(500)),
          deliver);
    }
    if (history_.size() < kMostKept) {
      history_.push_back(deliver);
    } else {
      history_[random_.Below(kMostKept)] = deliver;
    }
    RunAt(now + delay, std::move(deliver));
  }
  void RunAt(Instant at, std::function<void()> run) {
    events_.push_back({at, ++last_, std::move(run)});
    std::push_heap(events_.begin(), events_.end());
  }

  // False if nothing is due.
  bool RunOneBefore(Instant now) {
    if (events_.empty() || events_.front().at > now) return false;
    std::pop_heap(events_.begin(), events_.end());
    const auto run = std::move(events_.back().run);
    events_.pop_back();
    run();
    return true;
  }
  // Something that was carried once. False if nothing ever was.
  bool RunAnOldOne() {
    if (history_.empty()) return false;
    const auto run =
        history_[random_.Below(static_cast<int64_t>(history_.size()))];
    run();
    return true;
  }

 private:
  static constexpr size_t kMostKept = 4000;
  struct Event {
    Instant at;
    uint64_t number;
    std::function<void()> run;
    // For a heap whose front is the earliest.
    friend bool operator<(const Event& a, const Event& b) {
      return a.at != b.at ? a.at > b.at : a.number > b.number;
    }
  };

  sim::Random& random_;
  uint64_t last_ = 0;
  std::vector<Event> events_;
  std::vector<std::function<void()>> history_;
};

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_REPLICATION_NETWORK_H_
