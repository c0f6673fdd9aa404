#include "weft/transport/shm/payload_ring.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"

namespace weft::transport {
namespace {

constexpr uint64_t kChunkAlignment = 64;  // a cache line, to both ends

// The parts of a ring: a reader reports after every quarter; a writer waits for
// an eighth rather than cut a body into crumbs. All but a quarter is free, or
// soon reported, once the reader has caught up, so that nobody waits for ever.
constexpr uint64_t kReportPart = 4;
constexpr uint64_t kLeastPart = 8;

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
}

void CheckCapacity(uint64_t capacity) {
  WEFT_CHECK(capacity > 0 && capacity % (kChunkAlignment * 16) == 0);
}

}  // namespace

PayloadWriter::PayloadWriter(uint64_t capacity) : capacity_(capacity) {
  CheckCapacity(capacity);
}

std::optional<PayloadWriter::Place> PayloadWriter::Reserve(size_t bytes) {
  WEFT_CHECK(bytes > 0);
  const uint64_t offset = written_ % capacity_;
  const uint64_t to_end = capacity_ - offset;
  const uint64_t free = capacity_ - (written_ - released_);
  const uint64_t wanted = std::min<uint64_t>(bytes, to_end);
  if (free < std::min(wanted, capacity_ / kLeastPart)) return std::nullopt;
  const uint64_t size = std::min(wanted, free);
  written_ += RoundUp(size);
  return Place{offset, size};
}

absl::Status PayloadWriter::Release(uint64_t position) {
  if (position < released_ || position > written_ ||
      position % kChunkAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer says to have read shared memory up to ",
                     position, ", of ", released_, " to ", written_));
  }
  released_ = position;
  return absl::OkStatus();
}

PayloadReader::PayloadReader(uint64_t capacity) : capacity_(capacity) {
  CheckCapacity(capacity);
}

absl::StatusOr<size_t> PayloadReader::Take(size_t size) {
  const uint64_t offset = taken_ % capacity_;
  if (size == 0 || size > capacity_ - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk of ", size, " bytes at ", offset, " of ",
                     capacity_, " bytes of shared memory"));
  }
  taken_ += RoundUp(size);
  return offset;
}

bool PayloadReader::MustReport() const {
  return consumed_ - reported_ >= capacity_ / kReportPart;
}

uint64_t PayloadReader::Report() { return reported_ = consumed_; }

}  // namespace weft::transport
