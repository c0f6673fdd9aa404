// FakeFileSystem: files in memory, on a disk that fails or loses power on
// demand.
//
// Each byte written and each other change costs one unit. When `budget` units
// are spent, the disk is full (kFull: removing still works), broken (kBroken:
// nothing works any more), or the power is cut (kPowerCut: as kBroken, and
// Restart loses what was not synced: bytes of files, and names in directories,
// each lost or kept as `seed` has it).
//
// Thread-safety: one thread at a time.

#ifndef WEFT_CHECKPOINT_FAKE_FILE_SYSTEM_H_
#define WEFT_CHECKPOINT_FAKE_FILE_SYSTEM_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/checkpoint/file_system.h"

namespace weft::checkpoint {

class FakeFileSystem final : public FileSystem {
 public:
  enum class Failure { kFull, kBroken, kPowerCut };
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  // From now on writes succeed until `budget` is spent, and then fail as
  // `failure` says.
  void FailAfter(int64_t budget, Failure failure) {
    budget_ = budget;
    failure_ = failure;
  }
  int64_t spent() const { return spent_; }
  bool has_failed() const { return has_failed_; }

  // The machine is up again: a working disk with what survived.
  void Restart(uint64_t seed);

  // The content of a file that is there.
  std::string& Content(const std::string& path) { return now_.at(path)->bytes; }
  bool Exists(const std::string& path) const { return now_.count(path) > 0; }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override;
  absl::StatusOr<std::string> Read(const std::string& path,
                                   int64_t max_bytes) override;
  absl::StatusOr<std::string> ReadAt(const std::string& path, int64_t offset,
                                     int64_t most) override;
  // `read` is called before each ReadAt, with how much is wanted.
  void OnReadAt(std::function<void(int64_t most)> read) {
    on_read_at_ = std::move(read);
  }
  // The most bytes that one ReadAt, or one Read, has asked for and got.
  int64_t largest_read() const { return largest_read_; }
  absl::StatusOr<int64_t> Size(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) override;
  absl::Status MakeDirectories(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& directory) override;

 private:
  friend class FakeFile;

  struct Node {
    bool is_directory = false;
    std::string bytes;
    size_t synced = 0;  // so many bytes survive
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  // Takes one unit; an error if there is none.
  absl::Status Spend(const std::string& path);
  // A change of the name `path` that a power cut may undo.
  void Change(const std::string& path, std::shared_ptr<Node> node);

  Names now_;
  Names durable_;
  // Changes since then, in order: each path with what is there after it.
  std::vector<std::pair<std::string, std::shared_ptr<Node>>> unsynced_;
  int64_t budget_ = kUnlimited;
  int64_t spent_ = 0;
  Failure failure_ = Failure::kFull;
  bool has_failed_ = false;
  int64_t largest_read_ = 0;
  std::function<void(int64_t most)> on_read_at_;
};

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_FAKE_FILE_SYSTEM_H_
