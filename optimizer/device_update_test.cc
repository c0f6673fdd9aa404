// Optimizers on a device, by the bodies of CUDA's kernels, against the rules of
// the CPU: dense gradients and rows, clipped and not.

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "gtest/gtest.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/cuda/kernels_on_host.h"
#include "weft/tensor/random.h"

namespace weft::optimizer {
namespace {

constexpr int64_t kRows = 13;

struct Case {
  RuleOptions rule;
  ClipOptions clip;
  bool is_sparse = false;
  DType dtype = DType::kF32;
  double scale = 1;  // of the gradients
  double lr_scale = 0.7;
};

// Rows 0, 2, 4, ..., some of them often.
Gradient GradientOf(const Case& one, Generator& generator, Device device) {
  if (!one.is_sparse) {
    return Gradient(
        Normal({kRows, 11}, 0, one.scale, generator, one.dtype).To(device));
  }
  const Tensor indices = Tensor::Empty({40}, DType::kI64);
  for (int64_t& row : indices.span<int64_t>()) {
    row = 2 * static_cast<int64_t>(generator.NextBelow(kRows / 2));
  }
  const Tensor values = Normal({40, 11}, 0, one.scale, generator, one.dtype);
  return Gradient(SparseRows{indices.To(device), values.To(device), kRows});
}

// The weights and all slots after five steps.
absl::btree_map<std::string, Tensor> Train(const Case& one, Device device) {
  Generator generator(7);
  const Variable weights(
      Normal({kRows, 11}, 0, 1, generator, one.dtype).To(device), true);
  ParameterGroup group;
  group.rule = one.rule;
  group.clip = one.clip;
  group.lazy = one.is_sparse;
  group.parameters = {{"w", weights}};
  auto optimizer = Optimizer::Create({group});
  ThrowIfError(optimizer.status());
  ThrowIfError((*optimizer)->SetLearningRateScale(one.lr_scale));
  for (int step = 0; step < 5; ++step) {
    const Gradient gradient = GradientOf(one, generator, device);
    ThrowIfError((*optimizer)->Apply([&](const nn::NamedParameter&) {
      return gradient;
    }));
  }
  auto state = (*optimizer)->StateDict();
  state["w"] = weights.value();
  return state;
}

// What looks at a norm is added up in another order than by the rules.
bool LooksAtANorm(const Case& one) {
  const std::string name(RuleName(one.rule));
  return one.clip.norm != 0 || name == "lamb" || name == "rowwise_adagrad";
}

void Compare(const Case& one) {
  SCOPED_TRACE(std::string(RuleName(one.rule)) + " " +
               std::string(Name(one.dtype)) +
               (one.is_sparse ? " of rows" : "") + ", clip value " +
               std::to_string(one.clip.value) + ", norm " +
               std::to_string(one.clip.norm));
  const auto wanted = Train(one, Device::Cpu());
  device::testing::SimulatedDevices devices(1);
  const internal::cuda::KernelsOnHost kernels;
  const auto found = Train(one, Device(devices.context(), 0));
  const double tolerance =
      !LooksAtANorm(one) ? 0 : (one.dtype == DType::kF32 ? 1e-6 : 1e-13);
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    const auto w = tensor.To(DType::kF64).ToVector<double>();
    const auto f =
        found.at(name).To(Device::Cpu()).To(DType::kF64).ToVector<double>();
    ASSERT_EQ(f.size(), w.size()) << name;
    for (size_t i = 0; i < w.size(); ++i) {
      if (f[i] == w[i] || (std::isnan(f[i]) && std::isnan(w[i]))) continue;
      ASSERT_NEAR(f[i], w[i], tolerance * (1 + std::fabs(w[i])))
          << name << ", element " << i;
    }
  }
}

std::vector<RuleOptions> Rules() {
  RmspropOptions moving;
  moving.momentum = 0.8;
  moving.weight_decay = 0.1;
  RmspropOptions centered = moving;
  centered.centered = true;
  RmspropOptions centered_alone;
  centered_alone.centered = true;
  FtrlOptions ftrl;
  ftrl.l1 = 0.3;
  ftrl.l2 = 0.1;
  return {
      SgdOptions{0.1},
      SgdOptions{0.1, 0.0, 0.0, 0.01},
      SgdOptions{0.1, 0.9, 0.1, 0.01},
      SgdOptions{0.1, 0.9, 0.0, 0.01, true},
      AdamOptions{},
      AdamOptions{0.01, 0.8, 0.99, 1e-6, 0.1, true},
      AdamWOptions{},
      AdamWOptions{0.01, 0.8, 0.99, 1e-6, 0.1, true},
      AdagradOptions{0.1, 0.1, 0.01, 0.5},
      ftrl,
      RmspropOptions{},
      moving,
      centered,
      centered_alone,
      AdadeltaOptions{0.5, 0.8, 1e-5, 0.1},
      LionOptions{0.01, 0.8, 0.9, 0.1},
      LambOptions{},
      RowwiseAdagradOptions{0.1, 1e-6, 0.1, 0.2},
  };
}

TEST(DeviceUpdate, UpdatesHaveTheBitsOfTheRules) {
  for (const RuleOptions& rule : Rules()) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      for (const ClipOptions& clip : {ClipOptions{}, ClipOptions{0.5, 0},
                                      ClipOptions{0, 2}, ClipOptions{0.9, 2}}) {
        Compare({rule, clip, false, dtype});
      }
    }
  }
}

TEST(DeviceUpdate, UpdatesOfRowsHaveTheBitsOfTheRules) {
  for (const RuleOptions& rule : Rules()) {
    if (RuleName(rule) == "lamb") continue;  // It looks at all rows.
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      for (const ClipOptions& clip :
           {ClipOptions{}, ClipOptions{0.5, 0}, ClipOptions{0.9, 2}}) {
        Compare({rule, clip, true, dtype});
      }
    }
  }
}

// The squares of such gradients are infinite.
TEST(DeviceUpdate, ClipsHugeGradientsAsTheRulesDo) {
  for (const bool is_sparse : {false, true}) {
    Case one = {SgdOptions{0.1}, ClipOptions{0, 2}, is_sparse, DType::kF64};
    one.scale = 1e200;
    Compare(one);
    one.scale = std::numeric_limits<double>::infinity();
    Compare(one);
  }
}

TEST(DeviceUpdate, StandsStillWhereTheRateIs0) {
  Case one = {FtrlOptions{}, {}, false, DType::kF32};
  one.lr_scale = 0;
  Compare(one);
}

}  // namespace
}  // namespace weft::optimizer
