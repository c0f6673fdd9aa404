// FlatParameters: a model's parameters as one vector, as a dense table holds
// them.
//
//   loss.Backward();                               // one step, without a copy
//   auto next = table->PushPull(parameters.TakeGradient());
//   parameters.AdoptValues(std::move(next).Wait(timeout).value());

#ifndef WEFT_PS_FLAT_PARAMETERS_H_
#define WEFT_PS_FLAT_PARAMETERS_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "weft/autograd/gradient_sink.h"
#include "weft/autograd/leaf.h"
#include "weft/nn/module.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// The sink of the parameters' gradients (autograd/gradient_sink.h), so that
// they are made in one vector. A pass with a store of its own, such as a
// distributed one, is left to that. One at a time for a module.
//
// Thread-safety: one thread at a time.
class FlatParameters final : private GradientSink {
 public:
  // The parameters of `module`, f32, in the order of NamedParameters(). They
  // are shared with it. Throws Error kInvalidArgument for another dtype.
  explicit FlatParameters(const nn::Module& module);
  // REQUIRES: no backward pass of the module is under way.
  ~FlatParameters() override;
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  int64_t elements() const { return elements_; }

  Tensor Values() const;  // f32 [elements()], copied
  // Copies. kInvalidArgument unless f32 [elements()].
  absl::Status SetValues(const Tensor& values) const;
  // The parameters get the memory of `values`, which nobody else may write.
  // Whoever holds a parameter's former value keeps that. Errors as SetValues.
  absl::Status AdoptValues(Tensor values) const;

  // The gradients f32 [elements()], copied; zeros where there is none.
  Tensor Gradient() const;
  void ClearGradient() const;
  // The same, not copied, and no parameter has a gradient any more.
  Tensor TakeGradient();

 private:
  GradientDestination Destination(const BackwardPass& pass,
                                  Leaf& leaf) override;
  void Accept(const BackwardPass& pass, Leaf& leaf,
              weft::Gradient gradient) override;
  void NoGradient(const BackwardPass& pass, Leaf& leaf) override;

  absl::Status CheckValues(const Tensor& values) const;
  const Tensor& ViewOf(const Leaf& leaf);
  void MakeViews();

  std::vector<Variable> parameters_;
  absl::flat_hash_map<const Leaf*, size_t> index_of_;
  int64_t elements_ = 0;
  Tensor gradient_;            // undefined: taken
  std::vector<Tensor> views_;  // of it, by parameter
};

}  // namespace weft::ps

#endif  // WEFT_PS_FLAT_PARAMETERS_H_
