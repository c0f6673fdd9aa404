#include "weft/train/saving/background_save.h"

#include <utility>

#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"

namespace weft::train {

BackgroundSave::~BackgroundSave() { Take(); }

absl::Status BackgroundSave::Begin(std::function<Saved()> save) {
  WEFT_CHECK(!is_begun());
  is_done_ = false;
  WEFT_ASSIGN_OR_RETURN(
      thread_,
      StartThread("a checkpoint that is written while training goes on",
                  [this, save = std::move(save)] {
                    saved_ = CatchToStatus(save);
                    is_done_ = true;
                  }));
  return absl::OkStatus();
}

std::optional<BackgroundSave::Saved> BackgroundSave::TakeIfDone() {
  if (!is_begun() || !is_done_) return std::nullopt;
  return Take();
}

std::optional<BackgroundSave::Saved> BackgroundSave::Take() {
  if (!is_begun()) return std::nullopt;
  thread_.join();
  return std::move(saved_);
}

}  // namespace weft::train
