// torch_autograd: libtorch's side of autograd_bench, as torch_autograd.py is
// PyTorch's: prints its version and one rate, operations per second.
//
// A chain of 100 additions of one element, forward and backward, on one thread.

#include <torch/torch.h>

#include <cstdio>

#include "weft/bench/measure.h"

namespace {

using ::weft::bench::Now;

constexpr int kChain = 100;
constexpr double kSeconds = 0.5;

}  // namespace

int main() {
  at::set_num_threads(1);
  torch::Tensor x = torch::ones({1}, torch::requires_grad());
  const torch::Tensor c = torch::ones({1});
  const auto step = [&] {
    x.mutable_grad().reset();
    torch::Tensor y = x;
    for (int i = 0; i < kChain; ++i) y = y + c;
    y.backward();
  };
  for (int i = 0; i < 10; ++i) step();
  if (x.grad().item<float>() != 1 || x.grad_fn() != nullptr) return 1;
  int steps = 0;
  const double begin = Now();
  for (; Now() - begin < kSeconds; ++steps) step();
  std::printf("%s %f\n", TORCH_VERSION, kChain * steps / (Now() - begin));
}
