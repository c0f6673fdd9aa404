// KernelOperationOf: an update as an operation that a device finds by its name,
// with the numbers that its kernel needs (tensor/cuda/update.h).

#ifndef WEFT_OPTIMIZER_KERNEL_OPERATION_H_
#define WEFT_OPTIMIZER_KERNEL_OPERATION_H_

#include <array>
#include <string>

#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/update_rule.h"
#include "weft/tensor/on_device.h"

namespace weft::optimizer {

struct KernelOperation {
  std::string name;
  std::array<double, internal::Operation::kMaxNumbers> numbers = {};
};

// What an update depends on beside its rule, weights, slots and gradient.
struct UpdateKind {
  bool is_clipped = false;  // the rule sees gradients within limits
  bool is_sparse = false;   // the gradient is indices and rows
};

// For sgd, adam and adamw with dense gradients that are not clipped: the rule's
// name and its numbers at this step. For others a name that says what they are
// ("lion", "sgd of rows", "adam with clipped gradients"), under which no device
// may have a kernel of another update.
KernelOperation KernelOperationOf(const RuleOptions& options, UpdateKind kind,
                                  const StepContext& context);

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_KERNEL_OPERATION_H_
