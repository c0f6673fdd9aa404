#include "weft/train/data_parallel_training.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/input/sharded_sampler.h"
#include "weft/tensor/tensor.h"
#include "weft/train/finite.h"
#include "weft/train/job_outcome.h"
#include "weft/train/saving/checkpoint_metadata.h"
#include "weft/train/saving/last_save.h"

namespace weft::train {
namespace {

// Prefixes of the names of the optimizer's state in a checkpoint, and a key of
// its metadata.
constexpr char kOptimizer[] = "optimizer/";
constexpr char kScaler[] = "grad_scaler/";  // within the optimizer's
constexpr char kGenerator[] = "generator_position";
// A key of the settings in a checkpoint's metadata.
constexpr char kVirtualShards[] = "--virtual-shards";
// What rank 0 tells the others begins so if it cannot resume; FormatFailure of
// why follows.
constexpr char kNoPlace[] = "no place: ";

// Of the state of a device to the host, behind the steps that go on.
constexpr absl::Duration kLongestCopy = absl::Minutes(10);

// A checkpoint is of a number of shards.
Options WithShards(Options options, int shards) {
  if (shards != 0) {
    options.settings.fixed[kVirtualShards] = absl::StrCat(shards);
  }
  return options;
}

// The CPU for a model without parameters.
Device DeviceOf(const nn::Module& model) {
  const std::vector<Variable> parameters = model.Parameters();
  return parameters.empty() ? Device::Cpu() : parameters[0].value().device();
}

// Of a checkpoint, without the state of the optimizer.
nn::StateDict ModelOf(const checkpoint::NamedTensors& tensors) {
  nn::StateDict model;
  for (const auto& [name, tensor] : tensors) {
    if (!absl::StartsWith(name, kOptimizer)) model[name] = tensor;
  }
  return model;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallelTraining>>
DataParallelTraining::Create(collectives::ProcessGroup& group,
                             telemetry::Telemetry& telemetry, Parts parts,
                             Options options) {
  WEFT_RETURN_IF_ERROR(CheckParts(parts, options));
  if (parts.virtual_shards != 0) {
    WEFT_RETURN_IF_ERROR(
        ddp::CheckVirtualShards(parts.virtual_shards, group.size()));
  }
  std::unique_ptr<DataParallelTraining> training(new DataParallelTraining(
      &group, {}, telemetry, std::move(parts), {}, std::move(options)));
  WEFT_RETURN_IF_ERROR(
      training->Drive(StepCommit::Met{group.rank(), group.size()}));
  return training;
}

absl::Status DataParallelTraining::CheckParts(const Parts& parts,
                                              const Options& options) {
  if (options.checkpoint_every_steps < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "DataParallelTraining: Options::checkpoint_every_steps is ",
        options.checkpoint_every_steps, ", wanted at least 0"));
  }
  const bool has_shards = parts.virtual_shards != 0;
  if (parts.model != nullptr && parts.optimizer != nullptr &&
      (parts.loader == nullptr) == has_shards &&
      (parts.make_loader != nullptr) == has_shards) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "DataParallelTraining: wanted a model, an optimizer and a loader, or "
      "make_loader in its place with virtual_shards");
}

DataParallelTraining::DataParallelTraining(collectives::ProcessGroup* group,
                                           Elastic elastic,
                                           telemetry::Telemetry& telemetry,
                                           Parts parts, Tables tables,
                                           Options options)
    : elastic_(std::move(elastic)),
      group_(group),
      logger_(telemetry.logger()),
      parts_(std::move(parts)),
      tables_(std::move(tables)),
      push_deadline_(tables_.timeout),
      options_(WithShards(std::move(options), parts_.virtual_shards)),
      commit_({is_elastic(), elastic_.leave_after,
               /*meets_ahead=*/elastic_.join_ahead != nullptr, has_tables()}),
      metrics_(telemetry, DeviceOf(*parts_.model)),
      device_(DeviceOf(*parts_.model)) {}

DataParallelTraining::~DataParallelTraining() { EndGiving(); }

absl::StatusOr<StepPosition> DataParallelTraining::Begin() {
  StepPosition position;
  if (!options_.checkpoint_dir.empty() && is_first()) {
    WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
    if (has_tables()) {
      WEFT_RETURN_IF_ERROR(tables_.checkpoints.check(options_.checkpoint_dir));
    }
    WEFT_ASSIGN_OR_RETURN(run_, BeginRun(*directory, resumes_));
  }
  if (parts_.virtual_shards == 0) {
    loaders_ = {parts_.loader};
  } else {
    WEFT_RETURN_IF_ERROR(AgreeOnSeed());
    WEFT_RETURN_IF_ERROR(MakeLoaders());
  }
  SetEpoch(0);  // another training may have used it
  // Before the model of rank 0 is given to all.
  if (resumes_) {
    WEFT_ASSIGN_OR_RETURN(position, Resume());
  }
  WEFT_RETURN_IF_ERROR(MakeReplicas(/*root=*/0));
  ++groups_;
  MakeProgress();
  epoch_begin_ = SteadyClock().Now();
  return position;
}

// The first rank's.
void DataParallelTraining::MakeProgress() {
  telemetry::Progress::Options options;
  options.style =
      is_first() ? options_.progress : telemetry::Progress::Style::kQuiet;
  progress_ = std::make_unique<telemetry::Progress>(options);
}

absl::Status DataParallelTraining::MakeReplicas(int root) {
  if (parts_.virtual_shards == 0) {
    WEFT_ASSIGN_OR_RETURN(ddp_, ddp::DistributedDataParallel::Create(
                                    *parts_.model, *group_, parts_.ddp));
    return absl::OkStatus();
  }
  ddp::VirtualShards::Options options;
  options.shards = parts_.virtual_shards;
  options.timeout = parts_.ddp.reducer.timeout;
  options.root = root;
  WEFT_ASSIGN_OR_RETURN(
      shards_, ddp::VirtualShards::Create(*parts_.model, *group_, options));
  if (is_first() && groups_ == 0) LogShards();
  return absl::OkStatus();
}

// What they cost: ddp/virtual_shards.h.
void DataParallelTraining::LogShards() const {
  int64_t gradients = 0;
  for (const Variable& parameter : parts_.model->Parameters()) {
    gradients += parameter.value().bytes();
  }
  int copies = group_->size() > 1 ? 4 : 1;
  for (int own = shards_->own().size(); own > 1; own /= 2) ++copies;
  WEFT_LOG(logger_, Info, "virtual shards: the same bits on any ranks")
      .With("shards", shards_->shards())
      .With("passes_of_a_step", shards_->own().size())
      .With("copies_of_gradients", copies)
      .With("their_bytes", gradients * copies);
}

absl::Status DataParallelTraining::MakeLoaders() {
  const int shards = parts_.virtual_shards;
  losses_.assign(shards, 0);
  loaders_.clear();
  made_loaders_.clear();
  const ddp::ShardRange own =
      ddp::OwnShards(group_->rank(), group_->size(), shards);
  for (int shard = own.begin; shard < own.end; ++shard) {
    WEFT_ASSIGN_OR_RETURN(auto loader, parts_.make_loader(shard, shards));
    if (loader == nullptr) {
      return absl::InvalidArgumentError(
          "DataParallelTraining: make_loader gave no loader");
    }
    loaders_.push_back(loader.get());
    made_loaders_.push_back(std::move(loader));
  }
  epoch_batches_ = loader().remaining();
  return absl::OkStatus();
}

// All passes draw from what depends on rank 0's seed.
absl::Status DataParallelTraining::AgreeOnSeed() {
  if (parts_.generator == nullptr) return absl::OkStatus();
  const Tensor seed = Tensor::FromVector<int64_t>(
      {static_cast<int64_t>(parts_.generator->seed()),
       static_cast<int64_t>(parts_.generator->stream())});
  WEFT_RETURN_IF_ERROR(group_->Broadcast(seed, /*root=*/0));
  random_.emplace(static_cast<uint64_t>(seed.data<int64_t>()[0]),
                  static_cast<uint64_t>(seed.data<int64_t>()[1]));
  return absl::OkStatus();
}

void DataParallelTraining::SetEpoch(int64_t epoch) {
  for (input::DataLoader* loader : loaders_) loader->SetEpoch(epoch);
  place_ = loader().state();
}

absl::StatusOr<std::unique_ptr<checkpoint::CheckpointDirectory>>
DataParallelTraining::OpenCheckpoints() const {
  checkpoint::CheckpointDirectory::Options options;
  options.path = options_.checkpoint_dir;
  options.keep_last = options_.keep;
  return checkpoint::CheckpointDirectory::Open(options);
}

absl::StatusOr<StepPosition> DataParallelTraining::Resume() {
  std::string message;
  if (is_first()) {
    const absl::StatusOr<std::string> place =
        CatchToStatus([this] { return RestoreNewest(); });
    message = place.ok()
                  ? *place
                  : absl::StrCat(kNoPlace, FormatFailure(place.status()));
  }
  WEFT_ASSIGN_OR_RETURN(message, group_->BroadcastBytes(message, /*root=*/0));
  absl::string_view why = message;
  if (absl::ConsumePrefix(&why, kNoPlace)) return ParseFailure(why);
  if (message.empty()) {
    WEFT_RETURN_IF_ERROR(CheckOwnState());
    return StepPosition();
  }
  if (has_tables()) WEFT_RETURN_IF_ERROR(tables_.checkpoints.reopen());
  WEFT_RETURN_IF_ERROR(GiveOptimizerToAll(/*root=*/0));
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
  auto loaded = LoadNewest(*directory);
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
  absl::btree_map<std::string, Tensor> optimizer;
  for (auto& [name, tensor] : loaded->tensors) {
    absl::string_view key = name;
    if (absl::ConsumePrefix(&key, kOptimizer)) {
      optimizer[std::string(key)] = tensor;
    }
  }
  WEFT_RETURN_IF_ERROR(parts_.model->LoadStateDict(ModelOf(loaded->tensors)));
  WEFT_RETURN_IF_ERROR(LoadUpdateState(optimizer));
  if (has_tables()) {
    WEFT_RETURN_IF_ERROR(
        tables_.checkpoints.restore(options_.checkpoint_dir, loaded->name));
  }
  checkpoint_ = path;
  WEFT_LOG(logger_, Info, "resuming").With("checkpoint", loaded->name);
  const auto drawn = metadata.find(kGenerator);
  return absl::StrCat(loaded->manifest.step, ":",
                      drawn == metadata.end() ? "" : drawn->second, ":", place);
}

absl::Status DataParallelTraining::GiveOptimizerToAll(int root) {
  auto state = UpdateState();
  for (const auto& [name, tensor] : state) {
    WEFT_RETURN_IF_ERROR(group_->Broadcast(tensor, root));
  }
  return LoadUpdateState(state);
}

absl::btree_map<std::string, Tensor> DataParallelTraining::UpdateState() const {
  absl::btree_map<std::string, Tensor> state = UpdateStateInPlace();
  for (auto& [name, tensor] : state) tensor = tensor.Clone();
  return state;
}

absl::btree_map<std::string, Tensor> DataParallelTraining::UpdateStateInPlace()
    const {
  absl::btree_map<std::string, Tensor> state = parts_.optimizer->StateInPlace();
  if (parts_.scaler == nullptr) return state;
  for (const auto& [name, tensor] : parts_.scaler->StateDict()) {
    state[absl::StrCat(kScaler, name)] = tensor;
  }
  return state;
}

absl::Status DataParallelTraining::LoadUpdateState(
    const absl::btree_map<std::string, Tensor>& state) {
  if (parts_.scaler == nullptr) return parts_.optimizer->LoadStateDict(state);
  absl::btree_map<std::string, Tensor> optimizer, scaler;
  for (const auto& [name, tensor] : state) {
    absl::string_view key = name;
    if (absl::ConsumePrefix(&key, kScaler)) {
      scaler[std::string(key)] = tensor;
    } else {
      optimizer[name] = tensor;
    }
  }
  WEFT_RETURN_IF_ERROR(parts_.optimizer->LoadStateDict(optimizer));
  return parts_.scaler->LoadStateDict(scaler);
}

absl::StatusOr<StepPosition> DataParallelTraining::GoOnFrom(
    const std::string& place) {
  StepPosition position;
  const std::vector<std::string> parts =
      absl::StrSplit(place, absl::MaxSplits(':', 2));
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &position.steps)) {
    return absl::InternalError(
        absl::StrCat("resume: no step in what rank 0 said: ", place));
  }
  uint64_t drawn = 0;
  if (parts_.generator != nullptr && absl::SimpleAtoi(parts[1], &drawn)) {
    parts_.generator->Seek(drawn);
  }
  WEFT_ASSIGN_OR_RETURN(const input::ShardedSampler::State state,
                        input::ShardedSampler::State::Parse(parts[2]));
  for (input::DataLoader* loader : loaders_) {
    WEFT_RETURN_IF_ERROR(loader->LoadState(state));
  }
  place_ = loader().state();
  position.epoch = state.epoch;
  if (loader().remaining() == 0) SetEpoch(++position.epoch);
  return position;
}

absl::StatusOr<std::optional<input::Example>> DataParallelTraining::Next() {
  WEFT_RETURN_IF_ERROR(ended_);
  return CatchToStatus([this] { return NextOrEnd(); });
}

absl::StatusOr<std::optional<input::Example>>
DataParallelTraining::NextOrEnd() {
  forward_.reset();
  // Each epoch that ends counts, also one without a batch for this rank.
  while (!is_at_end()) {
    if (passes_ == 0 && at_ == 0) {
      SaveIfDue();
      metrics_.BeginStep(steps());
    }
    absl::StatusOr<std::optional<input::Example>> batch = [this] {
      const auto phase = metrics_.Begin(StepPhase::kData);
      return loaders_[at_]->Next();
    }();
    WEFT_RETURN_IF_ERROR(batch.status());
    if (batch->has_value()) {
      if (shards_ != nullptr && passes_ == 0) {
        WEFT_RETURN_IF_ERROR(BeginShard());
      }
      has_batch_ = true;
      step_samples_ += ExamplesOf(**batch);
      forward_.emplace(metrics_, StepPhase::kForward);
      return batch;
    }
    if (at_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "DataParallelTraining: virtual shard ", shards_->own().begin + at_,
          " has no batch where shard ", shards_->own().begin,
          " has one; make_loader must give all shards loaders that differ in "
          "the shard alone"));
    }
    WEFT_RETURN_IF_ERROR(EndEpoch());
  }
  return std::nullopt;
}

absl::Status DataParallelTraining::BeginShard() {
  const int shard = shards_->own().begin + static_cast<int>(at_);
  if (random_.has_value()) {
    *parts_.generator =
        random_->Fork(static_cast<uint64_t>(steps())).Fork(shard);
  }
  return shards_->Begin(shard);
}

absl::Status DataParallelTraining::EndEpoch() {
  training_ += SteadyClock().Now() - epoch_begin_;
  const bool is_last = was_stopped() || epoch() + 1 >= options_.epochs;
  // Training goes on without a checkpoint; the last one's error is reported.
  saved_ = Save(is_last);
  // A rank was lost that computed the score with the others: Finish saves.
  if (is_elastic() && HasLost()) saved_ = absl::OkStatus();
  if (!was_stopped()) {
    WEFT_RETURN_IF_ERROR(Drive(StepCommit::EpochEnded{}));
    if (!is_last) SetEpoch(epoch());
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
    // Without virtual shards with the all-reduce, which runs beside it.
    const auto phase = metrics_.Begin(StepPhase::kBackward);
    // Before the pass, which may free what it does not need any more.
    const Tensor value = loss.value();
    if (parts_.scaler == nullptr) {
      loss.Backward();
    } else {
      parts_.scaler->Scale(loss).Backward();
    }
    loss_ += value.dtype() == DType::kF64 ? value.item<double>()
                                          : value.To(DType::kF32).item<float>();
    ++passes_;
    return absl::OkStatus();
  });
}

absl::Status DataParallelTraining::Step() {
  WEFT_RETURN_IF_ERROR(ended_);
  if (passes_ == 0) {
    return absl::FailedPreconditionError(
        "DataParallelTraining::Step: wanted a Backward since the last step");
  }
  if (commit_.phase() != StepCommit::Phase::kTraining) {
    return absl::FailedPreconditionError(
        "DataParallelTraining::Step: the training was stopped; wanted no step "
        "after the Next that gives nothing");
  }
  has_batch_ = false;
  return CatchToStatus(
      [this] { return shards_ == nullptr ? Update() : EndShard(); });
}

absl::Status DataParallelTraining::EndShard() {
  WEFT_RETURN_IF_ERROR(shards_->End());
  losses_[shards_->own().begin + at_] = loss_ / passes_;
  loss_ = 0;
  passes_ = 0;
  if (++at_ < loaders_.size()) return absl::OkStatus();
  at_ = 0;
  return Update();
}

// A signal reaches the ranks at different times; they must end after the same
// step, so each says with its gradients what it was asked.
absl::Status DataParallelTraining::Update() {
  StepCommit::PassesDone done;
  done.now = SteadyClock().Now();
  done.is_asked_to_stop = IsAskedToStop();
  done.newcomers_wait = HasNewcomers();
  done.is_asked_to_leave =
      elastic_.asked_to_leave != nullptr && elastic_.asked_to_leave();
  done.next_group_is_made =
      elastic_.has_joined_ahead != nullptr && elastic_.has_joined_ahead();
  return Drive(done);
}

absl::Status DataParallelTraining::TakeStep() {
  {
    const auto phase = metrics_.Begin(StepPhase::kOptimizer);
    if (parts_.scaler == nullptr) {
      WEFT_RETURN_IF_ERROR(parts_.optimizer->Step());
    } else {
      WEFT_RETURN_IF_ERROR(parts_.scaler->Step(*parts_.optimizer).status());
      WEFT_RETURN_IF_ERROR(parts_.scaler->Update());
    }
    parts_.optimizer->ZeroGrad();
  }
  passes_ = 0;
  loss_ = 0;
  // The mean over all ranks: each ends with the same error.
  if (!options_.allow_non_finite) {
    WEFT_RETURN_IF_ERROR(CheckLoss(mean_loss_, steps(),
                                   absl::StrCat("rank ", group_->rank()),
                                   *parts_.model));
  }
  place_ = loader().state();
  metrics_.EndStep(mean_loss_, step_samples_,
                   ddp_ == nullptr ? absl::ZeroDuration()
                                   : ddp_->reducer().timing().last().exposed);
  if (is_first() && options_.on_loss) options_.on_loss(steps() + 1, mean_loss_);
  // The sampler deals every rank, or every shard, as many.
  samples_ += shards_ == nullptr
                  ? step_samples_ * group_->size()
                  : step_samples_ / shards_->own().size() * shards_->shards();
  step_samples_ = 0;
  if (ddp_ != nullptr) {
    progress_->SetExposedShare(
        ddp_->reducer().timing().total().exposed_share());
  }
  progress_->Update(epoch() * place_.size + std::min(place_.used, place_.size),
                    options_.epochs * place_.size, mean_loss_);
  return absl::OkStatus();
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
  if (is_last && !was_stopped()) {
    return RetryLastSave(
        saved, [&] { return SaveOnce(score, is_last); },
        {options_.checkpoint_dir, options_.retry_last_save_for,
         LastSaveOptions().first_pause,
         [this] { return options_.IsAskedToStop(); }},
        logger_);
  }
  WEFT_LOG(logger_, Error,
           was_stopped() ? "no checkpoint was saved"
                         : "no checkpoint was saved; training goes on")
      .With("why", saved.message());
  return saved;
}

// The others wait in the next step for this rank's gradients, and what they
// push to tables comes after it: what is saved is the state as of this step, as
// at the end of an epoch. There EndEpoch saves.
void DataParallelTraining::SaveIfDue() {
  const int64_t every = options_.checkpoint_every_steps;
  const bool has_looked = std::exchange(looked_at_, steps()) == steps();
  if (every == 0 || steps() == 0 || steps() % every != 0 || has_looked ||
      loader().remaining() == 0 || options_.checkpoint_dir.empty() ||
      !is_first()) {
    return;
  }
  const absl::Status saved = CatchToStatus([this]() -> absl::Status {
    // By this run before it was resumed, or by the rank 0 of a former group.
    WEFT_ASSIGN_OR_RETURN(const bool is_saved, FindSaved());
    if (is_saved) return absl::OkStatus();
    return SaveOnce(/*score=*/std::nullopt, /*is_last=*/false);
  });
  if (saved.ok()) return;
  WEFT_LOG(logger_, Error, "no checkpoint was saved; training goes on")
      .With("step", steps())
      .With("why", saved.message());
}

absl::Status DataParallelTraining::SaveOnce(std::optional<double> score,
                                            bool is_last) {
  AwaitSaved();
  WEFT_ASSIGN_OR_RETURN(auto directory, OpenCheckpoints());
  WEFT_RETURN_IF_ERROR(CheckRun(*directory, run_));
  // Outside a group a step may be under way, whose batch the loader has given
  // already.
  checkpoint::Metadata metadata = MetadataOf(
      options_.settings, group_ == nullptr ? place_ : loader().state(), score);
  if (parts_.generator != nullptr && parts_.virtual_shards == 0) {
    metadata[kGenerator] = absl::StrCat(parts_.generator->position());
  }
  AddRun(run_, &metadata);
  checkpoint::NamedTensors tensors = parts_.model->StateDict();
  for (const auto& [name, tensor] : UpdateStateInPlace()) {
    tensors[absl::StrCat(kOptimizer, name)] = tensor;
  }
  WEFT_ASSIGN_OR_RETURN(const auto staged, Stage(tensors));
  if (staged != nullptr && SavesBehind(is_last)) {
    SaveBehind(std::move(directory), std::move(metadata), score, staged);
    return absl::OkStatus();
  }
  if (staged != nullptr) {
    WEFT_ASSIGN_OR_RETURN(tensors, staged->Await(kLongestCopy));
  }
  // A checkpoint that is not finite would push a good one out.
  WEFT_RETURN_IF_ERROR(CheckFinite(ModelOf(tensors)));
  WEFT_ASSIGN_OR_RETURN(const std::string name,
                        has_tables()
                            ? SaveWithTables(*directory, tensors, metadata)
                            : directory->Save(steps(), tensors, metadata));
  checkpoint_ = absl::StrCat(options_.checkpoint_dir, "/", name);
  return NameCheckpoint(*directory, name, options_, score, is_last);
}

absl::StatusOr<std::shared_ptr<StagedState>> DataParallelTraining::Stage(
    const checkpoint::NamedTensors& tensors) {
  if (device_.is_cpu()) return nullptr;
  auto staged = StagedState::Begin(staging_, tensors);
  if (!absl::IsResourceExhausted(staged.status())) return staged;
  WEFT_LOG(logger_, Warning,
           "no pinned memory for a checkpoint; training waits for its copy")
      .With("why", staged.status().message());
  return nullptr;
}

void DataParallelTraining::SaveBehind(
    std::shared_ptr<checkpoint::CheckpointDirectory> directory,
    checkpoint::Metadata metadata, std::optional<double> score,
    std::shared_ptr<StagedState> state) {
  const auto write = [this, directory = std::move(directory),
                      metadata = std::move(metadata), score,
                      state = std::move(state),
                      step = steps()]() -> absl::StatusOr<std::string> {
    WEFT_ASSIGN_OR_RETURN(const checkpoint::NamedTensors found,
                          state->Await(kLongestCopy));
    WEFT_RETURN_IF_ERROR(CheckFinite(ModelOf(found)));
    WEFT_ASSIGN_OR_RETURN(const std::string name,
                          directory->Save(step, found, metadata));
    WEFT_RETURN_IF_ERROR(NameCheckpoint(*directory, name, options_, score,
                                        /*is_last=*/false));
    return absl::StrCat(options_.checkpoint_dir, "/", name);
  };
  // Without a thread that is its result.
  saving_.Begin("save a checkpoint", write).IgnoreError();
}

void DataParallelTraining::AwaitSaved() {
  const auto saved = saving_.Take();
  if (!saved.has_value()) return;
  if (saved->ok()) {
    checkpoint_ = **saved;
    return;
  }
  WEFT_LOG(logger_, Error, "no checkpoint was saved; training goes on")
      .With("why", saved->status().message());
}

absl::StatusOr<Result> DataParallelTraining::Finish() {
  AwaitSaved();
  forward_.reset();
  WEFT_RETURN_IF_ERROR(ended_);
  progress_->Finish();
  for (;;) {
    absl::StatusOr<Result> result = FinishOnce();
    if (result.ok()) return result;
    WEFT_RETURN_IF_ERROR(Drive(Fail(result.status())));
  }
}

absl::StatusOr<Result> DataParallelTraining::FinishOnce() {
  if (!has_left()) {
    if (is_elastic()) WEFT_RETURN_IF_ERROR(SaveUnlessSaved());
    WEFT_RETURN_IF_ERROR(shards_ == nullptr ? ddp_->CheckInSync()
                                            : shards_->CheckInSync());
  }
  Result result;
  result.saved = saved_;
  result.was_stopped = was_stopped();
  result.checkpoint = checkpoint_;
  const double seconds = absl::ToDoubleSeconds(training_);
  if (seconds > 0) {
    result.samples_per_s = static_cast<double>(samples_) / seconds;
  }
  if (parts_.score != nullptr && !has_left()) {
    WEFT_ASSIGN_OR_RETURN(const double score, Score());
    if (is_first()) result.score = score;
  }
  return result;
}

}  // namespace weft::train
