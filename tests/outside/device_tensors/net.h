// Net: a small model with all that a device may get wrong, and a step of its
// training.

#ifndef WEFT_TESTS_OUTSIDE_DEVICE_TENSORS_NET_H_
#define WEFT_TESTS_OUTSIDE_DEVICE_TENSORS_NET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/check.h"
#include "weft/nn/layers.h"
#include "weft/nn/norm.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/outside/device_tensors/throws.h"

namespace weft::outside {

inline Tensor F32(const Shape& shape, uint64_t seed = 3) {
  Generator random(seed);
  return Normal(shape, 0, 1, random);
}

// Linear, batch norm, dropout, linear.
struct Net {
  explicit Net(uint64_t seed = 1) : random(seed), noise(seed + 1) {
    model.Add<nn::Linear>(6, 8, random);
    model.Add<nn::BatchNorm>(8);
    model.Add<nn::Relu>();
    model.Add<nn::Dropout>(0.5, noise);
    model.Add<nn::Linear>(8, 3, random);
  }
  Variable Loss(Device device) {
    const Tensor classes = Tensor::FromVector<int64_t>({0, 1, 2, 1});
    return CrossEntropy(model.Forward(Variable(F32({4, 6}, 9).To(device))),
                        classes.To(device));
  }
  std::unique_ptr<optimizer::Optimizer> MakeOptimizer() {
    auto made = optimizer::Optimizer::Create(
        {{optimizer::AdamWOptions{0.01}, model.NamedParameters()}});
    WEFT_CHECK(made.ok()) << made.status();
    return *std::move(made);
  }
  std::string Bits() const {
    std::string bits;
    for (const auto& [name, tensor] : model.StateDict()) {
      bits += name + weft::testing::BytesOf(tensor);
    }
    return bits;
  }

  Generator random, noise;
  nn::Sequential model;
};

inline absl::Status TrainStep(Net& net, optimizer::Optimizer& rule,
                              Device device) {
  rule.ZeroGrad();
  absl::Status status;
  const absl::Status thrown = StatusOf([&] {
    net.Loss(device).Backward();
    status = rule.Step();
  });
  return thrown.ok() ? status : thrown;
}

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_DEVICE_TENSORS_NET_H_
