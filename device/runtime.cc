#include "weft/device/runtime.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::device {

std::string Name(Stream stream) {
  if (!stream.is_valid()) return "no stream";
  return absl::StrCat("stream ", stream.id(), " of ", Name(stream.device()));
}

Event::Event(Event&& other) noexcept
    : runtime_(std::exchange(other.runtime_, nullptr)),
      handle_(other.handle_),
      device_(other.device_) {}

Event& Event::operator=(Event&& other) noexcept {
  if (this == &other) return *this;
  Event dropped(std::move(*this));
  runtime_ = std::exchange(other.runtime_, nullptr);
  handle_ = other.handle_;
  device_ = other.device_;
  return *this;
}

Event::~Event() {
  if (runtime_ != nullptr) runtime_->ReleaseEvent(device_, handle_);
}

}  // namespace weft::device
