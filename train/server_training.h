// ServerTraining: trains a model whose parameters live in a dense table on
// parameter servers.
//
//   train::ServerTraining::Task task;
//   task.model = &net;
//   task.data = &points;
//   task.rule.mutable_adam()->set_lr(1e-3);
//   task.loss = [&](const input::Example& batch) {
//     return CrossEntropy(net.Forward(Variable(batch[0])), batch[1]);
//   };
//   WEFT_ASSIGN_OR_RETURN(const auto training,
//                         train::ServerTraining::Create(worker, task,
//                         options));
//   return training->Run();
//
// Every trainer runs the same steps on its share of the data. The live trainer
// of the lowest rank also shows progress, saves checkpoints, between two
// rounds, and tests the result: if it dies, the next one takes that over. In a
// synchronous training the others also take over its share of the data, so that
// the result is that of an undisturbed one, bit for bit. A trainer that comes
// back joins the others where they are (running_job.h).

#ifndef WEFT_TRAIN_SERVER_TRAINING_H_
#define WEFT_TRAIN_SERVER_TRAINING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/autograd/variable.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/input/data_loader.h"
#include "weft/input/dataset.h"
#include "weft/input/sharded_sampler.h"
#include "weft/nn/module.h"
#include "weft/proto/optimizer.pb.h"
#include "weft/ps/client.h"
#include "weft/ps/flat_parameters.h"
#include "weft/rendezvous/membership.h"
#include "weft/telemetry/progress.h"
#include "weft/train/adopted_shards.h"
#include "weft/train/background_task.h"
#include "weft/train/options.h"
#include "weft/train/running_job.h"
#include "weft/train/saving/checkpoint_run.h"
#include "weft/train/training_metrics.h"
#include "weft/worker/worker.h"

namespace weft::train {

// Thread-safety: one thread at a time.
class ServerTraining {
 public:
  // What is trained; all that it refers to must outlive the training. The same
  // on all trainers.
  struct Task {
    nn::Module* model = nullptr;  // f32
    const input::Dataset* data = nullptr;
    int64_t batch_size = 64;       // of each trainer
    uint64_t seed = 1;             // of the data's order
    bool is_sync = true;           // rounds that wait for all trainers
    optimizer::v1::RuleSpec rule;  // that the servers apply
    // How gradients and parameters travel. With KEEP a trainer keeps what
    // rounding has lost of its gradients; if it dies, that is lost, so a death
    // changes bits.
    ps::v1::WireValues wire;
    // Asynchronous: no trainer is more than staleness + 1 steps ahead of the
    // slowest (TableSpec.staleness). Absent: any number.
    std::optional<int64_t> staleness;
    // Synchronous: a round closes with the gradients of so many trainers, 1 to
    // the number of trainers, or of all that live if they are fewer. 0: of all.
    // With a quorum the gradients that a round has depend on time, so no two
    // trainings are alike, and nobody takes over the data of a trainer that
    // died. One that comes late goes on where the others are.
    int quorum = 0;
    bool folds_late = false;  // a gradient that comes late counts in a later
                              // round (TableSpec.late)
    std::string table = "model";  // its name on the servers
    // Computes the mean loss of a batch, one element of f32. It is also called
    // for batches of other trainers that have died. It may throw.
    std::function<Variable(const input::Example& batch)> loss;
    // A measure of the model, higher is better, that the first trainer computes
    // after an epoch (Options::keep_best) and at the end. Null: there is none.
    std::function<absl::StatusOr<double>()> score = nullptr;
  };

  // `worker`, a trainer of a job with servers, must outlive it. A job has one
  // such training: one that comes after it would join it where it ended.
  // kInvalidArgument if it is another, or a part of the task is missing or
  // wrong.
  static absl::StatusOr<std::unique_ptr<ServerTraining>> Create(
      worker::Worker& worker, Task task, Options options);
  ~ServerTraining();
  ServerTraining(const ServerTraining&) = delete;
  ServerTraining& operator=(const ServerTraining&) = delete;

  // Runs the whole training; to be called once. What the loss, the score or a
  // function of Options throws becomes its status.
  //   kInvalidArgument     the servers refuse the table or its rule
  //   kFailedPrecondition  trainers have other settings, or the checkpoint
  //                        has (ExitCode kConfig); or it has run before
  //   kOutOfRange          the loss is not finite (ExitCode kDiverged)
  //   kDataLoss            every checkpoint is damaged
  //   kUnavailable         a server is lost, or the coordinator
  //   kDeadlineExceeded    a server, or the first trainer, has not answered
  absl::StatusOr<Result> Run();

 private:
  ServerTraining(worker::Worker& worker, Task task, Options options);
  absl::StatusOr<Result> Train();
  absl::Status Begin();
  // Makes the table on the servers, or finds it there, and pulls its values.
  absl::Status OpenTable();
  // The duties of the first trainer after the last step, if this is it or
  // becomes it; else waits until that one has done them.
  absl::Status Conclude(Result* result);
  absl::Status TestAndSave(Result* result);
  absl::StatusOr<std::optional<double>> Score();
  // Where this trainer begins: in a job that runs already (has_joined_), at the
  // newest checkpoint, which the first trainer loads into the servers, or at
  // the beginning of the data.
  absl::Status FindPlace();
  // Tells the others under `key`.
  absl::Status RestoreForAll(const std::string& key);
  // `start` as RunningJob::FormatStart gives it; empty: nothing is done.
  absl::Status GoOnFrom(const std::string& start);
  absl::Status JoinAtTheirPlace();
  // Where it was saved, as text for GoOnFrom; empty if there is none.
  absl::StatusOr<std::string> RestoreNewest();
  // In the store: which run saves, whoever of its trainers has that duty.
  absl::Status BeginSaving();
  absl::StatusOr<CheckpointRun> FindRun(
      checkpoint::CheckpointDirectory& directory);
  absl::Status TrainEpoch(int epoch);
  absl::StatusOr<input::ShardedSampler> SamplerOf(int shard) const;
  absl::StatusOr<std::unique_ptr<input::DataLoader>> LoadShard(int shard) const;
  absl::StatusOr<std::optional<input::Example>> NextBatch();
  // With a quorum: passes over the batches of rounds that closed without this
  // trainer, up to the end of the epoch.
  absl::Status PassOverClosedRounds();
  // One batch; its mean loss.
  absl::StatusOr<double> Step(const input::Example& batch);
  // Counts the whole training, earlier runs included. SYNC: rounds; else steps
  // of this trainer.
  int64_t step() const {
    if (!task_.is_sync) return steps_;
    return task_.quorum > 0 ? place_round_ : table_->round();
  }
  // Runs forward and backward; the mean loss. Gradients are in parameters_.
  absl::StatusOr<double> Differentiate(const input::Example& batch);
  // SYNC. Gives the parts of shards of the data whose trainers are gone, as far
  // as they are this one's to serve: of those that it served before, and, while
  // `round` is not closed, of those that come to it meanwhile.
  absl::Status ServeAdopted(int64_t round);
  absl::StatusOr<Tensor> AwaitRound(Future<Tensor> values, int64_t round);
  template <typename T>
  weft::Result<T> Await(const Future<T>& operation);
  absl::Status Save();
  absl::Status SaveIfFirst();
  bool is_last_save() const {
    return was_stopped_ || saved_epochs_ >= options_.epochs;
  }
  absl::StatusOr<std::string> Fill(checkpoint::CheckpointDirectory& directory,
                                   const std::string& attempt,
                                   std::optional<double> score);
  absl::StatusOr<std::unique_ptr<checkpoint::CheckpointDirectory>>
  OpenCheckpoints() const;
  checkpoint::Safetensors ModelShard() const;
  // Options::snapshot_every, between two steps. That one could not be saved is
  // logged.
  void SnapshotIfDue();
  absl::Status BeginSnapshot();
  void EndSnapshot(const absl::StatusOr<std::string>& saved);
  // Logs who has died, once each.
  void FollowTheOthers();
  // Whether the training goes on after the death of a server.
  bool outlives_servers() const { return worker_.options().replicas > 1; }
  // Whether no trainer of a lower rank lives.
  bool is_first() const;

  worker::Worker& worker_;
  const Task task_;
  const Options options_;

  ps::FlatParameters parameters_;
  ps::Client client_;
  RunningJob running_;
  std::unique_ptr<ps::DenseTable> table_;
  std::unique_ptr<input::DataLoader> loader_;
  // Where the data was before the batch of this step; the same for all shards.
  input::ShardedSampler::State place_;
  AdoptedShards adopted_;
  telemetry::Progress progress_;
  TrainingMetrics metrics_;
  int first_epoch_ = 0;
  bool has_run_ = false;
  bool has_joined_ = false;  // a job that ran already
  int64_t steps_ = 0;        // see step()
  int64_t place_round_ = 0;  // SYNC: the round of loader_'s next batch
  double samples_ = 0;       // seen in this run by all trainers there are
  bool was_stopped_ = false;
  int saved_epochs_ = -1;   // after so many epochs this trainer saved last
  uint64_t concluded_ = 0;  // version of kConcluded as training began
  std::string checkpoint_;
  Instant next_snapshot_;                 // from the first step on
  BackgroundTask<std::string> snapshot_;  // its name, once it is saved
  rendezvous::Membership::Subscription follow_;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_SERVER_TRAINING_H_
