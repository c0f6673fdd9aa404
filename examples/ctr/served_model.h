// ServedModel: a Dlrm whose embeddings are rows of sparse tables on servers;
// beside them is the ledger. Its MLPs are a dense table there, or each trainer
// has them and DDP averages their gradients. A round adds up the gradients of
// all trainers.

#ifndef WEFT_EXAMPLES_CTR_SERVED_MODEL_H_
#define WEFT_EXAMPLES_CTR_SERVED_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
    // Of all tables.
    weft::ps::v1::TableSpec::Durability durability =
        weft::ps::v1::TableSpec::APPLIED;
    // All trainers, which then have the MLPs themselves; null: servers do. It
    // must outlive the model.
    weft::collectives::ProcessGroup* group = nullptr;
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
    weft::ps::v1::TableSpec of_ledger = ledger::Spec(options.trainers);
    of_ledger.set_durability(options.durability);
    WEFT_ASSIGN_OR_RETURN(model->ledger_, client.Sparse(of_ledger));
    weft::ps::LookupsOptions lookups;
    lookups.timeout = kTimeout;
    for (const auto& table : model->embeddings_) {
      lookups.tables.push_back(table.get());
    }
    lookups.tables.push_back(model->ledger_.get());
    model->lookups_.emplace(std::move(lookups));
    WEFT_RETURN_IF_ERROR(options.group == nullptr ? model->OpenServed(client)
                                                  : model->OpenAveraged());
    return model;
  }

  // The round that the next step belongs to.
  int64_t round() const { return ledger_->round(); }

  // Gives this trainer's part of a round: rows {keys, dense, label}. `next`:
  // those of the step after this one, so that their embeddings come behind this
  // round; null: there is none. Once it returns, the round is closed, of all
  // tables, if the MLPs are a table: their part goes last, when the servers
  // have this trainer's others, and is answered once they have that of each
  // trainer.
  absl::Status Step(const weft::input::Example& rows,
                    const weft::input::Example* next) {
    const ledger::Part entries = EntriesOf(round());
    WEFT_ASSIGN_OR_RETURN(std::vector<weft::Variable> looked_up,
                          lookups_->Embeddings(LookUpsOf(rows, entries)));
    // The gradient of the ledger's rows is to be what it enters.
    const weft::Variable entered =
        weft::Sum(looked_up.back() * weft::Variable(entries.gradients));
    looked_up.pop_back();
    const weft::Variable sum =
        BceWithLogits(Logits(rows, looked_up), rows[2], weft::Reduction::kSum);
    // Added up over all trainers, this is the gradient of the mean; DDP, and
    // then the embeddings, have the mean over the trainers.
    const int divided = hybrid_.has_value() ? options_.trainers : 1;
    const weft::Variable loss = sum * (static_cast<double>(divided) /
                                       static_cast<double>(options_.batch)) +
                                entered;
    if (next != nullptr) {
      WEFT_RETURN_IF_ERROR(
          lookups_->Prefetch(LookUpsOf(*next, EntriesOf(round() + 1))));
    }
    if (hybrid_.has_value()) return hybrid_->Step(loss);
    loss.Backward();
    WEFT_RETURN_IF_ERROR(Await(lookups_->CommitAsync()));
    WEFT_ASSIGN_OR_RETURN(weft::Tensor values,
                          Await(mlp_->PushPull(parameters_->TakeGradient())));
    return parameters_->AdoptValues(std::move(values));
  }

  // On the test rows, `batch` * 4 of them at a time.
  absl::StatusOr<double> TestAuc(const Clicks& clicks) {
    const weft::NoGradScope no_grad;
    std::vector<double> scores;
    std::vector<float> labels;
    const int64_t most = 4 * options_.batch;
    for (int64_t begin = 0; begin < clicks.test_rows; begin += most) {
      const int64_t end = std::min(begin + most, clicks.test_rows);
      WEFT_ASSIGN_OR_RETURN(
          const weft::input::Example rows,
          clicks.Batch(clicks.first_test + begin, clicks.first_test + end));
      WEFT_ASSIGN_OR_RETURN(const std::vector<weft::Variable> looked_up,
                            lookups_->Embeddings(LookUpsOf(rows)));
      const weft::Variable logits = Logits(rows, looked_up);
      for (float x : logits.value().ToVector<float>()) scores.push_back(x);
      for (float y : rows[2].ToVector<float>()) labels.push_back(y);
    }
    return weft::input::Auc(scores, labels);
  }

  // What this trainer has beside the tables, for a checkpoint: MLPs and
  // optimizer, or nothing.
  weft::checkpoint::NamedTensors OwnState() const {
    weft::checkpoint::NamedTensors state;
    if (optimizer_ == nullptr) return state;
    for (const auto& [name, value] : net_.StateDict()) {
      state[absl::StrCat(kModel, name)] = value;
    }
    for (const auto& [name, value] : optimizer_->StateDict()) {
      state[absl::StrCat(kOptimizer, name)] = value;
    }
    return state;
  }
  absl::Status LoadOwnState(const weft::checkpoint::NamedTensors& state) {
    weft::nn::StateDict model, optimizer;
    for (const auto& [name, value] : state) {
      const size_t slash = name.find('/');
      if (slash == std::string::npos) continue;
      const std::string rest = name.substr(slash + 1);
      (name.substr(0, slash + 1) == kModel ? model : optimizer)[rest] = value;
    }
    WEFT_RETURN_IF_ERROR(net_.LoadStateDict(model));
    return optimizer_->LoadStateDict(optimizer);
  }

 private:
  static constexpr absl::Duration kTimeout = absl::Minutes(2);
  static constexpr double kLearningRate = 2e-3;  // of the MLPs
  static constexpr char kModel[] = "model/";
  static constexpr char kOptimizer[] = "optimizer/";

  explicit ServedModel(const Options& options)
      : options_(options), random_(options.seed), net_(random_) {}

  absl::Status OpenServed(weft::ps::Client& client) {
    parameters_.emplace(net_);
    WEFT_ASSIGN_OR_RETURN(mlp_, client.Dense(MlpSpec()));
    // Each trainer proposes the same.
    WEFT_RETURN_IF_ERROR(Await(mlp_->Initialize(parameters_->Values())));
    WEFT_ASSIGN_OR_RETURN(weft::Tensor values, Await(mlp_->Pull()));
    return parameters_->AdoptValues(std::move(values));
  }
  absl::Status OpenAveraged() {
    WEFT_ASSIGN_OR_RETURN(ddp_, weft::ddp::DistributedDataParallel::Create(
                                    net_, *options_.group));
    WEFT_ASSIGN_OR_RETURN(optimizer_,
                          weft::optimizer::Optimizer::Create(
                              {{weft::optimizer::AdamOptions{kLearningRate},
                                net_.NamedParameters()}}));
    hybrid_.emplace(weft::ps::HybridParts{ddp_.get(), options_.group,
                                          optimizer_.get(), &*lookups_});
    return absl::OkStatus();
  }

  weft::ps::v1::TableSpec Spec(const std::string& name) const {
    using weft::ps::v1::TableSpec;
    TableSpec spec;
    spec.set_name(name);
    spec.set_mode(TableSpec::SYNC);
    spec.set_shards(options_.trainers);
    spec.set_reduction(options_.group == nullptr ? TableSpec::SUM
                                                 : TableSpec::MEAN);
    spec.set_orphans(TableSpec::WAIT);
    spec.set_durability(options_.durability);
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
    spec.set_elements(parameters_->elements());
    spec.mutable_rule()->mutable_adam()->set_lr(kLearningRate);
    return spec;
  }

  // The embeddings of a batch, by table [n, fields of it, kDim].
  std::vector<weft::ps::LookUp> LookUpsOf(
      const weft::input::Example& rows) const {
    std::vector<weft::ps::LookUp> look_ups;
    for (int t = 0; t < options_.tables; ++t) {
      look_ups.push_back(
          {embeddings_[t].get(),
           rows[0].Slice(1, FirstField(t), FirstField(t + 1)).Contiguous()});
    }
    return look_ups;
  }
  // The same, and those of the ledger last.
  std::vector<weft::ps::LookUp> LookUpsOf(const weft::input::Example& rows,
                                          const ledger::Part& entries) const {
    std::vector<weft::ps::LookUp> look_ups = LookUpsOf(rows);
    look_ups.push_back({ledger_.get(), entries.keys});
    return look_ups;
  }
  ledger::Part EntriesOf(int64_t round) const {
    return ledger::PartOf(round, options_.rank, options_.trainers);
  }

  weft::Variable Logits(const weft::input::Example& rows,
                        const std::vector<weft::Variable>& embeddings) {
    return net_.Forward(rows[1], weft::Concat(embeddings, 1));
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
  std::vector<std::unique_ptr<weft::ps::SparseTable>> embeddings_;
  std::unique_ptr<weft::ps::SparseTable> ledger_;
  std::optional<weft::ps::Lookups> lookups_;
  // With the MLPs on servers.
  std::optional<weft::ps::FlatParameters> parameters_;  // of net_
  std::unique_ptr<weft::ps::DenseTable> mlp_;
  // With a group.
  std::unique_ptr<weft::ddp::DistributedDataParallel> ddp_;
  std::unique_ptr<weft::optimizer::Optimizer> optimizer_;
  std::optional<weft::ps::HybridStep> hybrid_;
};

}  // namespace example

#endif  // WEFT_EXAMPLES_CTR_SERVED_MODEL_H_
