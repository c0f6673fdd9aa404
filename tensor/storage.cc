#include "weft/tensor/storage.h"

#include <new>
#include <utility>

namespace weft {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

IntrusivePtr<Storage> Storage::Allocate(int64_t bytes) {
  return IntrusivePtr<Storage>(new Storage(bytes));
}

IntrusivePtr<Storage> Storage::Wrap(void* memory, int64_t bytes,
                                    std::shared_ptr<const void> owner) {
  return IntrusivePtr<Storage>(new Storage(memory, bytes, std::move(owner)));
}

Storage::Storage(int64_t bytes)
    : memory_(bytes <= kInlineBytes
                  ? inline_
                  : static_cast<char*>(::operator new(bytes, kAlignment))),
      bytes_(bytes) {}

Storage::Storage(void* memory, int64_t bytes, std::shared_ptr<const void> owner)
    : memory_(static_cast<char*>(memory)),
      bytes_(bytes),
      owner_(owner != nullptr ? std::move(owner)
                              : std::shared_ptr<const void>(
                                    std::shared_ptr<void>(), memory)) {}

Storage::~Storage() {
  if (owner_ == nullptr && memory_ != inline_) {
    ::operator delete(memory_, kAlignment);
  }
}

}  // namespace weft
