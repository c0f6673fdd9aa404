// ServedModel: a Dlrm that servers have: its embeddings are rows of sparse
// tables, its MLPs a dense one, and beside them is the ledger. A round adds up
// the gradients of all trainers.

#ifndef WEFT_EXAMPLES_CTR_SERVED_MODEL_H_
#define WEFT_EXAMPLES_CTR_SERVED_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/ctr/clicks.h"
#include "examples/ctr/dlrm.h"
#include "examples/ctr/ledger.h"
#include "weft/weft.h"

namespace example {

// Thread-safety: one thread at a time.
class ServedModel {
 public:
  struct Options {
    int tables = Dlrm::kFields;  // among which the 26 fields are shared
    int rank = 0;                // of this trainer
    int trainers = 1;
    int64_t batch = 1024;  // rows of a round
    uint64_t seed = 1;     // of the MLPs' first values
    // Asked while a round is awaited, which may take as long as a server takes
    // to come back: once true, Step ends with kCancelled.
    std::function<bool()> asked_to_stop;
  };

  // Makes the tables, or finds them there. `client` must outlive the model.
  static absl::StatusOr<std::unique_ptr<ServedModel>> Open(
      weft::ps::Client& client, const Options& options) {
    auto model = std::unique_ptr<ServedModel>(new ServedModel(options));
    for (int t = 0; t < options.tables; ++t) {
      WEFT_ASSIGN_OR_RETURN(model->embeddings_.emplace_back(),
                            client.Sparse(model->EmbeddingSpec(t)));
    }
    WEFT_ASSIGN_OR_RETURN(model->mlp_, client.Dense(model->MlpSpec()));
    WEFT_ASSIGN_OR_RETURN(model->ledger_,
                          client.Sparse(ledger::Spec(options.trainers)));
    // Each trainer proposes the same.
    WEFT_RETURN_IF_ERROR(
        model->mlp_->Initialize(model->parameters_.Values()).Wait(kTimeout));
    WEFT_ASSIGN_OR_RETURN(weft::Tensor values,
                          model->mlp_->Pull().Wait(kTimeout));
    WEFT_RETURN_IF_ERROR(model->parameters_.AdoptValues(std::move(values)));
    return model;
  }

  // The round that the next step belongs to.
  int64_t round() const { return mlp_->round(); }

  // Gives this trainer's part of a round: rows {keys, dense, label}. Once it
  // returns, the round is closed, of all tables: the MLPs' part goes last, when
  // the servers have this trainer's others, and is answered once they have that
  // of each trainer.
  absl::Status Step(const weft::input::Example& rows) {
    WEFT_ASSIGN_OR_RETURN(const Pulled pulled, Pull(rows));
    const weft::Variable loss = BceWithLogits(Logits(rows, pulled.weights),
                                              rows[2], weft::Reduction::kSum);
    // Added up over all trainers, this is the gradient of the mean.
    (loss / static_cast<double>(options_.batch)).Backward();
    std::vector<weft::ps::PushOf> pushes;
    for (int t = 0; t < options_.tables; ++t) {
      pushes.push_back(
          {embeddings_[t].get(), pulled.keys[t], pulled.weights[t].grad()});
    }
    const ledger::Part entries =
        ledger::PartOf(round(), options_.rank, options_.trainers);
    pushes.push_back({ledger_.get(), entries.keys, entries.gradients});
    WEFT_RETURN_IF_ERROR(Await(weft::ps::PushMany(std::move(pushes))));
    WEFT_ASSIGN_OR_RETURN(weft::Tensor values,
                          Await(mlp_->PushPull(parameters_.TakeGradient())));
    return parameters_.AdoptValues(std::move(values));
  }

  // On the test rows, `batch` * 4 of them at a time.
  absl::StatusOr<double> TestAuc(const Clicks& clicks) {
    std::vector<double> scores;
    std::vector<float> labels;
    const int64_t most = 4 * options_.batch;
    for (int64_t begin = 0; begin < clicks.test_rows; begin += most) {
      const int64_t end = std::min(begin + most, clicks.test_rows);
      WEFT_ASSIGN_OR_RETURN(
          const weft::input::Example rows,
          clicks.Batch(clicks.first_test + begin, clicks.first_test + end));
      WEFT_ASSIGN_OR_RETURN(const Pulled pulled, Pull(rows));
      const weft::Variable logits = Logits(rows, pulled.weights);
      for (float x : logits.value().ToVector<float>()) scores.push_back(x);
      for (float y : rows[2].ToVector<float>()) labels.push_back(y);
    }
    return weft::input::Auc(scores, labels);
  }

 private:
  static constexpr absl::Duration kTimeout = absl::Minutes(2);

  struct Pulled {
    std::vector<weft::Tensor> keys;       // i64 [n * fields], by table
    std::vector<weft::Variable> weights;  // their rows [n * fields, kDim]
  };

  explicit ServedModel(const Options& options)
      : options_(options),
        random_(options.seed),
        net_(random_),
        parameters_(net_) {}

  weft::ps::v1::TableSpec Spec(const std::string& name) const {
    using weft::ps::v1::TableSpec;
    TableSpec spec;
    spec.set_name(name);
    spec.set_mode(TableSpec::SYNC);
    spec.set_shards(options_.trainers);
    spec.set_reduction(TableSpec::SUM);
    spec.set_orphans(TableSpec::WAIT);
    return spec;
  }
  weft::ps::v1::TableSpec EmbeddingSpec(int table) const {
    weft::ps::v1::TableSpec spec = Spec(absl::StrCat("embedding", table));
    spec.set_kind(weft::ps::v1::TableSpec::SPARSE);
    spec.set_dim(Dlrm::kDim);
    // Each has its lock, its part of each round and its copy: many small ones
    // cost more than they help.
    spec.set_partitions(8);
    spec.mutable_initializer()->set_kind(weft::ps::v1::Initializer::NORMAL);
    spec.mutable_initializer()->set_scale(0.001);
    auto* adagrad = spec.mutable_rule()->mutable_adagrad();
    adagrad->set_lr(0.07);
    // 4 for gradients of a sum over the batch; these are those of its mean.
    const auto batch = static_cast<double>(options_.batch);
    adagrad->set_initial_accumulator(4 / (batch * batch));
    adagrad->set_epsilon(0);
    return spec;
  }
  weft::ps::v1::TableSpec MlpSpec() const {
    weft::ps::v1::TableSpec spec = Spec("mlp");
    spec.set_kind(weft::ps::v1::TableSpec::DENSE);
    spec.set_elements(parameters_.elements());
    spec.mutable_rule()->mutable_adam()->set_lr(2e-3);
    return spec;
  }

  // The embeddings of a batch, in one message to each server.
  absl::StatusOr<Pulled> Pull(const weft::input::Example& rows) {
    Pulled pulled;
    std::vector<weft::ps::PullOf> pulls;
    for (int t = 0; t < options_.tables; ++t) {
      const weft::Tensor keys =
          rows[0].Slice(1, FirstField(t), FirstField(t + 1));
      pulled.keys.push_back(keys.Contiguous().Reshape({-1}));
      pulls.push_back({embeddings_[t].get(), pulled.keys.back()});
    }
    WEFT_ASSIGN_OR_RETURN(const std::vector<weft::Tensor> values,
                          Await(weft::ps::PullMany(std::move(pulls))));
    for (const weft::Tensor& weights : values) {
      pulled.weights.emplace_back(weights, /*requires_grad=*/true);
    }
    return pulled;
  }

  weft::Variable Logits(const weft::input::Example& rows,
                        const std::vector<weft::Variable>& weights) {
    const int64_t n = rows[1].size(0);
    std::vector<weft::Variable> by_field;
    for (int t = 0; t < options_.tables; ++t) {
      by_field.push_back(Reshape(
          weights[t], {n, FirstField(t + 1) - FirstField(t), Dlrm::kDim}));
    }
    return net_.Forward(rows[1], weft::Concat(by_field, 1));
  }

  // Table t has the fields [FirstField(t), FirstField(t + 1)), whose keys name
  // the field.
  int64_t FirstField(int64_t t) const {
    return Dlrm::kFields * t / options_.tables;
  }

  template <typename T>
  auto Await(const weft::Future<T>& future) const
      -> decltype(future.Wait(kTimeout)) {
    while (!future.IsReady()) {
      if (options_.asked_to_stop != nullptr && options_.asked_to_stop()) {
        return absl::CancelledError("asked to stop");
      }
      (void)future.Wait(absl::Milliseconds(200));
    }
    return future.Wait(kTimeout);
  }

  const Options options_;
  weft::Generator random_;
  Dlrm net_;
  weft::ps::FlatParameters parameters_;  // of net_
  std::vector<std::unique_ptr<weft::ps::SparseTable>> embeddings_;
  std::unique_ptr<weft::ps::DenseTable> mlp_;
  std::unique_ptr<weft::ps::SparseTable> ledger_;
};

}  // namespace example

#endif  // WEFT_EXAMPLES_CTR_SERVED_MODEL_H_
