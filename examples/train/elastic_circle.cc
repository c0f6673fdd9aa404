// elastic_circle: as circle.cc, with ranks that come and go. Kill any of them:
// the others go on, it is started again and takes part, and the loss that is
// printed at the end has the bits of a run that nobody touched.
//
//   weft run --elastic=1:4 --nproc-per-node=2 elastic_circle
//     --checkpoint-dir=saved
// Whoever is rank 0 at the end prints the loss of the last step: {"loss":...}.

#include <cmath>
#include <cstdio>
#include <vector>

#include "weft/weft.h"

namespace {

// The data, the random numbers and the gradients are divided into so many
// shards; a rank has some of them.
constexpr int kShards = 4;

// Points of the plane: whether they lie within a circle.
class Points : public weft::input::Dataset {
 public:
  int64_t size() const override { return 640; }
  absl::StatusOr<weft::input::Example> Get(int64_t index) const override {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "Points"));
    const double angle = 2.4 * static_cast<double>(index);
    const double radius = std::sqrt(static_cast<double>(index) / 320);
    const std::vector<float> point = {
        static_cast<float>(radius * std::cos(angle)),
        static_cast<float>(radius * std::sin(angle))};
    return weft::input::Example{
        weft::Tensor::FromVector<float>(point),
        weft::Tensor::Scalar<int64_t>(radius < 1 ? 1 : 0)};
  }
};

absl::StatusOr<weft::train::Result> Train(weft::train::Job& job) {
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
  weft::train::DataParallelTraining::Parts parts;
  parts.model = &net;
  parts.optimizer = optimizer.get();
  parts.virtual_shards = kShards;
  parts.make_loader = [&](int shard, int shards)
      -> absl::StatusOr<std::unique_ptr<weft::input::DataLoader>> {
    WEFT_ASSIGN_OR_RETURN(const auto sampler,
                          weft::input::ShardedSampler::Create(
                              {points.size(), shard, shards, /*seed=*/1}));
    return weft::input::DataLoader::Create(points, sampler,
                                           {/*batch_size=*/10});
  };
  WEFT_ASSIGN_OR_RETURN(const auto training,
                        weft::train::DataParallelTraining::CreateElastic(
                            job.MakeElastic(kShards), job.telemetry(),
                            std::move(parts), job.options()));
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
    if (!batch.has_value()) break;
    WEFT_RETURN_IF_ERROR(training->Step(weft::CrossEntropy(
        net.Forward(weft::Variable((*batch)[0])), (*batch)[1])));
  }
  const bool is_first = training->group().rank() == 0;
  auto result = training->Finish();
  if (result.ok() && is_first) {
    std::printf("{\"loss\":%.9f}\n", training->mean_loss());
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  weft::worker::Options worker;
  weft::train::Options training;
  weft::worker::Flags flags("elastic_circle",
                            "Learns which points lie in a circle.");
  worker.AddTo(flags);
  training.AddTo(flags);
  weft::ExitIfError(flags.Parse(argc, argv));
  weft::ExitIfError(worker.Resolve());
  weft::ExitIfError(training.Resolve(worker));
  weft::ExitIfError(weft::train::Run(worker, training, Train));
}
