// recommender: DLRM on click data. Its 26 embeddings are sparse tables, its two
// MLPs a dense one; a round is a batch of 1,024 rows, shared among the
// trainers. Servers may be killed while it trains, and it is saved meanwhile:
// run.sh shows both, and reader.cc reads what was saved.
//
//   weft run --replicas=2 --role ps=2:'parameter_server --checkpoint-dir=saved'
//     --role trainer=2:'recommender --checkpoint-dir=saved'

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "examples/ctr/clicks.h"
#include "examples/ctr/dlrm.h"
#include "examples/ctr/ledger.h"
#include "nlohmann/json.hpp"
#include "weft/weft.h"

namespace {

using example::Clicks;
using example::Dlrm;
using weft::Tensor;
using weft::Variable;
using weft::checkpoint::CheckpointDirectory;
using weft::checkpoint::FileRecord;
using weft::input::Example;
using weft::train::Options;
using weft::train::Result;
namespace ledger = example::ledger;
namespace ps = weft::ps;

constexpr int64_t kBatch = 1024;
constexpr absl::Duration kTimeout = absl::Minutes(2);

struct Settings {
  example::ClickOptions clicks;
  int tables = 26;
  absl::Duration snapshot_every = absl::Minutes(1);
};

ps::v1::TableSpec Spec(const std::string& name, int trainers) {
  ps::v1::TableSpec spec;
  spec.set_name(name);
  spec.set_mode(ps::v1::TableSpec::SYNC);
  spec.set_shards(trainers);
  spec.set_reduction(ps::v1::TableSpec::SUM);
  spec.set_orphans(ps::v1::TableSpec::WAIT);
  return spec;
}

// The model, most of which the servers have.
class Model {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Open(ps::Client& client,
                                                     int tables, int rank,
                                                     int trainers,
                                                     uint64_t seed) {
    auto model =
        std::unique_ptr<Model>(new Model(tables, rank, trainers, seed));
    for (int t = 0; t < tables; ++t) {
      ps::v1::TableSpec spec = Spec(absl::StrCat("embedding", t), trainers);
      spec.set_kind(ps::v1::TableSpec::SPARSE);
      spec.set_dim(Dlrm::kDim);
      spec.mutable_initializer()->set_kind(ps::v1::Initializer::NORMAL);
      spec.mutable_initializer()->set_scale(0.01);
      auto* adagrad = spec.mutable_rule()->mutable_adagrad();
      adagrad->set_lr(0.05);
      // Gradients are those of a mean over kBatch rows.
      adagrad->set_initial_accumulator(0.1 / (kBatch * kBatch));
      adagrad->set_epsilon(0);
      WEFT_ASSIGN_OR_RETURN(model->embeddings_.emplace_back(),
                            client.Sparse(spec));
    }
    ps::v1::TableSpec spec = Spec("mlp", trainers);
    spec.set_kind(ps::v1::TableSpec::DENSE);
    spec.set_elements(model->parameters_.elements());
    spec.mutable_rule()->mutable_adam()->set_lr(1e-3);
    WEFT_ASSIGN_OR_RETURN(model->mlp_, client.Dense(spec));
    WEFT_ASSIGN_OR_RETURN(model->ledger_,
                          client.Sparse(ledger::Spec(trainers)));
    WEFT_RETURN_IF_ERROR(
        model->mlp_->Initialize(model->parameters_.Values()).Wait(kTimeout));
    return model;
  }

  int64_t round() const { return mlp_->round(); }

  // Gives this trainer's part `batch` of a round that has `rows` in all.
  // kCancelled once asked to stop.
  absl::Status Step(const Example& batch, int64_t rows,
                    const Options& options) {
    WEFT_ASSIGN_OR_RETURN(const Pulled pulled, Pull(batch, options));
    const Variable loss = BceWithLogits(Logits(batch, pulled.weights), batch[2],
                                        weft::Reduction::kSum);
    (loss / static_cast<double>(rows)).Backward();
    std::vector<ps::PushOf> pushes;
    for (size_t t = 0; t < embeddings_.size(); ++t) {
      pushes.push_back(
          {embeddings_[t].get(), pulled.keys[t], pulled.weights[t].grad()});
    }
    const ledger::Part entries = ledger::PartOf(round(), rank_, trainers_);
    pushes.push_back({ledger_.get(), entries.keys, entries.gradients});
    pushes.push_back({mlp_.get(), {}, parameters_.TakeGradient()});
    return Await(ps::PushMany(std::move(pushes)), options);
  }

  absl::StatusOr<double> TestAuc(const Clicks& clicks, const Options& options) {
    std::vector<double> scores;
    std::vector<float> labels;
    for (int64_t begin = 0; begin < clicks.test_rows; begin += 4 * kBatch) {
      const int64_t end = std::min(begin + 4 * kBatch, clicks.test_rows);
      WEFT_ASSIGN_OR_RETURN(
          const Example batch,
          clicks.Batch(clicks.first_test + begin, clicks.first_test + end));
      WEFT_ASSIGN_OR_RETURN(const Pulled pulled, Pull(batch, options));
      const Variable logits = Logits(batch, pulled.weights);
      for (float x : logits.value().ToVector<float>()) scores.push_back(x);
      for (float y : batch[2].ToVector<float>()) labels.push_back(y);
    }
    return weft::input::Auc(scores, labels);
  }

 private:
  Model(int tables, int rank, int trainers, uint64_t seed)
      : random_(seed),
        net_(random_),
        parameters_(net_),
        tables_(tables),
        rank_(rank),
        trainers_(trainers) {}

  // A round may take as long as a server takes to come back.
  template <typename T>
  static auto Await(const weft::Future<T>& future, const Options& options)
      -> decltype(future.Wait(kTimeout)) {
    while (!future.IsReady()) {
      if (options.IsAskedToStop()) return absl::CancelledError("asked to stop");
      (void)future.Wait(absl::Milliseconds(200));
    }
    return future.Wait(kTimeout);
  }

  // Table t has the fields [FirstField(t), FirstField(t + 1)).
  int64_t FirstField(int64_t t) const { return Dlrm::kFields * t / tables_; }

  struct Pulled {
    std::vector<Tensor> keys;       // by table
    std::vector<Variable> weights;  // their rows
  };
  // What a batch needs, after all rounds that this trainer has given parts of.
  absl::StatusOr<Pulled> Pull(const Example& batch, const Options& options) {
    Pulled pulled;
    std::vector<ps::PullOf> pulls;
    for (int t = 0; t < tables_; ++t) {
      const Tensor keys = batch[0].Slice(1, FirstField(t), FirstField(t + 1));
      pulled.keys.push_back(keys.Contiguous().Reshape({-1}));
      pulls.push_back({embeddings_[t].get(), pulled.keys.back()});
    }
    pulls.push_back({mlp_.get()});
    WEFT_ASSIGN_OR_RETURN(std::vector<Tensor> values,
                          Await(ps::PullMany(std::move(pulls)), options));
    WEFT_RETURN_IF_ERROR(parameters_.AdoptValues(std::move(values.back())));
    values.pop_back();
    for (const Tensor& rows : values) {
      pulled.weights.emplace_back(rows, /*requires_grad=*/true);
    }
    return pulled;
  }

  Variable Logits(const Example& batch, const std::vector<Variable>& weights) {
    const int64_t n = batch[1].size(0);
    std::vector<Variable> by_field;
    for (int t = 0; t < tables_; ++t) {
      by_field.push_back(Reshape(
          weights[t], {n, FirstField(t + 1) - FirstField(t), Dlrm::kDim}));
    }
    return net_.Forward(batch[1], weft::Concat(by_field, 1));
  }

  weft::Generator random_;
  Dlrm net_;
  ps::FlatParameters parameters_;  // of net_
  const int tables_, rank_, trainers_;
  std::vector<std::unique_ptr<ps::SparseTable>> embeddings_;
  std::unique_ptr<ps::DenseTable> mlp_;
  std::unique_ptr<ps::SparseTable> ledger_;
};

// Checkpoints of all tables, of one trainer.
class Checkpoints {
 public:
  static absl::StatusOr<Checkpoints> Open(const std::string& path, int keep,
                                          ps::Client& client) {
    WEFT_RETURN_IF_ERROR(client.CheckCheckpointDirectory(path));
    CheckpointDirectory::Options options;
    options.path = path;
    options.keep_last = keep;
    WEFT_ASSIGN_OR_RETURN(auto directory, CheckpointDirectory::Open(options));
    return Checkpoints(std::move(directory), client);
  }

  // The newest that is whole; without one nothing is done.
  absl::Status Restore() {
    WEFT_ASSIGN_OR_RETURN(const auto names, directory_->List());
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      if (!directory_->Verify(*name).ok()) continue;
      std::fprintf(stderr, "resuming from %s\n", name->c_str());
      return client_->Restore(directory_->path(), *name);
    }
    return absl::OkStatus();
  }

  // Between two rounds, before the caller gives its part of `round`: ends the
  // snapshot that the servers have written, if they have, and begins one if the
  // last was begun `every` ago. A server that dies meanwhile fails it; the next
  // one follows at once.
  void SnapshotIfDue(int64_t round, absl::Duration every) {
    if (files_.has_value() && files_->IsReady()) {
      End(files_->Wait(kTimeout));
      files_.reset();
    }
    if (files_.has_value() || every <= absl::ZeroDuration() ||
        absl::Now() < last_ + every) {
      return;
    }
    last_ = absl::Now();
    auto files = Begin(round);
    if (files.ok()) {
      files_ = *std::move(files);
    } else {
      End(files.status());
    }
  }

  // The name of the last one, for which it waits.
  absl::StatusOr<std::string> Save(int64_t round) {
    if (files_.has_value()) End(files_->Wait(kTimeout));
    WEFT_ASSIGN_OR_RETURN(const std::string attempt, directory_->Begin(round));
    WEFT_ASSIGN_OR_RETURN(auto files,
                          client_->Save(directory_->path(), attempt, round));
    return directory_->Commit(attempt, std::move(files), {});
  }

 private:
  using Files = std::vector<FileRecord>;

  Checkpoints(std::unique_ptr<CheckpointDirectory> directory,
              ps::Client& client)
      : directory_(std::move(directory)), client_(&client) {}

  absl::StatusOr<weft::Future<Files>> Begin(int64_t round) {
    WEFT_ASSIGN_OR_RETURN(attempt_, directory_->Begin(round));
    return client_->Snapshot(directory_->path(), attempt_, round, kTimeout);
  }
  void End(absl::StatusOr<Files> files) {
    absl::StatusOr<std::string> name = files.status();
    if (files.ok()) {
      name = directory_->Commit(attempt_, *std::move(files), {});
    }
    std::fprintf(stderr, "snapshot: %s\n",
                 name.ok() ? name->c_str() : name.status().ToString().c_str());
    if (name.ok()) return;
    directory_->Abandon(attempt_);
    last_ = absl::InfinitePast();
  }

  std::unique_ptr<CheckpointDirectory> directory_;
  ps::Client* client_;
  absl::Time last_ = absl::Now();
  std::string attempt_;
  std::optional<weft::Future<Files>> files_;  // of attempt_
};

ps::ClientOptions ClientOf(weft::worker::Worker& worker) {
  ps::ClientOptions options;
  options.agent = &worker.agent();
  for (int i = 0; i < worker.options().servers; ++i) {
    options.servers.push_back(absl::StrCat("ps", i));
  }
  options.client = worker.self().incarnation;
  options.rank = worker.options().rank;
  options.timeout = kTimeout;
  options.replicas = worker.options().replicas;
  return options;
}

// A line of JSON each second: how fast rows are learned.
class Pace {
 public:
  void Show(int64_t round, int64_t rows) {
    rows_ += rows;
    const absl::Time now = absl::Now();
    if (now < since_ + absl::Seconds(1)) return;
    std::printf(
        "{\"second\":%.1f,\"round\":%ld,\"rows_per_s\":%.0f}\n",
        absl::ToDoubleSeconds(now - begun_), static_cast<long>(round),
        static_cast<double>(rows_) / absl::ToDoubleSeconds(now - since_));
    std::fflush(stdout);
    total_ += std::exchange(rows_, 0);
    since_ = now;
  }
  double total() const {
    return static_cast<double>(total_ + rows_) /
           absl::ToDoubleSeconds(absl::Now() - begun_);
  }

 private:
  const absl::Time begun_ = absl::Now();
  absl::Time since_ = begun_;
  int64_t rows_ = 0, total_ = 0;
};

absl::StatusOr<Result> Train(weft::train::Job& job, const Settings& settings) {
  weft::worker::Worker& worker = job.worker();
  const int rank = worker.options().rank;
  const int trainers = worker.options().trainers;
  WEFT_ASSIGN_OR_RETURN(const Clicks clicks, Clicks::Open(settings.clicks));
  ps::Client client(ClientOf(worker));
  std::optional<Checkpoints> checkpoints;
  if (rank == 0 && !job.options().checkpoint_dir.empty()) {
    WEFT_ASSIGN_OR_RETURN(checkpoints,
                          Checkpoints::Open(job.options().checkpoint_dir,
                                            job.options().keep, client));
  }
  {
    // Nobody opens a table before it is restored.
    WEFT_ASSIGN_OR_RETURN(const auto group, job.JoinGroup());
    if (checkpoints.has_value() && job.options().resume) {
      WEFT_RETURN_IF_ERROR(checkpoints->Restore());
    }
    WEFT_RETURN_IF_ERROR(group->Barrier());
  }
  WEFT_ASSIGN_OR_RETURN(const auto model,
                        Model::Open(client, settings.tables, rank, trainers,
                                    worker.options().seed));
  // Batches of one pass over the rows; the last may be smaller.
  const int64_t batches = (clicks.rows + kBatch - 1) / kBatch;
  const int64_t rounds = batches * job.options().epochs;
  Result result;
  Pace pace;
  while (model->round() < rounds && !result.was_stopped) {
    if (checkpoints.has_value()) {
      checkpoints->SnapshotIfDue(model->round(), settings.snapshot_every);
    }
    const int64_t begin = model->round() % batches * kBatch;
    const int64_t size = std::min(kBatch, clicks.rows - begin);
    // Trainer r of n takes the r-th part of each batch.
    WEFT_ASSIGN_OR_RETURN(const Example batch,
                          clicks.Batch(begin + size * rank / trainers,
                                       begin + size * (rank + 1) / trainers));
    const absl::Status stepped = model->Step(batch, size, job.options());
    result.was_stopped = job.options().IsAskedToStop();
    if (!result.was_stopped) WEFT_RETURN_IF_ERROR(stepped);
    if (rank == 0) pace.Show(model->round(), size);
  }
  result.samples_per_s = pace.total();
  // What was learned since the last snapshot, --resume learns again.
  if (rank != 0 || result.was_stopped) return result;
  WEFT_ASSIGN_OR_RETURN(result.score, model->TestAuc(clicks, job.options()));
  if (checkpoints.has_value()) {
    WEFT_ASSIGN_OR_RETURN(result.checkpoint, checkpoints->Save(rounds));
  }
  return result;
}

absl::Status Print(const Result& result) {
  if (!result.score.has_value()) return absl::OkStatus();
  const nlohmann::ordered_json line = {{"auc", *result.score},
                                       {"rows_per_s", result.samples_per_s},
                                       {"checkpoint", result.checkpoint}};
  std::printf("%s\n", line.dump().c_str());
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  weft::worker::Options worker;
  Options training;
  training.epochs = 1;
  Settings settings;
  weft::worker::Flags flags("recommender", "Learns click data by DLRM.");
  worker.AddTo(flags);
  training.AddTo(flags);
  settings.clicks.AddTo(flags);
  flags.Add("tables", &settings.tables,
            "embedding tables among which the 26 fields are shared");
  flags.Add("snapshot-every", &settings.snapshot_every,
            "how often a checkpoint is begun while rounds go on; 0: never");
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  WEFT_RETURN_IF_ERROR(worker.Resolve());
  WEFT_RETURN_IF_ERROR(training.Resolve(worker));
  if (settings.tables < 1 || settings.tables > Dlrm::kFields) {
    return weft::worker::WithExitCode(
        absl::InvalidArgumentError(
            absl::StrCat("--tables=", settings.tables, ": wanted 1 to 26")),
        weft::worker::ExitCode::kUsage);
  }
  training.settings.fixed = {{"--tables", absl::StrCat(settings.tables)},
                             {"--rows", absl::StrCat(settings.clicks.rows)},
                             {"--criteo", settings.clicks.criteo}};
  return weft::train::Run(
      worker, training,
      [&](weft::train::Job& job) { return Train(job, settings); }, Print);
}

}  // namespace

int main(int argc, char** argv) {
  weft::ExitIfError(weft::CatchToStatus([&] { return Run(argc, argv); }));
}
