#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/telemetry/logger.h"
#include "weft/train/finite.h"
#include "weft/train/saving/checkpoint_metadata.h"
#include "weft/train/saving/last_save.h"
#include "weft/train/server_training.h"
#include "weft/worker/exit_code.h"

// Checkpoints: between two epochs and at the end, for which the first trainer
// waits, and while it trains (Options::snapshot_every).

namespace weft::train {
namespace {

// The time in which servers must have written what they have frozen.
constexpr absl::Duration kWriteTimeout = absl::Minutes(10);

}  // namespace

absl::StatusOr<std::unique_ptr<checkpoint::CheckpointDirectory>>
ServerTraining::OpenCheckpoints() const {
  checkpoint::CheckpointDirectory::Options options;
  options.path = options_.checkpoint_dir;
  options.keep_last = options_.keep;
  return checkpoint::CheckpointDirectory::Open(options);
}

absl::Status ServerTraining::Save() {
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  if (auto saved = snapshot_.Take()) EndSnapshot(*saved);
  // A checkpoint that is not finite would push a good one out.
  if (const absl::Status finite = CheckFinite(*task_.model); !finite.ok()) {
    return worker::WithExitCode(
        absl::Status(
            finite.code(),
            absl::StrCat(
                "no checkpoint was saved in ", options_.checkpoint_dir,
                ", earlier ones are as they were: ", finite.message())),
        worker::ExitCode::kDiverged);
  }
  std::optional<double> score;
  if (options_.keep_best) {
    WEFT_ASSIGN_OR_RETURN(score, Score());
  }
  WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
  WEFT_ASSIGN_OR_RETURN(const std::string attempt, directory->Begin(step()));
  auto& recorder = worker_.telemetry().recorder();
  recorder.Record("checkpoint.begin", attempt, step());
  const absl::StatusOr<std::string> name = Fill(*directory, attempt, score);
  recorder.Record("checkpoint.done", attempt, step(), name.status().raw_code());
  if (!name.ok()) {
    directory->Abandon(attempt);
    return absl::Status(
        name.status().code(),
        absl::StrCat(
            "no checkpoint was saved in ", options_.checkpoint_dir,
            ", earlier ones are as they were: ", name.status().message()));
  }
  checkpoint_ = absl::StrCat(options_.checkpoint_dir, "/", *name);
  return NameCheckpoint(*directory, *name, options_, score, is_last_save());
}

absl::StatusOr<std::string> ServerTraining::Fill(
    checkpoint::CheckpointDirectory& directory, const std::string& attempt,
    std::optional<double> score) {
  // No round can close meanwhile: it would need this trainer's part, unless
  // there is a quorum.
  const bool is_one_version = task_.is_sync && task_.quorum == 0;
  const int64_t version = is_one_version ? table_->round() : -1;
  WEFT_ASSIGN_OR_RETURN(
      std::vector<checkpoint::FileRecord> files,
      client_.Save(options_.checkpoint_dir, attempt, version,
                   {/*may_be_parent=*/options_.full_snapshot_every > 1}));
  WEFT_ASSIGN_OR_RETURN(files.emplace_back(),
                        directory.AddShard(attempt, kModelShard,
                                           worker_.self().name, ModelShard()));
  WEFT_ASSIGN_OR_RETURN(const CheckpointRun run, FindRun(directory));
  WEFT_RETURN_IF_ERROR(CheckRun(directory, run));
  checkpoint::Metadata metadata =
      MetadataOf(options_.settings, loader_->state(), score);
  AddRun(run, &metadata);
  return directory.Commit(attempt, std::move(files), metadata);
}

checkpoint::Safetensors ServerTraining::ModelShard() const {
  checkpoint::Safetensors model;
  for (const auto& [name, tensor] : task_.model->StateDict()) {
    model.tensors[name] = tensor;
  }
  model.metadata["format"] = kModelFormat;
  return model;
}

void ServerTraining::SnapshotIfDue() {
  if (auto saved = snapshot_.TakeIfDone()) EndSnapshot(*saved);
  if (options_.snapshot_every <= absl::ZeroDuration() ||
      options_.checkpoint_dir.empty() || snapshot_.has_begun() || !is_first()) {
    return;
  }
  const Instant now = SteadyClock().Now();
  const bool is_first_step = next_snapshot_ == Instant();
  if (now < next_snapshot_) return;
  next_snapshot_ = now + options_.snapshot_every;
  if (is_first_step) return;
  const absl::Status begun = BeginSnapshot();
  if (!begun.ok()) EndSnapshot(begun);
}

absl::Status ServerTraining::BeginSnapshot() {
  WEFT_RETURN_IF_ERROR(CheckFinite(*task_.model));
  WEFT_ASSIGN_OR_RETURN(
      std::shared_ptr<checkpoint::CheckpointDirectory> directory,
      OpenCheckpoints());
  WEFT_ASSIGN_OR_RETURN(const CheckpointRun run, FindRun(*directory));
  ps::SaveAs as;
  if (options_.full_snapshot_every > 1) {
    WEFT_ASSIGN_OR_RETURN(as.parent,
                          directory->FindParent(options_.full_snapshot_every));
    as.may_be_parent = true;
  }
  WEFT_ASSIGN_OR_RETURN(const std::string attempt, directory->Begin(step()));
  worker_.telemetry().recorder().Record("checkpoint.begin", attempt, step());
  // No round closes before this trainer gives its part of the next, unless
  // there is a quorum.
  const bool is_one_version = task_.is_sync && task_.quorum == 0;
  const int64_t version = is_one_version ? table_->round() : -1;
  absl::StatusOr<Future<std::vector<checkpoint::FileRecord>>> written =
      client_.Snapshot(options_.checkpoint_dir, attempt, version, kWriteTimeout,
                       as);
  if (!written.ok()) {
    directory->Abandon(attempt);
    return written.status();
  }
  checkpoint::Safetensors model = ModelShard();
  for (auto& [name, tensor] : model.tensors) tensor = tensor.Clone();
  checkpoint::Metadata metadata =
      MetadataOf(options_.settings, loader_->state(), std::nullopt);
  AddRun(run, &metadata);
  const auto commit =
      [directory, attempt, run, metadata, parent = as.parent,
       writer = worker_.self().name, written = *std::move(written),
       model = std::move(model)]() -> absl::StatusOr<std::string> {
    WEFT_ASSIGN_OR_RETURN(std::vector<checkpoint::FileRecord> files,
                          written.Wait(kWriteTimeout + absl::Seconds(1)));
    WEFT_ASSIGN_OR_RETURN(
        files.emplace_back(),
        directory->AddShard(attempt, kModelShard, writer, model));
    WEFT_RETURN_IF_ERROR(CheckRun(*directory, run));
    return directory->Commit(attempt, std::move(files), metadata, parent);
  };
  const auto save = [directory, attempt, commit] {
    absl::StatusOr<std::string> saved = commit();
    if (!saved.ok()) directory->Abandon(attempt);
    return saved;
  };
  const absl::Status begun = snapshot_.Begin(
      "a checkpoint that is written while training goes on", save);
  // Why is what the next step takes for its end.
  if (!begun.ok()) directory->Abandon(attempt);
  return absl::OkStatus();
}

void ServerTraining::EndSnapshot(const absl::StatusOr<std::string>& saved) {
  worker_.telemetry().recorder().Record("checkpoint.done", saved.value_or(""),
                                        step(), saved.status().raw_code());
  if (saved.ok()) {
    checkpoint_ = absl::StrCat(options_.checkpoint_dir, "/", *saved);
    return;
  }
  WEFT_LOG(worker_.telemetry().logger(), Error, "training goes on")
      .With("why",
            absl::StrCat(
                "no checkpoint was saved in ", options_.checkpoint_dir,
                ", earlier ones are as they were: ", saved.status().message()));
}

absl::Status ServerTraining::SaveIfFirst() {
  if (!is_first()) return absl::OkStatus();
  const absl::Status saved = Save();
  if (saved.ok()) return saved;
  if (is_last_save() && !was_stopped_) {
    return RetryLastSave(
        saved, [this] { return Save(); },
        {options_.checkpoint_dir, options_.retry_last_save_for,
         LastSaveOptions().first_pause,
         [this] { return options_.IsAskedToStop(); }, outlives_servers()},
        worker_.telemetry().logger());
  }
  WEFT_LOG(worker_.telemetry().logger(), Error,
           was_stopped_ ? "the training ends" : "training goes on")
      .With("why", saved.message());
  return saved;
}

}  // namespace weft::train
