// remote_layers: a model whose layers live at other workers, trained by
// distributed autograd and a distributed optimizer. One program for all roles:
//
//   weft run --role ps=2:remote_layers --role trainer=1:remote_layers
//
// ps0 has the first layer and ps1 the second; the trainer has the head and the
// data, a sine. It prints {"first_loss":..., "last_loss":...}.

#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "weft/weft.h"

namespace {

using weft::Tensor;
using weft::Variable;
using weft::rref::RRef;

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr int kSteps = 400;
constexpr int64_t kHidden = 16;

// tanh(x w + b), with its parameters at the worker that made it.
class Layer {
 public:
  Layer(int64_t inputs, int64_t outputs, uint64_t seed) {
    weft::Generator random(seed);
    const double deviation = 1.0 / std::sqrt(static_cast<double>(inputs));
    w_ = std::make_shared<Variable>(
        weft::Normal({inputs, outputs}, 0.0, deviation, random),
        /*requires_grad=*/true);
    b_ = std::make_shared<Variable>(weft::Normal({outputs}, 0.0, 1.0, random),
                                    /*requires_grad=*/true);
  }
  Variable Forward(const Variable& x) {
    return weft::Tanh(weft::Add(weft::MatMul(x, *w_), *b_));
  }
  std::vector<RRef<Variable>> Parameters(weft::rpc::CallContext& call) {
    return {weft::rref::MakeLocal(call.agent(), w_).value(),
            weft::rref::MakeLocal(call.agent(), b_).value()};
  }

 private:
  std::shared_ptr<Variable> w_, b_;
};
WEFT_RPC_CLASS(Layer, int64_t, int64_t, uint64_t);
WEFT_RPC_METHOD(Layer, Forward);
WEFT_RPC_METHOD(Layer, Parameters);

absl::Status Train(weft::worker::Worker& worker) {
  weft::rpc::Agent& agent = worker.agent();
  WEFT_ASSIGN_OR_RETURN(
      const RRef<Layer> first,
      weft::rref::Make<Layer>(agent.To("ps0"), 1, kHidden, 1));
  WEFT_ASSIGN_OR_RETURN(
      const RRef<Layer> second,
      weft::rref::Make<Layer>(agent.To("ps1"), kHidden, kHidden, 2));
  const auto head =
      std::make_shared<Variable>(Tensor::Full({kHidden, 1}, 0.1), true);
  WEFT_ASSIGN_OR_RETURN(const RRef<Variable> head_ref,
                        weft::rref::MakeLocal(agent, head));
  std::vector<RRef<Variable>> parameters = {head_ref};
  for (const RRef<Layer>& layer : {first, second}) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<RRef<Variable>> more,
                          weft::rref::Call(layer, &Layer::Parameters));
    parameters.insert(parameters.end(), more.begin(), more.end());
  }
  WEFT_ASSIGN_OR_RETURN(
      auto optimizer,
      weft::optimizer::DistributedOptimizer::Create(
          agent, weft::optimizer::AdamOptions{0.01}, parameters));

  Tensor x = Tensor::Zeros({64, 1});
  Tensor y = Tensor::Zeros({64, 1});
  for (int i = 0; i < 64; ++i) {
    x.data<float>()[i] = static_cast<float>(i - 32) / 10;
    y.data<float>()[i] = std::sin(x.data<float>()[i]);
  }
  double first_loss = 0, last_loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    const weft::dist_autograd::Scope pass(worker.contexts());
    WEFT_ASSIGN_OR_RETURN(const Variable h,
                          pass.Call(first, &Layer::Forward, Variable(x)));
    WEFT_ASSIGN_OR_RETURN(const Variable z,
                          pass.Call(second, &Layer::Forward, h));
    const Variable error = weft::Sub(weft::MatMul(z, *head), Variable(y));
    const Variable loss = weft::Mean(weft::Mul(error, error));
    WEFT_RETURN_IF_ERROR(pass.Backward(loss));
    WEFT_RETURN_IF_ERROR(optimizer->Step(pass));
    last_loss = loss.value().item<float>();
    if (step == 0) first_loss = last_loss;
  }
  std::printf("{\"first_loss\":%.6f,\"last_loss\":%.6f}\n", first_loss,
              last_loss);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  auto worker =
      weft::worker::Worker::Start(weft::worker::Options::FromFlags(argc, argv));
  weft::ExitIfError(worker.status());
  if ((*worker)->self().name == "trainer0") {
    weft::ExitIfError(Train(**worker));
  }
  // Those who have the layers serve until then.
  weft::ExitIfError((*worker)->AwaitAll("trained", kTimeout));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
