// A program of somebody who builds on Weft: a function of its own, called
// through the public headers alone.

#include <cstdio>
#include <vector>

#include "weft/weft.h"

namespace {

weft::Tensor Scale(const weft::Tensor& x, double k) { return weft::Mul(x, k); }
WEFT_RPC(Scale);

// Trainer and server as two ranks of this process.
absl::StatusOr<weft::Tensor> CallScale(const weft::Tensor& x) {
  weft::transport::LocalNetwork network;
  weft::rpc::FixedDirectory directory(
      {{"ps0", {0, 1}, "ps0"}, {"trainer0", {1, 1}, "trainer0"}});
  WEFT_ASSIGN_OR_RETURN(const auto server_end, network.MakeTransport("ps0"));
  WEFT_ASSIGN_OR_RETURN(const auto trainer_end,
                        network.MakeTransport("trainer0"));
  weft::rpc::AgentOptions options;
  options.job = "consumer";
  options.directory = &directory;
  options.name = "ps0";
  options.key = {0, 1};
  options.transport = server_end.get();
  WEFT_ASSIGN_OR_RETURN(const auto server, weft::rpc::Agent::Create(options));
  options.name = "trainer0";
  options.key = {1, 1};
  options.transport = trainer_end.get();
  WEFT_ASSIGN_OR_RETURN(const auto trainer, weft::rpc::Agent::Create(options));
  return weft::rpc::Call(trainer->To("ps0", absl::Seconds(30)), Scale, x, 2.0);
}

absl::Status Run() {
  const weft::Variable w(weft::Tensor::Ones({3}), /*requires_grad=*/true);
  weft::Sum(weft::Mul(w, w)).Backward();
  WEFT_ASSIGN_OR_RETURN(const weft::Tensor twice, CallScale(w.grad()));
  if (twice.ToVector<float>() != std::vector<float>{4, 4, 4}) {
    return absl::InternalError("twice the gradient of w * w is not 4");
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  weft::ExitIfError(weft::CatchToStatus([] { return Run(); }));
  std::puts("consumer: ok");
}
