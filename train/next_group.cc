#include "weft/train/next_group.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"

namespace weft::train {

NextGroup::~NextGroup() {
  if (thread_.joinable()) thread_.join();
}

void NextGroup::Begin(std::function<Made()> make) {
  WEFT_CHECK(!has_begun());
  has_begun_ = true;
  try {
    thread_ = std::thread([this, make = std::move(make)] {
      made_ = CatchToStatus([&] { return make(); });
      is_made_.store(true, std::memory_order_release);
    });
  } catch (const std::system_error& error) {
    made_ = absl::ResourceExhaustedError(
        absl::StrCat("no thread to make the next group on: ", error.what()));
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
