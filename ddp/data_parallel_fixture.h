// Small nets, their data, and ranks that train them in one process.

#ifndef WEFT_DDP_DATA_PARALLEL_FIXTURE_H_
#define WEFT_DDP_DATA_PARALLEL_FIXTURE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/hooks/bf16_compression.h"
#include "weft/ddp/hooks/f16_compression.h"
#include "weft/nn/layers.h"
#include "weft/nn/loss.h"
#include "weft/nn/module.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/run_ranks.h"

namespace weft::ddp {

inline constexpr int64_t kFeatures = 5;
inline constexpr int64_t kClasses = 3;

// Two layers, one more that is used on demand, and a buffer.
class Net : public nn::Module {
 public:
  explicit Net(uint64_t seed, int64_t hidden = 7)
      : random_(seed),
        hidden_(kFeatures, hidden, random_),
        output_(hidden, kClasses, random_),
        spare_(kClasses, kClasses, random_) {
    AddModule("hidden", hidden_);
    AddModule("output", output_);
    AddModule("spare", spare_);
    seen = AddBuffer("seen", Tensor::Full({2}, static_cast<double>(seed)));
  }
  Variable Forward(const Variable& x, bool with_spare = false) {
    const Variable y = output_.Forward(Relu(hidden_.Forward(x)));
    return with_spare ? spare_.Forward(y) : y;
  }

  nn::Buffer seen;

 private:
  Generator random_;
  nn::Linear hidden_, output_, spare_;
};

using Body = std::function<absl::Status(int rank, collectives::ProcessGroup&)>;

inline std::vector<absl::Status> RunGroups(
    int size, const Body& body, absl::Duration timeout = absl::Minutes(1)) {
  collectives::LocalWorld world(size);
  return ::weft::testing::RunRanks(size, [&](int rank) {
    collectives::GroupOptions options;
    options.timeout = timeout;
    const auto group =
        collectives::ProcessGroup::Create(world.Connect(rank), options);
    return body(rank, *group);
  });
}

// Samples [begin, end) of step `step`.
struct Batch {
  Tensor x;       // f32 [n, kFeatures]
  Tensor labels;  // i64 [n]
};
inline Batch SamplesOf(int step, int64_t begin, int64_t end) {
  std::vector<float> x;
  std::vector<int64_t> labels;
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t f = 0; f < kFeatures; ++f) {
      x.push_back(static_cast<float>((7 * i + 3 * f + 5 * step) % 11) / 11);
    }
    labels.push_back((i + step) % kClasses);
  }
  const int64_t n = end - begin;
  return {Tensor::FromVector<float>(x, {n, kFeatures}),
          Tensor::FromVector<int64_t>(labels)};
}

inline void Backward(Net& net, const Batch& batch, bool with_spare = false) {
  CrossEntropy(net.Forward(Variable(batch.x), with_spare), batch.labels)
      .Backward();
}

// Gradient descent, which leaves parameters without gradient alone.
inline void StepAndClear(const Net& net) {
  for (const Variable& parameter : net.Parameters()) {
    if (parameter.has_grad()) Axpy_(parameter.value(), -0.5, parameter.grad());
    parameter.ClearGradient();
  }
}

inline std::vector<float> Flat(const Net& net) {
  std::vector<float> all;
  for (const Variable& parameter : net.Parameters()) {
    for (const float v : parameter.value().ToVector<float>()) all.push_back(v);
  }
  return all;
}

inline std::vector<float> GradientOf(const Net& net, const std::string& name) {
  for (const nn::NamedParameter& parameter : net.NamedParameters()) {
    if (parameter.name != name) continue;
    if (!parameter.variable.has_grad()) return {};
    return parameter.variable.grad().ToVector<float>();
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

inline constexpr int kSteps = 5;
inline constexpr int64_t kBatch = 12;

// What one process learns of whole batches.
inline std::vector<float> WeightsOfOneProcess() {
  Net net(1);
  for (int step = 0; step < kSteps; ++step) {
    Backward(net, SamplesOf(step, 0, kBatch));
    StepAndClear(net);
  }
  return Flat(net);
}

// Sums are of other orders: a few units in the last place of values below 1.
inline constexpr float kTolerance = 1e-6f;

// The store of a pass, as a distributed pass has one.
class Store : public GradientSink {
 public:
  void Accept(const BackwardPass&, Leaf& leaf, Gradient gradient) override {
    gradients[&leaf] = gradient.ToDense();
  }
  std::map<const Leaf*, Tensor> gradients;
};

inline ReducerOptions WithHook(std::shared_ptr<CommunicationHook> hook) {
  ReducerOptions options;
  options.hook = std::move(hook);
  return options;
}

}  // namespace weft::ddp

#endif  // WEFT_DDP_DATA_PARALLEL_FIXTURE_H_
