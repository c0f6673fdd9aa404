// Manifest: the file that makes a directory a checkpoint.
//
// JSON whose first member is the SHA-256 of all that follows it, so that no
// change of it passes unseen:
//
//   {"checksum":"<64 digits>",
//    "files":[{"bytes":..,"name":"shard-00000.safetensors","sha256":"..",
//              "writer":"ps0","xxh3":".."},..],
//    "format":"weft-checkpoint","metadata":{..},"step":..,"version":1}

#ifndef WEFT_CHECKPOINT_MANIFEST_H_
#define WEFT_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/checkpoint/digest.h"
#include "weft/checkpoint/safetensors.h"

namespace weft::checkpoint {

inline constexpr int64_t kMaxManifestBytes = int64_t{16} << 20;

// A file of a checkpoint, as its writer reports it to whoever commits.
struct FileRecord {
  std::string name;    // ShardName() of some number
  std::string writer;  // for messages: "ps0"
  Digest digest;
};

struct Manifest {
  int64_t step = 0;
  Metadata metadata;
  std::vector<FileRecord> files;
};

// "shard-00003.safetensors". REQUIRES: 0 <= shard < 100000.
std::string ShardName(int shard);
bool IsShardName(absl::string_view name);

// kInvalidArgument if names or metadata are not UTF-8, a name is no shard's or
// is there twice.
absl::StatusOr<std::string> FormatManifest(const Manifest& manifest);

// kDataLoss if the checksum is not that of the text, kUnimplemented for another
// version, kInvalidArgument for what is otherwise no manifest.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text,
                                       absl::string_view where);

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_MANIFEST_H_
