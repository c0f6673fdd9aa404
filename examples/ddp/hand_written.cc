// hand_written: the reducer alone, in a loop without autograd: least squares
// whose gradient is written by hand.
//
//   weft run --nproc-per-node=2 hand_written
//
// Rank 0 prints {"error":...}: how far the weights are from the true ones.

#include <cmath>
#include <cstdio>
#include <vector>

#include "weft/weft.h"

namespace {

constexpr int64_t kWeights = 50;
constexpr int kSamples = 400, kSteps = 200;

double TrueWeight(int64_t i) { return std::cos(3.0 * static_cast<double>(i)); }
double Input(int sample, int64_t i) {
  return std::sin(1.7 * sample * static_cast<double>(i + 1));
}

absl::Status Train(weft::worker::Worker& worker) {
  WEFT_ASSIGN_OR_RETURN(const auto group, weft::worker::JoinGroup(worker));
  weft::ddp::ReducerOptions options;
  // A rank counts for as many samples as it has.
  options.divisor = weft::ddp::Divisor::kTotalWeight;
  WEFT_ASSIGN_OR_RETURN(
      const auto reducer,
      weft::ddp::Reducer::Create(*group, {{"w", {kWeights}}}, options));
  std::vector<double> w(kWeights);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> gradient(kWeights);
    int samples = 0;
    // Rank 0 of two takes 267 of the 400 samples, rank 1 takes 133.
    for (int n = 0; n < kSamples; ++n) {
      if (n % 3 % group->size() != group->rank()) continue;
      double error = 0;
      for (int64_t i = 0; i < kWeights; ++i) {
        error += (w[i] - TrueWeight(i)) * Input(n, i);
      }
      for (int64_t i = 0; i < kWeights; ++i) {
        gradient[i] += 2 * error * Input(n, i);
      }
      ++samples;
    }
    WEFT_RETURN_IF_ERROR(reducer->Begin(samples));
    for (int64_t i = 0; i < kWeights; ++i) {
      reducer->gradient(0).data<float>()[i] =
          static_cast<float>(samples > 0 ? gradient[i] / samples : 0);
    }
    WEFT_RETURN_IF_ERROR(reducer->MarkReady(0));
    WEFT_RETURN_IF_ERROR(reducer->Finish());  // the mean over all samples
    for (int64_t i = 0; i < kWeights; ++i) {
      w[i] -= 0.3 * reducer->gradient(0).data<float>()[i];
    }
  }
  double error = 0;
  for (int64_t i = 0; i < kWeights; ++i) {
    error = std::fmax(error, std::fabs(w[i] - TrueWeight(i)));
  }
  if (group->rank() == 0) std::printf("{\"error\":%.6f}\n", error);
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
