#include "weft/train/server_training.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/clock.h"
#include "weft/base/failpoint.h"
#include "weft/base/reworded.h"
#include "weft/base/said_by.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/input/sharded_sampler.h"
#include "weft/rendezvous/store.h"
#include "weft/rendezvous/view.h"
#include "weft/telemetry/logger.h"
#include "weft/train/await_table.h"
#include "weft/train/finite.h"
#include "weft/train/job_outcome.h"
#include "weft/train/saving/checkpoint_metadata.h"
#include "weft/train/saving/last_save.h"
#include "weft/train/saving/servers_use.h"
#include "weft/train/settings.h"
#include "weft/train/stop_signal.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

constexpr absl::Duration kRoundTimeout = absl::Minutes(2);
// Trainer 0's word to the others begins so if it cannot resume; why follows.
constexpr char kNoPlace[] = "no place: ";
constexpr absl::Duration kLastWord = absl::Seconds(5);

// The live trainer of the lowest rank; null if there is none.
const rendezvous::Member* FirstTrainer(const rendezvous::View& view) {
  const rendezvous::Member* first = nullptr;
  for (const rendezvous::Member& member : view.members()) {
    if (member.role != "trainer") continue;
    if (first == nullptr || member.rank < first->rank) first = &member;
  }
  return first;
}

int64_t CountTrainers(const rendezvous::View& view) {
  return std::count_if(
      view.members().begin(), view.members().end(),
      [](const rendezvous::Member& m) { return m.role == "trainer"; });
}

telemetry::Progress::Options ProgressOptions(const Options& options) {
  telemetry::Progress::Options progress;
  progress.style = options.progress;
  return progress;
}

// Which run saves checkpoints: see checkpoint_run.h.
constexpr char kRun[] = "trainers/run";
// Set by the first trainer once its duties after the last step are done.
constexpr char kConcluded[] = "trainers/concluded";
constexpr absl::Duration kConclusionTimeout = absl::Minutes(10);
// How often a trainer that waits for another looks whether that one lives.
constexpr absl::Duration kLookEvery = absl::Seconds(1);

absl::Status CheckTask(const worker::Worker& worker,
                       const ServerTraining::Task& task) {
  if (task.model == nullptr || task.data == nullptr || task.loss == nullptr) {
    return absl::InvalidArgumentError(
        "ServerTraining: wanted a model, a dataset and a loss");
  }
  if (task.batch_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ServerTraining: batch_size is ", task.batch_size,
                     ", wanted at least 1"));
  }
  if (worker.options().role != "trainer" || worker.options().servers < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ServerTraining: wanted a trainer of a job with servers, found ",
        worker.self().name, " of a job with ", worker.options().servers,
        "; start servers too (weft run --role ps=1:bin/parameter_server --role "
        "trainer=2:PROGRAM)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerTraining>> ServerTraining::Create(
    worker::Worker& worker, Task task, Options options) {
  WEFT_RETURN_IF_ERROR(CheckTask(worker, task));
  return CatchToStatus([&] {
    return std::unique_ptr<ServerTraining>(
        new ServerTraining(worker, std::move(task), std::move(options)));
  });
}

ServerTraining::ServerTraining(worker::Worker& worker, Task task,
                               Options options)
    : worker_(worker),
      task_(std::move(task)),
      options_(std::move(options)),
      parameters_(*task_.model),
      client_(TrainersClient(worker, kRoundTimeout)),
      running_(worker.membership(), worker.options().rank,
               worker.options().trainers),
      adopted_(worker, running_,
               [this](int shard) { return LoadShard(shard); }),
      progress_(ProgressOptions(options_)),
      metrics_(worker.telemetry()) {
  FollowTheOthers();
}

ServerTraining::~ServerTraining() = default;

bool ServerTraining::is_first() const {
  const auto view = worker_.membership().view();
  const rendezvous::Member* const first = FirstTrainer(*view);
  return first == nullptr || first->rank >= worker_.options().rank;
}

void ServerTraining::FollowTheOthers() {
  follow_ = worker_.membership().OnChange(
      [this, told = std::set<rendezvous::WorkerKey>()](
          const std::shared_ptr<const rendezvous::View>& view) mutable {
        for (const rendezvous::Departed& departed : view->departed()) {
          const bool is_trainer = absl::StartsWith(departed.name, "trainer");
          const bool is_server =
              absl::StartsWith(departed.name, "ps") && outlives_servers();
          const bool is_news = !departed.left && (is_trainer || is_server) &&
                               told.insert(departed.key).second;
          if (!is_news || !is_first()) continue;
          if (is_server) {
            WEFT_LOG(worker_.telemetry().logger(), Warning,
                     "a parameter server died; another serves its part of the "
                     "tables")
                .With("server", departed.name)
                .With("why", departed.reason);
            continue;
          }
          WEFT_LOG(worker_.telemetry().logger(), Warning,
                   task_.is_sync
                       ? "a trainer died; the others take over its part of the "
                         "data"
                       : "a trainer died; the others train on without its part "
                         "of the data")
              .With("trainer", departed.name)
              .With("why", departed.reason);
        }
      });
}

absl::StatusOr<input::ShardedSampler> ServerTraining::SamplerOf(
    int shard) const {
  input::ShardedSampler::Options order;
  order.size = task_.data->size();
  order.shard = shard;
  order.shards = worker_.options().trainers;
  order.seed = task_.seed;
  return input::ShardedSampler::Create(order);
}

absl::StatusOr<std::unique_ptr<input::DataLoader>> ServerTraining::LoadShard(
    int shard) const {
  WEFT_ASSIGN_OR_RETURN(const input::ShardedSampler sampler, SamplerOf(shard));
  input::DataLoader::Options loading;
  loading.batch_size = task_.batch_size;
  return input::DataLoader::Create(*task_.data, sampler, loading);
}

absl::Status ServerTraining::Begin() {
  Settings::Values settings = options_.settings.All();
  settings["--replicas"] = absl::StrCat(worker_.options().replicas);
  WEFT_RETURN_IF_ERROR(
      AgreeOnSettings(worker_.membership(), worker_.options().rank,
                      worker_.options().trainers, settings, kRoundTimeout));
  const auto concluded =
      worker_.membership().store().Get(kConcluded, kRoundTimeout);
  if (concluded.ok()) concluded_ = concluded->version;
  WEFT_ASSIGN_OR_RETURN(loader_, LoadShard(worker_.options().rank));
  WEFT_RETURN_IF_ERROR(FindPlace());
  WEFT_RETURN_IF_ERROR(OpenTable());
  if (has_joined_) {
    WEFT_RETURN_IF_ERROR(JoinAtTheirPlace());
  } else {
    if (task_.quorum == 0) place_round_ = step();
    WEFT_RETURN_IF_ERROR(running_.SetStart(
        {task_.is_sync ? place_round_ : step(), loader_->state()}));
  }
  return running_.BeginTraining();
}

absl::Status ServerTraining::OpenTable() {
  ps::v1::TableSpec spec;
  spec.set_name(task_.table);
  spec.set_kind(ps::v1::TableSpec::DENSE);
  spec.set_elements(parameters_.elements());
  spec.set_mode(task_.is_sync ? ps::v1::TableSpec::SYNC
                              : ps::v1::TableSpec::ASYNC);
  spec.set_shards(worker_.options().trainers);
  spec.set_orphans(ps::v1::TableSpec::WAIT);  // see AdoptedShards
  if (task_.quorum > 0) {
    spec.set_quorum(task_.quorum);
    spec.set_orphans(ps::v1::TableSpec::RETIRE);
  }
  if (task_.folds_late) spec.set_late(ps::v1::TableSpec::FOLD);
  if (task_.staleness.has_value()) spec.set_staleness(*task_.staleness);
  spec.set_reduction(ps::v1::TableSpec::MEAN);
  *spec.mutable_rule() = task_.rule;
  *spec.mutable_wire() = task_.wire;
  WEFT_RETURN_IF_ERROR(WEFT_FAILPOINT("launch/open_table"));
  WEFT_ASSIGN_OR_RETURN(table_, client_.Dense(spec));
  // The same seed gave every trainer the same parameters; after a resume, and
  // in a running job, the servers have better ones, and keep them.
  WEFT_RETURN_IF_ERROR(Await(table_->Initialize(parameters_.Values())));
  WEFT_ASSIGN_OR_RETURN(const Tensor values, Await(table_->Pull()));
  return parameters_.SetValues(values);
}

absl::StatusOr<double> ServerTraining::Differentiate(
    const input::Example& batch) {
  parameters_.ClearGradient();
  Variable result;
  double loss = 0;
  {
    const auto phase = metrics_.Begin(StepPhase::kForward);
    result = task_.loss(batch);
    loss = result.value().item<float>();
  }
  // Before the push: the parameters on the servers stay finite.
  if (!options_.allow_non_finite) {
    WEFT_RETURN_IF_ERROR(
        CheckLoss(loss, step(), worker_.self().name, *task_.model));
  }
  const auto phase = metrics_.Begin(StepPhase::kBackward);
  result.Backward();
  return loss;
}

template <typename T>
weft::Result<T> ServerTraining::Await(const Future<T>& operation) {
  // The signal: Options::asked_to_stop is asked after steps alone.
  return AwaitTable(operation, kRoundTimeout, client_, AskedToStop);
}

absl::StatusOr<double> ServerTraining::Step(const input::Example& batch) {
  WEFT_ASSIGN_OR_RETURN(const double loss, Differentiate(batch));
  const int64_t round = table_->round();
  Future<Tensor> next = [&] {
    const auto phase = metrics_.Begin(StepPhase::kPush);
    return table_->PushPull(parameters_.TakeGradient());
  }();
  const auto phase = metrics_.Begin(StepPhase::kPull);
  WEFT_ASSIGN_OR_RETURN(Tensor values, task_.is_sync
                                           ? AwaitRound(std::move(next), round)
                                           : Await(next));
  WEFT_RETURN_IF_ERROR(parameters_.AdoptValues(std::move(values)));
  return loss;
}

absl::StatusOr<std::optional<input::Example>> ServerTraining::NextBatch() {
  metrics_.BeginStep(step());
  const auto phase = metrics_.Begin(StepPhase::kData);
  return loader_->Next();
}

absl::Status ServerTraining::PassOverClosedRounds() {
  if (task_.quorum == 0) return absl::OkStatus();
  while (place_round_ < table_->round() && loader_->remaining() > 0) {
    WEFT_RETURN_IF_ERROR(loader_->Next().status());
    ++place_round_;
  }
  return absl::OkStatus();
}

absl::Status ServerTraining::ServeAdopted(int64_t round) {
  if (task_.quorum > 0) return absl::OkStatus();  // rounds close without them
  return adopted_.Serve(
      place_, [&](int shard, const input::Example& batch) -> absl::Status {
        WEFT_RETURN_IF_ERROR(Differentiate(batch).status());
        return Await(table_->PushShard({shard, round, /*take_over=*/true},
                                       parameters_.TakeGradient()));
      });
}

absl::StatusOr<Tensor> ServerTraining::AwaitRound(Future<Tensor> values,
                                                  int64_t round) {
  adopted_.BeginRound();
  const Instant give_up = SteadyClock().Now() + kRoundTimeout;
  // The parameters stay as they are until the round is closed, so a shard's
  // gradient is the one that its trainer would have given.
  do {
    WEFT_RETURN_IF_ERROR(ServeAdopted(round));
    // Looks whose shards are without a trainer meanwhile.
    if (AskedToStop()) client_.GiveUpOnGoneServers();
    (void)values.Wait(kLookAround);
  } while (!values.IsReady() && SteadyClock().Now() < give_up);
  return std::move(values).Wait(absl::ZeroDuration());
}

absl::StatusOr<std::string> ServerTraining::RestoreNewest() {
  WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
  WEFT_RETURN_IF_ERROR(CheckServersUse(options_.checkpoint_dir, client_));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        directory->List());
  absl::Status damaged;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const absl::Status verified = directory->Verify(*name);
    if (!verified.ok()) {
      WEFT_LOG(worker_.telemetry().logger(), Warning,
               "passing over a damaged checkpoint")
          .With("checkpoint", *name)
          .With("why", verified.message());
      damaged = verified;
      continue;
    }
    WEFT_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest,
                          directory->ReadManifest(*name));
    WEFT_ASSIGN_OR_RETURN(
        const std::string place,
        PlaceInData(absl::StrCat(options_.checkpoint_dir, "/", *name),
                    manifest.metadata, options_.settings));
    WEFT_RETURN_IF_ERROR(client_.Restore(options_.checkpoint_dir, *name));
    WEFT_LOG(worker_.telemetry().logger(), Info, "resuming")
        .With("checkpoint", *name);
    checkpoint_ = absl::StrCat(options_.checkpoint_dir, "/", *name);
    WEFT_ASSIGN_OR_RETURN(const input::ShardedSampler::State state,
                          input::ShardedSampler::State::Parse(place));
    return RunningJob::FormatStart({manifest.step, state});
  }
  if (!damaged.ok()) {
    return worker::WithExitCode(
        absl::DataLossError(
            absl::StrCat("every checkpoint in ", options_.checkpoint_dir,
                         " is damaged; the newest: ", damaged.message())),
        worker::ExitCode::kBadCheckpoint);
  }
  WEFT_LOG(worker_.telemetry().logger(), Info,
           "nothing to resume from yet; beginning anew")
      .With("checkpoint_dir", options_.checkpoint_dir);
  return "";
}

absl::Status ServerTraining::FindPlace() {
  const Instant deadline = SteadyClock().Now() + kRoundTimeout;
  while (SteadyClock().Now() < deadline) {
    WEFT_ASSIGN_OR_RETURN(const std::string other, running_.FindTrainer());
    if (!other.empty()) {
      // Restored tables would replace those that it trains on.
      WEFT_LOG(worker_.telemetry().logger(), Info, "joining the running job")
          .With("of", other);
      has_joined_ = true;
      return absl::OkStatus();
    }
    if (!options_.resume) return is_first() ? BeginSaving() : absl::OkStatus();
    const auto view = worker_.membership().view();
    const rendezvous::Member* const first = FirstTrainer(*view);
    if (first == nullptr) return absl::UnavailableError("no trainer is left");
    // The key names this incarnation of the first trainer: an earlier one may
    // have left its own.
    const std::string key = absl::StrCat("resume/", first->incarnation);
    if (first->key == worker_.self().key) return RestoreForAll(key);
    const auto told = worker_.membership().store().Wait(key, 0, kLookEvery);
    WEFT_RETURN_IF_ERROR(worker_.membership().status());
    if (absl::IsDeadlineExceeded(told.status())) continue;
    WEFT_RETURN_IF_ERROR(told.status());
    absl::string_view why = told->value;
    if (absl::ConsumePrefix(&why, kNoPlace)) {
      const absl::Status failure = ParseFailure(why);
      return Reworded(failure, SaidBy(first->name, failure.message()));
    }
    return GoOnFrom(told->value);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the first trainer has not restored a checkpoint within ",
                   absl::FormatDuration(kRoundTimeout)));
}

absl::Status ServerTraining::RestoreForAll(const std::string& key) {
  rendezvous::Store& store = worker_.membership().store();
  const absl::StatusOr<std::string> place = RestoreNewest();
  if (!place.ok()) {  // nobody need wait for what does not come
    (void)store.Set(key, absl::StrCat(kNoPlace, FormatFailure(place.status())),
                    kLastWord);
    return place.status();
  }
  WEFT_RETURN_IF_ERROR(BeginSaving());
  WEFT_RETURN_IF_ERROR(store.Set(key, *place, kRoundTimeout).status());
  return GoOnFrom(*place);
}

absl::Status ServerTraining::BeginSaving() {
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const auto directory, OpenCheckpoints());
  WEFT_RETURN_IF_ERROR(CheckServersUse(options_.checkpoint_dir, client_));
  WEFT_ASSIGN_OR_RETURN(const CheckpointRun run,
                        BeginRun(*directory, options_.resume));
  return worker_.membership()
      .store()
      .Set(kRun, FormatRun(run), kRoundTimeout)
      .status();
}

absl::StatusOr<CheckpointRun> ServerTraining::FindRun(
    checkpoint::CheckpointDirectory& directory) {
  rendezvous::Store& store = worker_.membership().store();
  auto run = store.Get(kRun, kRoundTimeout);
  if (absl::IsNotFound(run.status())) {  // the first trainer died before
    WEFT_ASSIGN_OR_RETURN(const CheckpointRun begun,
                          BeginRun(directory, /*is_resumed=*/true));
    WEFT_RETURN_IF_ERROR(
        store.Set(kRun, FormatRun(begun), kRoundTimeout).status());
    return begun;
  }
  WEFT_RETURN_IF_ERROR(run.status());
  return ParseRun(run->value);
}

absl::Status ServerTraining::GoOnFrom(const std::string& start) {
  if (start.empty()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const RunningJob::Start from,
                        RunningJob::ParseStart(start));
  const input::ShardedSampler::State& state = from.place;
  steps_ = from.round;
  place_round_ = from.round;
  WEFT_RETURN_IF_ERROR(loader_->LoadState(state));
  first_epoch_ = static_cast<int>(state.epoch);
  if (loader_->remaining() == 0) loader_->SetEpoch(++first_epoch_);
  return absl::OkStatus();
}

absl::Status ServerTraining::JoinAtTheirPlace() {
  WEFT_ASSIGN_OR_RETURN(const RunningJob::Start start, running_.GetStart());
  input::ShardedSampler::State place = start.place;
  if (task_.is_sync) {
    WEFT_ASSIGN_OR_RETURN(input::ShardedSampler sampler,
                          SamplerOf(worker_.options().rank));
    WEFT_ASSIGN_OR_RETURN(
        place, PlaceAfter(std::move(sampler), start.place,
                          table_->round() - start.round, task_.batch_size));
  }
  WEFT_RETURN_IF_ERROR(GoOnFrom(RunningJob::FormatStart({start.round, place})));
  if (task_.is_sync) place_round_ = table_->round();
  return absl::OkStatus();
}

absl::Status ServerTraining::TrainEpoch(int epoch) {
  const int64_t of_epoch = task_.data->size();
  for (;;) {
    WEFT_RETURN_IF_ERROR(PassOverClosedRounds());
    place_ = loader_->state();
    WEFT_ASSIGN_OR_RETURN(const std::optional<input::Example> batch,
                          NextBatch());
    if (!batch.has_value()) return absl::OkStatus();
    const absl::StatusOr<double> stepped = Step(*batch);
    if (!stepped.ok()) {
      return EndOfWait(stepped.status(), worker_.self().name, AskedToStop());
    }
    const double loss = *stepped;
    ++steps_;
    ++place_round_;
    metrics_.EndStep(loss, ExamplesOf(*batch));
    // Each shard has had a batch meanwhile, as large as this one.
    const int64_t shards = task_.is_sync
                               ? worker_.options().trainers
                               : CountTrainers(*worker_.membership().view());
    samples_ += static_cast<double>(ExamplesOf(*batch) * shards);
    const int64_t used = std::min(loader_->state().used, of_epoch);
    if (is_first()) {
      progress_.Update(epoch * of_epoch + used, options_.epochs * of_epoch,
                       loss);
      if (options_.on_loss) options_.on_loss(step(), loss);
    }
    // After the last step there is nothing left that could be stopped.
    const bool is_last =
        epoch + 1 >= options_.epochs && loader_->remaining() == 0;
    if (!is_last && options_.IsAskedToStop()) {
      was_stopped_ = true;
      WEFT_LOG(worker_.telemetry().logger(), Info,
               "asked to stop; ending in good order; ")
          << kEndsAtOnce;
      return absl::OkStatus();
    }
    if (!is_last) SnapshotIfDue();
  }
}

absl::StatusOr<Result> ServerTraining::Run() {
  if (std::exchange(has_run_, true)) {
    return absl::FailedPreconditionError(
        "ServerTraining::Run: it has run before; make another for another "
        "training");
  }
  return CatchToStatus([this] { return Train(); });
}

absl::StatusOr<Result> ServerTraining::Train() {
  const absl::Status begun = Begin();
  if (!begun.ok()) return EndOfWait(begun, worker_.self().name, AskedToStop());
  absl::Duration training;
  absl::Status saved;
  for (int epoch = first_epoch_; epoch < options_.epochs && !was_stopped_;
       ++epoch) {
    const Instant epoch_begin = SteadyClock().Now();
    if (epoch != first_epoch_) {
      loader_->SetEpoch(epoch);
      adopted_.Clear();  // taken up again at the place of the first batch
      // Asynchronous trainers have no round that gives the place.
      if (!task_.is_sync && is_first()) {
        WEFT_RETURN_IF_ERROR(running_.SetStart({steps_, loader_->state()}));
      }
    }
    WEFT_RETURN_IF_ERROR(TrainEpoch(epoch));
    training += SteadyClock().Now() - epoch_begin;
    if (is_first()) saved_epochs_ = epoch + 1;
    saved = SaveIfFirst();
  }
  // Nobody is to wait for one that takes no more steps.
  if (task_.staleness.has_value()) {
    WEFT_RETURN_IF_ERROR(table_->LeaveClock().Wait(kRoundTimeout));
  }
  if (is_first()) progress_.Finish();
  Result result;
  result.was_stopped = was_stopped_;
  result.checkpoint = checkpoint_;
  const double seconds = absl::ToDoubleSeconds(training);
  if (seconds > 0) {
    result.samples_per_s = samples_ / seconds;
  }
  result.saved = saved;
  WEFT_RETURN_IF_ERROR(Conclude(&result));
  return result;
}

absl::Status ServerTraining::Conclude(Result* result) {
  rendezvous::Store& store = worker_.membership().store();
  const Instant deadline = SteadyClock().Now() + kConclusionTimeout;
  while (!is_first()) {
    // A trainer that was asked to stop leaves the rest to the others.
    if (was_stopped_) return absl::OkStatus();
    const auto done = store.Wait(kConcluded, concluded_, kLookEvery);
    if (done.ok()) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(worker_.membership().status());
    if (!absl::IsDeadlineExceeded(done.status())) return done.status();
    if (SteadyClock().Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the first trainer has not saved and tested the model within ",
          absl::FormatDuration(kConclusionTimeout)));
    }
  }
  // The former first trainer may have left because it was done.
  const auto done = store.Get(kConcluded, kRoundTimeout);
  if (done.ok() && done->version > concluded_) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(TestAndSave(result));
  if (was_stopped_) return absl::OkStatus();
  return store.Set(kConcluded, worker_.self().name, kRoundTimeout).status();
}

absl::Status ServerTraining::TestAndSave(Result* result) {
  const bool has_trained = has_joined_ || first_epoch_ < options_.epochs;
  if (!was_stopped_ && has_trained && saved_epochs_ < options_.epochs) {
    saved_epochs_ = options_.epochs;
    result->saved = SaveIfFirst();  // its predecessor died meanwhile
    result->checkpoint = checkpoint_;
  }
  WEFT_ASSIGN_OR_RETURN(result->score, Score());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<double>> ServerTraining::Score() {
  if (task_.score == nullptr) return std::nullopt;
  WEFT_ASSIGN_OR_RETURN(const double score, task_.score());
  return score;
}

}  // namespace weft::train
