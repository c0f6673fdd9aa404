// train_bench: one process that trains the models of ddp_bench on a device.
//
//   train_bench                     each model, on the CPU
//   train_bench --device=cuda       and the other names of device/open.h
//   train_bench --model=cnn --seconds=5
//
// Prints a line "model<TAB>steps a second" for each: the best of three rounds
// (--rounds), which end when the device has computed the loss. That must have
// fallen, else it ends with 1; with 3 where the device is not there. Beside
// PyTorch: bench/peers/torch_train.py.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/bench/ddp_models.h"
#include "weft/bench/measure.h"
#include "weft/device/open.h"
#include "weft/optimizer/optimizer.h"

namespace weft::bench {
namespace {

constexpr int kStepsOfABatch = 8;  // between two looks at the clock

// Steps a second of the model on `device`.
absl::StatusOr<double> RateOf(const std::string& name, Device device,
                              int rounds, double seconds) {
  const std::unique_ptr<TrainedModel> model = MakeModel(name);
  model->To(device);
  model->MoveBatch(device);
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      optimizer::Optimizer::Create(
          {{optimizer::SgdOptions{0.01}, model->NamedParameters()}}));
  // The loss after `steps`, which waits for the device.
  const auto train = [&](int steps) -> absl::StatusOr<double> {
    Variable loss;
    for (int i = 0; i < steps; ++i) {
      optimizer->ZeroGrad();
      loss = model->Loss();
      loss.Backward();
      WEFT_RETURN_IF_ERROR(optimizer->Step());
    }
    return loss.value().item<float>();
  };
  WEFT_ASSIGN_OR_RETURN(const double first, train(1));
  WEFT_ASSIGN_OR_RETURN(double last, train(kStepsOfABatch));
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    int64_t steps = 0;
    const double begin = Now();
    do {
      WEFT_ASSIGN_OR_RETURN(last, train(kStepsOfABatch));
      steps += kStepsOfABatch;
    } while (Now() - begin < seconds / rounds);
    best = std::max(best, static_cast<double>(steps) / (Now() - begin));
  }
  if (last < first) return best;
  return absl::InternalError("the loss was " + std::to_string(first) +
                             " at first, and is " + std::to_string(last));
}

int Main(int argc, char** argv) {
  std::string wanted = "cpu", model;
  int rounds = 3;
  double seconds = 3;
  CLI::App app("Steps a second of three models on one device.");
  app.add_option("--device", wanted, "cpu, cuda[:N] or simulated[:N]");
  app.add_option("--model", model, "mlp, cnn or lm; by default each")
      ->check(CLI::IsMember({"mlp", "cnn", "lm"}));
  app.add_option("--rounds", rounds, "Of which the best counts")
      ->check(CLI::PositiveNumber);
  app.add_option("--seconds", seconds, "For each model, its start not counted");
  CLI11_PARSE(app, argc, argv);
  const auto opened = device::OpenDevice(wanted);
  if (!opened.ok()) {
    std::fprintf(stderr, "train_bench: --device=%s: %s\n", wanted.c_str(),
                 std::string(opened.status().message()).c_str());
    return absl::IsInvalidArgument(opened.status()) ? 2 : 3;
  }
  const Device device = opened->context == nullptr
                            ? Device::Cpu()
                            : Device(*opened->context, opened->index);
  std::vector<std::string> models = {"mlp", "cnn", "lm"};
  if (!model.empty()) models = {model};
  int code = 0;
  for (const std::string& name : models) {
    absl::StatusOr<double> rate = 0;
    const absl::Status thrown = CatchToStatus([&] {
      rate = RateOf(name, device, rounds, seconds);
      return rate.status();
    });
    if (!thrown.ok()) {
      std::fprintf(stderr, "train_bench: %s: %s\n", name.c_str(),
                   thrown.ToString().c_str());
      code = 1;
      continue;
    }
    std::printf("%s\t%.4g\n", name.c_str(), *rate);
    std::fflush(stdout);
  }
  return code;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::Main(argc, argv); }
