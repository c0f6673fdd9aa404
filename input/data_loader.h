// DataLoader: batches of a dataset, made ahead by threads, in a fixed order.
//
// The order is the sampler's, for any number of threads. `prefetch` bounds the
// number of batches made ahead.
//
//   loader->SetEpoch(epoch);
//   for (;;) {
//     WEFT_ASSIGN_OR_RETURN(std::optional<Example> batch, loader->Next());
//     if (!batch.has_value()) break;
//     ...
//   }
//
// Thread-safety: one thread at a time.

#ifndef WEFT_INPUT_DATA_LOADER_H_
#define WEFT_INPUT_DATA_LOADER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/base/future.h"
#include "weft/base/thread_pool.h"
#include "weft/input/dataset.h"
#include "weft/input/device_batches.h"
#include "weft/input/sharded_sampler.h"

namespace weft::input {

class DataLoader {
 public:
  struct Options {
    int64_t batch_size = 32;
    // Leaves out a last batch that is smaller.
    bool drop_last = false;
    // 0: Next makes the batch itself.
    int threads = 1;
    // Batches being made or waiting, at most.
    int prefetch = 4;
    // How long Next waits for one batch.
    absl::Duration timeout = absl::Minutes(5);
    // Brings batches to a device as soon as they are made: Next gives tensors
    // of that device, for work on its caller's current stream. Several loaders
    // may have one. Null: batches stay where the dataset makes them.
    std::shared_ptr<DeviceBatches> device_batches = nullptr;
  };

  // `dataset` must outlive the loader. kInvalidArgument names the option, its
  // value and what is allowed.
  static absl::StatusOr<std::unique_ptr<DataLoader>> Create(
      const Dataset& dataset, const ShardedSampler& sampler,
      const Options& options);

  // Waits for the batches that are being made.
  ~DataLoader() = default;

  // Goes to the beginning of `epoch` and drops batches made ahead.
  void SetEpoch(int64_t epoch);

  // Batches from here to the epoch's end.
  int64_t remaining() const;

  // Nothing at the epoch's end. An error or exception of the dataset, or of the
  // device, is returned in place of its batch, and the next call returns the
  // next batch.
  // kDeadlineExceeded after `timeout`; the next call waits for the same batch
  // again.
  absl::StatusOr<std::optional<Example>> Next();

  // The place after the last batch that Next returned, not counting batches
  // made ahead.
  ShardedSampler::State state() const;
  absl::Status LoadState(const ShardedSampler::State& state);

 private:
  struct Pending {
    int64_t examples;
    Future<DeviceBatches::Batch> batch;
  };

  DataLoader(const Dataset& dataset, const ShardedSampler& sampler,
             const Options& options);

  void Restart();
  // Starts batches until `prefetch` are pending or the epoch ends.
  void Fill();
  Future<DeviceBatches::Batch> Start(std::vector<int64_t> indices);
  absl::StatusOr<DeviceBatches::Batch> Make(
      absl::Span<const int64_t> indices) const;

  const Dataset& dataset_;
  ShardedSampler sampler_;
  const Options options_;
  std::deque<Pending> pending_;
  int64_t returned_ = 0;  // examples, since the sampler began
  // Last: its destructor ends what uses the members above.
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace weft::input

#endif  // WEFT_INPUT_DATA_LOADER_H_
