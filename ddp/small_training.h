// TrainSmallModel: a small model under DDP on one rank, and its numbers, which
// tests compare between devices.

#ifndef WEFT_DDP_SMALL_TRAINING_H_
#define WEFT_DDP_SMALL_TRAINING_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/autograd/variable.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/nn/small_models.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/run_ranks.h"

namespace weft::ddp::testing {

// The elements of tensors of f32, by what the tensor is.
struct Numbers {
  std::vector<std::string> names;
  std::vector<std::vector<float>> values;

  void Add(std::string name, const Tensor& tensor) {
    names.push_back(std::move(name));
    values.push_back(tensor.To(Device::Cpu()).ToVector<float>());
  }
  int64_t count() const {
    int64_t n = 0;
    for (const auto& one : values) n += static_cast<int64_t>(one.size());
    return n;
  }
};

// Trains the model that `make` makes for two steps of gradient descent on
// `device`, each rank with examples of its own, and a bucket for each
// parameter. Returns this rank's losses, the gradients that the ranks have in
// common, and what the parameters and buffers are at the end. Errors: those of
// DDP; throws what operations throw.
inline absl::StatusOr<Numbers> TrainSmallModel(
    collectives::ProcessGroup& group, Device device,
    const nn::testing::MakeSmallModel& make) {
  Generator random(3);
  const std::unique_ptr<nn::testing::SmallModel> model = make(random);
  model->To(device);
  DistributedDataParallelOptions options;
  options.reducer.first_bucket_bytes = options.reducer.bucket_bytes = 1;
  WEFT_ASSIGN_OR_RETURN(
      const auto ddp, DistributedDataParallel::Create(*model, group, options));
  Generator examples(100 + group.rank());
  const std::vector<int64_t> classes = {0, 1, 2, 3, 3, 2, 1, 0};
  std::vector<std::pair<std::string, Tensor>> found;
  for (int step = 0; step < 2; ++step) {
    const Tensor x = Normal({8, 6}, 0, 1, examples).To(device);
    std::vector<int64_t> labels = classes;
    std::rotate(labels.begin(), labels.begin() + (group.rank() + step) % 8,
                labels.end());
    const Variable loss =
        model->Loss(x, Tensor::FromVector<int64_t>(labels).To(device));
    loss.Backward();
    const std::string of_step = absl::StrCat(" of step ", step);
    found.emplace_back("loss" + of_step, loss.value());
    for (const nn::NamedParameter& parameter : model->NamedParameters()) {
      found.emplace_back("gradient of " + parameter.name + of_step,
                         parameter.variable.grad().Clone());
      Axpy_(parameter.variable.value(), -0.1, parameter.variable.grad());
      parameter.variable.ClearGradient();
    }
  }
  WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
  Numbers numbers;
  for (const auto& [name, tensor] : found) numbers.Add(name, tensor);
  for (const auto& [name, tensor] : model->StateDict()) {
    if (tensor.dtype() == DType::kF32) numbers.Add(name, tensor);
  }
  return numbers;
}

// What TrainSmallModel gives on the CPU, by rank.
inline std::vector<absl::StatusOr<Numbers>> TrainSmallModelOnCpu(
    int size, const nn::testing::MakeSmallModel& make) {
  collectives::LocalWorld world(size);
  std::vector<absl::StatusOr<Numbers>> numbers(size);
  const auto statuses = weft::testing::RunRanks(size, [&](int rank) {
    const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
    numbers[rank] = TrainSmallModel(*group, Device::Cpu(), make);
    return numbers[rank].status();
  });
  for (int rank = 0; rank < size; ++rank) {
    if (!statuses[rank].ok()) numbers[rank] = statuses[rank];
  }
  return numbers;
}

// The largest |found - wanted| / max(1, |wanted|) of all elements. kInternal
// names the first element of which it exceeds `tolerance`, or is no number.
inline absl::StatusOr<double> LargestDifference(const Numbers& found,
                                                const Numbers& wanted,
                                                double tolerance) {
  if (found.names != wanted.names) {
    return absl::InternalError("found other tensors than were wanted");
  }
  double largest = 0;
  for (size_t i = 0; i < wanted.values.size(); ++i) {
    if (found.values[i].size() != wanted.values[i].size()) {
      return absl::InternalError(
          absl::StrCat(wanted.names[i], ": found ", found.values[i].size(),
                       " elements, wanted ", wanted.values[i].size()));
    }
    for (size_t k = 0; k < wanted.values[i].size(); ++k) {
      const double f = found.values[i][k], w = wanted.values[i][k];
      const double difference = std::abs(f - w) / std::max(1.0, std::abs(w));
      if (!(difference <= tolerance)) {
        return absl::InternalError(
            absl::StrCat(wanted.names[i], ", element ", k, ": found ", f,
                         ", wanted ", w, " with a tolerance of ", tolerance));
      }
      largest = std::max(largest, difference);
    }
  }
  return largest;
}

}  // namespace weft::ddp::testing

#endif  // WEFT_DDP_SMALL_TRAINING_H_
