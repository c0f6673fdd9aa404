#include "weft/tensor/storage.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/error.h"
#include "weft/memory/allocator.h"

namespace weft {
namespace {

char* AllocateHost(int64_t bytes) {
  void* const memory = memory::HostAllocator().Allocate(bytes);
  if (memory == nullptr) {
    throw Error(absl::ResourceExhaustedError(
        absl::StrCat("Tensor: no memory for ", bytes, " bytes")));
  }
  return static_cast<char*>(memory);
}

}  // namespace

IntrusivePtr<Storage> Storage::Allocate(int64_t bytes) {
  return IntrusivePtr<Storage>(new Storage(bytes));
}

IntrusivePtr<Storage> Storage::Wrap(void* memory, int64_t bytes,
                                    std::shared_ptr<const void> owner) {
  return IntrusivePtr<Storage>(new Storage(memory, bytes, std::move(owner)));
}

Storage::Storage(int64_t bytes)
    : memory_(bytes <= kInlineBytes ? inline_ : AllocateHost(bytes)),
      bytes_(bytes) {}

Storage::Storage(void* memory, int64_t bytes, std::shared_ptr<const void> owner)
    : memory_(static_cast<char*>(memory)),
      bytes_(bytes),
      owner_(owner != nullptr ? std::move(owner)
                              : std::shared_ptr<const void>(
                                    std::shared_ptr<void>(), memory)) {}

Storage::~Storage() {
  if (owner_ == nullptr && memory_ != inline_) {
    memory::HostAllocator().Deallocate(memory_, bytes_);
  }
}

}  // namespace weft
