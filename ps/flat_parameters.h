// FlatParameters: a model's parameters as one vector, as a dense table holds
// them.

#ifndef WEFT_PS_FLAT_PARAMETERS_H_
#define WEFT_PS_FLAT_PARAMETERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "weft/nn/module.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// Thread-safety: one thread at a time.
class FlatParameters {
 public:
  // The parameters of `module`, f32, in the order of NamedParameters(). They
  // are shared with it. Throws Error kInvalidArgument for another dtype.
  explicit FlatParameters(const nn::Module& module);

  int64_t elements() const { return elements_; }

  Tensor Values() const;  // f32 [elements()], copied
  // kInvalidArgument unless f32 [elements()].
  absl::Status SetValues(const Tensor& values) const;

  // The gradients, copied; zeros where there is none.
  Tensor Gradient() const;
  void ClearGradient() const;

 private:
  std::vector<Variable> parameters_;
  int64_t elements_ = 0;
};

}  // namespace weft::ps

#endif  // WEFT_PS_FLAT_PARAMETERS_H_
