// AdoptedShards: the shards of the data whose trainers are gone, as far as this
// trainer serves them besides its own.

#ifndef WEFT_TRAIN_ADOPTED_SHARDS_H_
#define WEFT_TRAIN_ADOPTED_SHARDS_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/input/data_loader.h"
#include "weft/input/dataset.h"
#include "weft/input/sharded_sampler.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/train/running_job.h"
#include "weft/worker/worker.h"

namespace weft::train {

// Thread-safety: one thread at a time.
class AdoptedShards {
 public:
  using Load =
      std::function<absl::StatusOr<std::unique_ptr<input::DataLoader>>(int)>;

  // `load` opens a shard. `worker` and `running` must outlive it.
  AdoptedShards(worker::Worker& worker, const RunningJob& running, Load load);

  // A round begins, to which no shard has given its part yet.
  void BeginRound();
  // Forgets all loaders: a shard is opened again at the place of its next
  // batch.
  void Clear() { shards_.clear(); }

  // Calls `give` with the batch of each shard that this trainer is to serve now
  // and that has not given its part to this round; for a shard that is new to
  // it, the batch at `place`. Returns the first error of `give`.
  absl::Status Serve(
      const input::ShardedSampler::State& place,
      absl::FunctionRef<absl::Status(int shard, const input::Example& batch)>
          give);

 private:
  struct Shard {
    std::unique_ptr<input::DataLoader> loader;
    bool has_given = false;  // its part, to this round
  };

  // The shards that this trainer is to serve besides its own.
  absl::StatusOr<std::vector<int>> FindMine();
  // Whether the trainer of `rank` died, and none of its rank takes steps again.
  absl::StatusOr<bool> IsMissing(const rendezvous::View& view, int rank);

  worker::Worker& worker_;
  const RunningJob& running_;
  const Load load_;
  std::map<int, Shard> shards_;
  std::set<rendezvous::WorkerKey> back_;  // came back, and take steps again
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_ADOPTED_SHARDS_H_
