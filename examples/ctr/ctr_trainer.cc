// ctr_trainer: logistic regression on a click-through-rate workload, its
// weights in a sparse table. Run it with bin/parameter_server:
//
//   bin/weft run --role ps=2:bin/parameter_server --role
//   trainer=2:bin/ctr_trainer
//
// Each round is a batch of 1,024 rows of W-CTR-v1, shared among the trainers.
// At 256,000 rows the reference learner reaches an AUC of 0.77615.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "weft/weft.h"

namespace {

using weft::Tensor;
using weft::Variable;
using weft::input::Example;
using weft::input::WCtrDataset;
namespace ps = weft::ps;
namespace w_ctr = weft::input::w_ctr;

constexpr int64_t kBatch = 1024;
constexpr absl::Duration kTimeout = absl::Minutes(2);

ps::v1::TableSpec Spec(const std::string& name, int trainers) {
  ps::v1::TableSpec spec;
  spec.set_name(name);
  spec.set_mode(ps::v1::TableSpec::SYNC);
  spec.set_shards(trainers);
  spec.set_reduction(ps::v1::TableSpec::SUM);
  auto* adagrad = spec.mutable_rule()->mutable_adagrad();
  adagrad->set_lr(0.05);
  adagrad->set_initial_accumulator(0.1);
  adagrad->set_epsilon(0.0);
  return spec;
}

// Rows [begin, end) of the workload as one batch.
absl::StatusOr<Example> Rows(int64_t begin, int64_t end) {
  WEFT_ASSIGN_OR_RETURN(const WCtrDataset rows,
                        WCtrDataset::Create({begin, end - begin}));
  std::vector<int64_t> all(end - begin);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  return rows.GetBatch(all);
}

// Weights of the fields' values are rows of a sparse table; those of the dense
// inputs and the bias are a dense one.
class Model {
 public:
  static absl::StatusOr<Model> Open(ps::Client& client, int trainers) {
    ps::v1::TableSpec sparse = Spec("fields", trainers);
    sparse.set_kind(ps::v1::TableSpec::SPARSE);
    sparse.set_dim(1);
    ps::v1::TableSpec dense = Spec("inputs", trainers);
    dense.set_kind(ps::v1::TableSpec::DENSE);
    dense.set_elements(w_ctr::kDense + 1);
    Model model;
    WEFT_ASSIGN_OR_RETURN(model.fields_, client.Sparse(sparse));
    WEFT_ASSIGN_OR_RETURN(model.inputs_, client.Dense(dense));
    WEFT_RETURN_IF_ERROR(
        model.inputs_->Initialize(Tensor::Zeros({w_ctr::kDense + 1}))
            .Wait(kTimeout));
    WEFT_ASSIGN_OR_RETURN(model.dense_, model.inputs_->Pull().Wait(kTimeout));
    return model;
  }

  // The logits [n] of a batch from pulled weights [n * fields, 1] and dense
  // ones [inputs + 1].
  static Variable Logits(const Example& batch, const Variable& weights,
                         const Variable& dense) {
    const int64_t n = batch[1].size(0);
    const Variable by_row = Reshape(weights, {n, w_ctr::kFields});
    const Variable w = Slice(dense, 0, 0, w_ctr::kDense);
    const Variable bias = Slice(dense, 0, w_ctr::kDense, w_ctr::kDense + 1);
    const Variable x(batch[1]);
    return Sum(by_row, {1}) +
           Reshape(MatMul(x, Reshape(w, {w_ctr::kDense, 1})), {n}) + bias;
  }

  // One round: this trainer's part of a batch.
  absl::Status Step(const Example& batch) {
    const Tensor keys = batch[0].Reshape({-1});
    WEFT_ASSIGN_OR_RETURN(const Tensor pulled,
                          fields_->Pull(keys).Wait(kTimeout));
    const Variable weights(pulled, /*requires_grad=*/true);
    const Variable dense(dense_, /*requires_grad=*/true);
    BceWithLogits(Logits(batch, weights, dense), batch[2],
                  weft::Reduction::kSum)
        .Backward();
    // One message to each server for both tables.
    const auto results =
        ps::ExchangeEach({ps::PushOf{fields_.get(), keys, weights.grad()},
                          ps::PushPullOf{inputs_.get(), {}, dense.grad(), {}}});
    WEFT_RETURN_IF_ERROR(results[0].Wait(kTimeout).status());
    WEFT_ASSIGN_OR_RETURN(dense_, results[1].Wait(kTimeout));
    return absl::OkStatus();
  }

  absl::StatusOr<double> TestAuc(int64_t rows) {
    std::vector<double> scores;
    std::vector<float> labels;
    for (int64_t begin = 0; begin < rows; begin += 4 * kBatch) {
      WEFT_ASSIGN_OR_RETURN(
          const Example batch,
          Rows(w_ctr::kFirstTestRow + begin,
               w_ctr::kFirstTestRow + std::min(begin + 4 * kBatch, rows)));
      WEFT_ASSIGN_OR_RETURN(
          const Tensor pulled,
          fields_->Pull(batch[0].Reshape({-1})).Wait(kTimeout));
      const Variable logits = Logits(batch, Variable(pulled), Variable(dense_));
      for (float x : logits.value().ToVector<float>()) scores.push_back(x);
      for (float y : batch[2].ToVector<float>()) labels.push_back(y);
    }
    return weft::input::Auc(scores, labels);
  }

 private:
  std::unique_ptr<ps::SparseTable> fields_;
  std::unique_ptr<ps::DenseTable> inputs_;
  Tensor dense_;
};

absl::Status Run(int argc, char** argv) {
  weft::worker::Options options;
  int64_t rows = 256000;
  int64_t test_rows = 50000;
  weft::worker::Flags flags("ctr_trainer", "Learns W-CTR-v1 by sparse tables.");
  options.AddTo(flags);
  flags.Add("rows", &rows, "rows to learn, in batches of 1,024");
  flags.Add("test-rows", &test_rows, "rows to test on");
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  WEFT_RETURN_IF_ERROR(options.Resolve());
  WEFT_ASSIGN_OR_RETURN(auto worker, weft::worker::Worker::Start(options));

  ps::Client client(weft::worker::TableClientOptions(*worker, kTimeout));
  WEFT_ASSIGN_OR_RETURN(Model model, Model::Open(client, options.trainers));
  weft::telemetry::Progress::Options shown;
  shown.label = "learning";
  shown.unit = "rows";
  weft::telemetry::Progress progress(shown);
  for (int64_t begin = 0; begin < rows; begin += kBatch) {
    // Trainer r of n takes the r-th part of each batch.
    const int64_t size = std::min(kBatch, rows - begin);
    const int64_t from = begin + size * options.rank / options.trainers;
    const int64_t to = begin + size * (options.rank + 1) / options.trainers;
    WEFT_ASSIGN_OR_RETURN(const Example batch, Rows(from, to));
    WEFT_RETURN_IF_ERROR(model.Step(batch));
    progress.Update(begin + size, rows);
  }
  progress.Finish();
  if (options.rank == 0) {
    WEFT_ASSIGN_OR_RETURN(const double auc, model.TestAuc(test_rows));
    const nlohmann::ordered_json result = {{"rows", rows}, {"auc", auc}};
    std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
  }
  return worker->Shutdown().status();
}

}  // namespace

int main(int argc, char** argv) {
  weft::ExitIfError(weft::CatchToStatus([&] { return Run(argc, argv); }));
}
