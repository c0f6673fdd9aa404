#include "weft/device/simulated/shared_state.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weft::device {
namespace {

// In memory that is mapped twice a lock would be two.
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

int64_t WholePages(int64_t bytes) {
  constexpr int64_t kPage = SharedState::kPageBytes;
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

int64_t SharedState::BytesFor(int64_t memory_bytes) {
  return WholePages(sizeof(Layout)) +
         WholePages(memory_bytes / kPageBytes *
                    static_cast<int64_t>(sizeof(uint32_t)));
}

absl::StatusOr<std::unique_ptr<SharedState>> SharedState::Map(
    int fd, int64_t memory_bytes) {
  const int64_t bytes = BytesFor(memory_bytes);
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_NORESERVE, fd, memory_bytes);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the shared state of a simulated device, ", bytes,
                     " bytes: mmap: ", std::strerror(errno)));
  }
  return std::unique_ptr<SharedState>(new SharedState(mapped, bytes));
}

SharedState::SharedState(void* mapped, int64_t mapped_bytes)
    : mapped_(mapped),
      mapped_bytes_(mapped_bytes),
      layout_(static_cast<Layout*>(mapped)),
      allocations_(reinterpret_cast<std::atomic<uint32_t>*>(
          static_cast<char*>(mapped) + WholePages(sizeof(Layout)))) {}

SharedState::~SharedState() { munmap(mapped_, mapped_bytes_); }

}  // namespace weft::device
