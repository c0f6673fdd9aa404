#include "weft/input/data_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"

namespace weft::input {
namespace {

absl::Status AtLeast(absl::string_view option, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "DataLoader.", option, " is ", value, ", wanted at least ", least));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataLoader>> DataLoader::Create(
    const Dataset& dataset, const ShardedSampler& sampler,
    const Options& options) {
  WEFT_RETURN_IF_ERROR(AtLeast("batch_size", options.batch_size, 1));
  WEFT_RETURN_IF_ERROR(AtLeast("threads", options.threads, 0));
  WEFT_RETURN_IF_ERROR(AtLeast("prefetch", options.prefetch, 1));
  if (sampler.state().size != dataset.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("DataLoader: the sampler is for ", sampler.state().size,
                     " examples, the dataset has ", dataset.size()));
  }
  std::unique_ptr<DataLoader> loader(new DataLoader(dataset, sampler, options));
  if (options.threads > 0) {
    ThreadPool::Options pool;
    pool.name = "loader";
    pool.threads = options.threads;
    pool.max_threads = std::max(pool.max_threads, options.threads);
    WEFT_ASSIGN_OR_RETURN(loader->pool_, ThreadPool::Create(pool));
  }
  return loader;
}

DataLoader::DataLoader(const Dataset& dataset, const ShardedSampler& sampler,
                       const Options& options)
    : dataset_(dataset), sampler_(sampler), options_(options) {}

void DataLoader::SetEpoch(int64_t epoch) {
  sampler_.SetEpoch(epoch);
  Restart();
}

absl::Status DataLoader::LoadState(const ShardedSampler::State& state) {
  WEFT_RETURN_IF_ERROR(sampler_.LoadState(state));
  Restart();
  return absl::OkStatus();
}

void DataLoader::Restart() {
  pending_.clear();
  returned_ = 0;
}

int64_t DataLoader::remaining() const {
  const int64_t examples = sampler_.remaining();
  const int64_t whole = examples / options_.batch_size;
  const bool more = !options_.drop_last && examples % options_.batch_size != 0;
  return static_cast<int64_t>(pending_.size()) + whole + (more ? 1 : 0);
}

ShardedSampler::State DataLoader::state() const {
  return sampler_.StateAfter(returned_);
}

void DataLoader::Fill() {
  const size_t ahead = pool_ == nullptr ? 1 : options_.prefetch;
  while (pending_.size() < ahead) {
    const int64_t count = std::min(options_.batch_size, sampler_.remaining());
    if (count == 0 || (options_.drop_last && count < options_.batch_size)) {
      return;
    }
    std::vector<int64_t> indices(count);
    for (int64_t& index : indices) index = *sampler_.Next();
    pending_.push_back({count, Start(std::move(indices))});
  }
}

absl::StatusOr<DeviceBatches::Batch> DataLoader::Make(
    absl::Span<const int64_t> indices) const {
  WEFT_ASSIGN_OR_RETURN(Example batch, dataset_.GetBatch(indices));
  if (options_.device_batches != nullptr) {
    return options_.device_batches->Copy(batch);
  }
  return DeviceBatches::Batch{std::move(batch)};
}

Future<DeviceBatches::Batch> DataLoader::Start(std::vector<int64_t> indices) {
  auto [promise, future] = MakePromise<DeviceBatches::Batch>();
  Task task = [this, indices = std::move(indices),
               promise = std::move(promise)]() mutable {
    promise.Set(CatchToStatus([&] { return Make(indices); }));
  };
  if (pool_ == nullptr) {
    std::move(task)();
  } else {
    pool_->Schedule(std::move(task));
  }
  return future;
}

absl::StatusOr<std::optional<Example>> DataLoader::Next() {
  Fill();
  if (pending_.empty()) return std::nullopt;
  Pending& first = pending_.front();
  absl::StatusOr<DeviceBatches::Batch> batch =
      first.batch.Wait(options_.timeout);
  if (!first.batch.IsReady()) {
    return absl::DeadlineExceededError(absl::StrCat(
        "DataLoader: a batch of ", first.examples,
        " examples was not ready in ", absl::FormatDuration(options_.timeout)));
  }
  returned_ += first.examples;
  pending_.pop_front();
  Fill();
  if (!batch.ok()) return batch.status();
  if (options_.device_batches == nullptr) return std::move(batch->tensors);
  return options_.device_batches->Use(*std::move(batch));
}

}  // namespace weft::input
