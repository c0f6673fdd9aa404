// DataParallelTraining: trains a model that every rank holds whole, in a loop
// of the caller's own.
//
//   WEFT_ASSIGN_OR_RETURN(
//       auto training,
//       train::DataParallelTraining::Create(
//           *group, telemetry, {&net, optimizer.get(), loader.get()},
//           options));
//   for (;;) {
//     WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
//     if (!batch.has_value()) break;
//     WEFT_RETURN_IF_ERROR(training->Step(
//         CrossEntropy(net.Forward(Variable((*batch)[0])), (*batch)[1])));
//   }
//   return training->Finish();
//
// Every rank runs the same steps on its share of the data; gradients are
// averaged over all ranks (ddp/), and each rank updates its own copy. After
// each epoch, after each Options::checkpoint_every_steps, and where the
// training is asked to stop, rank 0 saves a checkpoint of model, optimizer and
// place in the data. Where the model is on a device, and no ranks come and go,
// all but the last are written by a thread beside the training. To resume, it
// reads the newest and gives the others what it holds: they need not see its
// files, and may be more or fewer than the ranks that saved it. With as many, a
// resumed training has the same bits as one that was never interrupted.
//
// With Parts::virtual_shards it has the same bits with any number of ranks, and
// also if that changes from one run to the next (ddp/virtual_shards.h): Next
// gives the batch of one own shard after the other, and the Step of the last
// one updates the model. The loop above stays as it is.
//
// An error on one rank ends all: an operation that this rank does not come to
// fails on the others with the reason. Not so where ranks may come and go
// (CreateElastic): the others take over the virtual shards of a rank that has
// died, repeat the step that was under way, and end with the bits of a run that
// nobody touched. A rank that comes later gets model, optimizer and place from
// the others.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_TRAIN_DATA_PARALLEL_TRAINING_H_
#define WEFT_TRAIN_DATA_PARALLEL_TRAINING_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/autograd/variable.h"
#include "weft/base/clock.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/virtual_shards.h"
#include "weft/input/data_loader.h"
#include "weft/nn/module.h"
#include "weft/optimizer/grad_scaler.h"
#include "weft/optimizer/optimizer.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/progress.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tensor/device_staging.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"
#include "weft/train/background_task.h"
#include "weft/train/build_text.h"
#include "weft/train/core/push_deadline.h"
#include "weft/train/core/step_commit.h"
#include "weft/train/options.h"
#include "weft/train/saving/checkpoint_run.h"
#include "weft/train/saving/staged_state.h"
#include "weft/train/saving/training_place.h"
#include "weft/train/state/given_share.h"
#include "weft/train/state/handover_watch.h"
#include "weft/train/state_parts.h"
#include "weft/train/training_metrics.h"

namespace weft::train {

class DataParallelTraining {
 public:
  // What is trained; all of it must outlive the training.
  struct Parts {
    nn::Module* model = nullptr;
    optimizer::Optimizer* optimizer = nullptr;  // of the model's parameters
    // Loads this rank's shard: its ShardedSampler has group.rank() of
    // group.size(). Null with virtual_shards.
    input::DataLoader* loader = nullptr;
    // The generator from which the steps draw (Dropout); each rank has its own.
    // When a training is resumed, each rank's goes on at the position that rank
    // 0's had, which is right for all if all have drawn as many numbers. With
    // virtual_shards each pass draws from a generator that depends on the seed
    // and stream of rank 0's, the step and the shard. Null: none.
    Generator* generator = nullptr;
    // The number of virtual shards: a power of two, at least the number of
    // ranks, and part of the settings that a checkpoint fixes. 0: there are
    // none, and the ranks share the data.
    int virtual_shards = 0;
    // Only with virtual_shards: makes the loader of one shard. Its
    // ShardedSampler has `shard` of `shards`; otherwise the loaders are alike.
    std::function<absl::StatusOr<std::unique_ptr<input::DataLoader>>(
        int shard, int shards)>
        make_loader = nullptr;
    // A measure of the model, higher is better; called by all ranks at the same
    // time, after an epoch (Options::keep_best) and in Finish, and the same on
    // all. Null: there is none.
    std::function<absl::StatusOr<double>()> score = nullptr;
    ddp::DistributedDataParallelOptions ddp = {};
    // Scales the loss, and skips steps whose gradients are not finite, on all
    // ranks alike; its state is saved with the optimizer's. A skipped step
    // counts as a step of the training. Null: none; wanted where the loss is
    // computed under an AutocastScope of f16.
    optimizer::GradScaler* scaler = nullptr;
  };

  // Tables of parameter servers that each step changes beside the model
  // (docs/elastic.md, "Tables"): synchronous ones, of which each shard of the
  // data is a virtual shard, and round n (from 0) is the step after n steps.
  // train::StepTable makes these functions.
  struct Tables {
    // Called before the passes of a step. The tables have had `rounds` rounds,
    // and what is pulled from now on must be of that version.
    std::function<absl::Status(int64_t rounds)> begin_round = nullptr;
    // Begins to push what GivePart was given for `shard` in that round. The
    // bytes are the same whichever rank pushes them, and however often.
    std::function<absl::Status(int64_t round, int shard,
                               const std::string& part)>
        push = nullptr;
    // Waits until no single death can lose what was pushed: kDeadlineExceeded
    // after `wait`; then it is called again. Another error: it will not be.
    std::function<absl::Status(absl::Duration wait)> await_stable = nullptr;
    // How long all that may take; and half of it once more where a rank has
    // ended meanwhile, and others push its parts.
    absl::Duration timeout = absl::Minutes(1);
    // The shards of the data that the tables know (ps::v1::TableSpec::shards).
    // CreateElastic compares them with Parts::virtual_shards. 0: not known.
    int shards = 0;

    // What checkpoints of model and tables need: all functions, or none.
    // `path` is Options::checkpoint_dir.
    struct Checkpoints {
      // Whether the servers may use it. Called before the first step.
      std::function<absl::Status(const std::string& path)> check = nullptr;
      // Writes the tables as they are after `rounds` rounds, all of which are
      // stable, into this attempt of a checkpoint. Called by one rank; no round
      // closes meanwhile. An error if the tables are after other rounds.
      std::function<absl::StatusOr<std::vector<checkpoint::FileRecord>>(
          const std::string& path, const std::string& attempt, int64_t rounds)>
          save = nullptr;
      // Replaces all tables by those of checkpoint `name`. Called by one rank.
      std::function<absl::Status(const std::string& path,
                                 const std::string& name)>
          restore = nullptr;
      // Opens the tables again, since another rank may have replaced them.
      std::function<absl::Status()> reopen = nullptr;
    };
    Checkpoints checkpoints = {};
  };

  // Called by all ranks, with the same options, but for the checkpoint
  // directory, which rank 0 alone reads and writes. Begins with the first epoch
  // of the data, or goes on from the newest checkpoint; gives all ranks the
  // model of rank 0. `group` and `telemetry` must outlive it.
  //   kInvalidArgument     a part is missing, or an option makes no sense; or
  //                        the checkpoint is not of these
  //                        tensors, which names the first difference, or was
  //                        saved by something else; or the number of virtual
  //                        shards is not allowed
  //   kFailedPrecondition  the checkpoint has other fixed settings (ExitCode
  //                        kConfig), or its directory is none
  //   kDataLoss            every checkpoint is damaged
  // and those of DistributedDataParallel::Create or VirtualShards::Create.
  static absl::StatusOr<std::unique_ptr<DataParallelTraining>> Create(
      collectives::ProcessGroup& group, telemetry::Telemetry& telemetry,
      Parts parts, Options options);

  // How ranks that may come and go form the groups of a training.
  struct Elastic {
    // What a rank of a new group does first, before the group is used: those
    // who train give newcomers a first copy of the state, and go on.
    using Prepare = std::function<void(collectives::ProcessGroup& group)>;
    // Makes the group of those who are there now, at most as many as there are
    // virtual shards. Called by every rank at the beginning, when a rank was
    // lost, and when one is to be taken in. An error ends the training on this
    // rank. In an elastic job this is worker::JoinGroup. A group that it makes
    // itself it gives to `prepare`, once, on the thread that made it, before it
    // returns it; or no rank ever does: then all stop for all of the state.
    std::function<absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>>(
        const Prepare& prepare)>
        join;
    // Begins to make the next group, of those who train and those who wait,
    // while the present one trains; returns at once. `join` then returns that
    // group, which was given to this `prepare` in the same way. `join` is
    // called once `has_joined_ahead` says that it would not wait; or at once if
    // a rank is lost before, and then it waits. Called by every rank, after the
    // same step. Null: all stop until the group is made.
    std::function<void(Prepare prepare)> join_ahead = nullptr;
    std::function<bool()> has_joined_ahead = nullptr;
    // Whether somebody waits to be taken in; asked by rank 0 between steps, at
    // most each `ask_interval`. Null: nobody is taken in but where a rank is
    // lost.
    std::function<bool()> has_newcomers = nullptr;
    absl::Duration ask_interval = absl::Milliseconds(200);
    // has_newcomers is not asked once there are so many ranks.
    int max_ranks = ddp::kMostVirtualShards;
    // Whether ranks of this job have trained before. The job must remember it
    // whichever of them dies; with `begins` it is true from now on. If it is
    // true, checkpoints in the directory are this job's own, and ranks that
    // begin go on from them. Called by one of the ranks. Null: the job does not
    // remember, and Options::resume alone counts.
    std::function<absl::StatusOr<bool>(bool begins)> has_trained = nullptr;
    // Which build of the program this rank runs: one that has another is
    // refused as one that has another model, since it may compute other bits.
    std::string build = BuildText();
    // Whether this rank is to leave the others; asked after each step. Once
    // true, and `leave_after` later, it leaves with a checkpoint, and the
    // others go on; where all have been asked by then, the training stops as by
    // Options::asked_to_stop. Null: none leaves, and a signal stops all.
    std::function<bool()> asked_to_leave = nullptr;
    absl::Duration leave_after = absl::Seconds(1);
    // Called, on a thread of its own, where this rank has just come, and has
    // done one thing of the hand-over of the state for longer than
    // `hangs_after`, while the others wait for it and not it for them; `what`
    // it does. It is to end its process: the others go on without it once it is
    // gone. Null: they wait for as long as the group's timeout.
    std::function<void(const std::string& what)> on_hang = nullptr;
    absl::Duration hangs_after = absl::Seconds(30);
    // How much of the state is hashed, sent and compared at once when a rank is
    // given it; the same on all ranks. Each stretch is a round of the group, in
    // which all ranks wake each other: that takes some milliseconds where they
    // are more than the cores, as long as it takes to hash 50 MB.
    int64_t stretch_bytes = int64_t{128} << 20;
  };

  // The same for ranks that may die and come while it trains. Needs
  // Parts::virtual_shards. Rank 0 writes the checkpoints, and that may be
  // another one later, so all must see the directory. If nobody trains yet, the
  // ranks resume if any of them has Options::resume; if none has, a checkpoint
  // in the directory is an error (kFailedPrecondition, with ExitCode kConfig).
  // What a step has done is kept if one rank is left that has taken it; else
  // the others repeat it, with the same samples. A rank that has just come ends
  // with kInvalidArgument where its build, model, settings or shards are not
  // those of the others, who go on without it; with kDataLoss where it does not
  // have the bits of the state that it was given. Other errors as Create, and
  // those of `join`.
  static absl::StatusOr<std::unique_ptr<DataParallelTraining>> CreateElastic(
      Elastic elastic, telemetry::Telemetry& telemetry, Parts parts,
      Options options);
  // The same with tables; checkpoints hold both. kInvalidArgument if there is a
  // checkpoint directory, and no Tables::Checkpoints, or if Tables::shards are
  // others than the virtual ones. The errors of the functions of `tables` end
  // the training on this rank, but for that of `save`, which is logged.
  static absl::StatusOr<std::unique_ptr<DataParallelTraining>> CreateElastic(
      Elastic elastic, telemetry::Telemetry& telemetry, Parts parts,
      Tables tables, Options options);

  ~DataParallelTraining();
  DataParallelTraining(const DataParallelTraining&) = delete;
  DataParallelTraining& operator=(const DataParallelTraining&) = delete;

  // The next batch of this rank; at the end of an epoch, and between two steps
  // where Options::checkpoint_every_steps are over, it saves and goes on.
  // Nothing after the last epoch, or once the training was
  // asked to stop. A checkpoint that cannot be saved is logged and reported by
  // Finish; training goes on without it. The errors of DataLoader::Next, and
  // what a function of Options throws.
  absl::StatusOr<std::optional<input::Example>> Next();

  // One step: Backward(loss), then Step(). Each rank takes as many; with
  // virtual shards one for each own shard.
  absl::Status Step(const Variable& loss);

  // The two parts of Step(loss), for a program that does something between
  // them: clips gradients, or runs several passes for a step (all but the last
  // in a ddp::NoSyncScope).
  //
  // Adds the gradients of `loss`, one real number, and averages them
  // over the ranks. What the pass throws becomes its status.
  absl::Status Backward(const Variable& loss);
  // With tables: gives what the own shard of the present batch pushes to them.
  // To be called between the batch's Next and its Step, at most once; without a
  // call the part is empty. Where several batches make the pass of a shard
  // (several Next before a Step) one part has the keys and gradients of all.
  // All ranks get it before the step is taken, so that any of them can push it.
  // kFailedPrecondition without tables, without a batch of Next since the last
  // Step, or if the shard has a part already, which stays.
  absl::Status GivePart(std::string part);
  // Tells all ranks the mean of the losses since the step before, updates the
  // parameters and makes their gradients undefined. OK also if a rank was lost
  // meanwhile and ranks may go: then Next gives batches of that step again.
  // kOutOfRange, with ExitCode kDiverged and on every rank, if the mean loss is
  // not finite, unless Options::allow_non_finite. kFailedPrecondition without a
  // Backward before. What a function of Options throws becomes its status.
  absl::Status Step();

  // After the last step: checks that all ranks hold the same bits (kDataLoss),
  // and computes the score. Called by all ranks.
  absl::StatusOr<Result> Finish();

  // The epoch of the next batch, from 0.
  int64_t epoch() const { return commit_.position().epoch; }
  // Steps since the training began, earlier runs included.
  int64_t steps() const { return commit_.position().steps; }
  // The mean loss over all ranks in the last step; 0 before the first.
  double mean_loss() const { return mean_loss_; }
  // Only without virtual shards.
  ddp::DistributedDataParallel& ddp() { return *ddp_; }
  // What this rank was given of the state of others, in bytes, while they stood
  // still for it.
  int64_t given_bytes() const { return given_bytes_; }
  // The ranks now; in an elastic training valid until the next call.
  collectives::ProcessGroup& group() { return *group_; }
  // Groups that this rank has trained in: 1, but in an elastic training.
  int groups() const { return groups_; }

 private:
  DataParallelTraining(collectives::ProcessGroup* group, Elastic elastic,
                       telemetry::Telemetry& telemetry, Parts parts,
                       Tables tables, Options options);

  static absl::Status CheckParts(const Parts& parts, const Options& options);
  absl::StatusOr<StepPosition> Begin();
  void MakeProgress();
  absl::Status MakeReplicas(int root);
  void LogShards() const;
  absl::Status MakeLoaders();
  absl::Status AgreeOnSeed();

  // The tensors of the model with a copy of each, and of the optimizer.
  struct ModelState {
    std::vector<std::pair<Tensor, Tensor>> model;
    absl::btree_map<std::string, Tensor> optimizer;
  };

  // What a step gives to the tables, by shard.
  struct StepParts {
    int64_t round = 0;
    std::vector<std::string> of_shard;
  };

  // How long each part of a hand-over takes on this rank, with its waits:
  // moving is that of others' parts into the memory of this rank, or of its own
  // into that of others.
  struct HandoverTimes {
    absl::Duration hashing, telling, moving, comparing;
  };

  // --- What StepCommit says is done (training_protocol.cc). ---
  using Done = absl::StatusOr<std::optional<StepCommit::Event>>;
  // Tells commit_ what has happened, and does what follows from it until the
  // loop goes on: OK, or why the training has ended on this rank.
  absl::Status Drive(StepCommit::Event event);
  StepCommit::Failed Fail(absl::Status why);
  Done Do(const StepCommit::MeetAhead& action);
  Done Do(const StepCommit::Meet& action);
  Done Do(const StepCommit::TellPlaces& action);
  Done Do(const StepCommit::TellDifferences& action);
  Done Do(const StepCommit::Begin& action);
  Done Do(const StepCommit::KeepState& action);
  Done Do(const StepCommit::ShareState& action);
  Done Do(const StepCommit::RestoreState& action);
  Done Do(const StepCommit::TakePlace& action);
  Done Do(const StepCommit::Train& action);
  Done Do(const StepCommit::Reduce& action);
  Done Do(const StepCommit::AbandonStep& action);
  Done Do(const StepCommit::TakeStep& action);
  Done Do(const StepCommit::Settle& action);
  Done Do(const StepCommit::Push& action);
  Done Do(const StepCommit::Save& action);
  Done Do(const StepCommit::SaveAlone& action);
  Done Do(const StepCommit::Stop& action);
  Done Do(const StepCommit::Leave& action);
  Done Do(const StepCommit::End& action);
  void LogMeeting(StepCommit::Reason reason);
  absl::StatusOr<StepVote> ReduceVotes(const StepVote& vote);

  // --- Of tables (table_steps.cc). ---
  bool has_tables() const { return tables_.push != nullptr; }
  // All ranks get the parts of all shards.
  absl::Status GatherParts();
  // Gives the parts of the last step of `source` to the ranks that lack its
  // state.
  absl::Status ShareParts(int source);
  absl::Status AwaitStable();
  absl::StatusOr<std::string> SaveWithTables(
      checkpoint::CheckpointDirectory& directory,
      const checkpoint::NamedTensors& model,
      const checkpoint::Metadata& metadata);
  // The newest checkpoint, to the device of the model, or to the CPU where the
  // device has no room for it; without the tables.
  absl::StatusOr<checkpoint::CheckpointDirectory::Loaded> LoadNewest(
      checkpoint::CheckpointDirectory& directory) const;
  // Like CheckpointDirectory::LoadLatest, but does not load the tables.
  absl::StatusOr<checkpoint::CheckpointDirectory::Loaded> LoadLatestModel(
      checkpoint::CheckpointDirectory& directory, Device device) const;

  // --- Of an elastic training (elastic_training.cc). ---
  bool is_elastic() const { return elastic_.join != nullptr; }
  absl::StatusOr<StepPosition> BeginElastic();
  absl::StatusOr<bool> DoesAnyResume();
  bool HasTrained(bool begins);
  absl::Status CheckNoFormerRun();
  TrainingPlace Place() const;
  std::string Description() const;
  // The line in which the descriptions of this rank and of `source` differ.
  absl::StatusOr<std::string> DifferenceFrom(int source);
  absl::Status TakeData(const input::ShardedSampler::State& data);
  // Gives the state of those who have gone as far as `source` to the others
  // (elastic_state.cc). kDataLoss: this rank has other bits than it was given,
  // which names the first.
  absl::Status ShareState(int source);
  class Handover;
  // The state of model and optimizer; `update` is UpdateStateInPlace().
  std::vector<StateParts::NamedTensor> StateTensors(
      const absl::btree_map<std::string, Tensor>& update) const;
  void KeepState();
  absl::Status RestoreState();
  // Between two steps: begins to give newcomers a first copy; copies some more
  // of it; gives no more.
  Elastic::Prepare PrepareToGive();
  void GoOnGiving();
  void EndGiving();
  Elastic::Prepare PrepareToTake();
  // Of a newcomer, for Elastic::on_hang: it does `what` from now on, or waits
  // for others; it takes part, or meets others again.
  void Works(const std::string& what);
  void AwaitsOthers();
  void EndWatch() { watch_ = nullptr; }
  // kUnavailable where nobody may begin with the state of this rank.
  absl::Status CheckOwnState() const;
  // Of an epoch of a shard, and those that are left of it.
  using Batches = std::array<int64_t, 2>;
  Batches OwnBatches() const { return {epoch_batches_, loader().remaining()}; }
  // kInvalidArgument unless this rank has those of rank `root`.
  absl::Status CheckBatches(const Batches& of_root, int root) const;
  // The same, where `root` tells the others.
  absl::Status TellBatches(int root);
  // Whether a rank was lost, or has ended as it pushed to tables, so that this
  // group is of no more use.
  bool HasLost() const;
  bool HasNewcomers();

  absl::StatusOr<std::optional<input::Example>> NextOrEnd();
  absl::Status BeginShard();
  absl::Status EndShard();
  absl::Status Update();
  bool IsAskedToStop() const;
  absl::Status TakeStep();
  absl::StatusOr<Result> FinishOnce();
  // Called at the end: the rank that was about to save may have been lost.
  absl::Status SaveUnlessSaved();
  // Saves where this rank is in no group and ends; a failure is logged.
  void SaveAlone();
  // Whether the newest checkpoint is of the last step.
  absl::StatusOr<bool> FindSaved();
  void SetEpoch(int64_t epoch);
  absl::StatusOr<std::unique_ptr<checkpoint::CheckpointDirectory>>
  OpenCheckpoints() const;
  // The newest checkpoint, if any, into the parts of every rank.
  absl::StatusOr<StepPosition> Resume();
  // Called on rank 0: loads the newest checkpoint into its own model and
  // optimizer. Returns the place in the training at which it was saved, as text
  // for GoOnFrom, or an empty text if there is no checkpoint.
  absl::StatusOr<std::string> RestoreNewest();
  absl::Status CheckNewest(checkpoint::CheckpointDirectory& directory) const;
  absl::Status GiveOptimizerToAll(int root);
  // The optimizer's state, and the scaler's under names of its own.
  absl::btree_map<std::string, Tensor> UpdateState() const;
  // The same as Optimizer::StateInPlace has it.
  absl::btree_map<std::string, Tensor> UpdateStateInPlace() const;
  absl::Status LoadUpdateState(
      const absl::btree_map<std::string, Tensor>& state);
  absl::StatusOr<StepPosition> GoOnFrom(const std::string& place);
  // Goes to the next epoch, or to the end.
  absl::Status EndEpoch();
  // Called between two steps. Rank 0 saves if it is time; a failure is logged.
  void SaveIfDue();
  // Called by all ranks, of which rank 0 writes.
  absl::Status Save(bool is_last);
  absl::Status SaveOnce(std::optional<double> score, bool is_last);
  // Whether SaveOnce only begins it: a thread of its own writes the state of a
  // device while the device goes on. Not where others may save too.
  bool SavesBehind(bool is_last) const {
    return !is_last && !was_stopped() && !is_elastic() && !has_tables() &&
           !device_.is_cpu();
  }
  // Begins to copy the state of a device to pinned memory. Null: it is on the
  // CPU, or there is no pinned memory; then it is saved from where it lies.
  absl::StatusOr<std::shared_ptr<StagedState>> Stage(
      const checkpoint::NamedTensors& tensors);
  void SaveBehind(std::shared_ptr<checkpoint::CheckpointDirectory> directory,
                  checkpoint::Metadata metadata, std::optional<double> score,
                  std::shared_ptr<StagedState> state);
  // Waits for the save that SaveOnce has begun, and logs its failure.
  void AwaitSaved();
  absl::StatusOr<double> Score();
  bool is_first() const { return group_->rank() == 0; }
  // The last step of all epochs: there is nothing left that could be stopped.
  bool is_last_step() const {
    return epoch() + 1 >= options_.epochs && loader().remaining() == 0;
  }
  // One of the own loaders: between two steps all are at the same place.
  input::DataLoader& loader() const { return *loaders_[0]; }
  bool was_stopped() const { return commit_.position().was_stopped; }
  bool has_left() const { return commit_.phase() == StepCommit::Phase::kLeft; }
  bool is_at_end() const { return was_stopped() || epoch() >= options_.epochs; }

  const Elastic elastic_;
  std::unique_ptr<collectives::ProcessGroup> own_group_;  // if elastic
  collectives::ProcessGroup* group_;
  telemetry::Logger& logger_;
  const Parts parts_;
  const Tables tables_;
  PushDeadline push_deadline_;
  const Options options_;

  std::unique_ptr<ddp::DistributedDataParallel> ddp_;  // or:
  std::unique_ptr<ddp::VirtualShards> shards_;
  std::vector<input::DataLoader*> loaders_;  // one for each own shard
  std::vector<std::unique_ptr<input::DataLoader>> made_loaders_;
  int64_t epoch_batches_ = 0;        // of a shard
  size_t at_ = 0;                    // whose batch is next
  std::vector<double> losses_;       // by virtual shard; of others 0
  std::optional<Generator> random_;  // of all virtual shards

  // Which step this rank is after, and what it does next.
  StepCommit commit_;
  input::ShardedSampler::State place_;  // after the last step
  std::vector<TrainingPlace> places_;   // that all told when they met
  std::optional<ModelState> kept_;      // while it is given another
  // Whether parts of another rank's state were put in place of its own, and
  // others not: nobody may begin with that.
  bool has_parts_of_others_ = false;
  // Of the pieces of its state (StateParts), where they are known: after a
  // first copy, until more of the others' is put in its place.
  std::optional<std::vector<uint64_t>> own_hashes_;
  int64_t given_bytes_ = 0;
  HandoverTimes times_;                 // of the last hand-over
  std::shared_ptr<GivenShare> giving_;  // of the next group's first copy
  std::unique_ptr<HandoverWatch> watch_;
  // By own shard, of the step under way; null: not given.
  std::vector<std::optional<std::string>> own_parts_;
  bool has_batch_ = false;  // Next has given one since the last Step
  std::vector<std::string> all_parts_;   // by shard, once all have told
  std::optional<StepParts> last_parts_;  // of the last step
  bool resumes_ = options_.resume;       // or that of any rank
  absl::Status failure_;                 // the last one
  absl::Status ended_;                   // why this rank trains no more
  int groups_ = 0;
  Instant asked_at_;
  Instant stopped_at_, met_at_;  // for the last group
  std::unique_ptr<telemetry::Progress> progress_;
  TrainingMetrics metrics_;
  std::optional<TrainingMetrics::Phase> forward_;
  CheckpointRun run_;         // of rank 0
  int64_t samples_ = 0;       // of all ranks, in this run
  int64_t step_samples_ = 0;  // of this rank, since the last step
  double loss_ = 0;           // the sum of this rank's since the last step
  int passes_ = 0;            // Backward since the last step
  double mean_loss_ = 0;
  Instant epoch_begin_;
  absl::Duration training_;  // time of epochs that have ended
  std::string checkpoint_;
  absl::Status saved_;
  int64_t looked_at_ = -1;  // the step after which SaveIfDue was called last
  const Device device_;     // of the model
  const std::shared_ptr<DeviceStaging> staging_ =
      std::make_shared<DeviceStaging>();
  // Gives the path. Last: it uses the members above.
  BackgroundTask<std::string> saving_;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_DATA_PARALLEL_TRAINING_H_
