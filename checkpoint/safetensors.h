// Safetensors: tensors by name in one file, readable from any language.
//
// 8 bytes little-endian header length, a JSON header {name: {dtype, shape,
// data_offsets}, "__metadata__": {string: string}}, then the elements, little-
// endian, row-major, without gaps. What it can say is all it can do: no code,
// no paths.
//
// All our dtypes: F32, F64, F16, BF16, I64, I32, I8, U8, BOOL. Limits: a header
// of 16 MiB, a million tensors, names of 256 bytes, 32 dimensions, 2^47 bytes a
// tensor.

#ifndef WEFT_CHECKPOINT_SAFETENSORS_H_
#define WEFT_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/checkpoint/file_system.h"
#include "weft/tensor/tensor.h"

namespace weft::checkpoint {

inline constexpr int64_t kMaxHeaderBytes = int64_t{16} << 20;
inline constexpr int64_t kMaxTensors = 1'000'000;
inline constexpr size_t kMaxNameBytes = 256;

using NamedTensors = absl::btree_map<std::string, Tensor>;
using Metadata = std::map<std::string, std::string>;

struct Safetensors {
  NamedTensors tensors;
  Metadata metadata;
};

// A tensor's place in a file.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  int64_t begin = 0;  // bytes, from the first element of the file
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  // by place: each begins where one ends
  Metadata metadata;
  int64_t bytes = 0;  // up to the first element
};

// Reads the header at the front of `file`, all of which is there. Allocates no
// more than it finds. kInvalidArgument, saying what and `where`, for anything
// that breaks the format, the limits or this list: duplicate names or keys,
// overlaps, holes, bytes left over, a range that is not the shape's size.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::string_view file, absl::string_view where);

// All of it, in tensors of their own. Elements of BOOL must be 0 or 1.
absl::StatusOr<Safetensors> ParseSafetensors(absl::string_view file,
                                             absl::string_view where);

// The front of a file, up to its first element, for a writer that holds no
// tensors: `entries` need name, dtype and shape, and come back in the order in
// which their elements follow, with their places. kInvalidArgument for what a
// reader would refuse: names, metadata, two of one name, a shape of no tensor.
absl::StatusOr<std::string> SafetensorsFront(std::vector<TensorEntry>& entries,
                                             const Metadata& metadata);

// Gives the file in parts, in order, to `file`. Larger dtypes come first, so
// that all elements are aligned. kInvalidArgument for an undefined tensor, a
// name or metadata that a reader would refuse.
absl::Status WriteSafetensors(const Safetensors& content, WritableFile& file);

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_SAFETENSORS_H_
