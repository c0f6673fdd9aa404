// Passes: workers that serve remote modules, and a trainer.

#ifndef WEFT_TESTS_OUTSIDE_REFERENCES_PASSES_H_
#define WEFT_TESTS_OUTSIDE_REFERENCES_PASSES_H_

#include <atomic>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/pass_fixture.h"
#include "weft/dist_autograd/remote_module.h"
#include "weft/nn/module.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/patience.h"

namespace weft::dist_autograd::outside {

inline constexpr absl::Duration kLong = absl::Seconds(60);

inline std::atomic<int> inside{0};
inline std::atomic<bool> may_go_on{false};

inline void WaitHere() {
  ++inside;
  EXPECT_TRUE(::weft::testing::Becomes([] { return may_go_on.load(); }));
  --inside;
}

inline Tensor Weights(int64_t rows, int64_t columns, double scale) {
  Tensor w = Tensor::Zeros({rows, columns}, DType::kF64);
  for (int64_t i = 0; i < w.numel(); ++i) {
    w.data<double>()[i] = scale * std::sin(1.0 + 3.0 * static_cast<double>(i));
  }
  return w;
}

// A module as anybody would write it: with weights as they are, views of them,
// and both.
class Natural : public nn::Module {
 public:
  explicit Natural(double scale) {
    w_ = AddParameter("w", Weights(4, 4, scale));
    b_ = AddParameter("b", Weights(1, 4, 0.5 * scale));
  }
  Variable Forward(const Variable& x) {
    const Variable h = Tanh(MatMul(x, Transpose(w_, 0, 1)));
    const Variable left = MatMul(h, Slice(w_, 1, 0, 2));
    const Variable right = MatMul(h, Slice(w_, 1, 2, 4));
    const Variable both = Concat(std::vector<Variable>{left, right}, 1);
    return Mul(Add(both, b_), Reshape(Mul(b_, b_), {4}));
  }

 private:
  Variable w_, b_;
};
WEFT_RPC_MODULE(Natural, double);

inline Variable LateVariable(double x) {
  WaitHere();
  return Variable(Tensor::Full({2}, x, DType::kF64), true);
}
WEFT_RPC(LateVariable);

inline Variable NoVariable(double) {
  throw Error(absl::ResourceExhaustedError("no room for a variable"));
}
WEFT_RPC(NoVariable);

inline Variable AnyVariable(int64_t which) {
  switch (which) {
    case 0:
      return Variable();
    case 1:
      return Variable(Tensor::Ones({2}, DType::kI64));
    case 2:
      return Variable(Tensor::Ones({2}, DType::kF64), false);
    case 3:
      return Add(Variable(Tensor::Ones({2}, DType::kF64), true), 1.0);
    default:
      return Variable(Tensor::Full({2}, 7.0, DType::kF64), true);
  }
}
WEFT_RPC(AnyVariable);

class Passes : public PassFixture {
 protected:
  Passes() { may_go_on = false; }
  ~Passes() override { may_go_on = true; }
  rpc::Target From(int from, int to, absl::Duration timeout = kLong) {
    return ranks_[from].To(absl::StrCat("w", to), timeout);
  }
  rref::RRef<Variable> VariableAt(int owner) {
    return rref::Remote(From(0, owner), AnyVariable, int64_t{4}).value();
  }
};

}  // namespace weft::dist_autograd::outside

#endif  // WEFT_TESTS_OUTSIDE_REFERENCES_PASSES_H_
