#include "weft/collectives/backends/host/phases.h"

#include <sched.h>

#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/futex.h"

namespace weft::collectives {
namespace {

// A sleeper wakes by itself after this long, to call its check.
constexpr absl::Duration kSlice = absl::Milliseconds(10);

// How long a rank gives its core away by yields before it sleeps: a few times
// what it takes to wake a core that has halted. A yield that takes longer says
// that others have work for the core: then it sleeps at once.
constexpr absl::Duration kYieldFor = absl::Microseconds(150);

constexpr int kUntimedYields = 2;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

const RankControl* Phases::FirstMissing(uint64_t phase) const {
  for (const RankControl* control : controls_) {
    if (control->arrived.load(std::memory_order_acquire) < phase) {
      return control;
    }
  }
  return nullptr;
}

std::vector<int> Phases::Missing(uint64_t phase) const {
  std::vector<int> missing;
  for (size_t r = 0; r < controls_.size(); ++r) {
    if (controls_[r]->arrived.load(std::memory_order_acquire) < phase) {
      missing.push_back(static_cast<int>(r));
    }
  }
  return missing;
}

// Sequentially consistent: either the sleeper sees the arrival, or this rank
// sees that it sleeps.
void Phases::Arrive() {
  controls_[rank_]->core.store(sched_getcpu(), std::memory_order_relaxed);
  controls_[rank_]->arrived.store(next_++, std::memory_order_seq_cst);
  WakeAll();
}

void Phases::WakeAll() {
  for (size_t r = 0; r < controls_.size(); ++r) {
    RankControl& control = *controls_[r];
    if (static_cast<int>(r) == rank_) continue;
    if (control.is_sleeping.load(std::memory_order_seq_cst) == 0) continue;
    control.doorbell.fetch_add(1, std::memory_order_seq_cst);
    FutexWake(control.doorbell);
  }
}

absl::Status Phases::Await(
    uint64_t phase,
    absl::FunctionRef<absl::Status(const std::vector<int>& missing)> check) {
  // Looking helps nobody who waits for this core.
  for (int round = 0; round < spin_rounds_; ++round) {
    const RankControl* const missing = FirstMissing(phase);
    if (missing == nullptr) return absl::OkStatus();
    if (missing->core.load(std::memory_order_relaxed) == sched_getcpu()) break;
    Pause();
  }
  // Ranks that share a core take turns by yields. The clock is not read for the
  // first few.
  Instant sleep_at;
  for (int round = 0;; ++round) {
    if (FirstMissing(phase) == nullptr) return absl::OkStatus();
    if (round == kUntimedYields) sleep_at = SteadyClock().Now() + kYieldFor;
    if (round > kUntimedYields && SteadyClock().Now() >= sleep_at) break;
    sched_yield();
  }
  RankControl& own = *controls_[rank_];
  while (true) {
    const uint32_t seen = own.doorbell.load(std::memory_order_seq_cst);
    own.is_sleeping.store(1, std::memory_order_seq_cst);
    const std::vector<int> missing = Missing(phase);
    absl::Status status = missing.empty() ? absl::OkStatus() : check(missing);
    if (!missing.empty() && status.ok()) FutexWait(own.doorbell, seen, kSlice);
    own.is_sleeping.store(0, std::memory_order_seq_cst);
    if (missing.empty()) return absl::OkStatus();
    // A rank may have arrived, and then left, while it was looked at.
    if (!status.ok() && Missing(phase) == missing) return status;
  }
}

}  // namespace weft::collectives
