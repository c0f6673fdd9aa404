// char_transformer: a transformer that learns to continue a text, by character,
// trained data-parallel with gradients sent in bf16.
//
//   weft run --nproc-per-node=2 char_transformer
//
// Rank 0 prints {"first_loss":..., "last_loss":..., "text":"..."}: what the
// model writes by itself.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "weft/weft.h"

namespace {

using weft::Tensor;
using weft::Variable;

constexpr char kText[] =
    "this is the house that jack built. this is the malt that lay in the house "
    "that jack built. this is the rat that ate the malt that lay in the house "
    "that jack built. this is the cat that killed the rat that ate the malt "
    "that lay in the house that jack built. ";
constexpr int64_t kLength = sizeof(kText) - 1, kWindow = 32, kDim = 32;
constexpr int64_t kCharacters = 128, kBatch = 8;
constexpr int kSteps = 150;

// One block: attention, then a layer of four times the width.
class Transformer : public weft::nn::Module {
 public:
  explicit Transformer(weft::Generator& random)
      : characters_(kCharacters, kDim, random),
        places_(kWindow, kDim, random),
        norm1_({kDim}),
        attention_(kDim, /*heads=*/4, random),
        norm2_({kDim}),
        wide_(kDim, 4 * kDim, random),
        narrow_(4 * kDim, kDim, random),
        output_(kDim, kCharacters, random) {
    AddModule("characters", characters_);
    AddModule("places", places_);
    AddModule("norm1", norm1_);
    AddModule("attention", attention_);
    AddModule("norm2", norm2_);
    AddModule("wide", wide_);
    AddModule("narrow", narrow_);
    AddModule("output", output_);
  }
  // i64 [n, kWindow] -> [n, kWindow, kCharacters]
  Variable Forward(const Tensor& text) {
    const Tensor at = Tensor::Empty({kWindow}, weft::DType::kI64);
    for (int64_t i = 0; i < kWindow; ++i) at.data<int64_t>()[i] = i;
    Variable x = weft::Add(characters_.Forward(text), places_.Forward(at));
    weft::AttentionOptions causal;
    causal.is_causal = true;
    x = weft::Add(x, attention_.Forward(norm1_.Forward(x), causal));
    const Variable h = weft::Gelu(wide_.Forward(norm2_.Forward(x)));
    return output_.Forward(weft::Add(x, narrow_.Forward(h)));
  }

 private:
  weft::nn::Embedding characters_, places_;
  weft::nn::LayerNorm norm1_;
  weft::nn::MultiheadAttention attention_;
  weft::nn::LayerNorm norm2_;
  weft::nn::Linear wide_, narrow_, output_;
};

// Windows of the text, and what follows each of their characters.
Variable LossOf(Transformer& model, int64_t first) {
  const Tensor text = Tensor::Empty({kBatch, kWindow}, weft::DType::kI64);
  const Tensor next = Tensor::Empty({kBatch * kWindow}, weft::DType::kI64);
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i < kWindow; ++i) {
      const int64_t at = (first + b) * 37 + i;
      text.data<int64_t>()[b * kWindow + i] = kText[at % kLength];
      next.data<int64_t>()[b * kWindow + i] = kText[(at + 1) % kLength];
    }
  }
  return weft::CrossEntropy(
      weft::Reshape(model.Forward(text), {kBatch * kWindow, kCharacters}),
      next);
}

// The likeliest characters after the beginning of the text.
std::string Write(Transformer& model, int64_t length) {
  const weft::NoGradScope no_grad;
  std::string text(kText, kWindow);
  for (int64_t i = 0; i < length; ++i) {
    const Tensor window = Tensor::Empty({1, kWindow}, weft::DType::kI64);
    for (int64_t j = 0; j < kWindow; ++j)
      window.data<int64_t>()[j] = text[i + j];
    const Tensor scores = model.Forward(window).value();
    const float* last = scores.data<float>() + (kWindow - 1) * kCharacters;
    text +=
        static_cast<char>(std::max_element(last, last + kCharacters) - last);
  }
  return text.substr(kWindow);
}

absl::Status Train(weft::worker::Worker& worker) {
  WEFT_ASSIGN_OR_RETURN(const auto group, weft::worker::JoinGroup(worker));
  weft::Generator random(1);
  Transformer model(random);
  weft::ddp::ReducerOptions options;
  options.hook = std::make_shared<weft::ddp::Bf16CompressionHook>();
  options.is_static_graph = true;
  WEFT_ASSIGN_OR_RETURN(
      const auto ddp,
      weft::ddp::DistributedDataParallel::Create(model, *group, options));
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      weft::optimizer::Optimizer::Create(
          {{weft::optimizer::AdamWOptions{0.005}, model.NamedParameters()}}));
  double first_loss = 0, last_loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->ZeroGrad();
    const Variable loss =
        LossOf(model, (step * group->size() + group->rank()) * kBatch);
    loss.Backward();
    WEFT_RETURN_IF_ERROR(optimizer->Step());
    last_loss = loss.value().item<float>();
    if (step == 0) first_loss = last_loss;
  }
  WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
  if (group->rank() != 0) return absl::OkStatus();
  std::printf("{\"first_loss\":%.4f,\"last_loss\":%.4f,\"text\":\"%s\"}\n",
              first_loss, last_loss, Write(model, 40).c_str());
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  auto worker =
      weft::worker::Worker::Start(weft::worker::Options::FromFlags(argc, argv));
  weft::ExitIfError(worker.status());
  weft::ExitIfError(weft::CatchToStatus([&] { return Train(**worker); }));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
