#include "weft/train/data_parallel_training.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/input/sharded_sampler.h"
#include "weft/tensor/tensor.h"
#include "weft/train/checkpoint_metadata.h"
#include "weft/train/finite.h"
#include "weft/train/job_outcome.h"
#include "weft/train/last_save.h"

namespace weft::train {
namespace {

// In a checkpoint: before the names of the optimizer's state, and in its
// metadata.
constexpr char kOptimizer[] = "optimizer/";
constexpr char kGenerator[] = "generator_position";
// Of what rank 0 tells the others; then FormatFailure of why it cannot resume.
constexpr char kNoPlace[] = "no place: ";

telemetry::Progress::Options ProgressOptions(const Options& options,
                                             bool is_first) {
  telemetry::Progress::Options progress;
  progress.style =
      is_first ? options.progress : telemetry::Progress::Style::kQuiet;
  return progress;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallelTraining>>
DataParallelTraining::Create(collectives::ProcessGroup& group,
                             telemetry::Telemetry& telemetry, Parts parts,
                             Options options) {
  if (parts.model == nullptr || parts.optimizer == nullptr ||
      parts.loader == nullptr) {
    return absl::InvalidArgumentError(
        "DataParallelTraining: wanted a model, an optimizer and a loader");
  }
  std::unique_ptr<DataParallelTraining> training(new DataParallelTraining(
      group, telemetry, std::move(parts), std::move(options)));
  WEFT_RETURN_IF_ERROR(CatchToStatus([&] { return training->Begin(); }));
  return training;
}

DataParallelTraining::DataParallelTraining(collectives::ProcessGroup& group,
                                           telemetry::Telemetry& telemetry,
                                           Parts parts, Options options)
    : group_(group),
      logger_(telemetry.logger()),
      parts_(std::move(parts)),
      options_(std::move(options)),
      progress_(ProgressOptions(options_, group.rank() == 0)),
      metrics_(telemetry) {}

DataParallelTraining::~DataParallelTraining() = default;

absl::Status DataParallelTraining::Begin() {
  if (!options_.checkpoint_dir.empty() && is_first()) {
    WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
    WEFT_ASSIGN_OR_RETURN(run_, BeginRun(*directory, options_.resume));
  }
  // Before the model of rank 0 is given to all.
  if (options_.resume) WEFT_RETURN_IF_ERROR(Resume());
  WEFT_ASSIGN_OR_RETURN(ddp_, ddp::DistributedDataParallel::Create(
                                  *parts_.model, group_, parts_.ddp));
  epoch_begin_ = SteadyClock().Now();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<checkpoint::CheckpointDirectory>>
DataParallelTraining::OpenCheckpoints() const {
  checkpoint::CheckpointDirectory::Options options;
  options.path = options_.checkpoint_dir;
  options.keep_last = options_.keep;
  return checkpoint::CheckpointDirectory::Open(options);
}

absl::Status DataParallelTraining::Resume() {
  std::string message;
  if (is_first()) {
    const absl::StatusOr<std::string> place =
        CatchToStatus([this] { return RestoreNewest(); });
    message = place.ok()
                  ? *place
                  : absl::StrCat(kNoPlace, FormatFailure(place.status()));
  }
  WEFT_ASSIGN_OR_RETURN(message, group_.BroadcastBytes(message, /*root=*/0));
  absl::string_view why = message;
  if (absl::ConsumePrefix(&why, kNoPlace)) return ParseFailure(why);
  if (message.empty()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(GiveOptimizerToAll());
  return GoOnFrom(message);
}

// Before its tensors are read: those of parameter servers are others.
absl::Status DataParallelTraining::CheckNewest(
    checkpoint::CheckpointDirectory& directory) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory.List());
  if (names.empty()) return absl::OkStatus();
  const auto manifest = directory.ReadManifest(names.back());
  if (!manifest.ok()) return absl::OkStatus();  // damaged: there may be others
  return PlaceInData(absl::StrCat(options_.checkpoint_dir, "/", names.back()),
                     manifest->metadata, options_.settings)
      .status();
}

absl::StatusOr<std::string> DataParallelTraining::RestoreNewest() {
  if (options_.checkpoint_dir.empty()) {
    return absl::InvalidArgumentError(
        "DataParallelTraining: Options::resume needs a checkpoint_dir");
  }
  WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
  WEFT_RETURN_IF_ERROR(CheckNewest(*directory));
  auto loaded = directory->LoadLatest();
  if (absl::IsNotFound(loaded.status())) {
    WEFT_LOG(logger_, Info, "nothing to resume from yet; beginning anew")
        .With("checkpoint_dir", options_.checkpoint_dir);
    return "";
  }
  WEFT_RETURN_IF_ERROR(loaded.status());
  for (const absl::Status& damage : loaded->skipped) {
    WEFT_LOG(logger_, Warning, "passing over a damaged checkpoint")
        .With("why", damage.message());
  }
  const std::string path =
      absl::StrCat(options_.checkpoint_dir, "/", loaded->name);
  const checkpoint::Metadata& metadata = loaded->manifest.metadata;
  WEFT_ASSIGN_OR_RETURN(const std::string place,
                        PlaceInData(path, metadata, options_.settings));
  nn::StateDict model;
  absl::btree_map<std::string, Tensor> optimizer;
  for (auto& [name, tensor] : loaded->tensors) {
    absl::string_view key = name;
    if (absl::ConsumePrefix(&key, kOptimizer)) {
      optimizer[std::string(key)] = tensor;
    } else {
      model[name] = tensor;
    }
  }
  WEFT_RETURN_IF_ERROR(parts_.model->LoadStateDict(model));
  WEFT_RETURN_IF_ERROR(parts_.optimizer->LoadStateDict(optimizer));
  checkpoint_ = path;
  WEFT_LOG(logger_, Info, "resuming").With("checkpoint", loaded->name);
  const auto drawn = metadata.find(kGenerator);
  return absl::StrCat(loaded->manifest.step, ":",
                      drawn == metadata.end() ? "" : drawn->second, ":", place);
}

absl::Status DataParallelTraining::GiveOptimizerToAll() {
  auto state = parts_.optimizer->StateDict();
  for (const auto& [name, tensor] : state) {
    WEFT_RETURN_IF_ERROR(group_.Broadcast(tensor, /*root=*/0));
  }
  return parts_.optimizer->LoadStateDict(state);
}

absl::Status DataParallelTraining::GoOnFrom(const std::string& place) {
  const std::vector<std::string> parts =
      absl::StrSplit(place, absl::MaxSplits(':', 2));
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &steps_)) {
    return absl::InternalError(
        absl::StrCat("resume: no step in what rank 0 said: ", place));
  }
  uint64_t drawn = 0;
  if (parts_.generator != nullptr && absl::SimpleAtoi(parts[1], &drawn)) {
    parts_.generator->Seek(drawn);
  }
  WEFT_ASSIGN_OR_RETURN(const input::ShardedSampler::State state,
                        input::ShardedSampler::State::Parse(parts[2]));
  WEFT_RETURN_IF_ERROR(parts_.loader->LoadState(state));
  epoch_ = state.epoch;
  if (parts_.loader->remaining() == 0) parts_.loader->SetEpoch(++epoch_);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<input::Example>> DataParallelTraining::Next() {
  forward_.reset();
  // Each epoch that ends counts, also one without a batch for this rank.
  while (!is_at_end()) {
    if (passes_ == 0) metrics_.BeginStep();
    absl::StatusOr<std::optional<input::Example>> batch = [this] {
      const auto phase = metrics_.Begin("data");
      return parts_.loader->Next();
    }();
    WEFT_RETURN_IF_ERROR(batch.status());
    if (batch->has_value()) {
      step_samples_ += ExamplesOf(**batch);
      forward_.emplace(metrics_, "forward");
      return batch;
    }
    WEFT_RETURN_IF_ERROR(EndEpoch());
  }
  return std::nullopt;
}

absl::Status DataParallelTraining::EndEpoch() {
  training_ += SteadyClock().Now() - epoch_begin_;
  const bool is_last = was_stopped_ || epoch_ + 1 >= options_.epochs;
  // Training goes on without a checkpoint; the last one's error is reported.
  saved_ = Save(is_last);
  if (!was_stopped_) {
    ++epoch_;
    if (!is_last) parts_.loader->SetEpoch(epoch_);
  }
  epoch_begin_ = SteadyClock().Now();
  return absl::OkStatus();
}

absl::Status DataParallelTraining::Step(const Variable& loss) {
  WEFT_RETURN_IF_ERROR(Backward(loss));
  return Step();
}

absl::Status DataParallelTraining::Backward(const Variable& loss) {
  forward_.reset();
  return CatchToStatus([&]() -> absl::Status {
    const auto phase = metrics_.Begin("backward");  // and all-reduce
    // Before the pass, which may free what it does not need any more.
    const Tensor value = loss.value();
    loss.Backward();
    loss_ += value.dtype() == DType::kF64 ? value.item<double>()
                                          : value.item<float>();
    ++passes_;
    return absl::OkStatus();
  });
}

absl::Status DataParallelTraining::Step() {
  if (passes_ == 0) {
    return absl::FailedPreconditionError(
        "DataParallelTraining::Step: wanted a Backward since the last step");
  }
  {
    const auto phase = metrics_.Begin("optimizer");
    WEFT_RETURN_IF_ERROR(parts_.optimizer->Step());
    parts_.optimizer->ZeroGrad();
    // A signal reaches the ranks at different times; they must end after the
    // same step.
    const Tensor said = Tensor::FromVector<double>(
        {loss_ / passes_, options_.IsAskedToStop() ? 1.0 : 0.0});
    WEFT_RETURN_IF_ERROR(group_.AllReduce(said));
    const double* sums = said.data<double>();
    mean_loss_ = sums[0] / group_.size();
    was_stopped_ = sums[1] > 0;
  }
  passes_ = 0;
  loss_ = 0;
  // The mean over all ranks: each ends with the same error.
  if (!options_.allow_non_finite) {
    WEFT_RETURN_IF_ERROR(CheckLoss(mean_loss_, steps_,
                                   absl::StrCat("rank ", group_.rank()),
                                   *parts_.model));
  }
  ++steps_;
  metrics_.EndStep(mean_loss_, step_samples_);
  if (is_first() && options_.on_loss) options_.on_loss(steps_, mean_loss_);
  // The sampler deals every rank as many.
  samples_ += step_samples_ * group_.size();
  step_samples_ = 0;
  const input::ShardedSampler::State state = parts_.loader->state();
  progress_.SetExposedShare(ddp_->reducer().timing().total().exposed_share());
  progress_.Update(epoch_ * state.size + std::min(state.used, state.size),
                   options_.epochs * state.size, mean_loss_);
  return was_stopped_ ? EndEpoch() : absl::OkStatus();
}

absl::StatusOr<double> DataParallelTraining::Score() {
  return CatchToStatus([this] { return parts_.score(); });
}

absl::Status DataParallelTraining::Save(bool is_last) {
  std::optional<double> score;
  if (options_.keep_best && parts_.score != nullptr) {
    WEFT_ASSIGN_OR_RETURN(score, Score());  // by all ranks
  }
  if (options_.checkpoint_dir.empty() || !is_first()) return absl::OkStatus();
  const absl::Status saved = SaveOnce(score, is_last);
  if (saved.ok()) return saved;
  if (is_last && !was_stopped_) {
    return RetryLastSave(
        saved, [&] { return SaveOnce(score, is_last); },
        {options_.checkpoint_dir, options_.retry_last_save_for,
         LastSaveOptions().first_pause,
         [this] { return options_.IsAskedToStop(); }},
        logger_);
  }
  WEFT_LOG(logger_, Error,
           was_stopped_ ? "no checkpoint was saved"
                        : "no checkpoint was saved; training goes on")
      .With("why", saved.message());
  return saved;
}

absl::Status DataParallelTraining::SaveOnce(std::optional<double> score,
                                            bool is_last) {
  // It would push a good one out.
  WEFT_RETURN_IF_ERROR(CheckFinite(*parts_.model));
  WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
  WEFT_RETURN_IF_ERROR(CheckRun(*directory, run_));
  checkpoint::Metadata metadata =
      MetadataOf(options_.settings, parts_.loader->state(), score);
  if (parts_.generator != nullptr) {
    metadata[kGenerator] = absl::StrCat(parts_.generator->position());
  }
  AddRun(run_, &metadata);
  checkpoint::NamedTensors tensors;
  for (const auto& [name, tensor] : parts_.model->StateDict()) {
    tensors[name] = tensor;
  }
  for (const auto& [name, tensor] : parts_.optimizer->StateDict()) {
    tensors[absl::StrCat(kOptimizer, name)] = tensor;
  }
  WEFT_ASSIGN_OR_RETURN(const std::string name,
                        directory->Save(steps_, tensors, metadata));
  checkpoint_ = absl::StrCat(options_.checkpoint_dir, "/", name);
  return NameCheckpoint(*directory, name, options_, score, is_last);
}

absl::StatusOr<Result> DataParallelTraining::Finish() {
  forward_.reset();
  progress_.Finish();
  WEFT_RETURN_IF_ERROR(ddp_->CheckInSync());
  Result result;
  result.saved = saved_;
  result.was_stopped = was_stopped_;
  result.checkpoint = checkpoint_;
  const double seconds = absl::ToDoubleSeconds(training_);
  if (seconds > 0) {
    result.samples_per_s = static_cast<double>(samples_) / seconds;
  }
  if (parts_.score != nullptr) {
    WEFT_ASSIGN_OR_RETURN(const double score, Score());
    if (is_first()) result.score = score;
  }
  return result;
}

}  // namespace weft::train
