// Models trained on simulated devices, under several orders of what is not
// ordered, have the bits of the CPU.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/base/catch_to_status.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/nn/small_models.h"
#include "weft/optimizer/clip.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::optimizer {
namespace {

using ::weft::device::testing::SimulatedDevices;
using ::weft::nn::testing::MakeSmall;
using ::weft::nn::testing::MakeSmallModel;
using ::weft::nn::testing::SmallCnn;
using ::weft::nn::testing::SmallModel;
using ::weft::nn::testing::Transformer;
using ::weft::nn::testing::TwoLayers;
using ::weft::testing::BytesOf;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

struct Outcome {
  std::vector<std::string> tensors;  // names and bytes
  double last_loss = 0;
};

Outcome Train(const MakeSmallModel& make_model, const RuleOptions& rule,
              Device device) {
  Generator random(3);
  const std::unique_ptr<SmallModel> model = make_model(random);
  model->To(device);
  auto optimizer = Optimizer::Create({{rule, model->NamedParameters()}});
  EXPECT_THAT(optimizer.status(), IsOk());
  Outcome outcome;
  for (int step = 0; step < 4; ++step) {
    const Tensor x = Normal({8, 6}, 0, 1, random).To(device);
    const Tensor labels =
        Tensor::FromVector<int64_t>({0, 1, 2, 3, 3, 2, 1, 0}).To(device);
    const Variable loss = model->Loss(x, labels);
    loss.Backward();
    EXPECT_TRUE(ClipGradNorm(model->Parameters(), 1).ok());
    EXPECT_THAT((*optimizer)->Step(), IsOk());
    (*optimizer)->ZeroGrad();
    outcome.last_loss = loss.value().item<float>();
  }
  for (const auto& [name, tensor] : model->StateDict()) {
    EXPECT_EQ(tensor.device(), device) << name;
    outcome.tensors.push_back(name + BytesOf(tensor));
  }
  for (const auto& [name, tensor] : (*optimizer)->StateDict()) {
    outcome.tensors.push_back(name + BytesOf(tensor));
  }
  return outcome;
}

void ExpectSameAsOnCpu(const MakeSmallModel& make_model,
                       const RuleOptions& rule) {
  const Outcome wanted = Train(make_model, rule, Device::Cpu());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedDevices devices(seed);
    const Outcome found = Train(make_model, rule, Device(devices.context(), 0));
    EXPECT_EQ(found.last_loss, wanted.last_loss);
    EXPECT_TRUE(found.tensors == wanted.tensors) << "seed " << seed;
  }
}

TEST(DeviceTraining, OfTwoLayersHasTheBitsOfTheCpu) {
  ExpectSameAsOnCpu(MakeSmall<TwoLayers>(), AdamOptions{0.01});
}

TEST(DeviceTraining, OfACnnWithBatchNormAndDropoutHasTheBitsOfTheCpu) {
  ExpectSameAsOnCpu(MakeSmall<SmallCnn>(), SgdOptions{0.1, 0.9});
}

TEST(DeviceTraining, OfATransformerHasTheBitsOfTheCpu) {
  ExpectSameAsOnCpu(MakeSmall<Transformer>(), AdamWOptions{0.01});
}

TEST(DeviceTraining, WithARuleOfRowsHasTheBitsOfTheCpu) {
  ExpectSameAsOnCpu(MakeSmall<TwoLayers>(), RowwiseAdagradOptions{});
  ExpectSameAsOnCpu(MakeSmall<TwoLayers>(), LambOptions{});
}

TEST(DeviceTraining, SparseGradientsHaveTheBitsOfTheCpu) {
  const auto train = [](Device device) {
    Generator random(5);
    const Variable table(Normal({10, 3}, 0, 1, random).To(device),
                         /*requires_grad=*/true);
    auto optimizer =
        Optimizer::Create({{AdagradOptions{0.1}, {{"table", table}}}});
    EXPECT_THAT(optimizer.status(), IsOk());
    for (int step = 0; step < 3; ++step) {
      const Tensor ids =
          Tensor::FromVector<int64_t>({1, 7, 1, step}).To(device);
      Sum(Embedding(table, ids, TableGradient::kSparse)).Backward();
      EXPECT_THAT((*optimizer)->Step(), IsOk());
      (*optimizer)->ZeroGrad();
    }
    return BytesOf(table.value());
  };
  const std::string wanted = train(Device::Cpu());
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SimulatedDevices devices(seed);
    EXPECT_TRUE(train(Device(devices.context(), 0)) == wanted);
  }
}

// A checkpoint knows no device: what was saved on one is loaded on another.
TEST(DeviceTraining, StateMovesBetweenDevices) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  Generator random(3);
  TwoLayers there(random);
  there.To(device);
  TwoLayers here(random);
  ASSERT_THAT(here.LoadStateDict(there.StateDict()), IsOk());
  EXPECT_TRUE(BytesOf(here.Parameters()[0].value()) ==
              BytesOf(there.Parameters()[0].value()));
  auto a = *Optimizer::Create({{AdamOptions{}, there.NamedParameters()}});
  auto b = *Optimizer::Create({{AdamOptions{}, here.NamedParameters()}});
  there
      .Loss(Tensor::Ones({2, 6}, DType::kF32, device),
            Tensor::Zeros({2}, DType::kI64, device))
      .Backward();
  ASSERT_THAT(a->Step(), IsOk());
  EXPECT_THAT(b->LoadStateDict(a->StateDict()), IsOk());
  for (const auto& [name, tensor] : a->StateDict()) {
    EXPECT_TRUE(BytesOf(b->StateDict().at(name)) == BytesOf(tensor)) << name;
  }
}

TEST(DeviceTraining, AModelThatIsMovedLateIsRefusedByName) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  Generator random(3);
  TwoLayers model(random);
  auto optimizer =
      *Optimizer::Create({{AdamOptions{}, model.NamedParameters()}});
  model.To(device);
  model
      .Loss(Tensor::Ones({2, 6}, DType::kF32, device),
            Tensor::Zeros({2}, DType::kI64, device))
      .Backward();
  EXPECT_THAT(optimizer->Step(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "move the model before it is given to an optimizer"));
}

TEST(DeviceTraining, ArgumentsOfTwoDevicesAreNamed) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  Generator random(3);
  TwoLayers model(random);
  model.To(device);
  const absl::Status status = CatchToStatus([&] {
    model.Loss(Tensor::Ones({2, 6}), Tensor::Zeros({2}, DType::kI64));
    return absl::OkStatus();
  });
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument, "simulated:0"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, "on cpu"));
}

// Memory that is short in a pass is given back, and a smaller batch goes on.
TEST(DeviceTraining, GoesOnWithASmallerBatchWhereMemoryIsShort) {
  SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  Generator random(3);
  TwoLayers model(random);
  model.To(device);
  auto optimizer =
      *Optimizer::Create({{AdamOptions{}, model.NamedParameters()}});
  const auto step = [&](int64_t examples) {
    return CatchToStatus([&] {
      model
          .Loss(Tensor::Ones({examples, 6}, DType::kF32, device),
                Tensor::Zeros({examples}, DType::kI64, device))
          .Backward();
      const absl::Status status = optimizer->Step();
      optimizer->ZeroGrad();
      return status;
    });
  };
  const int64_t before =
      devices.context().allocator(0).statistics().allocated_bytes;
  EXPECT_THAT(step(int64_t{1} << 22),
              StatusIs(absl::StatusCode::kResourceExhausted, "simulated:0"));
  model.ClearGradients();
  EXPECT_EQ(devices.context().allocator(0).statistics().allocated_bytes,
            before);
  EXPECT_THAT(step(8), IsOk());
}

}  // namespace
}  // namespace weft::optimizer
