// What a DataParallelTraining does where its ranks may come and go, beside the
// protocol (core/step_commit.h): what they tell each other, and what is theirs
// in common when they begin, end, or have found each other.

#include <xxhash.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/device.h"
#include "weft/train/data_parallel_training.h"
#include "weft/train/job_outcome.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

// The first lines in which two texts differ: a pair says enough.
std::pair<std::string, std::string> FirstDifference(const std::string& a,
                                                    const std::string& b) {
  const std::vector<std::string> of_a = absl::StrSplit(a, '\n');
  const std::vector<std::string> of_b = absl::StrSplit(b, '\n');
  size_t i = 0;
  while (i < of_a.size() && i < of_b.size() && of_a[i] == of_b[i]) ++i;
  const auto line = [i](const std::vector<std::string>& lines) {
    return i < lines.size() && !lines[i].empty() ? lines[i]
                                                 : std::string("nothing more");
  };
  return {line(of_a), line(of_b)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallelTraining>>
DataParallelTraining::CreateElastic(Elastic elastic,
                                    telemetry::Telemetry& telemetry,
                                    Parts parts, Options options) {
  return CreateElastic(std::move(elastic), telemetry, std::move(parts),
                       Tables(), std::move(options));
}

absl::StatusOr<std::unique_ptr<DataParallelTraining>>
DataParallelTraining::CreateElastic(Elastic elastic,
                                    telemetry::Telemetry& telemetry,
                                    Parts parts, Tables tables,
                                    Options options) {
  WEFT_RETURN_IF_ERROR(CheckParts(parts, options));
  const bool has_tables = tables.push != nullptr;
  if ((tables.begin_round != nullptr) != has_tables ||
      (tables.await_stable != nullptr) != has_tables) {
    return absl::InvalidArgumentError(
        "DataParallelTraining::CreateElastic: wanted all functions of Tables, "
        "or none");
  }
  if (tables.shards != 0 && tables.shards != parts.virtual_shards) {
    return worker::WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(
            "DataParallelTraining::CreateElastic: wanted tables of as many "
            "shards as the training has, found TableSpec::shards of ",
            tables.shards, " and Parts::virtual_shards of ",
            parts.virtual_shards, "; give both the same number")),
        worker::ExitCode::kConfig);
  }
  const Tables::Checkpoints& checkpoints = tables.checkpoints;
  const bool can_save =
      checkpoints.check != nullptr && checkpoints.save != nullptr &&
      checkpoints.restore != nullptr && checkpoints.reopen != nullptr;
  if (has_tables && !options.checkpoint_dir.empty() && !can_save) {
    return absl::InvalidArgumentError(absl::StrCat(
        "DataParallelTraining::CreateElastic: --checkpoint-dir=",
        options.checkpoint_dir,
        ": wanted all functions of Tables::Checkpoints, found none, or some"));
  }
  if (elastic.join == nullptr || parts.virtual_shards == 0) {
    return absl::InvalidArgumentError(
        "DataParallelTraining::CreateElastic: wanted Elastic::join and "
        "Parts::virtual_shards, without which other ranks would end with other "
        "bits");
  }
  WEFT_RETURN_IF_ERROR(
      ddp::CheckVirtualShards(parts.virtual_shards, /*ranks=*/1));
  std::unique_ptr<DataParallelTraining> training(new DataParallelTraining(
      nullptr, std::move(elastic), telemetry, std::move(parts),
      std::move(tables), std::move(options)));
  WEFT_RETURN_IF_ERROR(training->Drive(StepCommit::Started{}));
  return training;
}

bool DataParallelTraining::HasNewcomers() {
  if (!is_elastic() || elastic_.has_newcomers == nullptr || !is_first() ||
      group_->size() >= std::min(parts_.virtual_shards, elastic_.max_ranks)) {
    return false;
  }
  const Instant now = SteadyClock().Now();
  if (now < asked_at_ + elastic_.ask_interval) return false;
  asked_at_ = now;
  return elastic_.has_newcomers();
}

// In an elastic job a signal asks one rank to leave.
bool DataParallelTraining::IsAskedToStop() const {
  if (elastic_.asked_to_leave == nullptr) return options_.IsAskedToStop();
  return options_.asked_to_stop != nullptr && options_.asked_to_stop();
}

// Nobody trains yet.
absl::StatusOr<StepPosition> DataParallelTraining::BeginElastic() {
  WEFT_ASSIGN_OR_RETURN(resumes_, DoesAnyResume());
  if (!resumes_) {
    WEFT_RETURN_IF_ERROR(CheckOwnState());
    WEFT_RETURN_IF_ERROR(CheckNoFormerRun());
  }
  if (is_first()) HasTrained(/*begins=*/true);
  WEFT_ASSIGN_OR_RETURN(const StepPosition position, Begin());
  // Any rank may have to save.
  WEFT_ASSIGN_OR_RETURN(const std::string run,
                        group_->BroadcastBytes(FormatRun(run_), /*root=*/0));
  run_ = ParseRun(run);
  // As in TakePlace: a trainer that was started again logs nothing else.
  if (resumes_) {
    WEFT_LOG(logger_, Info, "taking part")
        .With("step", position.steps)
        .With("rank", group_->rank())
        .With("ranks", group_->size())
        .With("from", "checkpoint");
  }
  return position;
}

bool DataParallelTraining::HasTrained(bool begins) {
  if (elastic_.has_trained == nullptr) return false;
  const absl::StatusOr<bool> known = elastic_.has_trained(begins);
  if (known.ok()) return *known;
  WEFT_LOG(logger_, Warning,
           "it is not known whether this job has trained before; without "
           "--resume its own checkpoints would be refused")
      .With("why", known.status().message());
  return false;
}

// A process that takes the place of one that has died may be told to resume,
// and others not.
absl::StatusOr<bool> DataParallelTraining::DoesAnyResume() {
  // All who had trained may be dead, and these have been started by then.
  const bool may_have_saved = !options_.checkpoint_dir.empty() && is_first();
  const bool resumes =
      options_.resume || (may_have_saved && HasTrained(/*begins=*/false));
  const Tensor resuming = Tensor::Scalar<int64_t>(resumes ? 1 : 0);
  WEFT_RETURN_IF_ERROR(group_->AllReduce(resuming));
  return resuming.item<int64_t>() > 0;
}

// Whether those who begin would push out what others have saved.
absl::Status DataParallelTraining::CheckNoFormerRun() {
  std::string why;
  if (is_first() && !options_.checkpoint_dir.empty()) {
    const absl::Status status = CatchToStatus([this]() -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
      WEFT_ASSIGN_OR_RETURN(const auto names, directory->List());
      if (names.empty()) return absl::OkStatus();
      return worker::WithExitCode(
          absl::FailedPreconditionError(absl::StrCat(
              options_.checkpoint_dir, ": nobody trains yet, and there are ",
              names.size(), " checkpoints of a former run, the newest ",
              names.back(),
              "; give --resume to go on from it, or another directory")),
          worker::ExitCode::kConfig);
    });
    if (!status.ok()) why = FormatFailure(status);
  }
  WEFT_ASSIGN_OR_RETURN(why, group_->BroadcastBytes(why, /*root=*/0));
  return why.empty() ? absl::OkStatus() : ParseFailure(why);
}

TrainingPlace DataParallelTraining::Place() const {
  const std::string description = Description();
  TrainingPlace place;
  place.rank.is_known = commit_.is_known();
  place.rank.fingerprint = XXH3_64bits(description.data(), description.size());
  place.rank.position = commit_.position();
  place.mean_loss = mean_loss_;
  place.samples = samples_;
  if (random_.has_value()) {
    place.seed = random_->seed();
    place.stream = random_->stream();
  }
  place.data = place_;
  place.run = run_;
  place.checkpoint = checkpoint_;
  return place;
}

std::string DataParallelTraining::Description() const {
  std::string text = absl::StrCat("the build is ", elastic_.build, "\n");
  for (const auto& [name, value] : options_.settings.All()) {
    absl::StrAppend(&text, name, " is ", value, "\n");
  }
  for (const auto& [name, tensor] : parts_.model->StateDict()) {
    absl::StrAppend(&text, name, " of the model is ", tensor.Describe(), "\n");
  }
  for (const nn::NamedParameter& parameter : parts_.model->NamedParameters()) {
    if (parameter.variable.requires_grad()) continue;
    absl::StrAppend(&text, parameter.name, " of the model is frozen\n");
  }
  for (const nn::NamedBuffer& buffer : parts_.model->NamedBuffers()) {
    if (buffer.is_saved) continue;
    absl::StrAppend(&text, buffer.name, ", which is not saved, is ",
                    buffer.tensor.Describe(), "\n");
  }
  for (const auto& [name, tensor] : UpdateStateInPlace()) {
    absl::StrAppend(&text, name, " of the optimizer is ", tensor.Describe(),
                    "\n");
  }
  return text;
}

absl::StatusOr<std::string> DataParallelTraining::DifferenceFrom(int source) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> descriptions,
                        group_->AllGatherBytes(Description()));
  const auto differs = [&](size_t r) {
    return places_[r].rank.fingerprint != places_[source].rank.fingerprint;
  };
  // This rank, or the lowest that differs.
  size_t rank = group_->rank();
  if (!differs(rank)) rank = 0;
  while (rank + 1 < places_.size() && !differs(rank)) ++rank;
  const auto [of_source, other] =
      FirstDifference(descriptions[source], descriptions[rank]);
  return absl::StrCat("rank ", source, ": ", of_source, "; rank ", rank, ": ",
                      other);
}

// A rank that has fewer batches, or more, would come to other operations than
// the others.
absl::Status DataParallelTraining::CheckBatches(const Batches& of_root,
                                                int root) const {
  const Batches own = OwnBatches();
  if (own == of_root) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "this rank does not train what the others train: of an epoch of ", own[0],
      " batches a shard make_loader leaves ", own[1], ", on rank ", root,
      " of ", of_root[0], " it leaves ", of_root[1]));
}

absl::Status DataParallelTraining::TellBatches(int root) {
  const Batches own = OwnBatches();
  const Tensor told = Tensor::FromVector<int64_t>({own[0], own[1]});
  WEFT_RETURN_IF_ERROR(group_->Broadcast(told, root));
  return CheckBatches({told.data<int64_t>()[0], told.data<int64_t>()[1]}, root);
}

absl::Status DataParallelTraining::TakeData(
    const input::ShardedSampler::State& data) {
  WEFT_RETURN_IF_ERROR(MakeLoaders());
  for (input::DataLoader* loader : loaders_) {
    WEFT_RETURN_IF_ERROR(loader->LoadState(data));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DataParallelTraining::FindSaved() {
  AwaitSaved();
  WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
  WEFT_ASSIGN_OR_RETURN(const auto names, directory->List());
  if (names.empty()) return false;
  WEFT_ASSIGN_OR_RETURN(const auto manifest,
                        directory->ReadManifest(names.back()));
  if (manifest.step != steps()) return false;
  checkpoint_ = absl::StrCat(options_.checkpoint_dir, "/", names.back());
  return true;
}

// Several ranks that end so may save at once: they are at most one step apart,
// and one of the checkpoints is whole.
void DataParallelTraining::SaveAlone() {
  if (options_.checkpoint_dir.empty()) return;
  const absl::Status saved = CatchToStatus([this]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const bool is_saved, FindSaved());
    if (is_saved) return absl::OkStatus();
    return SaveOnce(/*score=*/std::nullopt, /*is_last=*/true);
  });
  if (saved.ok()) {
    WEFT_LOG(logger_, Info, "asked to stop while the ranks met")
        .With("step", steps())
        .With("checkpoint", checkpoint_);
  } else {
    WEFT_LOG(logger_, Error, "no checkpoint was saved")
        .With("why", saved.message());
  }
}

absl::Status DataParallelTraining::SaveUnlessSaved() {
  // One that could not be saved was tried long enough.
  bool is_saved = options_.checkpoint_dir.empty() || !saved_.ok();
  if (is_first() && !is_saved) {
    is_saved = CatchToStatus([this] { return FindSaved(); }).value_or(false);
  }
  // All save, or none: a score is of all ranks.
  WEFT_ASSIGN_OR_RETURN(const std::string said,
                        group_->BroadcastBytes(is_saved ? "saved" : "", 0));
  if (said.empty()) saved_ = Save(/*is_last=*/true);
  return absl::OkStatus();
}

}  // namespace weft::train
