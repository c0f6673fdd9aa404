// circle: a model of one's own, with its own loop and data, that has all that
// bin/trainer has: it saves, resumes, is restarted, ends in good order after a
// signal, shows its progress and its metrics.
//
//   weft run --nproc-per-node=2 --max-restarts=3 circle --checkpoint-dir=saved
// Rank 0 prints the loss of the last step: {"loss":...}.

#include <cmath>
#include <cstdio>
#include <vector>

#include "weft/weft.h"

namespace {

// Points of the plane: whether they lie within a circle.
class Points : public weft::input::Dataset {
 public:
  int64_t size() const override { return 600; }
  absl::StatusOr<weft::input::Example> Get(int64_t index) const override {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "Points"));
    const double angle = 2.4 * static_cast<double>(index);
    const double radius = std::sqrt(static_cast<double>(index) / 300);
    const std::vector<float> point = {
        static_cast<float>(radius * std::cos(angle)),
        static_cast<float>(radius * std::sin(angle))};
    return weft::input::Example{
        weft::Tensor::FromVector<float>(point),
        weft::Tensor::Scalar<int64_t>(radius < 1 ? 1 : 0)};
  }
};

absl::StatusOr<weft::train::Result> Train(weft::train::Job& job) {
  WEFT_ASSIGN_OR_RETURN(const auto group, job.JoinGroup());
  const Points points;
  weft::Generator random(job.worker().options().seed);
  weft::nn::Sequential net;
  net.Add<weft::nn::Linear>(2, 32, random);
  net.Add<weft::nn::Tanh>();
  net.Add<weft::nn::Linear>(32, 2, random);
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      weft::optimizer::Optimizer::Create(
          {{weft::optimizer::AdamOptions{0.01}, net.NamedParameters()}}));
  WEFT_ASSIGN_OR_RETURN(const auto sampler, weft::input::ShardedSampler::Create(
                                                {points.size(), group->rank(),
                                                 group->size(), /*seed=*/1}));
  WEFT_ASSIGN_OR_RETURN(
      const auto loader,
      weft::input::DataLoader::Create(points, sampler, {/*batch_size=*/20}));
  WEFT_ASSIGN_OR_RETURN(
      const auto training,
      weft::train::DataParallelTraining::Create(
          *group, job.telemetry(), {&net, optimizer.get(), loader.get()},
          job.options()));
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
    if (!batch.has_value()) break;
    WEFT_RETURN_IF_ERROR(training->Step(weft::CrossEntropy(
        net.Forward(weft::Variable((*batch)[0])), (*batch)[1])));
  }
  if (group->rank() == 0)
    std::printf("{\"loss\":%.9f}\n", training->mean_loss());
  return training->Finish();
}

}  // namespace

int main(int argc, char** argv) {
  weft::worker::Options worker;
  weft::train::Options training;
  weft::worker::Flags flags("circle", "Learns which points lie in a circle.");
  worker.AddTo(flags);
  training.AddTo(flags);
  weft::ExitIfError(flags.Parse(argc, argv));
  weft::ExitIfError(worker.Resolve());
  weft::ExitIfError(training.Resolve(worker));
  weft::ExitIfError(weft::train::Run(worker, training, Train));
}
