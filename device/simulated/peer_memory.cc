#include "weft/device/simulated/peer_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/status_macros.h"

namespace weft::device {
namespace {

constexpr int64_t kPage = SharedState::kPageBytes;

static_assert(sizeof(SimulatedHandle) <= sizeof(IpcHandle));

absl::Status NotThere(const SimulatedHandle& handle, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("the memory of a simulated device of process ", handle.pid,
                   " (descriptor ", handle.fd, "): ", why));
}

// The memfd, which is the caller's to close.
absl::StatusOr<int> OpenMemfd(const SimulatedHandle& handle,
                              const PeerProcess& process) {
  WEFT_ASSIGN_OR_RETURN(const int fd, process.OpenDescriptor(handle.fd));
  struct stat found = {};
  const int64_t wanted =
      handle.total_bytes + SharedState::BytesFor(handle.total_bytes);
  if (fstat(fd, &found) == 0 && found.st_size == wanted) return fd;
  close(fd);
  return NotThere(
      handle, absl::StrCat("wanted ", wanted, " bytes, found ", found.st_size));
}

}  // namespace

IpcHandle SimulatedHandle::Encode() const {
  IpcHandle made;
  std::memcpy(made.bytes.data(), this, sizeof *this);
  return made;
}

absl::StatusOr<SimulatedHandle> SimulatedHandle::Decode(const IpcHandle& handle,
                                                        Kind wanted) {
  SimulatedHandle read;
  std::memcpy(static_cast<void*>(&read), handle.bytes.data(), sizeof read);
  const bool is_sound = read.kind == wanted && read.pid > 0 && read.fd >= 0 &&
                        read.slot >= 0 && read.slot < SharedState::kEvents &&
                        read.total_bytes > 0 && read.total_bytes % kPage == 0 &&
                        read.offset >= 0 && read.offset < read.total_bytes;
  if (is_sound) return read;
  return absl::InvalidArgumentError(absl::StrCat(
      "wanted a handle of ", wanted == Kind::kMemory ? "memory" : "an event",
      " of a simulated device, found something else"));
}

absl::StatusOr<std::shared_ptr<PeerMemory>> PeerMemory::Open(
    const SimulatedHandle& handle) {
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<PeerProcess> process,
                        PeerProcess::Open(handle.pid));
  WEFT_ASSIGN_OR_RETURN(const int fd, OpenMemfd(handle, *process));
  absl::StatusOr<std::unique_ptr<SharedState>> state =
      SharedState::Map(fd, handle.total_bytes);
  void* const visible = mmap(nullptr, handle.total_bytes, PROT_NONE,
                             MAP_SHARED | MAP_NORESERVE, fd, 0);
  void* const backing =
      mmap(nullptr, handle.total_bytes, PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_NORESERVE, fd, 0);
  const int error = errno;
  close(fd);  // the mappings stay
  absl::Status status = state.status();
  if (status.ok() && (visible == MAP_FAILED || backing == MAP_FAILED)) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("simulated memory of process ", handle.pid, ", ",
                     handle.total_bytes, " bytes: mmap: ", strerror(error)));
  }
  if (status.ok() && (*state)->head().nonce != handle.nonce) {
    status = NotThere(handle, "it is another one by now");
  }
  if (!status.ok()) {
    if (visible != MAP_FAILED) munmap(visible, handle.total_bytes);
    if (backing != MAP_FAILED) munmap(backing, handle.total_bytes);
    return status;
  }
  return std::shared_ptr<PeerMemory>(new PeerMemory(
      std::move(process), *std::move(state), static_cast<char*>(visible),
      static_cast<char*>(backing), handle.total_bytes));
}

PeerMemory::PeerMemory(std::shared_ptr<PeerProcess> process,
                       std::unique_ptr<SharedState> state, char* visible,
                       char* backing, int64_t bytes)
    : process_(std::move(process)),
      state_(std::move(state)),
      visible_(visible),
      backing_(backing),
      total_bytes_(bytes),
      nonce_(state_->head().nonce) {}

PeerMemory::~PeerMemory() {
  munmap(visible_, total_bytes_);
  munmap(backing_, total_bytes_);
}

bool PeerMemory::Contains(const void* address) const {
  return address >= visible_ && address < visible_ + total_bytes_;
}

int64_t PeerMemory::AllocationOf(const void* address) const {
  if (!Contains(address)) return 0;
  const int64_t offset = static_cast<const char*>(address) - visible_;
  return state_->AllocationAt(offset / kPage).load();
}

absl::StatusOr<void*> PeerMemory::Reach(const void* address,
                                        int64_t bytes) const {
  const int64_t number = AllocationOf(address);
  if (number == 0) {
    return absl::InternalError(absl::StrFormat(
        "illegal address %p: the other process has freed it", address));
  }
  const int64_t offset = static_cast<const char*>(address) - visible_;
  const auto leaves = [&] {
    return absl::InternalError(absl::StrFormat(
        "illegal address: %d bytes at %p leave the allocation of another "
        "process",
        bytes, address));
  };
  if (bytes < 0 || bytes > total_bytes_ - offset) return leaves();
  const int64_t last = (offset + std::max<int64_t>(bytes, 1) - 1) / kPage;
  for (int64_t page = offset / kPage; page <= last; ++page) {
    if (state_->AllocationAt(page).load() != number) return leaves();
  }
  return backing_ + offset;
}

}  // namespace weft::device
