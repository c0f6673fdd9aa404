// split_transformer: a transformer whose blocks live at two workers, trained by
// micro-batches that follow each other through them. One program for all roles:
//
//   weft run --role ps=2:split_transformer --role trainer=1:split_transformer
//
// While ps1 has one micro-batch, ps0 has the next; one backward and one step go
// over all. trainer0 has the rest of the model, and prints
// {"first_loss":..., "last_loss":...}: those of whole_transformer, which trains
// the same model in one process.

#include <cstdio>
#include <vector>

#include "weft/examples/dist_autograd/transformer.h"
#include "weft/weft.h"

namespace transformer {
WEFT_RPC_MODULE(Block, uint64_t);
}  // namespace transformer

namespace {

using namespace transformer;
using RemoteBlock = weft::dist_autograd::RemoteModule<Block>;
using weft::Future;
using weft::Variable;

constexpr absl::Duration kTimeout = absl::Minutes(5);

absl::Status Train(weft::worker::Worker& worker) {
  weft::rpc::Agent& agent = worker.agent();
  Ends ends;
  WEFT_ASSIGN_OR_RETURN(const auto first,
                        RemoteBlock::Create(agent.To("ps0"), 2));
  WEFT_ASSIGN_OR_RETURN(const auto second,
                        RemoteBlock::Create(agent.To("ps1"), 3));
  WEFT_ASSIGN_OR_RETURN(auto parameters, weft::dist_autograd::LocalParameters(
                                             agent, ends.Parameters()));
  for (const RemoteBlock& block : {first, second}) {
    WEFT_ASSIGN_OR_RETURN(const auto more, block.RemoteParameters());
    parameters.insert(parameters.end(), more.begin(), more.end());
  }
  WEFT_ASSIGN_OR_RETURN(const auto optimizer,
                        weft::optimizer::DistributedOptimizer::Create(
                            agent, kOptimizer, parameters));
  double first_loss = 0, last_loss = 0;
  for (int64_t number = 0; number < kTexts; number += kParts) {
    const weft::dist_autograd::Scope pass(worker.contexts());
    std::vector<Future<Variable>> halves, wholes;
    for (int64_t m = 0; m < kParts; ++m) {
      halves.push_back(
          first.ForwardAsync(pass, ends.Embed(TextOf(number + m, 0))));
    }
    for (const Future<Variable>& half : halves) {  // ps0 goes on meanwhile
      WEFT_ASSIGN_OR_RETURN(const Variable x, half.Wait(kTimeout));
      wholes.push_back(second.ForwardAsync(pass, x));
    }
    std::vector<Variable> losses;
    last_loss = 0;
    for (int64_t m = 0; m < kParts; ++m) {
      WEFT_ASSIGN_OR_RETURN(const Variable x, wholes[m].Wait(kTimeout));
      losses.push_back(ends.Loss(x, TextOf(number + m, 1)));
      last_loss += losses.back().value().item<float>();
    }
    WEFT_RETURN_IF_ERROR(pass.Backward(losses));
    WEFT_RETURN_IF_ERROR(optimizer->Step(pass));
    if (number == 0) first_loss = last_loss;
  }
  std::printf("{\"first_loss\":%.4f,\"last_loss\":%.4f}\n", first_loss,
              last_loss);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  auto worker =
      weft::worker::Worker::Start(weft::worker::Options::FromFlags(argc, argv));
  weft::ExitIfError(worker);
  weft::ExitIfError((*worker)->AwaitAll("ready", kTimeout));
  if ((*worker)->self().role == "trainer") weft::ExitIfError(Train(**worker));
  weft::ExitIfError((*worker)->AwaitAll("trained", kTimeout));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
