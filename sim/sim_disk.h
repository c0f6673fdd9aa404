// SimDisk: a file system that keeps, over a crash, only what was synced.
//
// A file's bytes last from SyncFile on, its name (creation, rename, removal)
// from SyncDirectory of the folder on, which also makes all earlier changes of
// names last, as a journal does. Folders exist by having files.

#ifndef WEFT_SIM_SIM_DISK_H_
#define WEFT_SIM_SIM_DISK_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/random.h"

namespace weft::sim {

// Thread-safety: one thread at a time.
class SimDisk {
 public:
  // `faults` must outlive it. The seed picks where a write is torn or cut.
  SimDisk(uint64_t seed, FaultPlan& faults) : random_(seed), faults_(faults) {}
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  // Writes fail with kResourceExhausted once all files hold `bytes`; what fits
  // is written first. Negative: no limit.
  void SetCapacity(int64_t bytes) { capacity_ = bytes; }

  // Makes `path` an empty file, whatever it was.
  absl::Status Create(const std::string& path);
  // Appends; kNotFound. On kResourceExhausted a part may have been written.
  absl::Status Append(const std::string& path, absl::string_view bytes);
  absl::StatusOr<std::string> Read(const std::string& path) const;
  absl::Status SyncFile(const std::string& path);
  absl::Status SyncDirectory(const std::string& folder);
  // Moves a file, replacing `to`, or a folder with all it holds to a new name
  // (kAlreadyExists). kNotFound.
  absl::Status Rename(const std::string& from, const std::string& to);
  absl::Status Remove(const std::string& path);
  // Paths below `folder`, sorted.
  std::vector<std::string> List(const std::string& folder) const;
  int64_t used_bytes() const;

  // Power is cut and comes back. What was not synced is lost; where
  // Fault::kTornWrite strikes, a first part of a file's unsynced bytes and of
  // the unsynced changes of names lasts, cut anywhere.
  void Crash();

 private:
  struct File {
    std::string bytes;
    // What a crash leaves. Files only grow, so that this is enough: `bytes`
    // begins with what is synced.
    size_t synced = 0;
  };
  using FilePtr = std::shared_ptr<File>;  // a live and a lasting name share it
  using Names = std::map<std::string, FilePtr>;

  // `name` now means `file`, or nothing if that is null.
  struct NameChange {
    std::string name;
    FilePtr file;
  };
  // Lasts whole or not at all.
  using Change = std::vector<NameChange>;

  void Apply(const Change& change, Names* names) const;
  void Commit(Change change);
  absl::StatusOr<FilePtr> Find(const std::string& path) const;

  Random random_;
  FaultPlan& faults_;
  int64_t capacity_ = -1;
  Names live_;
  Names lasting_;
  std::deque<Change> unsynced_;  // from lasting_ to live_
};

}  // namespace weft::sim

#endif  // WEFT_SIM_SIM_DISK_H_
