// Manifest: the file that makes a directory a checkpoint.
//
// JSON whose first member is the SHA-256 of all that follows it, so that no
// change of it passes unseen:
//
//   {"checksum":"<64 digits>",
//    "files":[{"bytes":..,"name":"shard-00000.safetensors","sha256":"..",
//              "writer":"ps0","xxh3":".."},..],
//    "format":"weft-checkpoint","metadata":{..},"step":..,"version":1}
//
// "attempt" is the name under which it was written. A checkpoint that holds
// what has changed since another one has version 2, "parent":{"attempt",
// "checksum","name"}, "links": how many such come before the one that holds
// all, and "delta":true at files that are of no use without the parent.

#ifndef WEFT_CHECKPOINT_MANIFEST_H_
#define WEFT_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <optional>
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
  bool is_delta = false;  // of no use without the parent
};

// The checkpoint since which another one has what has changed.
struct Parent {
  std::string name;      // in the same directory
  std::string attempt;   // under which it was written
  std::string checksum;  // of its manifest, and so of all that it lists
  int64_t links = 0;     // its own
};

// The most `links` that a checkpoint may have.
inline constexpr int64_t kMaxLinks = 1000;

struct Manifest {
  int64_t step = 0;
  Metadata metadata;
  std::vector<FileRecord> files;
  std::string attempt = {};  // empty: of an older build
  std::optional<Parent> parent = std::nullopt;
  int64_t links = 0;          // 0: it holds all
  std::string checksum = {};  // set by ParseManifest
};

// "shard-00003.safetensors". REQUIRES: 0 <= shard < 100000.
std::string ShardName(int shard);
bool IsShardName(absl::string_view name);

// kInvalidArgument if names or metadata are not UTF-8, a name is no shard's or
// is there twice, or files and parent do not fit: one with a parent has a file
// that is a delta, and no other one has.
absl::StatusOr<std::string> FormatManifest(const Manifest& manifest);

// kDataLoss if the checksum is not that of the text, kUnimplemented for another
// version, kInvalidArgument for what is otherwise no manifest.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text,
                                       absl::string_view where);

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_MANIFEST_H_
