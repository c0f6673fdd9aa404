// CheckpointDirectory: checkpoints that are whole or do not exist.
//
//   <path>/ckpt-000007-step-1200/manifest.json     sizes, hashes, metadata
//                                shard-00000.safetensors ...
//   <path>/LATEST                                  the newest name, to be read
//   <path>/NAME-best                               the checkpoint named "best"
//   <path>/tmp-000008-1300-<nonce>/                being written, or abandoned
//
// A checkpoint is written in a directory of its own: shards, each synced, then
// the manifest, synced; then the directory is renamed and its parent synced. A
// directory without a manifest is no checkpoint. Numbers only grow: the newest
// is the one with the largest number, whatever its step.
//
// Several processes that see the same files may contribute: one calls Begin and
// sends the attempt's name to the others, each calls AddShard and sends back
// the record, and the first calls Commit. One attempt at a time: a Commit
// removes what other attempts left.
//
// A checkpoint may hold only what has changed since another one of the
// directory, its parent, which may do so as well: a chain, up to one that holds
// all. The parent is named with the checksum of its manifest, so that no other
// checkpoint is taken for it.
//
// Loading verifies sizes and hashes before it returns anything. A file is read
// once, piece by piece, to its tensors: of the CPU, or of a device, for which
// the host needs the pinned memory of DeviceElements and a piece more.
// Retention removes nothing before the newest checkpoint has been read back and
// verified. It never removes the newest good one, one that has a name, or one
// that a checkpoint that stays needs (its parent, and so on). A file
// NAME-<name> holds the name of its checkpoint, and may be written and removed
// by hand.
//
// Codes: kResourceExhausted disk full; kDataLoss damaged or unreadable;
// kNotFound no checkpoint.
//
// Thread-safety: thread-safe.

#ifndef WEFT_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define WEFT_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/checkpoint/elements.h"
#include "weft/checkpoint/file_system.h"
#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/safetensors.h"

namespace weft::checkpoint {

class CheckpointDirectory {
 public:
  struct Options {
    std::string path;  // made if it is not there
    // How many good checkpoints stay; at least 1. kKeepAll: Commit removes
    // none, and so does not read back what it has committed.
    int keep_last = 3;
    static constexpr int kKeepAll = std::numeric_limits<int>::max();
    // Besides, every checkpoint whose step is a multiple of this stays; 0:
    // none.
    int64_t keep_every_steps = 0;
    // Must outlive the directory; null: LocalFiles().
    FileSystem* files = nullptr;
  };

  struct Loaded {
    std::string name;
    Manifest manifest;
    NamedTensors tensors;  // of all shards
    // Newer checkpoints that are damaged, with the errors: log them as
    // warnings.
    std::vector<absl::Status> skipped;
  };

  // kFailedPrecondition if there is a file at the path.
  static absl::StatusOr<std::unique_ptr<CheckpointDirectory>> Open(
      const Options& options);

  const std::string& path() const { return options_.path; }

  // A checkpoint, and those that it needs.
  struct Link {
    std::string name;
    Manifest manifest;
  };

  // --- Written by one process. ---------------------------------------------

  // Writes one shard and commits; returns the checkpoint's name. After an error
  // the older checkpoints are as they were and the space is free again.
  absl::StatusOr<std::string> Save(int64_t step, const NamedTensors& tensors,
                                   const Metadata& metadata);

  // --- Written by several processes. ---------------------------------------

  // Makes room for a checkpoint and returns the attempt's name.
  // kInvalidArgument for a negative step. kFailedPrecondition if no number is
  // left.
  absl::StatusOr<std::string> Begin(int64_t step);

  // Writes shard number `shard` of the attempt; each number once.
  // kInvalidArgument if `attempt` is no name that Begin returns: it may come
  // off the wire.
  absl::StatusOr<FileRecord> AddShard(absl::string_view attempt, int shard,
                                      absl::string_view writer,
                                      const Safetensors& content);

  // The same, of a file that `write` writes in parts, without holding it.
  absl::StatusOr<FileRecord> AddShard(
      absl::string_view attempt, int shard, absl::string_view writer,
      absl::FunctionRef<absl::Status(WritableFile& file)> write);

  // Makes the attempt a checkpoint of these files, all of which must be there
  // in their size; returns its name. After an error nothing has changed, or
  // (said in the message) the checkpoint is there and may not survive a power
  // cut.
  absl::StatusOr<std::string> Commit(absl::string_view attempt,
                                     std::vector<FileRecord> files,
                                     const Metadata& metadata) {
    return Commit(attempt, std::move(files), metadata, std::nullopt);
  }
  // The same, where files may be deltas since `parent`: what FindParent gave to
  // those who wrote them. If none is, the checkpoint holds all, and has no
  // parent. kFailedPrecondition if a file is a delta and the parent is not
  // there any more.
  absl::StatusOr<std::string> Commit(absl::string_view attempt,
                                     std::vector<FileRecord> files,
                                     const Metadata& metadata,
                                     const std::optional<Parent>& parent);

  // The newest checkpoint as the parent of the next. Null if there is none; if
  // it, or one that it needs, cannot be read or is not whole (by sizes); or if
  // the next one should hold all, as each `full_every`-th does.
  absl::StatusOr<std::optional<Parent>> FindParent(int full_every);

  // Keeps `checkpoint`, which must be there, under `name`, 1 to 63 of
  // [a-z0-9-]; the one that had the name before loses it. kInvalidArgument,
  // kNotFound.
  absl::Status SetName(const std::string& name, const std::string& checkpoint);
  // kNotFound if none has that name.
  absl::StatusOr<std::string> Named(const std::string& name);

  // Removes what the attempt wrote, as well as it can.
  void Abandon(absl::string_view attempt);

  // --- Reading. ------------------------------------------------------------

  // Committed checkpoints, oldest first, damaged ones included.
  absl::StatusOr<std::vector<std::string>> List();

  absl::StatusOr<Manifest> ReadManifest(const std::string& name);

  // `name` and all that it needs, itself first. Reads manifests only. The error
  // names the link that is missing, damaged or another one than was wanted.
  absl::StatusOr<std::vector<Link>> Chain(const std::string& name);

  // Reads a shard to tensors of `device`, for work of any stream, and compares
  // it with its record. kInvalidArgument if `name` is no checkpoint's or the
  // record's no shard's. kResourceExhausted; the errors of device/runtime.h.
  absl::StatusOr<Safetensors> LoadShard(const std::string& name,
                                        const FileRecord& file,
                                        Device device = Device::Cpu());

  // Reads all of a checkpoint, and of those that it needs, and compares every
  // size and hash.
  absl::Status Verify(const std::string& name);

  // The tensors of all shards, on `device` as those of LoadShard. kDataLoss if
  // a name is in two; kFailedPrecondition if it has a parent.
  absl::StatusOr<Loaded> Load(const std::string& name,
                              Device device = Device::Cpu());

  // The newest that loads. kNotFound if there is none; if all are damaged,
  // kDataLoss. An error of memory or of the device is no damage: it is
  // returned.
  absl::StatusOr<Loaded> LoadLatest(Device device = Device::Cpu());

 private:
  explicit CheckpointDirectory(const Options& options);

  std::string PathOf(absl::string_view name, absl::string_view file = "") const;
  absl::Status WriteWhole(const std::string& path, absl::string_view bytes);
  // Replaces the small file `file` of the directory.
  absl::Status Point(const std::string& file, const std::string& name);
  absl::StatusOr<std::set<std::string>> AllNamed();
  absl::Status CheckSizes(const std::string& name,
                          const std::vector<FileRecord>& files);
  absl::Status CheckIsThere(const Parent& parent, int64_t number);
  absl::StatusOr<Safetensors> ReadShard(const std::string& name,
                                        const FileRecord& file,
                                        Elements& elements);
  absl::StatusOr<Loaded> LoadTo(const std::string& name, Elements& elements);
  absl::Status VerifyFiles(const Link& link);
  // Every checkpoint of `names` whose files, and those of all that it needs,
  // are there in their sizes.
  std::set<std::string> WholeOf(
      const std::vector<std::string>& names,
      const std::map<std::string, absl::StatusOr<Manifest>>& manifests);
  absl::Status Retain(const std::string& newest);
  void RemoveTree(const std::string& name);
  void RemoveAbandoned(int64_t number);

  const Options options_;
  FileSystem& files_;
};

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
