// Record: how an operation enters the graph.
//
//   const Op kExp("Exp", {{"", {{{2, 3}}}, [](auto in) { return Exp(in[0]);
//   }}});
//
//   Variable Exp(const Variable& x) {
//     Tensor y = Exp(x.value());
//     return Record(kExp, y, {&x}, [y = SavedTensor(y)](BackwardCall& call) {
//       call.inputs[0] = Mul(call.output(), y.Get());
//     });
//   }

#ifndef WEFT_AUTOGRAD_RECORD_H_
#define WEFT_AUTOGRAD_RECORD_H_

#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/node.h"
#include "weft/autograd/op.h"
#include "weft/autograd/saved_tensor.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/tensor.h"

namespace weft {

// A node whose backward is a function object, which holds what was saved.
template <typename Backward>
class Function final : public Node {
 public:
  Function(const Op& op, Backward backward)
      : op_(op), backward_(std::move(backward)) {}

  using Node::AddEdge;
  absl::string_view name() const override { return op_.name(); }
  void Apply(BackwardCall& call) override { (*backward_)(call); }
  void ReleaseSaved() override { backward_.reset(); }

 private:
  const Op& op_;
  std::optional<Backward> backward_;
};

// The variable for `result`, which `op` computed from `inputs`. If one of them
// requires a gradient, and no NoGradScope is open, `backward(BackwardCall&)`
// will make their gradients, in the order of `inputs`.
template <typename Backward>
Variable Record(const Op& op, Tensor result,
                absl::Span<const Variable* const> inputs, Backward backward) {
  if (internal::current_checkpoint_run != nullptr) {
    internal::UseInCheckpoint(inputs);
  }
  bool wanted = false;
  for (const Variable* input : inputs) wanted |= input->requires_grad();
  if (!wanted || NoGradScope::IsOpen()) return Variable(std::move(result));
  auto* node = new Function<Backward>(op, std::move(backward));
  NodePtr owner(node);
  for (const Variable* input : inputs) node->AddEdge(input->edge());
  return Variable(std::move(result), std::move(owner));
}

}  // namespace weft

#endif  // WEFT_AUTOGRAD_RECORD_H_
