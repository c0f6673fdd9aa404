// TableCheckpoints: how one trainer has the servers save and restore all
// tables, while rounds go on.

#ifndef WEFT_EXAMPLES_CTR_TABLE_CHECKPOINTS_H_
#define WEFT_EXAMPLES_CTR_TABLE_CHECKPOINTS_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/weft.h"

namespace example {

// Thread-safety: one thread at a time.
class TableCheckpoints {
 public:
  using Settings = weft::train::Settings::Values;

  // Each checkpoint keeps `fixed`, which a run that goes on from it must have.
  // `client` must outlive it.
  static absl::StatusOr<TableCheckpoints> Open(const std::string& path,
                                               int keep, Settings fixed,
                                               weft::ps::Client& client) {
    WEFT_RETURN_IF_ERROR(client.CheckCheckpointDirectory(path));
    weft::checkpoint::CheckpointDirectory::Options options;
    options.path = path;
    options.keep_last = keep;
    WEFT_ASSIGN_OR_RETURN(auto directory,
                          weft::checkpoint::CheckpointDirectory::Open(options));
    return TableCheckpoints(std::move(directory), std::move(fixed), client);
  }

  // Restores the newest that is whole; without any checkpoint does nothing.
  // Before tables are opened. kFailedPrecondition if it was saved with other
  // settings; kDataLoss if all are damaged.
  absl::Status Restore() {
    WEFT_ASSIGN_OR_RETURN(const auto names, directory_->List());
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      const absl::Status is_whole = directory_->Verify(*name);
      if (!is_whole.ok()) {
        std::fprintf(stderr, "passing over a damaged checkpoint: %s\n",
                     is_whole.ToString().c_str());
        continue;
      }
      WEFT_RETURN_IF_ERROR(CheckSettings(*name));
      std::fprintf(stderr, "resuming from %s\n", name->c_str());
      return client_->Restore(directory_->path(), *name);
    }
    if (names.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        "all checkpoints of ", directory_->path(), " are damaged"));
  }

  // Between two rounds, before the caller gives its part of `round`: commits
  // the snapshot that the servers have written, if they have, and begins one if
  // the last was begun `every` ago. A server that dies meanwhile fails it: then
  // the next one is begun at once.
  void SnapshotIfDue(int64_t round, absl::Duration every) {
    if (files_.has_value() && files_->IsReady()) End(files_->Wait(kTimeout));
    const bool is_due =
        every > absl::ZeroDuration() && absl::Now() >= last_ + every;
    if (files_.has_value() || !is_due) return;
    last_ = absl::Now();
    auto files = Begin(round);
    if (files.ok()) {
      files_ = *std::move(files);
    } else {
      End(files.status());
    }
  }

  // Saves all tables, which are at `round`, and waits for it; the name.
  absl::StatusOr<std::string> Save(int64_t round) {
    if (files_.has_value()) End(files_->Wait(kTimeout));
    WEFT_ASSIGN_OR_RETURN(const std::string attempt, directory_->Begin(round));
    WEFT_ASSIGN_OR_RETURN(auto files,
                          client_->Save(directory_->path(), attempt, round));
    return directory_->Commit(attempt, std::move(files), Metadata());
  }

 private:
  static constexpr absl::Duration kTimeout = absl::Minutes(2);
  static constexpr char kSettings[] = "settings";
  using Files = std::vector<weft::checkpoint::FileRecord>;

  TableCheckpoints(
      std::unique_ptr<weft::checkpoint::CheckpointDirectory> directory,
      Settings fixed, weft::ps::Client& client)
      : directory_(std::move(directory)),
        fixed_(std::move(fixed)),
        client_(&client) {}

  weft::checkpoint::Metadata Metadata() const {
    return {{kSettings, weft::train::FormatSettings(fixed_)}};
  }
  absl::Status CheckSettings(const std::string& name) {
    WEFT_ASSIGN_OR_RETURN(const auto manifest, directory_->ReadManifest(name));
    const auto saved = manifest.metadata.find(kSettings);
    if (saved == manifest.metadata.end()) return absl::OkStatus();
    for (const auto& [flag, value] :
         weft::train::ParseSettings(saved->second)) {
      const auto own = fixed_.find(flag);
      if (own != fixed_.end() && own->second == value) continue;
      return weft::worker::WithExitCode(
          absl::FailedPreconditionError(absl::StrCat(
              name, " was saved with ", flag, "=", value, ", and this run has ",
              flag, "=", own == fixed_.end() ? "" : own->second,
              "; go on with the same, or train into another directory")),
          weft::worker::ExitCode::kConfig);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<weft::Future<Files>> Begin(int64_t round) {
    WEFT_ASSIGN_OR_RETURN(attempt_, directory_->Begin(round));
    return client_->Snapshot(directory_->path(), attempt_, round, kTimeout);
  }
  void End(absl::StatusOr<Files> files) {
    files_.reset();
    const absl::StatusOr<std::string> name =
        files.ok() ? directory_->Commit(attempt_, *std::move(files), Metadata())
                   : files.status();
    std::fprintf(stderr, "snapshot: %s\n",
                 name.ok() ? name->c_str() : name.status().ToString().c_str());
    if (name.ok()) return;
    directory_->Abandon(attempt_);
    last_ = absl::InfinitePast();
  }

  std::unique_ptr<weft::checkpoint::CheckpointDirectory> directory_;
  Settings fixed_;
  weft::ps::Client* client_;
  absl::Time last_ = absl::Now();
  std::string attempt_;
  std::optional<weft::Future<Files>> files_;  // of attempt_
};

}  // namespace example

#endif  // WEFT_EXAMPLES_CTR_TABLE_CHECKPOINTS_H_
