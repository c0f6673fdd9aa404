// ImageTrainer: one trainer of an image classifier whose parameters live in a
// dense table on parameter servers.
//
// Every trainer runs the same steps on its share of the data. The live trainer
// of the lowest rank also shows progress, saves checkpoints, between two
// rounds, and tests the result: if it dies, the next one takes that over. A
// trainer that comes back joins the others where they are (running_job.h).

#ifndef WEFT_LAUNCH_IMAGE_TRAINER_H_
#define WEFT_LAUNCH_IMAGE_TRAINER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/input/data_loader.h"
#include "weft/input/idx.h"
#include "weft/input/sharded_sampler.h"
#include "weft/launch/checkpoint_run.h"
#include "weft/launch/image_model.h"
#include "weft/launch/running_job.h"
#include "weft/launch/training_metrics.h"
#include "weft/ps/client.h"
#include "weft/ps/flat_parameters.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/telemetry/progress.h"
#include "weft/worker/worker.h"

namespace weft::launch {

struct ImageTrainerOptions {
  // Holds IDX files, gzipped or not, by MNIST's names:
  // train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-...
  std::string data = "/usr/share/datasets/fashion-mnist";
  int64_t classes = 10;
  std::string strategy = "ps";  // or ddp: which trainer runs them
  bool is_sync = true;
  int epochs = 3;
  int64_t batch_size = 64;      // of this trainer
  double learning_rate = 2e-3;  // of Adam, on the servers
  uint64_t seed = 1;            // of first parameters and of the data's order
  std::string checkpoint_dir;   // empty: nothing is saved
  // From the newest checkpoint there, unless other trainers of the job are at
  // work: then this one joins them where they are, with or without it.
  bool resume = false;
  int keep = 3;  // so many of the last checkpoints stay
  // Tests the model after each epoch; the checkpoint with the highest accuracy
  // stays, under the name "best".
  bool keep_best = false;
  std::string
      keep_as;  // the name under which the last checkpoint stays, if any
  // Goes on with a loss that is NaN or infinite, instead of ending with it.
  bool allow_non_finite = false;
  // How long the last save is tried again, where it may succeed later.
  absl::Duration retry_last_save_for = absl::Seconds(20);
  telemetry::Progress::Style progress = telemetry::Progress::Style::kAuto;
  // Called after each step by the first trainer with the number of the step,
  // from 1, across resumes, and its mean loss; null: nobody asks.
  std::function<void(int64_t step, double loss)> on_loss = nullptr;
};

struct ImageData {
  std::unique_ptr<input::IdxDataset> train;
  std::unique_ptr<input::IdxDataset> test;
};

// Reads both sets. The error names the file, what was wanted and what found.
absl::StatusOr<ImageData> LoadImageData(const ImageTrainerOptions& options);

// How many of images [begin, end) the model gives their class.
absl::StatusOr<int64_t> CountRight(ImageModel& model,
                                   const input::IdxDataset& images,
                                   int64_t begin, int64_t end);

struct TrainingResult {
  // Of the live trainer of the lowest rank; else absent.
  std::optional<double> test_accuracy;
  double samples_per_s = 0;  // of all trainers that were there
  std::string checkpoint;    // empty if none was saved
  bool was_stopped = false;
  // Of the last checkpoint: an error leaves the one before as the newest.
  absl::Status saved;
};

// Thread-safety: one thread at a time.
class ImageTrainer {
 public:
  // `worker` and `data` must outlive it. `asked_to_stop` is asked after each
  // step: once true, training ends as if that had been the last one.
  ImageTrainer(worker::Worker& worker, const ImageData& data,
               ImageTrainerOptions options,
               std::function<bool()> asked_to_stop);
  ~ImageTrainer();

  absl::StatusOr<TrainingResult> Run();

 private:
  absl::Status Begin();
  // Makes the table on the servers, or finds it there, and pulls its values.
  absl::Status OpenTable();
  // The duties of the first trainer after the last step, if this is it or
  // becomes it; else waits until that one has done them.
  absl::Status Conclude(TrainingResult* result);
  absl::Status TestAndSave(TrainingResult* result);
  absl::StatusOr<double> Accuracy();  // on the images to test on
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
  // One batch; its mean loss.
  absl::StatusOr<double> Step(const input::Example& batch);
  // Of the whole training, earlier runs included. SYNC: rounds; else steps of
  // this trainer.
  int64_t step() const { return options_.is_sync ? table_->round() : steps_; }
  // Runs forward and backward; the mean loss. Gradients are in parameters_.
  absl::StatusOr<double> Differentiate(const input::Example& batch);
  // SYNC. Gives the parts of shards of the data whose trainers are gone, as far
  // as they are this one's to serve: of those that it served before, and, while
  // `round` is not closed, of those that come to it meanwhile.
  absl::Status ServeAdopted(int64_t round);
  absl::StatusOr<Tensor> AwaitRound(Future<Tensor> values, int64_t round);
  // The shards that this trainer serves besides its own.
  absl::StatusOr<std::vector<int>> ShardsToAdopt();
  // Whether the trainer of `rank` died, and none of its rank takes steps again.
  absl::StatusOr<bool> IsMissing(const rendezvous::View& view, int rank);
  absl::Status Save();
  absl::Status SaveIfFirst();
  bool is_last_save() const {
    return was_stopped_ || saved_epochs_ >= options_.epochs;
  }
  absl::StatusOr<std::string> Fill(checkpoint::CheckpointDirectory& directory,
                                   const std::string& attempt,
                                   std::optional<double> accuracy);
  absl::StatusOr<std::unique_ptr<checkpoint::CheckpointDirectory>>
  OpenCheckpoints() const;
  // Logs which trainers have died, once each.
  void FollowTheOthers();
  // Whether no trainer of a lower rank lives.
  bool is_first() const;

  worker::Worker& worker_;
  const ImageData& data_;
  const ImageTrainerOptions options_;
  const std::function<bool()> asked_to_stop_;
  const std::map<std::string, std::string> settings_;  // training_checks.h

  Generator generator_;
  ImageModel model_;
  ps::FlatParameters parameters_;
  ps::Client client_;
  RunningJob running_;
  std::unique_ptr<ps::DenseTable> table_;
  std::unique_ptr<input::DataLoader> loader_;
  // Where the data was before the batch of this step; the same for all shards.
  input::ShardedSampler::State place_;
  // By shard, and whether it has given its part to the round of this step.
  struct Adopted {
    std::unique_ptr<input::DataLoader> loader;
    bool has_given = false;
  };
  std::map<int, Adopted> adopted_;
  std::set<rendezvous::WorkerKey> back_;  // came back, and take steps again
  telemetry::Progress progress_;
  TrainingMetrics metrics_;
  int first_epoch_ = 0;
  bool has_joined_ = false;  // a job that ran already
  int64_t steps_ = 0;        // see step()
  double samples_ = 0;       // seen in this run by all trainers there are
  bool was_stopped_ = false;
  int saved_epochs_ = -1;   // after so many epochs this trainer saved last
  uint64_t concluded_ = 0;  // version of kConcluded as training began
  std::string checkpoint_;
  rendezvous::Membership::Subscription follow_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_IMAGE_TRAINER_H_
