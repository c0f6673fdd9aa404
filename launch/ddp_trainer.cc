#include "weft/launch/ddp_trainer.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/input/sharded_sampler.h"
#include "weft/launch/job_outcome.h"
#include "weft/launch/last_save.h"
#include "weft/launch/training_checks.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

constexpr char kOptimizer[] = "optimizer/";
// Of what rank 0 tells the others; then FormatFailure of why it cannot resume.
constexpr char kNoPlace[] = "no place: ";

telemetry::Progress::Options ProgressOptions(const ImageTrainerOptions& options,
                                             bool is_first) {
  telemetry::Progress::Options progress;
  progress.style =
      is_first ? options.progress : telemetry::Progress::Style::kQuiet;
  return progress;
}

}  // namespace

DdpTrainer::DdpTrainer(collectives::ProcessGroup& group, const ImageData& data,
                       telemetry::Telemetry& telemetry,
                       ImageTrainerOptions options,
                       std::function<bool()> asked_to_stop)
    : group_(group),
      data_(data),
      logger_(telemetry.logger()),
      options_(std::move(options)),
      asked_to_stop_(std::move(asked_to_stop)),
      generator_(options_.seed),
      model_(data.train->height(), data.train->width(), options_.classes,
             generator_),
      progress_(ProgressOptions(options_, group.rank() == 0)),
      metrics_(telemetry) {}

DdpTrainer::~DdpTrainer() = default;

absl::Status DdpTrainer::Begin() {
  input::ShardedSampler::Options order;
  order.size = data_.train->size();
  order.shard = group_.rank();
  order.shards = group_.size();
  order.seed = options_.seed;
  WEFT_ASSIGN_OR_RETURN(const input::ShardedSampler sampler,
                        input::ShardedSampler::Create(order));
  input::DataLoader::Options loading;
  loading.batch_size = options_.batch_size;
  WEFT_ASSIGN_OR_RETURN(
      loader_, input::DataLoader::Create(*data_.train, sampler, loading));

  optimizer::AdamOptions adam;
  adam.lr = options_.learning_rate;
  WEFT_ASSIGN_OR_RETURN(optimizer_, optimizer::Optimizer::Create(
                                        {{adam, model_.NamedParameters()}}));
  WEFT_RETURN_IF_ERROR(BeginSaving());
  // Before the model of rank 0 is given to all.
  if (options_.resume) WEFT_RETURN_IF_ERROR(Resume());
  WEFT_ASSIGN_OR_RETURN(ddp_,
                        ddp::DistributedDataParallel::Create(model_, group_));
  return absl::OkStatus();
}

absl::Status DdpTrainer::BeginSaving() {
  if (options_.checkpoint_dir.empty() || !is_first()) return absl::OkStatus();
  checkpoint::CheckpointDirectory::Options options;
  options.path = options_.checkpoint_dir;
  WEFT_ASSIGN_OR_RETURN(const auto directory,
                        checkpoint::CheckpointDirectory::Open(options));
  WEFT_ASSIGN_OR_RETURN(run_, BeginRun(*directory, options_.resume));
  return absl::OkStatus();
}

absl::Status DdpTrainer::Resume() {
  std::string message;
  if (is_first()) {
    const absl::StatusOr<std::string> place = RestoreNewest();
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
absl::Status DdpTrainer::CheckNewest(
    checkpoint::CheckpointDirectory& directory) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, directory.List());
  if (names.empty()) return absl::OkStatus();
  const auto manifest = directory.ReadManifest(names.back());
  if (!manifest.ok()) return absl::OkStatus();  // damaged: there may be others
  return CheckMetadata(absl::StrCat(options_.checkpoint_dir, "/", names.back()),
                       manifest->metadata, SettingsOf(options_, data_))
      .status();
}

absl::StatusOr<std::string> DdpTrainer::RestoreNewest() {
  checkpoint::CheckpointDirectory::Options options;
  options.path = options_.checkpoint_dir;
  WEFT_ASSIGN_OR_RETURN(const auto directory,
                        checkpoint::CheckpointDirectory::Open(options));
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
  WEFT_ASSIGN_OR_RETURN(
      const std::string place,
      CheckMetadata(absl::StrCat(options_.checkpoint_dir, "/", loaded->name),
                    loaded->manifest.metadata, SettingsOf(options_, data_)));
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
  WEFT_RETURN_IF_ERROR(model_.LoadStateDict(model));
  WEFT_RETURN_IF_ERROR(optimizer_->LoadStateDict(optimizer));
  checkpoint_ = absl::StrCat(options_.checkpoint_dir, "/", loaded->name);
  WEFT_LOG(logger_, Info, "resuming").With("checkpoint", loaded->name);
  return absl::StrCat(loaded->manifest.step, ":", place);
}

absl::Status DdpTrainer::GiveOptimizerToAll() {
  auto state = optimizer_->StateDict();
  for (const auto& [name, tensor] : state) {
    WEFT_RETURN_IF_ERROR(group_.Broadcast(tensor, /*root=*/0));
  }
  return optimizer_->LoadStateDict(state);
}

absl::Status DdpTrainer::GoOnFrom(const std::string& place) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(place, absl::MaxSplits(':', 1));
  if (!absl::SimpleAtoi(parts.first, &steps_)) {
    return absl::InternalError(
        absl::StrCat("resume: no step in what rank 0 said: ", place));
  }
  WEFT_ASSIGN_OR_RETURN(const input::ShardedSampler::State state,
                        input::ShardedSampler::State::Parse(parts.second));
  WEFT_RETURN_IF_ERROR(loader_->LoadState(state));
  first_epoch_ = static_cast<int>(state.epoch);
  if (loader_->remaining() == 0) loader_->SetEpoch(++first_epoch_);
  return absl::OkStatus();
}

absl::StatusOr<DdpTrainer::Verdict> DdpTrainer::Step(
    const input::Example& batch) {
  optimizer_->ZeroGrad();
  Variable loss;
  {
    const auto phase = metrics_.Begin("forward");
    loss = CrossEntropy(model_.Forward(Variable(batch[0])), batch[1]);
  }
  {
    const auto phase = metrics_.Begin("backward");  // and all-reduce
    loss.Backward();
  }
  const auto phase = metrics_.Begin("optimizer");
  WEFT_RETURN_IF_ERROR(optimizer_->Step());
  // A signal reaches the ranks at different times; they must end after the same
  // step.
  const Tensor said = Tensor::FromVector<double>(
      {loss.value().item<float>(), asked_to_stop_() ? 1.0 : 0.0});
  WEFT_RETURN_IF_ERROR(group_.AllReduce(said));
  const double* sums = said.data<double>();
  return Verdict{sums[0] / group_.size(), sums[1] > 0};
}

absl::StatusOr<std::optional<input::Example>> DdpTrainer::NextBatch() {
  metrics_.BeginStep();
  const auto phase = metrics_.Begin("data");
  return loader_->Next();
}

absl::Status DdpTrainer::TrainEpoch(int epoch) {
  const int64_t of_epoch = data_.train->size();
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<input::Example> batch,
                          NextBatch());
    if (!batch.has_value()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(const Verdict verdict, Step(*batch));
    // The mean over all ranks: each ends with the same error.
    if (!options_.allow_non_finite) {
      WEFT_RETURN_IF_ERROR(CheckLoss(verdict.mean_loss, steps_,
                                     absl::StrCat("rank ", group_.rank()),
                                     model_));
    }
    ++steps_;
    metrics_.EndStep(verdict.mean_loss, (*batch)[0].size(0));
    if (is_first() && options_.on_loss) {
      options_.on_loss(steps_, verdict.mean_loss);
    }
    // The sampler deals every rank as many.
    samples_ += (*batch)[0].size(0) * group_.size();
    const int64_t used = std::min(loader_->state().used, of_epoch);
    progress_.SetExposedShare(ddp_->reducer().timing().total().exposed_share());
    progress_.Update(epoch * of_epoch + used, options_.epochs * of_epoch,
                     verdict.mean_loss);
    if (verdict.stops) {
      was_stopped_ = true;
      return absl::OkStatus();
    }
  }
}

absl::Status DdpTrainer::Save(bool is_last) {
  std::optional<double> accuracy;
  if (options_.keep_best && !options_.checkpoint_dir.empty()) {
    WEFT_ASSIGN_OR_RETURN(accuracy, Test());  // by all ranks
  }
  if (options_.checkpoint_dir.empty() || !is_first()) return absl::OkStatus();
  const absl::Status saved = SaveOnce(accuracy, is_last);
  if (saved.ok()) return saved;
  if (is_last && !was_stopped_) {
    return RetryLastSave(
        saved, [&] { return SaveOnce(accuracy, is_last); },
        {options_.checkpoint_dir, options_.retry_last_save_for,
         LastSaveOptions().first_pause, asked_to_stop_},
        logger_);
  }
  WEFT_LOG(logger_, Error,
           was_stopped_ ? "no checkpoint was saved"
                        : "no checkpoint was saved; training goes on")
      .With("why", saved.message());
  return saved;
}

absl::Status DdpTrainer::SaveOnce(std::optional<double> accuracy,
                                  bool is_last) {
  WEFT_RETURN_IF_ERROR(CheckFinite(model_));  // it would push a good one out
  checkpoint::CheckpointDirectory::Options options;
  options.path = options_.checkpoint_dir;
  options.keep_last = options_.keep;
  WEFT_ASSIGN_OR_RETURN(const auto directory,
                        checkpoint::CheckpointDirectory::Open(options));
  WEFT_RETURN_IF_ERROR(CheckRun(*directory, run_));
  checkpoint::Metadata metadata =
      MetadataOf(SettingsOf(options_, data_), loader_->state(), accuracy);
  AddRun(run_, &metadata);
  checkpoint::NamedTensors tensors;
  for (const auto& [name, tensor] : model_.StateDict()) tensors[name] = tensor;
  for (const auto& [name, tensor] : optimizer_->StateDict()) {
    tensors[absl::StrCat(kOptimizer, name)] = tensor;
  }
  WEFT_ASSIGN_OR_RETURN(const std::string name,
                        directory->Save(steps_, tensors, metadata));
  checkpoint_ = absl::StrCat(options_.checkpoint_dir, "/", name);
  return NameCheckpoint(*directory, name, options_, accuracy, is_last);
}

// Each rank tests its part, so that none waits for another.
absl::StatusOr<double> DdpTrainer::Test() {
  const int64_t size = data_.test->size();
  WEFT_ASSIGN_OR_RETURN(
      const int64_t right,
      CountRight(model_, *data_.test, size * group_.rank() / group_.size(),
                 size * (group_.rank() + 1) / group_.size()));
  const Tensor sum = Tensor::Scalar<int64_t>(right);
  WEFT_RETURN_IF_ERROR(group_.AllReduce(sum));
  return static_cast<double>(sum.item<int64_t>()) / static_cast<double>(size);
}

absl::StatusOr<TrainingResult> DdpTrainer::Train() {
  WEFT_RETURN_IF_ERROR(Begin());
  absl::Duration training;
  TrainingResult result;
  for (int epoch = first_epoch_; epoch < options_.epochs && !was_stopped_;
       ++epoch) {
    const Instant epoch_begin = SteadyClock().Now();
    if (epoch != first_epoch_) loader_->SetEpoch(epoch);
    WEFT_RETURN_IF_ERROR(TrainEpoch(epoch));
    training += SteadyClock().Now() - epoch_begin;
    // Training goes on without a checkpoint; the last one's error is reported.
    result.saved = Save(was_stopped_ || epoch + 1 == options_.epochs);
  }
  progress_.Finish();
  WEFT_RETURN_IF_ERROR(ddp_->CheckInSync());
  result.was_stopped = was_stopped_;
  result.checkpoint = checkpoint_;
  const double seconds = absl::ToDoubleSeconds(training);
  if (seconds > 0) {
    result.samples_per_s = static_cast<double>(samples_) / seconds;
  }
  WEFT_ASSIGN_OR_RETURN(const double accuracy, Test());
  if (is_first()) result.test_accuracy = accuracy;
  return result;
}

absl::StatusOr<TrainingResult> DdpTrainer::Run() {
  return CatchToStatus([this] { return Train(); });
}

}  // namespace weft::launch
