#include "weft/tensor/storage.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/error.h"
#include "weft/base/mutex.h"
#include "weft/device/context.h"
#include "weft/memory/allocator.h"
#include "weft/tensor/on_device.h"

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

IntrusivePtr<Storage> Storage::Allocate(int64_t bytes, Device device) {
  if (device.is_cpu()) return IntrusivePtr<Storage>(new Storage(bytes));
  absl::StatusOr<std::shared_ptr<device::Block>> block =
      device::Block::Allocate(*device.context(), device.index(), bytes);
  ThrowIfError(block.status());
  return IntrusivePtr<Storage>(new Storage(*std::move(block), bytes, device));
}

IntrusivePtr<Storage> Storage::Wrap(void* memory, int64_t bytes,
                                    std::shared_ptr<const void> owner,
                                    Device device) {
  return IntrusivePtr<Storage>(
      new Storage(memory, bytes, std::move(owner), device));
}

Storage::Storage(int64_t bytes)
    : memory_(bytes <= kInlineBytes ? inline_ : AllocateHost(bytes)),
      bytes_(bytes) {}

Storage::Storage(std::shared_ptr<device::Block> block, int64_t bytes,
                 Device device)
    : memory_(static_cast<char*>(block->address())),
      bytes_(bytes),
      device_(device),
      block_(std::move(block)) {}

Storage::Storage(void* memory, int64_t bytes, std::shared_ptr<const void> owner,
                 Device device)
    : memory_(static_cast<char*>(memory)),
      bytes_(bytes),
      device_(device),
      owner_(owner != nullptr ? std::move(owner)
                              : std::shared_ptr<const void>(
                                    std::shared_ptr<void>(), memory)) {}

// What is held of it now.
struct Storage::Versions {
  Mutex mu;
  IntrusivePtr<HeldVersion> current ABSL_GUARDED_BY(mu) =
      MakeIntrusive<HeldVersion>();
};

HeldVersion::~HeldVersion() = default;

IntrusivePtr<Storage> HeldVersion::copy() const {
  return is_copied_.load(std::memory_order_acquire) ? copy_
                                                    : IntrusivePtr<Storage>();
}

void Storage::KeepVersions() {
  if (versions_.load(std::memory_order_acquire) != nullptr) return;
  auto made = std::make_unique<Versions>();
  Versions* none = nullptr;
  if (versions_.compare_exchange_strong(none, made.get(),
                                        std::memory_order_acq_rel)) {
    made.release();
  }
}

IntrusivePtr<HeldVersion> Storage::Hold(uint64_t* version) const {
  Versions* const versions = versions_.load(std::memory_order_acquire);
  if (versions == nullptr) {
    *version = this->version();
    return {};
  }
  MutexLock lock(versions->mu);
  *version = this->version();
  return versions->current;
}

void Storage::BeginUpdate() {
  KeepVersions();
  Versions& versions = *versions_.load(std::memory_order_acquire);
  MutexLock lock(versions.mu);
  // Nobody can begin to hold it meanwhile; who gives it up now costs a copy.
  if (!versions.current->is_unique()) {
    auto next = MakeIntrusive<HeldVersion>();
    const IntrusivePtr<Storage> copy = Allocate(bytes_, device_);
    internal::CopyBytes(*copy, copy->memory(), *this, memory_, bytes_);
    versions.current->copy_ = copy;
    versions.current->version_ = version();
    versions.current->is_copied_.store(true, std::memory_order_release);
    versions.current = std::move(next);
  }
  // Who sees the new version sees the copy.
  version_.fetch_add(1, std::memory_order_release);
}

Storage::~Storage() {
  delete versions_.load(std::memory_order_relaxed);
  if (owner_ == nullptr && block_ == nullptr && memory_ != inline_) {
    memory::HostAllocator().Deallocate(memory_, bytes_);
  }
}

}  // namespace weft
