// resumable: a loop of one's own that saves after each epoch and goes on from
// the newest checkpoint, on as many ranks or on others.
//
//   weft run --nproc-per-node=2 resumable --checkpoints=/tmp/points --epochs=3
//   weft run --nproc-per-node=3 resumable --checkpoints=/tmp/points --epochs=6
//
// Rank 0 prints {"first_epoch":..., "epochs":..., "loss":...}.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "weft/weft.h"

namespace {

using weft::Tensor;
using weft::Variable;

// In a checkpoint: before the names of the optimizer's state, and in the
// metadata.
const std::string kOptimizer = "optimizer/";
const std::string kPlace = "place";

// Points of the plane: whether they lie within a circle.
class Points : public weft::input::Dataset {
 public:
  int64_t size() const override { return 600; }
  absl::StatusOr<weft::input::Example> Get(int64_t index) const override {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "Points"));
    const double angle = 2.4 * static_cast<double>(index);
    const double radius = std::sqrt(static_cast<double>(index) / 300);
    return weft::input::Example{
        Tensor::FromVector<float>(
            {static_cast<float>(radius * std::cos(angle)),
             static_cast<float>(radius * std::sin(angle))}),
        Tensor::Scalar<int64_t>(radius < 1 ? 1 : 0)};
  }
};

class Net : public weft::nn::Module {
 public:
  explicit Net(weft::Generator& random)
      : hidden_(2, 32, random), output_(32, 2, random) {
    AddModule("hidden", hidden_);
    AddModule("output", output_);
  }
  Variable Forward(const Variable& x) {
    return output_.Forward(weft::Tanh(hidden_.Forward(x)));
  }

 private:
  weft::nn::Linear hidden_, output_;
};

// All that a checkpoint holds.
struct Training {
  explicit Training(weft::Generator& random) : net(random) {}

  Net net;
  std::unique_ptr<weft::optimizer::Optimizer> optimizer;
  std::unique_ptr<weft::input::DataLoader> loader;
  int64_t steps = 0;
};

absl::Status Save(const Training& training,
                  weft::checkpoint::CheckpointDirectory& directory) {
  weft::checkpoint::NamedTensors tensors;
  for (const auto& [name, tensor] : training.net.StateDict()) {
    tensors[name] = tensor;
  }
  for (const auto& [name, tensor] : training.optimizer->StateDict()) {
    tensors[kOptimizer + name] = tensor;
  }
  return directory
      .Save(training.steps, tensors,
            {{kPlace, training.loader->state().ToString()}})
      .status();
}

// The newest checkpoint into net and optimizer; its place in the data. Empty:
// there is none yet.
absl::StatusOr<std::string> Load(
    Training& training, weft::checkpoint::CheckpointDirectory& directory) {
  auto newest = directory.LoadLatest();
  if (absl::IsNotFound(newest.status())) return "";
  WEFT_RETURN_IF_ERROR(newest.status());
  weft::nn::StateDict net;
  absl::btree_map<std::string, Tensor> optimizer;
  for (const auto& [name, tensor] : newest->tensors) {
    if (name.rfind(kOptimizer, 0) == 0) {
      optimizer[name.substr(kOptimizer.size())] = tensor;
    } else {
      net[name] = tensor;
    }
  }
  WEFT_RETURN_IF_ERROR(training.net.LoadStateDict(net));
  WEFT_RETURN_IF_ERROR(training.optimizer->LoadStateDict(optimizer));
  training.steps = newest->manifest.step;
  return newest->manifest.metadata[kPlace];
}

// Called by all ranks before DistributedDataParallel::Create, which gives them
// the net of rank 0. Only rank 0 sees the files.
absl::Status Resume(Training& training,
                    weft::checkpoint::CheckpointDirectory* directory,
                    weft::collectives::ProcessGroup& group) {
  std::string place;
  if (directory != nullptr) {
    // An error ends this rank here; the others are told that rank 0 has ended.
    WEFT_ASSIGN_OR_RETURN(place, Load(training, *directory));
  }
  WEFT_ASSIGN_OR_RETURN(place, group.BroadcastBytes(place, /*root=*/0));
  if (place.empty()) return absl::OkStatus();
  const auto state = training.optimizer->StateDict();
  for (const auto& [name, tensor] : state) {
    WEFT_RETURN_IF_ERROR(group.Broadcast(tensor, /*root=*/0));
  }
  WEFT_RETURN_IF_ERROR(training.optimizer->LoadStateDict(state));
  WEFT_ASSIGN_OR_RETURN(const auto at,
                        weft::input::ShardedSampler::State::Parse(place));
  return training.loader->LoadState(at);
}

absl::Status MakeLoader(Training& training, const Points& points,
                        const weft::collectives::ProcessGroup& group) {
  weft::input::ShardedSampler::Options order;
  order.size = points.size();
  order.shard = group.rank();
  order.shards = group.size();
  WEFT_ASSIGN_OR_RETURN(const auto sampler,
                        weft::input::ShardedSampler::Create(order));
  weft::input::DataLoader::Options loading;
  loading.batch_size = 60 / group.size();
  WEFT_ASSIGN_OR_RETURN(training.loader, weft::input::DataLoader::Create(
                                             points, sampler, loading));
  return absl::OkStatus();
}

// The loss of this rank's last batch.
absl::StatusOr<double> TrainEpoch(Training& training) {
  double loss = 0;
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const auto batch, training.loader->Next());
    if (!batch.has_value()) return loss;
    training.optimizer->ZeroGrad();
    const Variable found = weft::CrossEntropy(
        training.net.Forward(Variable((*batch)[0])), (*batch)[1]);
    found.Backward();
    WEFT_RETURN_IF_ERROR(training.optimizer->Step());
    loss = found.value().item<float>();
    ++training.steps;
  }
}

absl::Status Train(weft::worker::Worker& worker, const std::string& path,
                   int epochs) {
  const Points points;  // the loader refers to it
  WEFT_ASSIGN_OR_RETURN(const auto group, weft::worker::JoinGroup(worker));
  weft::Generator random(1);
  Training training(random);
  WEFT_ASSIGN_OR_RETURN(
      training.optimizer,
      weft::optimizer::Optimizer::Create({{weft::optimizer::AdamOptions{0.01},
                                           training.net.NamedParameters()}}));
  WEFT_RETURN_IF_ERROR(MakeLoader(training, points, *group));
  std::unique_ptr<weft::checkpoint::CheckpointDirectory> directory;
  if (group->rank() == 0) {
    weft::checkpoint::CheckpointDirectory::Options options;
    options.path = path;
    WEFT_ASSIGN_OR_RETURN(directory,
                          weft::checkpoint::CheckpointDirectory::Open(options));
  }
  WEFT_RETURN_IF_ERROR(Resume(training, directory.get(), *group));
  WEFT_ASSIGN_OR_RETURN(
      const auto ddp,
      weft::ddp::DistributedDataParallel::Create(training.net, *group));
  int64_t epoch = training.loader->state().epoch;
  if (training.loader->remaining() == 0) training.loader->SetEpoch(++epoch);
  const int64_t first_epoch = epoch;
  double loss = 0;
  for (; epoch < epochs; ++epoch) {
    if (epoch != first_epoch) training.loader->SetEpoch(epoch);
    WEFT_ASSIGN_OR_RETURN(loss, TrainEpoch(training));
    if (directory != nullptr) {
      WEFT_RETURN_IF_ERROR(Save(training, *directory));
    }
  }
  WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
  if (group->rank() != 0) return absl::OkStatus();
  std::printf("{\"first_epoch\":%d,\"epochs\":%d,\"loss\":%.6f}\n",
              static_cast<int>(first_epoch), epochs, loss);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  std::string path;
  int epochs = 3;
  // Flags of this program's own are left in argv.
  const auto options = weft::worker::Options::FromFlags(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = flag.substr(flag.find('=') + 1);
    if (flag.rfind("--checkpoints=", 0) == 0) path = value;
    if (flag.rfind("--epochs=", 0) == 0) epochs = std::atoi(value.c_str());
  }
  if (path.empty()) {
    std::fprintf(stderr, "resumable: wanted --checkpoints=DIRECTORY\n");
    return 2;
  }
  auto worker = weft::worker::Worker::Start(options);
  weft::ExitIfError(worker.status());
  // What Train makes ends before the worker does.
  weft::ExitIfError(
      weft::CatchToStatus([&] { return Train(**worker, path, epochs); }));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
