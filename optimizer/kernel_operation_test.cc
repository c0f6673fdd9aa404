#include "weft/optimizer/kernel_operation.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "weft/tensor/cuda/on_host.h"
#include "weft/tensor/cuda/update.h"
#include "weft/tensor/cuda_operands.h"
#include "weft/tensor/random.h"

namespace weft::optimizer {
namespace {

namespace cuda = internal::cuda;

template <typename T>
void ApplyOnCpu(const UpdateRule& rule, const StepContext& context,
                const std::vector<Tensor>& state, const Tensor& gradient) {
  std::vector<absl::Span<T>> slots;
  for (size_t i = 1; i < state.size(); ++i) slots.push_back(state[i].span<T>());
  const absl::Span<const T> g = gradient.span<T>();
  rule.Apply(context, state[0].span<T>(), g, slots);
}

const char* ApplyByKernel(const KernelOperation& kernel,
                          const std::vector<Tensor>& state,
                          const Tensor& gradient) {
  internal::Operation operation(kernel.name.c_str());
  operation.numbers = kernel.numbers;
  std::vector<const Tensor*> tensors;
  for (const Tensor& tensor : state) tensors.push_back(&tensor);
  tensors.push_back(&gradient);
  const cuda::Call call = internal::CallOf(operation, tensors);
  cuda::OnHost executor;
  if (kernel.name == "sgd") return cuda::Sgd(call, executor);
  if (kernel.name == "adam") return cuda::Adam<false>(call, executor);
  if (kernel.name == "adamw") return cuda::Adam<true>(call, executor);
  return "no kernel";
}

// Five steps of both.
void Compare(const RuleOptions& options, DType dtype) {
  const auto rule = MakeRule(options);
  ASSERT_TRUE(rule.ok()) << rule.status();
  Generator generator(7);
  std::vector<Tensor> wanted = {Normal({3, 11}, 0, 1, generator, dtype)};
  for (const Slot& slot : (*rule)->slots()) {
    wanted.push_back(Tensor::Full({3, 11}, slot.initial_value, dtype));
  }
  std::vector<Tensor> found;
  for (const Tensor& tensor : wanted) found.push_back(tensor.Clone());
  StepContext context;
  context.lr_scale = 0.7;
  for (context.step = 1; context.step <= 5; ++context.step) {
    const Tensor gradient = Normal({3, 11}, 0, 1, generator, dtype);
    if (dtype == DType::kF32) {
      ApplyOnCpu<float>(**rule, context, wanted, gradient);
    } else {
      ApplyOnCpu<double>(**rule, context, wanted, gradient);
    }
    const char* const lack = ApplyByKernel(
        KernelOperationOf((*rule)->options(), {}, context), found, gradient);
    ASSERT_EQ(lack, nullptr) << lack;
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(found[i].To(DType::kF64).ToVector<double>(),
                wanted[i].To(DType::kF64).ToVector<double>())
          << RuleName(options) << " " << i << " at step " << context.step;
    }
  }
}

TEST(KernelOperation, UpdatesHaveTheBitsOfTheRules) {
  const std::vector<RuleOptions> rules = {
      SgdOptions{0.1},
      SgdOptions{0.1, 0.0, 0.0, 0.01},
      SgdOptions{0.1, 0.9, 0.1, 0.01},
      SgdOptions{0.1, 0.9, 0.0, 0.01, true},
      AdamOptions{},
      AdamOptions{0.01, 0.8, 0.99, 1e-6, 0.1, true},
      AdamWOptions{},
      AdamWOptions{0.01, 0.8, 0.99, 1e-6, 0.1, true},
  };
  for (const RuleOptions& options : rules) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      Compare(options, dtype);
    }
  }
}

TEST(KernelOperation, HasAnotherNameForAnotherUpdate) {
  std::set<std::string> names;
  for (const bool is_clipped : {false, true}) {
    for (const bool is_sparse : {false, true}) {
      names.insert(
          KernelOperationOf(SgdOptions{}, {is_clipped, is_sparse}, {}).name);
    }
  }
  EXPECT_EQ(names.size(), 4u);
  EXPECT_EQ(KernelOperationOf(LionOptions{}, {}, {}).name, "lion");
}

}  // namespace
}  // namespace weft::optimizer
