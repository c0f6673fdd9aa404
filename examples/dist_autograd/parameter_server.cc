// parameter_server: a network at a server, trained by several trainers with
// remote calls, distributed autograd and a distributed optimizer, without
// tables. One program for all roles:
//
//   weft run --role ps=1:parameter_server --role trainer=2:parameter_server
//
// ps0 has the network and its parameters. Each trainer runs it by recorded
// calls on its own shard of Fashion-MNIST, and updates it there while others do
// (Hogwild). trainer0 prints {"accuracy":...}.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "weft/weft.h"

namespace {

using weft::Tensor;
using weft::Variable;

constexpr absl::Duration kTimeout = absl::Minutes(5);
constexpr char kData[] = "/usr/share/datasets/fashion-mnist/";
constexpr int64_t kTrainImages = 60000, kTestImages = 5000, kBatch = 64;

class Net : public weft::nn::Module {
 public:
  explicit Net(uint64_t seed) {
    weft::Generator random(seed);
    hidden_ = AddParameter("hidden", weft::Normal({784, 64}, 0, 0.05, random));
    bias_ = AddParameter("bias", Tensor::Zeros({64}));
    output_ = AddParameter("output", weft::Normal({64, 10}, 0, 0.1, random));
  }
  // [n, 1, 28, 28] -> [n, 10]
  Variable Forward(const Variable& images) {
    const Variable x = weft::FlattenFrom(images, 1);
    // The backward uses the weights of this forward, whoever updates them
    // since.
    const Variable h = weft::Relu(weft::Add(weft::MatMul(x, hidden_), bias_));
    return weft::MatMul(h, output_);
  }

 private:
  Variable hidden_, bias_, output_;
};
WEFT_RPC_MODULE(Net, uint64_t);
using RemoteNet = weft::dist_autograd::RemoteModule<Net>;

// ps0's own, for a trainer.
absl::StatusOr<RemoteNet> TakeNet(weft::rpc::CallContext& call) {
  WEFT_ASSIGN_OR_RETURN(
      auto reference,
      weft::rref::MakeLocal(call.agent(), call.agent().Local<Net>()));
  return RemoteNet(std::move(reference));
}
WEFT_RPC(TakeNet);

absl::StatusOr<weft::input::IdxDataset> Open(const std::string& set,
                                             int64_t limit) {
  weft::input::IdxDataset::Options options;
  options.images = kData + set + "-images-idx3-ubyte.gz";
  options.labels = kData + set + "-labels-idx1-ubyte.gz";
  options.mean = options.deviation = 0.5f;
  options.limit = limit;
  return weft::input::IdxDataset::Open(options);
}

absl::Status Train(weft::worker::Worker& worker, const RemoteNet& net) {
  WEFT_ASSIGN_OR_RETURN(const auto images, Open("train", kTrainImages));
  weft::input::ShardedSampler::Options order;
  order.size = images.size();
  order.shard = worker.options().rank;
  order.shards = worker.options().trainers;
  WEFT_ASSIGN_OR_RETURN(const auto sampler,
                        weft::input::ShardedSampler::Create(order));
  weft::input::DataLoader::Options loading;
  loading.batch_size = kBatch;
  WEFT_ASSIGN_OR_RETURN(const auto loader, weft::input::DataLoader::Create(
                                               images, sampler, loading));
  WEFT_ASSIGN_OR_RETURN(const auto parameters, net.RemoteParameters());
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      weft::optimizer::DistributedOptimizer::Create(
          worker.agent(), weft::optimizer::SgdOptions{0.1}, parameters));
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const auto batch, loader->Next());
    if (!batch.has_value()) return absl::OkStatus();
    const weft::dist_autograd::Scope pass(worker.contexts());
    WEFT_ASSIGN_OR_RETURN(const Variable scores,
                          net.Forward(pass, Variable((*batch)[0])));
    WEFT_RETURN_IF_ERROR(
        pass.Backward(weft::CrossEntropy(scores, (*batch)[1])));
    WEFT_RETURN_IF_ERROR(optimizer->Step(pass));
  }
}

// The share of the test images that get their class.
absl::StatusOr<double> Test(weft::worker::Worker& worker,
                            const RemoteNet& net) {
  WEFT_ASSIGN_OR_RETURN(const auto images, Open("t10k", kTestImages));
  std::vector<int64_t> all(images.size());
  std::iota(all.begin(), all.end(), 0);
  WEFT_ASSIGN_OR_RETURN(const auto batch, images.GetBatch(all));
  const weft::dist_autograd::Scope pass(worker.contexts());
  WEFT_ASSIGN_OR_RETURN(const Variable scores,
                        net.Forward(pass, Variable(batch[0])));
  int64_t right = 0;
  for (int64_t i = 0; i < images.size(); ++i) {
    const float* row = scores.value().data<float>() + 10 * i;
    right +=
        std::max_element(row, row + 10) - row == batch[1].data<int64_t>()[i];
  }
  return static_cast<double>(right) / static_cast<double>(images.size());
}

absl::Status Run(weft::worker::Worker& worker) {
  if (worker.self().role == "ps") return worker.AwaitAll("trained", kTimeout);
  WEFT_ASSIGN_OR_RETURN(const RemoteNet net,
                        weft::rpc::Call(worker.agent().To("ps0"), TakeNet));
  WEFT_RETURN_IF_ERROR(Train(worker, net));
  WEFT_RETURN_IF_ERROR(worker.AwaitAll("trained", kTimeout));
  if (worker.options().rank > 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const double accuracy, Test(worker, net));
  std::printf("{\"accuracy\":%.4f}\n", accuracy);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  auto worker =
      weft::worker::Worker::Start(weft::worker::Options::FromFlags(argc, argv));
  weft::ExitIfError(worker.status());
  (*worker)->agent().SetLocal(std::make_shared<Net>(1));
  weft::ExitIfError((*worker)->AwaitAll("ready", kTimeout));
  weft::ExitIfError(Run(**worker));
  weft::ExitIfError((*worker)->AwaitAll("done", kTimeout));
  weft::ExitIfError((*worker)->Shutdown().status());
  return 0;
}
