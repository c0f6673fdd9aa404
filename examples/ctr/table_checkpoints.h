// TableCheckpoints: how one trainer has the servers save and restore all
// tables, while rounds go on, and saves beside them what trainers have alike.

#ifndef WEFT_EXAMPLES_CTR_TABLE_CHECKPOINTS_H_
#define WEFT_EXAMPLES_CTR_TABLE_CHECKPOINTS_H_

#include <cstdint>
#include <cstdio>
#include <functional>
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
  using Tensors = weft::checkpoint::NamedTensors;

  // Each checkpoint keeps `fixed`, which a run that goes on from it must have.
  // Each `full_every`-th snapshot has all, those between what has changed.
  // `client` must outlive it.
  static absl::StatusOr<TableCheckpoints> Open(const std::string& path,
                                               int keep, int full_every,
                                               Settings fixed,
                                               weft::ps::Client& client) {
    WEFT_RETURN_IF_ERROR(client.CheckCheckpointDirectory(path));
    weft::checkpoint::CheckpointDirectory::Options options;
    options.path = path;
    options.keep_last = keep;
    WEFT_ASSIGN_OR_RETURN(auto directory,
                          weft::checkpoint::CheckpointDirectory::Open(options));
    return TableCheckpoints(std::move(directory), full_every, std::move(fixed),
                            client);
  }

  // Restores the newest that is whole, and returns its name; without any
  // checkpoint does nothing, and returns "". Before tables are opened.
  // kFailedPrecondition if it was saved with other settings; kDataLoss if all
  // are damaged.
  absl::StatusOr<std::string> Restore() {
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
      WEFT_RETURN_IF_ERROR(client_->Restore(directory_->path(), *name));
      return *name;
    }
    if (names.empty()) return std::string();
    return absl::DataLossError(absl::StrCat(
        "all checkpoints of ", directory_->path(), " are damaged"));
  }

  // What trainers had alike in checkpoint `name` of the directory `path`.
  static absl::StatusOr<Tensors> ReadOwnState(const std::string& path,
                                              const std::string& name) {
    weft::checkpoint::CheckpointDirectory::Options options;
    options.path = path;
    WEFT_ASSIGN_OR_RETURN(auto directory,
                          weft::checkpoint::CheckpointDirectory::Open(options));
    WEFT_ASSIGN_OR_RETURN(const auto manifest, directory->ReadManifest(name));
    const std::string wanted = weft::checkpoint::ShardName(kOwnShard);
    for (const weft::checkpoint::FileRecord& file : manifest.files) {
      if (file.name != wanted) continue;
      WEFT_ASSIGN_OR_RETURN(auto shard, directory->LoadShard(name, file));
      return std::move(shard.tensors);
    }
    return absl::FailedPreconditionError(
        absl::StrCat(path, "/", name, " has no file ", wanted,
                     " with what trainers have; was it saved without "
                     "--dense=ddp?"));
  }

  // Between two rounds, before the caller gives its part of `round`: commits
  // the snapshot that the servers have written, if they have, and begins one if
  // the last was begun `every` ago. A server that dies meanwhile fails it: then
  // the next one is begun at once.
  // `own`: what trainers have alike then.
  void SnapshotIfDue(int64_t round, absl::Duration every,
                     const std::function<Tensors()>& own) {
    if (files_.has_value() && files_->IsReady()) End(files_->Wait(kTimeout));
    const bool is_due =
        every > absl::ZeroDuration() && absl::Now() >= last_ + every;
    if (files_.has_value() || !is_due) return;
    last_ = absl::Now();
    auto files = Begin(round, own());
    if (files.ok()) {
      files_ = *std::move(files);
    } else {
      End(files.status());
    }
  }

  // Saves all tables, which are at `round`, and waits for it; the name.
  absl::StatusOr<std::string> Save(int64_t round, const Tensors& own) {
    if (files_.has_value()) End(files_->Wait(kTimeout));
    WEFT_ASSIGN_OR_RETURN(attempt_, directory_->Begin(round));
    WEFT_RETURN_IF_ERROR(AddOwn(own));
    WEFT_ASSIGN_OR_RETURN(Files files,
                          client_->Save(directory_->path(), attempt_, round));
    return Commit(std::move(files), std::nullopt);
  }

 private:
  static constexpr absl::Duration kTimeout = absl::Minutes(2);
  static constexpr char kSettings[] = "settings";
  using Files = std::vector<weft::checkpoint::FileRecord>;
  using Parent = std::optional<weft::checkpoint::Parent>;
  static constexpr int kOwnShard = 99999;  // beyond those of servers

  TableCheckpoints(
      std::unique_ptr<weft::checkpoint::CheckpointDirectory> directory,
      int full_every, Settings fixed, weft::ps::Client& client)
      : directory_(std::move(directory)),
        full_every_(full_every),
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

  absl::Status AddOwn(const Tensors& own) {
    own_.reset();
    if (own.empty()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(
        own_, directory_->AddShard(attempt_, kOwnShard, "trainer0", {own, {}}));
    return absl::OkStatus();
  }
  absl::StatusOr<weft::Future<Files>> Begin(int64_t round, const Tensors& own) {
    weft::ps::SaveAs as;
    parent_.reset();
    if (full_every_ > 1) {
      WEFT_ASSIGN_OR_RETURN(parent_, directory_->FindParent(full_every_));
      as = weft::ps::SaveAs::Delta(parent_);
    }
    WEFT_ASSIGN_OR_RETURN(attempt_, directory_->Begin(round));
    WEFT_RETURN_IF_ERROR(AddOwn(own));
    return client_->Snapshot(directory_->path(), attempt_, round, kTimeout, as);
  }
  absl::StatusOr<std::string> Commit(Files files, const Parent& parent) {
    if (own_.has_value()) files.push_back(*own_);
    return directory_->Commit(attempt_, std::move(files), Metadata(), parent);
  }
  void End(absl::StatusOr<Files> files) {
    files_.reset();
    const absl::StatusOr<std::string> name =
        files.ok() ? Commit(*std::move(files), parent_)
                   : absl::StatusOr<std::string>(files.status());
    if (name.ok()) {
      const auto saved = directory_->ReadManifest(*name);
      std::fprintf(stderr, "snapshot: %s, %s\n", name->c_str(),
                   saved.ok() && saved->parent.has_value()
                       ? ("changes since " + saved->parent->name).c_str()
                       : "whole");
      return;
    }
    std::fprintf(stderr, "snapshot: %s\n", name.status().ToString().c_str());
    directory_->Abandon(attempt_);
    last_ = absl::InfinitePast();
  }

  std::unique_ptr<weft::checkpoint::CheckpointDirectory> directory_;
  int full_every_;
  Settings fixed_;
  weft::ps::Client* client_;
  absl::Time last_ = absl::Now();
  std::string attempt_;
  // The checkpoint on which attempt_ builds, and the file of what trainers
  // have.
  Parent parent_;
  std::optional<weft::checkpoint::FileRecord> own_;
  std::optional<weft::Future<Files>> files_;  // of attempt_
};

}  // namespace example

#endif  // WEFT_EXAMPLES_CTR_TABLE_CHECKPOINTS_H_
