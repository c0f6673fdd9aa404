// Hooks, and a module to hang them on.

#ifndef WEFT_TESTS_OUTSIDE_CHECKPOINT_HOOKS_H_
#define WEFT_TESTS_OUTSIDE_CHECKPOINT_HOOKS_H_

#include <functional>
#include <utility>

#include "absl/types/span.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/nn/attention.h"
#include "weft/nn/module.h"

namespace weft::outside {

using Inputs = absl::Span<Variable>;
using Seen = absl::Span<const Variable>;
using Outputs = absl::Span<Variable>;

// y = 10 x, so that a reader sees what came in.
class Tenfold final : public nn::Layer {
 public:
  int computed = 0;

 private:
  Variable Compute(const Variable& x) override {
    ++computed;
    return x * 10.0;
  }
};

inline nn::ForwardPreHook Before(std::function<void()> f) {
  return [f = std::move(f)](::weft::nn::Module&, Inputs) { f(); };
}
inline nn::ForwardHook After(std::function<void()> f) {
  return [f = std::move(f)](::weft::nn::Module&, Seen, Outputs) { f(); };
}

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_CHECKPOINT_HOOKS_H_
