// Record frames: records one after another in a file that only grows, so that a
// reader finds where a crash has cut the last one, and that any other byte is
// another than was written.
//
// Of each its length (u32), a check of the length (u32), the XXH64 of its bytes
// (u64), its bytes, and a byte that is not 0; little-endian.
//
// Thread-safety: pure functions.

#ifndef WEFT_BASE_IO_RECORD_FRAMES_H_
#define WEFT_BASE_IO_RECORD_FRAMES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// Before a record, and after it.
inline constexpr int64_t kFrameHeaderBytes = 16;
inline constexpr int64_t kFrameEndBytes = 1;

void AppendFrame(absl::string_view record, std::string* to);

// Takes the next record off the front of `bytes`; it points into them. False:
// nothing is left, or a write that was cut short, or whose end is zeros, as a
// power loss leaves it where the file's new length reached the disk.
// kDataLoss: something else, or a record of more than `most_bytes`.
absl::StatusOr<bool> TakeFrame(absl::string_view* bytes, uint32_t most_bytes,
                               absl::string_view* record);

// The length of the record whose frame `bytes` begin with, which have the
// header at least; nothing if its check does not hold.
std::optional<uint32_t> FrameLength(absl::string_view bytes);

}  // namespace weft

#endif  // WEFT_BASE_IO_RECORD_FRAMES_H_
