#include "weft/device/current.h"

#include "weft/base/check.h"

namespace weft::device {
namespace internal {
namespace {

thread_local Scope* innermost = nullptr;

}  // namespace

struct ScopeAccess {
  static Device CurrentDevice() {
    return innermost == nullptr ? Device::Cpu() : innermost->device_;
  }
  static Stream FindStream(const Runtime& runtime, Device device) {
    for (const Scope* scope = innermost; scope != nullptr;
         scope = scope->outer_) {
      const Stream stream = scope->stream_;
      if (stream.is_valid() && &stream.runtime() == &runtime &&
          stream.device() == device) {
        return stream;
      }
    }
    return Stream();
  }
};

Scope::Scope(Device device, Stream stream)
    : device_(device), stream_(stream), outer_(innermost) {
  innermost = this;
}

Scope::~Scope() {
  WEFT_CHECK(innermost == this)
      << "a DeviceScope or StreamScope ended out of order or on another thread";
  innermost = outer_;
}

}  // namespace internal

StreamScope::StreamScope(Stream stream) : Scope(stream.device(), stream) {
  WEFT_CHECK(stream.is_valid()) << "StreamScope of a stream that names none";
}

Device CurrentDevice() { return internal::ScopeAccess::CurrentDevice(); }

absl::StatusOr<Stream> CurrentStream(Runtime& runtime, Device device) {
  const Stream stream = internal::ScopeAccess::FindStream(runtime, device);
  if (stream.is_valid()) return stream;
  return runtime.DefaultStream(device);
}

}  // namespace weft::device
