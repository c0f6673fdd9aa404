// Crowd: ranks of elastic trainings as threads of one process. Those who live
// meet once all of them have come, at most `max`, in the order of their ids. A
// rank that is removed while it waits, on another thread, ends its wait.

#ifndef WEFT_TESTS_OUTSIDE_ELASTIC_CROWD_H_
#define WEFT_TESTS_OUTSIDE_ELASTIC_CROWD_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"

namespace weft::outside {

// Thread-safety: thread-safe.
class Crowd {
 public:
  explicit Crowd(int max) : max_(max) {}

  // Called on the thread of each rank that has met others, before it is in the
  // group: group number `group`, from 0, of `world`, as `rank`. To be set
  // before the first Join.
  std::function<void(int id, int group, collectives::LocalWorld& world,
                     int rank)>
      on_meeting = nullptr;

  void Add(int id) {
    MutexLock lock(mu_);
    living_.insert(id);
  }
  void Remove(int id) {
    MutexLock lock(mu_);
    living_.erase(id);
    here_.erase(id);
    in_.erase(id);
    CloseIfAllAreHere();
    changed_.NotifyAll();
  }
  bool HasWaiting() {
    MutexLock lock(mu_);
    return !here_.empty();
  }
  absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> Join(int id) {
    std::shared_ptr<collectives::LocalWorld> world;
    int rank = 0, group = 0;
    {
      MutexLock lock(mu_);
      here_.insert(id);
      in_.erase(id);
      ranks_.erase(id);
      CloseIfAllAreHere();
      const auto deadline =
          std::chrono::steady_clock::now() + std::chrono::seconds(40);
      while (ranks_.find(id) == ranks_.end()) {
        if (living_.count(id) == 0) return absl::CancelledError("removed");
        if (!changed_.WaitUntil(mu_, deadline)) {
          return absl::DeadlineExceededError("others have not come");
        }
      }
      world = worlds_.back();
      rank = ranks_[id];
      group = static_cast<int>(worlds_.size()) - 1;
    }
    if (on_meeting != nullptr) on_meeting(id, group, *world, rank);
    collectives::GroupOptions options;
    options.timeout = absl::Seconds(30);
    return collectives::ProcessGroup::Create(world->Connect(rank), options);
  }

 private:
  // Nobody is in a group, or is yet to come, and somebody waits.
  void CloseIfAllAreHere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (here_.empty() || !in_.empty() || here_ != living_) return;
    ranks_.clear();
    while (!here_.empty() && static_cast<int>(ranks_.size()) < max_) {
      ranks_.emplace(*here_.begin(), static_cast<int>(ranks_.size()));
      in_.insert(*here_.begin());
      here_.erase(here_.begin());
    }
    worlds_.push_back(std::make_shared<collectives::LocalWorld>(
        static_cast<int>(ranks_.size())));
    changed_.NotifyAll();
  }

  const int max_;
  Mutex mu_;
  CondVar changed_;
  std::set<int> living_ ABSL_GUARDED_BY(mu_);
  std::set<int> here_ ABSL_GUARDED_BY(mu_);  // wait in Join
  std::set<int> in_ ABSL_GUARDED_BY(mu_);    // the newest group, and live
  std::map<int, int> ranks_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<collectives::LocalWorld>> worlds_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_ELASTIC_CROWD_H_
