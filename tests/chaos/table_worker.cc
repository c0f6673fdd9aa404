// table_worker: a trainer of an elastic job with parameter servers, for the
// tests: learns numbers from keys, by an embedding table on the servers and a
// small model that every trainer holds.
//
// It tells every fourth step, {"step":N}, and trains until the file that --end
// names has a number of steps, and so many are taken; who is first then writes
// {"steps":N,"model":"...","table":"..."} to standard output, the hashes (XXH3)
// of all parameters and of all rows.

#include <xxhash.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/autograd/ops/loss.h"
#include "weft/autograd/ops/shape.h"
#include "weft/autograd/variable.h"
#include "weft/base/status_macros.h"
#include "weft/input/data_loader.h"
#include "weft/input/dataset.h"
#include "weft/input/sharded_sampler.h"
#include "weft/nn/layers.h"
#include "weft/optimizer/optimizer.h"
#include "weft/proto/ps.pb.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"
#include "weft/train/data_parallel_training.h"
#include "weft/train/run.h"
#include "weft/train/step_table.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"

namespace weft::testing {
namespace {

constexpr int kShards = 8;
constexpr int64_t kBatch = 4;  // of a shard
constexpr int64_t kKeys = 200;
constexpr int64_t kKeysOfExample = 3;
constexpr int64_t kDim = 4;
constexpr int64_t kClasses = 3;

// Some keys, and a class that follows from them.
class KeySets : public input::Dataset {
 public:
  int64_t size() const override { return 640; }
  absl::StatusOr<input::Example> Get(int64_t index) const override {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "KeySets"));
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < kKeysOfExample; ++i) {
      keys.push_back((index * (7 + 4 * i) + 13 * i) % kKeys);
    }
    return input::Example{Tensor::FromVector<int64_t>(keys),
                          Tensor::Scalar<int64_t>(keys[0] % kClasses)};
  }
};

std::string HashOf(const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) {
    const Tensor flat = tensor.Contiguous();
    bytes.append(reinterpret_cast<const char*>(flat.data<float>()),
                 static_cast<size_t>(flat.numel()) * sizeof(float));
  }
  return absl::StrCat(
      absl::Hex(XXH3_64bits(bytes.data(), bytes.size()), absl::kZeroPad16));
}

// The steps to be taken, or a negative number: they are not known yet.
int64_t StepsIn(const std::string& path) {
  std::ifstream file(path);
  int64_t steps = 0;
  std::string whole;  // written after the number
  return file >> steps >> whole && whole == "end" ? steps : -1;
}

ps::v1::TableSpec TableOf(const std::string& durability, int shards) {
  ps::v1::TableSpec spec;
  spec.set_name("rows");
  spec.set_dim(kDim);
  spec.set_shards(shards);
  spec.set_reduction(ps::v1::TableSpec::MEAN);
  spec.mutable_rule()->mutable_adagrad()->set_lr(0.05);
  spec.mutable_initializer()->set_kind(ps::v1::Initializer::UNIFORM);
  spec.mutable_initializer()->set_scale(0.1);
  spec.set_durability(durability == "D2" ? ps::v1::TableSpec::STABLE
                                         : ps::v1::TableSpec::APPLIED);
  return spec;
}

absl::StatusOr<train::Result> Train(train::Job& job, const std::string& end,
                                    const std::string& durability,
                                    int table_shards) {
  const KeySets data;
  Generator random(job.worker().options().seed);
  nn::Sequential net;
  net.Add<nn::Linear>(kKeysOfExample * kDim, 8, random);
  net.Add<nn::Tanh>();
  net.Add<nn::Linear>(8, kClasses, random);
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      optimizer::Optimizer::Create(
          {{optimizer::AdamOptions{0.01}, net.NamedParameters()}}));
  WEFT_ASSIGN_OR_RETURN(
      const auto table,
      train::StepTable::Open(job.worker(), TableOf(durability, table_shards)));
  train::DataParallelTraining::Parts parts;
  parts.model = &net;
  parts.optimizer = optimizer.get();
  parts.virtual_shards = kShards;
  parts.make_loader =
      [&](int shard,
          int shards) -> absl::StatusOr<std::unique_ptr<input::DataLoader>> {
    WEFT_ASSIGN_OR_RETURN(const auto sampler,
                          input::ShardedSampler::Create(
                              {data.size(), shard, shards, /*seed=*/1}));
    return input::DataLoader::Create(data, sampler, {kBatch});
  };
  WEFT_ASSIGN_OR_RETURN(
      const auto training,
      train::DataParallelTraining::CreateElastic(
          job.MakeElastic(kShards), job.telemetry(), std::move(parts),
          table->MakeTables(), job.options()));
  int64_t steps = -1;
  for (;;) {
    if (steps < 0) steps = StepsIn(end);
    if (steps >= 0 && training->steps() >= steps) break;
    WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
    if (!batch.has_value()) break;
    const Tensor keys = (*batch)[0].Reshape({(*batch)[0].numel()});
    WEFT_ASSIGN_OR_RETURN(const Tensor rows, table->Pull(keys));
    const Variable looked_up(rows, /*requires_grad=*/true);
    const Variable inputs =
        Reshape(looked_up, {(*batch)[0].size(0), kKeysOfExample * kDim});
    WEFT_RETURN_IF_ERROR(
        training->Backward(CrossEntropy(net.Forward(inputs), (*batch)[1])));
    WEFT_ASSIGN_OR_RETURN(std::string part,
                          table->PartOf(keys, looked_up.grad()));
    WEFT_RETURN_IF_ERROR(training->GivePart(std::move(part)));
    const int64_t before = training->steps();
    WEFT_RETURN_IF_ERROR(training->Step());
    if (training->steps() != before && training->steps() % 4 == 0) {
      std::printf("{\"step\":%lld}\n",
                  static_cast<long long>(training->steps()));
      std::fflush(stdout);
    }
  }
  const int64_t taken = training->steps();
  if (steps >= 0 && taken != steps) {
    return absl::InternalError(absl::StrCat("wanted ", steps, " steps, found ",
                                            taken,
                                            "; write --end further ahead"));
  }
  std::vector<int64_t> all(kKeys);
  std::iota(all.begin(), all.end(), 0);
  WEFT_ASSIGN_OR_RETURN(const Tensor rows,
                        table->Pull(Tensor::FromVector<int64_t>(all)));
  std::vector<Tensor> parameters;
  for (const Variable& parameter : net.Parameters()) {
    parameters.push_back(parameter.value());
  }
  std::printf("{\"steps\":%lld,\"model\":\"%s\",\"table\":\"%s\"}\n",
              static_cast<long long>(taken), HashOf(parameters).c_str(),
              HashOf({rows}).c_str());
  std::fflush(stdout);
  return training->Finish();
}

}  // namespace
}  // namespace weft::testing

int main(int argc, char** argv) {
  weft::worker::Options worker;
  weft::train::Options training;
  std::string end;
  std::string durability = "D1";
  int table_shards = weft::testing::kShards;
  training.epochs = 1000000;
  weft::worker::Flags flags("table_worker", "Learns classes of sets of keys.");
  worker.AddTo(flags);
  training.AddTo(flags);
  flags.Add("end", &end, "file with the number of steps, and the word end");
  flags.Add("durability", &durability, "of the table: D1 or D2");
  flags.Add("table-shards", &table_shards,
            "of the table; with others than the training's it is refused");
  weft::ExitIfError(flags.Parse(argc, argv));
  weft::ExitIfError(worker.Resolve());
  weft::ExitIfError(training.Resolve(worker));
  weft::ExitIfError(
      weft::train::Run(worker, training, [&](weft::train::Job& job) {
        return weft::testing::Train(job, end, durability, table_shards);
      }));
}
