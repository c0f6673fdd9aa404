// AutocastScope: for its lifetime, operations on this thread choose the dtype
// that they compute in. Weights, gradients and the optimizer stay in f32.
//
//   {
//     AutocastScope low(DType::kBF16);
//     loss = CrossEntropy(model.Forward(x), targets);
//   }
//   loss.Backward();   // gradients have the dtypes of the parameters
//
// For variables in f32, f16 or bf16 the operations choose as follows; others
// are taken as they are:
//
//   in the scope's dtype  MatMul, Linear, Conv2d, Einsum,
//                         ScaledDotProductAttention, SelfAttention
//   in f32                Exp, Log, Log1p, Pow, Softplus, Softmax, LogSoftmax,
//                         all losses, all norms, Sum, Mean, Var, Std, Cumsum
//   in the widest dtype   Add, Sub, Mul, Div, Maximum, Minimum, Where, Concat,
//   of their operands     Stack, IndexAdd, ScatterAdd: f32 beside f16 or bf16,
//                         and of f16 and bf16
//   as they are           all others
//
// The cast of a leaf is kept until the outermost scope of the thread ends, and
// made again where the leaf was written to; so open a scope for a pass, not for
// a training. The cast of a leaf on a device is used only on the stream on
// which it was made.
//
// Within Checkpoint, `f` runs again under the scope that it ran under at first.
// A backward pass and calls to other workers know nothing of the scope. f16
// needs a GradScaler (weft/optimizer/grad_scaler.h); bf16, of f32's range, does
// not.

#ifndef WEFT_AUTOGRAD_AUTOCAST_H_
#define WEFT_AUTOGRAD_AUTOCAST_H_

#include <memory>
#include <optional>

#include "weft/autograd/variable.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/tensor.h"

namespace weft {

namespace internal {
class CastCache;
}  // namespace internal

// Thread-safety: lives on one thread; scopes nest, the innermost holds.
class AutocastScope {
 public:
  // No `dtype`: autocast is off, within a scope in which it is on. Throws Error
  // kInvalidArgument for another dtype than f16 and bf16.
  explicit AutocastScope(std::optional<DType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

  // The dtype of this thread's innermost scope; nothing if there is none, or if
  // it is off.
  static std::optional<DType> Current() {
    return current_ == nullptr ? std::nullopt : current_->dtype_;
  }

  // The value of `x` as `dtype`; that of a leaf is kept in the outermost scope.
  static Tensor Cast(const Variable& x, DType dtype);

 private:
  static inline thread_local AutocastScope* current_ = nullptr;

  const std::optional<DType> dtype_;
  AutocastScope* const around_;  // null: this is the outermost
  AutocastScope& outermost_;     // may be this one
  // Only the outermost scope has one; null until needed.
  std::unique_ptr<internal::CastCache> cache_;
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_AUTOCAST_H_
