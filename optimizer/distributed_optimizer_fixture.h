// Models that are spread over workers, and the same in one process.

#ifndef WEFT_OPTIMIZER_DISTRIBUTED_OPTIMIZER_FIXTURE_H_
#define WEFT_OPTIMIZER_DISTRIBUTED_OPTIMIZER_FIXTURE_H_

#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/nn/module.h"
#include "weft/optimizer/distributed_optimizer.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::optimizer {

inline Tensor InitialWeight(int64_t rows, int64_t columns, double scale) {
  Tensor w = Tensor::Zeros({rows, columns}, DType::kF64);
  for (int64_t i = 0; i < w.numel(); ++i) {
    w.data<double>()[i] = scale * std::sin(1.0 + 3.0 * static_cast<double>(i));
  }
  return w;
}

// tanh(x w), with w at the worker that has the layer.
class Layer {
 public:
  Layer(int64_t inputs, int64_t outputs, double scale)
      : w_(std::make_shared<Variable>(InitialWeight(inputs, outputs, scale),
                                      /*requires_grad=*/true)) {}
  Variable Forward(const Variable& x) { return Tanh(MatMul(x, *w_)); }
  rref::RRef<Variable> Weight(rpc::CallContext& call) {
    return rref::MakeLocal(call.agent(), w_).value();
  }
  Tensor Value() { return w_->value().Clone(); }

 private:
  std::shared_ptr<Variable> w_;
};
WEFT_RPC_CLASS(Layer, int64_t, int64_t, double);
WEFT_RPC_METHOD(Layer, Forward);
WEFT_RPC_METHOD(Layer, Weight);
WEFT_RPC_METHOD(Layer, Value);

class DistributedOptimizerTest : public ::testing::Test {
 protected:
  DistributedOptimizerTest() {
    for (int i = 0; i < 3; ++i) {
      references_.push_back(rref::References::Open(ranks_[i]).value());
      contexts_.push_back(dist_autograd::Contexts::Open(ranks_[i]).value());
    }
  }
  ~DistributedOptimizerTest() override {
    for (const auto& contexts : contexts_) contexts->Close();
    for (const auto& references : references_) {
      EXPECT_THAT(references->Close(absl::Seconds(20)),
                  ::weft::testing::IsOk());
    }
  }
  rpc::Target To(int rank) { return ranks_[0].To(absl::StrCat("w", rank)); }

  rpc::Ranks ranks_{3};
  std::vector<std::shared_ptr<rref::References>> references_;
  std::vector<std::shared_ptr<dist_autograd::Contexts>> contexts_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_DISTRIBUTED_OPTIMIZER_FIXTURE_H_
