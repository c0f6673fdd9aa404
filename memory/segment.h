// Segment: sealed shared memory, which processes of one host pass by
// descriptor.

#ifndef WEFT_MEMORY_SEGMENT_H_
#define WEFT_MEMORY_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace weft::memory {

// A memfd, mapped for reading and writing. Its size is sealed and its pages are
// allocated when it is made, so that no peer, and no full memory, can turn an
// access into SIGBUS. Starts as zeros.
//
// Thread-safety: the handle, one thread at a time; the bytes, as their users
// agree.
class Segment {
 public:
  // `name` is what /proc/PID/maps shows. kInvalidArgument unless bytes > 0;
  // kResourceExhausted if there is not as much memory.
  static absl::StatusOr<Segment> Create(int64_t bytes,
                                        const std::string& name = "weft");

  // The same, but only its first `allocated` bytes have pages: nobody may touch
  // the others before Allocate. REQUIRES: 0 < allocated <= bytes.
  static absl::StatusOr<Segment> CreateInPart(int64_t bytes, int64_t allocated,
                                              const std::string& name = "weft");

  // Maps what another process sent, and owns `fd` from then on, also when it
  // fails. kInvalidArgument unless it is a sealed memfd of at least `bytes`.
  static absl::StatusOr<Segment> FromFd(int fd, int64_t bytes);
  // The same of one that was made by CreateInPart.
  static absl::StatusOr<Segment> FromFdInPart(int fd, int64_t bytes,
                                              int64_t allocated);

  // Whether all of it has pages.
  bool is_allocated() const;
  // Gives the bytes from `offset` on their pages; those that have some keep
  // them, with what is in them. kResourceExhausted if there is not as much
  // memory. Thread-safe. REQUIRES: they lie within the segment.
  absl::Status Allocate(int64_t offset, int64_t bytes) const;

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  // Unmaps and closes; others' mappings stay.
  ~Segment();

  // The memfd, for sending; this still owns it.
  int fd() const { return fd_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::byte* data() const { return data_; }
  absl::Span<std::byte> span() const {
    return {data_, static_cast<size_t>(size_bytes_)};
  }

 private:
  explicit Segment(int fd) : fd_(fd) {}

  absl::Status Map(int64_t bytes);

  int fd_ = -1;
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace weft::memory

#endif  // WEFT_MEMORY_SEGMENT_H_
