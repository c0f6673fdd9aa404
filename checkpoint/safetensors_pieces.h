// What a reader of a safetensors file in pieces needs besides safetensors.h.

#ifndef WEFT_CHECKPOINT_SAFETENSORS_PIECES_H_
#define WEFT_CHECKPOINT_SAFETENSORS_PIECES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/checkpoint/safetensors.h"

namespace weft::checkpoint {

// ParseSafetensorsHeader of a file of `file_bytes`. REQUIRES: `front` has the 8
// bytes of the header's length, or all of a file of fewer; and the header, if
// its length is within the file and kMaxHeaderBytes.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsFront(
    absl::string_view front, int64_t file_bytes, absl::string_view where);

// kInvalidArgument if `bytes`, which are some of the tensor's, are no elements
// of its dtype: those of BOOL must be 0 or 1.
absl::Status CheckElements(const TensorEntry& entry, absl::string_view bytes,
                           absl::string_view where);

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_SAFETENSORS_PIECES_H_
