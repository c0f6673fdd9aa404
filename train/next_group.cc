#include "weft/train/next_group.h"

#include <utility>

#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/start_thread.h"

namespace weft::train {

NextGroup::~NextGroup() {
  if (thread_.joinable()) thread_.join();
}

void NextGroup::Begin(std::function<Made()> make) {
  WEFT_CHECK(!has_begun());
  has_begun_ = true;
  absl::StatusOr<std::thread> thread = StartThread(
      "the next group of an elastic training", [this, make = std::move(make)] {
        made_ = CatchToStatus([&] { return make(); });
        is_made_.store(true, std::memory_order_release);
      });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    made_ = thread.status();
    is_made_.store(true, std::memory_order_release);
  }
}

NextGroup::Made NextGroup::Take() {
  WEFT_CHECK(has_begun());
  if (thread_.joinable()) thread_.join();
  has_begun_ = false;
  is_made_.store(false, std::memory_order_relaxed);
  return std::exchange(made_, Made(nullptr));
}

}  // namespace weft::train
