// split_transformer: a transformer whose blocks live at two workers, trained by
// micro-batches that follow each other through them. One program for all roles:
//
//   weft run --role ps=2:split_transformer --role trainer=1:split_transformer
//
// While ps1 has one micro-batch, ps0 has the next; one backward and one step go
// over all. trainer0 has the rest of the model; it then trains an equal one in
// its process alone, and prints {"first_loss", "last_loss", "of_one"}.

#include <cstdio>
#include <memory>
#include <vector>

#include "weft/weft.h"

namespace {

using weft::Future;
using weft::Tensor;
using weft::Variable;

constexpr absl::Duration kTimeout = absl::Minutes(5);
constexpr char kText[] =
    "this is the malt that lay in the house that jack built. this is the rat "
    "that ate the malt that lay in the house that jack built. ";
constexpr int64_t kLength = sizeof(kText) - 1, kWindow = 32, kDim = 32;
constexpr int64_t kCharacters = 128, kBatch = 4, kParts = 4, kTexts = 400;

// [n, kWindow, kDim] to the same: attention, then a layer of 4 times the width.
class Block : public weft::nn::Module {
 public:
  explicit Block(uint64_t seed) : random_(seed) {
    AddModule("norm1", norm1_);
    AddModule("attention", attention_);
    AddModule("norm2", norm2_);
    AddModule("wide", wide_);
    AddModule("narrow", narrow_);
  }
  Variable Forward(const Variable& in) {
    weft::AttentionOptions causal;
    causal.is_causal = true;
    const Variable x = in + attention_.Forward(norm1_.Forward(in), causal);
    return x + narrow_.Forward(weft::Gelu(wide_.Forward(norm2_.Forward(x))));
  }

 private:
  weft::Generator random_;
  weft::nn::LayerNorm norm1_{{kDim}}, norm2_{{kDim}};
  weft::nn::MultiheadAttention attention_{kDim, /*heads=*/4, random_};
  weft::nn::Linear wide_{kDim, 4 * kDim, random_};
  weft::nn::Linear narrow_{4 * kDim, kDim, random_};
};
WEFT_RPC_MODULE(Block, uint64_t);
using RemoteBlock = weft::dist_autograd::RemoteModule<Block>;

// What the trainer has of the model.
struct Ends {
  Variable Embed(const Tensor& text) {
    return characters.Forward(text) + places.Forward(Tensor::Arange(kWindow));
  }
  weft::Generator random{1};
  weft::nn::Embedding characters{kCharacters, kDim, random};
  weft::nn::Embedding places{kWindow, kDim, random};
  weft::nn::Linear output{kDim, kCharacters, random};
};

// Windows from the `number`th on, each character so much `further`.
Tensor TextOf(int64_t number, int64_t further) {
  std::vector<int64_t> text;
  for (int64_t i = 0; i < kBatch * kWindow; ++i) {
    const int64_t at = (number * kBatch + i / kWindow) * 37 + i % kWindow;
    text.push_back(kText[(at + further) % kLength]);
  }
  return Tensor::FromVector(text).Reshape({kBatch, kWindow});
}

// The loss of each step, with the blocks at these workers.
absl::StatusOr<std::vector<double>> Train(weft::worker::Worker& worker,
                                          const char* one, const char* other) {
  weft::rpc::Agent& agent = worker.agent();
  Ends ends;
  std::vector<weft::rref::RRef<Variable>> parameters;
  for (const Variable& p :
       {ends.characters.weight(), ends.places.weight(), ends.output.weight()}) {
    WEFT_ASSIGN_OR_RETURN(
        parameters.emplace_back(),
        weft::rref::MakeLocal(agent, std::make_shared<Variable>(p)));
  }
  WEFT_ASSIGN_OR_RETURN(const auto first,
                        RemoteBlock::Create(agent.To(one), 2));
  WEFT_ASSIGN_OR_RETURN(const auto second,
                        RemoteBlock::Create(agent.To(other), 3));
  for (const RemoteBlock& block : {first, second}) {
    WEFT_ASSIGN_OR_RETURN(const auto more, block.RemoteParameters());
    parameters.insert(parameters.end(), more.begin(), more.end());
  }
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      weft::optimizer::DistributedOptimizer::Create(
          agent, weft::optimizer::AdamOptions{0.005}, parameters));
  std::vector<double> means;
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
    means.push_back(0);
    for (int64_t m = 0; m < kParts; ++m) {
      WEFT_ASSIGN_OR_RETURN(const Variable x, wholes[m].Wait(kTimeout));
      const Variable scores =
          weft::Reshape(ends.output.Forward(x), {-1, kCharacters});
      const Tensor next = TextOf(number + m, 1).Reshape({-1});
      losses.push_back(weft::CrossEntropy(scores, next) * (1.0 / kParts));
      means.back() += losses.back().value().item<float>();
    }
    WEFT_RETURN_IF_ERROR(pass.Backward(losses));
    WEFT_RETURN_IF_ERROR(optimizer->Step(pass));
  }
  return means;
}

absl::Status Run(weft::worker::Worker& worker) {
  WEFT_ASSIGN_OR_RETURN(const auto split, Train(worker, "ps0", "ps1"));
  WEFT_ASSIGN_OR_RETURN(const auto alone,
                        Train(worker, "trainer0", "trainer0"));
  std::printf("{\"first_loss\":%.4f,\"last_loss\":%.4f,\"of_one\":%.4f}\n",
              split.front(), split.back(), alone.back());
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  auto worker =
      weft::worker::Worker::Start(weft::worker::Options::FromFlags(argc, argv));
  weft::ExitIfError(worker);
  weft::ExitIfError((*worker)->AwaitAll("ready", kTimeout));
  if ((*worker)->self().role == "trainer") weft::ExitIfError(Run(**worker));
  weft::ExitIfError((*worker)->AwaitAll("trained", kTimeout));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
