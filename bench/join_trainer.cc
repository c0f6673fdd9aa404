// join_trainer: a data-parallel trainer of short steps with a large state: for
// bench/failover.py --join, which starts one more while others train.
//
// The state is a table of embeddings with the two slots of Adam, 100 MB by
// default, of which a step uses a few rows. For each step it prints a line of
// JSON: {"step": n}.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "weft/weft.h"

namespace weft::bench {
namespace {

constexpr int kShards = 8;
constexpr int64_t kDim = 64;
constexpr int64_t kClasses = 8;

// Rows of the table, and a class.
class Words : public input::Dataset {
 public:
  Words(int64_t size, int64_t rows) : size_(size), rows_(rows) {}
  int64_t size() const override { return size_; }
  absl::StatusOr<input::Example> Get(int64_t index) const override {
    return input::Example{Tensor::Scalar<int64_t>(index * 7919 % rows_),
                          Tensor::Scalar<int64_t>(index % kClasses)};
  }

 private:
  const int64_t size_;
  const int64_t rows_;
};

class Model : public nn::Module {
 public:
  Model(int64_t rows, Generator& random)
      : table_(rows, kDim, random, {TableGradient::kSparse}),
        output_(kDim, kClasses, random) {
    AddModule("table", table_);
    AddModule("output", output_);
  }
  Variable Forward(const Tensor& rows) {
    return output_.Forward(table_.Forward(rows));
  }

 private:
  nn::Embedding table_;
  nn::Linear output_;
};

absl::StatusOr<train::Result> Train(train::Job& job, int64_t rows) {
  const Words words(1 << 20, rows);
  Generator random(1);
  Model model(rows, random);
  optimizer::ParameterGroup group{optimizer::AdamOptions(),
                                  model.NamedParameters()};
  group.lazy = true;
  WEFT_ASSIGN_OR_RETURN(const auto adam, optimizer::Optimizer::Create({group}));
  train::DataParallelTraining::Parts parts;
  parts.model = &model;
  parts.optimizer = adam.get();
  parts.virtual_shards = kShards;
  parts.make_loader =
      [&](int shard,
          int shards) -> absl::StatusOr<std::unique_ptr<input::DataLoader>> {
    WEFT_ASSIGN_OR_RETURN(
        const auto sampler,
        input::ShardedSampler::Create({words.size(), shard, shards, 1}));
    input::DataLoader::Options loading;
    loading.batch_size = 4;
    loading.threads = 0;
    return input::DataLoader::Create(words, sampler, loading);
  };
  WEFT_ASSIGN_OR_RETURN(const auto training,
                        train::DataParallelTraining::CreateElastic(
                            job.MakeElastic(kShards), job.telemetry(),
                            std::move(parts), job.options()));
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
    if (!batch.has_value()) return training->Finish();
    const int64_t before = training->steps();
    WEFT_RETURN_IF_ERROR(
        training->Step(CrossEntropy(model.Forward((*batch)[0]), (*batch)[1])));
    if (training->steps() == before || training->group().rank() != 0) continue;
    std::printf("{\"step\": %lld}\n", static_cast<long long>(before + 1));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::worker::Options worker;
  weft::train::Options training;
  int64_t rows = 131072;
  weft::worker::Flags flags("join_trainer",
                            "Trains a large table by short steps.");
  worker.AddTo(flags);
  training.AddTo(flags);
  flags.Add("rows", &rows, "of 64 floats in the table");
  weft::ExitIfError(flags.Parse(argc, argv));
  weft::ExitIfError(worker.Resolve());
  weft::ExitIfError(training.Resolve(worker));
  weft::ExitIfError(weft::train::Run(
      worker, training,
      [&](weft::train::Job& job) { return weft::bench::Train(job, rows); }));
}
