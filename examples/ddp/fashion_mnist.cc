// fashion_mnist: data-parallel training of a small CNN in a loop of one's own.
//
//   weft run --nproc-per-node=2 fashion_mnist
//
// Each rank trains on its shard of the images; gradients are averaged during
// the backward pass. Rank 0 prints {"accuracy":..., "samples_per_s":...}.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "weft/weft.h"

namespace {

using weft::Tensor;
using weft::Variable;

constexpr char kData[] = "/usr/share/datasets/fashion-mnist/";
constexpr int64_t kTrainImages = 12000, kTestImages = 2000, kBatch = 32;

class Net : public weft::nn::Module {
 public:
  explicit Net(weft::Generator& random)
      : conv1_(1, 8, 3, random),
        norm_(8),
        conv2_(8, 16, 3, random),
        output_(16 * 5 * 5, 10, random) {
    AddModule("conv1", conv1_);
    AddModule("norm", norm_);
    AddModule("conv2", conv2_);
    AddModule("output", output_);
  }
  // [n, 1, 28, 28] -> [n, 10]
  Variable Forward(const Variable& images) {
    Variable x = norm_.Forward(conv1_.Forward(images));
    x = weft::MaxPool2d(weft::Relu(x));
    x = weft::MaxPool2d(weft::Relu(conv2_.Forward(x)));
    return output_.Forward(weft::FlattenFrom(x, 1));
  }

 private:
  weft::nn::Conv2d conv1_;
  weft::nn::BatchNorm norm_;  // its buffers are those of rank 0 on all ranks
  weft::nn::Conv2d conv2_;
  weft::nn::Linear output_;
};

absl::StatusOr<weft::input::IdxDataset> Open(const std::string& set,
                                             int64_t limit) {
  weft::input::IdxDataset::Options options;
  options.images = kData + set + "-images-idx3-ubyte.gz";
  options.labels = kData + set + "-labels-idx1-ubyte.gz";
  options.mean = options.deviation = 0.5f;
  options.limit = limit;
  return weft::input::IdxDataset::Open(options);
}

// The share of the test images that get their class.
absl::StatusOr<double> Test(Net& net) {
  const weft::NoGradScope no_grad;
  net.Eval();
  WEFT_ASSIGN_OR_RETURN(const auto images, Open("t10k", kTestImages));
  std::vector<int64_t> all(images.size());
  std::iota(all.begin(), all.end(), 0);
  WEFT_ASSIGN_OR_RETURN(const auto batch, images.GetBatch(all));
  const Tensor scores = net.Forward(Variable(batch[0])).value();
  int64_t right = 0;
  for (int64_t i = 0; i < images.size(); ++i) {
    const float* row = scores.data<float>() + 10 * i;
    right +=
        std::max_element(row, row + 10) - row == batch[1].data<int64_t>()[i];
  }
  return static_cast<double>(right) / static_cast<double>(images.size());
}

absl::Status Train(weft::worker::Worker& worker) {
  WEFT_ASSIGN_OR_RETURN(const auto group, weft::worker::JoinGroup(worker));
  WEFT_ASSIGN_OR_RETURN(const auto images, Open("train", kTrainImages));
  weft::input::ShardedSampler::Options order;
  order.size = images.size();
  order.shard = group->rank();
  order.shards = group->size();
  WEFT_ASSIGN_OR_RETURN(const auto sampler,
                        weft::input::ShardedSampler::Create(order));
  weft::input::DataLoader::Options loading;
  loading.batch_size = kBatch;
  WEFT_ASSIGN_OR_RETURN(const auto loader, weft::input::DataLoader::Create(
                                               images, sampler, loading));

  weft::Generator random(1);
  Net net(random);
  WEFT_ASSIGN_OR_RETURN(
      const auto ddp, weft::ddp::DistributedDataParallel::Create(net, *group));
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      weft::optimizer::Optimizer::Create(
          {{weft::optimizer::AdamOptions{}, net.NamedParameters()}}));
  const absl::Time begin = absl::Now();
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const auto batch, loader->Next());
    if (!batch.has_value()) break;
    optimizer->ZeroGrad();
    weft::CrossEntropy(net.Forward(Variable((*batch)[0])), (*batch)[1])
        .Backward();
    WEFT_RETURN_IF_ERROR(optimizer->Step());
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
  if (group->rank() != 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const double accuracy, Test(net));
  std::printf("{\"accuracy\":%.4f,\"samples_per_s\":%.0f}\n", accuracy,
              static_cast<double>(images.size()) / seconds);
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
