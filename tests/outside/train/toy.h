// Toy: a small model with its data, loader and optimizer, and a loop of one's
// own around them, for each rank of a group of threads.
//
//   RunToys(2, [](Toy& toy) -> absl::Status {
//     WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(options));
//     return toy.TrainToEnd(*training).status();
//   });

#ifndef WEFT_TESTS_OUTSIDE_TRAIN_TOY_H_
#define WEFT_TESTS_OUTSIDE_TRAIN_TOY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/autograd/ops/loss.h"
#include "weft/autograd/variable.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/input/data_loader.h"
#include "weft/input/dataset.h"
#include "weft/input/sharded_sampler.h"
#include "weft/nn/layers.h"
#include "weft/optimizer/optimizer.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/train/data_parallel_training.h"

namespace weft::outside {

// Points of the line y = 2 x - 1: x [1], y [1]. A negative `broken` is none;
// else that example cannot be read.
class Line final : public input::Dataset {
 public:
  explicit Line(int64_t size, int64_t broken = -1)
      : size_(size), broken_(broken) {}
  int64_t size() const override { return size_; }
  absl::StatusOr<input::Example> Get(int64_t index) const override {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "Line"));
    if (index == broken_) return absl::DataLossError("a torn page");
    const float x = static_cast<float>(index % 7) / 8;
    return input::Example{Tensor::FromVector<float>({x}),
                          Tensor::FromVector<float>({2 * x - 1})};
  }

 private:
  const int64_t size_;
  const int64_t broken_;
};

struct ToyOptions {
  int64_t size = 16;  // of the data
  int64_t broken = -1;
  int64_t batch = 2;
  bool drop_last = false;
  uint64_t data_seed = 1;
  uint64_t seed = 1;  // of the parameters
  int64_t hidden = 3;
  double dropout = 0;  // from a generator that the training knows
};

class Toy {
 public:
  Toy(collectives::ProcessGroup& group, const ToyOptions& options)
      : group_(group),
        options_(options),
        data_(options.size, options.broken),
        random_(options.seed),
        noise_(7, static_cast<uint64_t>(group.rank())),
        telemetry_(Quiet()) {
    net_.Add<nn::Linear>(1, options.hidden, random_);
    net_.Add<nn::Tanh>();
    if (options.dropout > 0) net_.Add<nn::Dropout>(options.dropout, noise_);
    net_.Add<nn::Linear>(options.hidden, 1, random_);
  }

  int rank() const { return group_.rank(); }
  collectives::ProcessGroup& group() { return group_; }
  nn::Sequential& net() { return net_; }
  telemetry::Telemetry& telemetry() { return telemetry_; }
  Generator& random() { return random_; }
  std::vector<Tensor> Values() const {
    std::vector<Tensor> values;
    for (const Variable& v : net_.Parameters())
      values.push_back(v.value().Clone());
    return values;
  }

  // Makes optimizer and loader, if they are not there.
  absl::StatusOr<train::DataParallelTraining::Parts> Parts() {
    if (optimizer_ == nullptr) {
      WEFT_ASSIGN_OR_RETURN(
          optimizer_,
          optimizer::Optimizer::Create(
              {{optimizer::AdamOptions{0.05}, net_.NamedParameters()}}));
    }
    if (loader_ == nullptr) {
      WEFT_ASSIGN_OR_RETURN(
          const auto sampler,
          input::ShardedSampler::Create({options_.size, group_.rank(),
                                         group_.size(), options_.data_seed}));
      input::DataLoader::Options loader;
      loader.batch_size = options_.batch;
      loader.drop_last = options_.drop_last;
      WEFT_ASSIGN_OR_RETURN(loader_,
                            input::DataLoader::Create(data_, sampler, loader));
    }
    train::DataParallelTraining::Parts parts;
    parts.model = &net_;
    parts.optimizer = optimizer_.get();
    parts.loader = loader_.get();
    if (options_.dropout > 0) parts.generator = &noise_;
    return parts;
  }

  absl::StatusOr<std::unique_ptr<train::DataParallelTraining>> Create(
      train::Options options) {
    WEFT_ASSIGN_OR_RETURN(auto parts, Parts());
    return Create(std::move(parts), std::move(options));
  }
  absl::StatusOr<std::unique_ptr<train::DataParallelTraining>> Create(
      train::DataParallelTraining::Parts parts, train::Options options) {
    return train::DataParallelTraining::Create(
        group_, telemetry_, std::move(parts), std::move(options));
  }

  Variable Loss(const input::Example& batch) {
    return MseLoss(net_.Forward(Variable(batch[0])), batch[1]);
  }

  // All steps that are left; `before_step` may spoil things.
  absl::StatusOr<train::Result> TrainToEnd(
      train::DataParallelTraining& training,
      const std::function<absl::Status()>& before_step = [] {
        return absl::OkStatus();
      }) {
    WEFT_RETURN_IF_ERROR(Loop(training, before_step));
    return training.Finish();
  }
  absl::Status Loop(
      train::DataParallelTraining& training,
      const std::function<absl::Status()>& before_step = [] {
        return absl::OkStatus();
      }) {
    for (;;) {
      WEFT_ASSIGN_OR_RETURN(const auto batch, training.Next());
      if (!batch.has_value()) return absl::OkStatus();
      WEFT_RETURN_IF_ERROR(before_step());
      WEFT_RETURN_IF_ERROR(training.Step(Loss(*batch)));
    }
  }

 private:
  static telemetry::Telemetry::Options Quiet() {
    telemetry::Telemetry::Options quiet;
    quiet.log_level = telemetry::Level::kOff;
    return quiet;
  }

  collectives::ProcessGroup& group_;
  const ToyOptions options_;
  Line data_;
  Generator random_;
  Generator noise_;
  telemetry::Telemetry telemetry_;
  nn::Sequential net_;
  std::unique_ptr<optimizer::Optimizer> optimizer_;
  std::unique_ptr<input::DataLoader> loader_;
};

// Options of a training that shows nothing, and that no signal stops.
inline train::Options QuietOptions(const std::string& checkpoints = "") {
  train::Options options;
  options.epochs = 2;
  options.checkpoint_dir = checkpoints;
  options.progress = telemetry::Progress::Style::kQuiet;
  options.asked_to_stop = [] { return false; };
  options.retry_last_save_for = absl::ZeroDuration();
  return options;
}

// Runs `body` as each rank of a new group, all of the same toy.
inline std::vector<absl::Status> RunToys(
    int ranks, const ToyOptions& options,
    const std::function<absl::Status(Toy& toy)>& body) {
  collectives::LocalWorld world(ranks);
  return weft::testing::RunRanks(ranks, [&](int rank) {
    collectives::GroupOptions limits;
    limits.timeout = absl::Seconds(20);
    const auto group =
        collectives::ProcessGroup::Create(world.Connect(rank), limits);
    Toy toy(*group, options);
    return body(toy);
  });
}
inline std::vector<absl::Status> RunToys(
    int ranks, const std::function<absl::Status(Toy& toy)>& body) {
  return RunToys(ranks, {}, body);
}

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_TRAIN_TOY_H_
