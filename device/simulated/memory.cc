#include "weft/device/simulated/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/status_macros.h"

namespace weft::device {
namespace {

constexpr int64_t kPageBytes = SharedState::kPageBytes;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

absl::Status HostError(absl::string_view what, int64_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat("simulated memory of ",
                                                   bytes, " bytes: ", what,
                                                   ": ", std::strerror(errno)));
}

Nonce DrawNonce() {
  std::random_device random;
  const auto word = [&] { return uint64_t{random()} << 32 | random(); };
  return {word(), word()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<SimulatedMemory>> SimulatedMemory::Create(
    int64_t bytes) {
  bytes = RoundUp(std::max<int64_t>(bytes, 1));
  const int fd = memfd_create("weft simulated device", MFD_CLOEXEC);
  if (fd < 0) return HostError("memfd_create", bytes);
  if (ftruncate(fd, bytes + SharedState::BytesFor(bytes)) != 0) {
    const absl::Status status = HostError("ftruncate", bytes);
    close(fd);
    return status;
  }
  absl::StatusOr<std::unique_ptr<SharedState>> state =
      SharedState::Map(fd, bytes);
  if (!state.ok()) {
    close(fd);
    return state.status();
  }
  void* const visible =
      mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  void* const backing = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (visible == MAP_FAILED || backing == MAP_FAILED) {
    const absl::Status status = HostError("mmap", bytes);
    if (visible != MAP_FAILED) munmap(visible, bytes);
    if (backing != MAP_FAILED) munmap(backing, bytes);
    close(fd);
    return status;
  }
  return std::unique_ptr<SimulatedMemory>(
      new SimulatedMemory(fd, *std::move(state), static_cast<char*>(visible),
                          static_cast<char*>(backing), bytes));
}

SimulatedMemory::SimulatedMemory(int fd, std::unique_ptr<SharedState> state,
                                 char* visible, char* backing, int64_t bytes)
    : fd_(fd),
      state_(std::move(state)),
      visible_(visible),
      backing_(backing),
      total_bytes_(bytes) {
  state_->head().nonce = DrawNonce();
  state_->head().memory_bytes = bytes;
}

SimulatedMemory::~SimulatedMemory() {
  munmap(visible_, total_bytes_);
  munmap(backing_, total_bytes_);
  close(fd_);
}

int64_t SimulatedMemory::FindFree(int64_t from, int64_t bytes) const {
  int64_t offset = from;
  // A range that begins before `from` may reach beyond it.
  auto it = ranges_.upper_bound(from);
  if (it != ranges_.begin()) {
    const auto before = std::prev(it);
    offset = std::max(offset, before->first + before->second.mapped_bytes);
  }
  for (; it != ranges_.end() && it->first - offset < bytes; ++it) {
    offset = it->first + it->second.mapped_bytes;
  }
  return total_bytes_ - offset >= bytes ? offset : -1;
}

absl::StatusOr<void*> SimulatedMemory::Allocate(int64_t bytes) {
  if (bytes > total_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "out of memory: wanted ", bytes, " bytes of ", total_bytes_));
  }
  const int64_t mapped = RoundUp(bytes);
  int64_t offset = FindFree(next_, mapped);
  if (offset < 0) offset = FindFree(0, mapped);
  if (offset < 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "out of memory: wanted ", bytes, " bytes, ", total_bytes_ - used_bytes_,
        " of ", total_bytes_, " are free, not all in one piece"));
  }
  const Range range = {bytes, mapped, ++allocations_};
  ranges_[offset] = range;
  used_bytes_ += mapped;
  next_ = offset + mapped;
  std::memset(backing_ + offset, 0xFF, mapped);
  Publish(offset, range, range.number);
  return visible_ + offset;
}

absl::Status SimulatedMemory::Free(const void* memory) {
  const auto it = Find(memory);
  if (it == ranges_.end() || visible_ + it->first != memory) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%p is not the address of an allocation that is alive", memory));
  }
  Publish(it->first, it->second, 0);
  // The pages go back to the host; what is left to read are zeros.
  fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, it->first,
            it->second.mapped_bytes);
  used_bytes_ -= it->second.mapped_bytes;
  ranges_.erase(it);
  return absl::OkStatus();
}

void SimulatedMemory::Publish(int64_t offset, const Range& range,
                              int64_t number) const {
  const int64_t end = (offset + range.mapped_bytes) / kPageBytes;
  for (int64_t page = offset / kPageBytes; page < end; ++page) {
    state_->AllocationAt(page).store(static_cast<uint32_t>(number));
  }
}

SimulatedHandle SimulatedMemory::OwnHandle(SimulatedHandle::Kind kind) const {
  SimulatedHandle handle;
  handle.kind = kind;
  handle.pid = getpid();
  handle.fd = fd_;
  handle.nonce = state_->head().nonce;
  handle.total_bytes = total_bytes_;
  return handle;
}

int64_t SimulatedMemory::OffsetOf(const void* address) const {
  return static_cast<const char*>(address) - visible_;
}

absl::StatusOr<SimulatedHandle> SimulatedMemory::HandleOf(
    const void* address) const {
  const auto it = Find(address);
  if (it == ranges_.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%p is in no allocation that is alive", address));
  }
  SimulatedHandle handle = OwnHandle(SimulatedHandle::Kind::kMemory);
  handle.offset = it->first;
  handle.allocation = it->second.number;
  return handle;
}

absl::StatusOr<SimulatedHandle> SimulatedMemory::TakeEvent() {
  SimulatedHandle handle = OwnHandle(SimulatedHandle::Kind::kEvent);
  if (!free_events_.empty()) {
    handle.slot = free_events_.back();
    free_events_.pop_back();
    return handle;
  }
  if (next_event_ == SharedState::kEvents) {
    return absl::ResourceExhaustedError(
        absl::StrCat("wanted one more event for other processes, found all ",
                     SharedState::kEvents, " in use"));
  }
  handle.slot = next_event_++;
  return handle;
}

void SimulatedMemory::GiveBackEvent(int slot) {
  const SharedEventSlot& event = state_->EventAt(slot);
  if (event.completed.load() < event.recorded.load()) return;
  free_events_.push_back(slot);
}

void SimulatedMemory::CompleteAllEvents() const {
  for (int slot = 0; slot < next_event_; ++slot) {
    SharedEventSlot& event = state_->EventAt(slot);
    event.Complete(event.recorded.load());
  }
}

bool SimulatedMemory::Contains(const void* address) const {
  return address >= visible_ && address < visible_ + total_bytes_;
}

SimulatedMemory::Ranges::const_iterator SimulatedMemory::Find(
    const void* address) const {
  if (!Contains(address)) return ranges_.end();
  const int64_t offset = static_cast<const char*>(address) - visible_;
  auto it = ranges_.upper_bound(offset);
  if (it == ranges_.begin()) return ranges_.end();
  --it;
  return offset - it->first < it->second.bytes ? it : ranges_.end();
}

absl::StatusOr<void*> SimulatedMemory::Reach(const void* address,
                                             int64_t bytes) const {
  const auto it = Find(address);
  if (it == ranges_.end()) {
    return absl::InternalError(absl::StrFormat(
        "illegal address %p: in no allocation that is alive", address));
  }
  const int64_t offset = static_cast<const char*>(address) - visible_;
  const int64_t room = it->first + it->second.bytes - offset;
  if (bytes < 0 || bytes > room) {
    return absl::InternalError(
        absl::StrFormat("illegal address: %d bytes at %p, where an allocation "
                        "of %d bytes has %d left",
                        bytes, address, it->second.bytes, room));
  }
  return backing_ + offset;
}

int64_t SimulatedMemory::AllocationOf(const void* address) const {
  const auto it = Find(address);
  return it == ranges_.end() ? 0 : it->second.number;
}

}  // namespace weft::device
