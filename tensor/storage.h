// Storage: the memory that a tensor and its views share.
//
// The memory of the CPU, or of a device: then only what runs on a stream of the
// device may touch it (weft/tensor/on_device.h).
//
// Thread-safety: the count and the version are thread-safe; the bytes are as
// any memory, many readers or one writer.

#ifndef WEFT_TENSOR_STORAGE_H_
#define WEFT_TENSOR_STORAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "weft/tensor/device.h"
#include "weft/tensor/intrusive_ptr.h"

namespace weft {

namespace device {
class Block;
}  // namespace device

class Storage;

// The elements of a Storage as they are, for who needs them after an update in
// place: it holds one from Storage::Hold, and only then is there a copy.
//
// Thread-safety: thread-safe.
class HeldVersion : public RefCounted<HeldVersion> {
 public:
  // Null until an update began.
  IntrusivePtr<Storage> copy() const;
  // The version of which copy() is. REQUIRES: copy() is not null.
  uint64_t version() const { return version_; }

  HeldVersion() = default;
  ~HeldVersion();

 private:
  friend class Storage;
  IntrusivePtr<Storage> copy_;  // constant once is_copied_
  uint64_t version_ = 0;
  std::atomic<bool> is_copied_{false};
};

class Storage : public RefCounted<Storage> {
 public:
  // Not initialised. Aligned to 64 bytes, or to 16 if it is at most
  // kInlineBytes, which are part of this object; on a device to 512. Throws
  // Error with RESOURCE_EXHAUSTED if there is not as much memory, and with the
  // errors of device::Block::Allocate.
  static IntrusivePtr<Storage> Allocate(int64_t bytes,
                                        Device device = Device::Cpu());

  // Memory of someone else, which `owner` keeps alive. May be written to. For
  // memory of a device, `owner` must keep it until the work that uses it has
  // run.
  static IntrusivePtr<Storage> Wrap(void* memory, int64_t bytes,
                                    std::shared_ptr<const void> owner,
                                    Device device = Device::Cpu());

  ~Storage();

  // On a device this is an address that the host must not touch.
  char* memory() const { return memory_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  // The block of device memory; null if it is on the CPU or wrapped.
  device::Block* block() const { return block_.get(); }
  bool is_wrapped() const { return owner_ != nullptr; }
  // Whether Allocate made it: nobody else knows the memory.
  bool owns_memory() const { return owner_ == nullptr; }

  // Room for the first handle on it, so that the two are one block of memory.
  static constexpr size_t kHandleBytes = 176;
  void* handle_room() { return handle_; }

  // Grows by one with each BumpVersion, which each operation that writes into
  // existing elements calls. Code that needs the elements later (a
  // Payload::Borrow, a gradient) keeps the number and compares.
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void BumpVersion() { version_.fetch_add(1, std::memory_order_relaxed); }

  // From now on whoever holds a version keeps its elements in spite of a
  // BeginUpdate. Without this Hold costs nothing, and returns null.
  void KeepVersions();
  // The elements as they are, and their number in `version`.
  IntrusivePtr<HeldVersion> Hold(uint64_t* version) const;
  // To be called in place of BumpVersion before elements that graphs may have
  // saved, such as weights, are updated in place: those who hold the version
  // get a copy of the bytes, which is made if anybody does. Throws as Allocate,
  // with nothing changed. A reader at the very time of the update may see a
  // part of it.
  void BeginUpdate();

 private:
  static constexpr int64_t kInlineBytes = 64;

  struct Versions;

  Storage(void* memory, int64_t bytes, std::shared_ptr<const void> owner,
          Device device);
  explicit Storage(int64_t bytes);
  Storage(std::shared_ptr<device::Block> block, int64_t bytes, Device device);

  char* memory_;
  const int64_t bytes_;
  const Device device_;
  std::atomic<uint64_t> version_{0};
  std::atomic<Versions*> versions_{nullptr};  // owned; null: none are kept
  const std::shared_ptr<const void> owner_;   // Null: memory_ is ours.
  const std::shared_ptr<device::Block> block_;
  alignas(16) char inline_[kInlineBytes];
  alignas(16) char handle_[kHandleBytes];
};

}  // namespace weft

#endif  // WEFT_TENSOR_STORAGE_H_
