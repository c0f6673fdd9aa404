// KernelOperationOf: an update as an operation that a device finds by its name,
// with the numbers that its kernel needs (tensor/cuda/update.h).

#ifndef WEFT_OPTIMIZER_KERNEL_OPERATION_H_
#define WEFT_OPTIMIZER_KERNEL_OPERATION_H_

#include <array>
#include <cstddef>
#include <string>

#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/update_rule.h"
#include "weft/tensor/on_device.h"

namespace weft::optimizer {

struct KernelOperation {
  // Where the limits of the gradient are among the numbers; 0: none.
  static constexpr size_t kClipValue = 8;
  static constexpr size_t kClipNorm = 9;

  std::string name;
  std::array<double, internal::Operation::kMaxNumbers> numbers = {};
};

// The rule's name, its numbers at this step, and the limits of the gradient.
// Whether that is dense or rows, a kernel sees by its operands.
KernelOperation KernelOperationOf(const RuleOptions& options,
                                  const ClipOptions& clip,
                                  const StepContext& context);

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_KERNEL_OPERATION_H_
