// recommender: DLRM on click data. Its 26 embeddings are sparse tables, its two
// MLPs a dense one (served_model.h); a round is a batch of 1,024 rows, shared
// among the trainers. Servers may be killed while it trains, and it is saved
// meanwhile: run.sh shows both, and reader.cc reads what was saved.
//
//   weft run --replicas=2 --role ps=2:'parameter_server --checkpoint-dir=saved'
//     --role trainer=2:'recommender --checkpoint-dir=saved'

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "examples/ctr/clicks.h"
#include "examples/ctr/dlrm.h"
#include "examples/ctr/served_model.h"
#include "examples/ctr/table_checkpoints.h"
#include "nlohmann/json.hpp"
#include "weft/weft.h"

namespace {

using example::Clicks;
using example::Dlrm;
using example::ServedModel;
using example::TableCheckpoints;
using weft::input::Example;
using weft::train::Options;
using weft::train::Result;
namespace ps = weft::ps;

constexpr int64_t kBatch = 1024;

struct Settings {
  example::ClickOptions clicks;
  int tables = Dlrm::kFields;
};

ps::ClientOptions ClientOf(weft::worker::Worker& worker) {
  ps::ClientOptions options;
  options.agent = &worker.agent();
  for (int i = 0; i < worker.options().servers; ++i) {
    options.servers.push_back(absl::StrCat("ps", i));
  }
  options.client = worker.self().incarnation;
  options.rank = worker.options().rank;
  options.timeout = absl::Minutes(2);
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
  std::optional<TableCheckpoints> checkpoints;
  if (rank == 0 && !job.options().checkpoint_dir.empty()) {
    WEFT_ASSIGN_OR_RETURN(
        checkpoints,
        TableCheckpoints::Open(job.options().checkpoint_dir, job.options().keep,
                               job.options().settings.fixed, client));
  }
  {
    // Nobody opens a table before it is restored.
    WEFT_ASSIGN_OR_RETURN(const auto group, job.JoinGroup());
    if (checkpoints.has_value() && job.options().resume) {
      WEFT_RETURN_IF_ERROR(checkpoints->Restore());
    }
    WEFT_RETURN_IF_ERROR(group->Barrier());
  }
  ServedModel::Options served;
  served.tables = settings.tables;
  served.rank = rank;
  served.trainers = trainers;
  served.batch = kBatch;
  served.seed = worker.options().seed;
  served.asked_to_stop = [&job] { return job.options().IsAskedToStop(); };
  WEFT_ASSIGN_OR_RETURN(const auto model, ServedModel::Open(client, served));
  // Batches of one pass over the rows; the last may be smaller.
  const int64_t batches = (clicks.rows + kBatch - 1) / kBatch;
  const int64_t rounds = batches * job.options().epochs;
  Result result;
  Pace pace;
  while (model->round() < rounds && !result.was_stopped) {
    if (checkpoints.has_value()) {
      checkpoints->SnapshotIfDue(model->round(), job.options().snapshot_every);
    }
    const int64_t begin = model->round() % batches * kBatch;
    const int64_t size = std::min(kBatch, clicks.rows - begin);
    // Trainer r of n takes the r-th part of each batch.
    WEFT_ASSIGN_OR_RETURN(const Example batch,
                          clicks.Batch(begin + size * rank / trainers,
                                       begin + size * (rank + 1) / trainers));
    const absl::Status stepped = model->Step(batch);
    result.was_stopped = job.options().IsAskedToStop();
    if (!result.was_stopped) WEFT_RETURN_IF_ERROR(stepped);
    if (rank == 0) pace.Show(model->round(), size);
  }
  result.samples_per_s = pace.total();
  // What was learned since the last snapshot, --resume learns again.
  if (rank != 0 || result.was_stopped) return result;
  WEFT_ASSIGN_OR_RETURN(result.score, model->TestAuc(clicks));
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
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  WEFT_RETURN_IF_ERROR(worker.Resolve());
  WEFT_RETURN_IF_ERROR(training.Resolve(worker));
  WEFT_RETURN_IF_ERROR(settings.clicks.Check());
  if (settings.tables < 1 || settings.tables > Dlrm::kFields) {
    return weft::worker::WithExitCode(
        absl::InvalidArgumentError(
            absl::StrCat("--tables=", settings.tables, ": wanted 1 to 26")),
        weft::worker::ExitCode::kUsage);
  }
  training.settings.fixed = {
      {"--tables", absl::StrCat(settings.tables)},
      {"--factors", absl::StrCat(settings.clicks.has_factors)}};
  training.settings.common = {
      {"--rows", absl::StrCat(settings.clicks.rows)},
      {"--criteo", settings.clicks.criteo},
      {"--skip-bad-lines", absl::StrCat(settings.clicks.skip_bad_lines)}};
  return weft::train::Run(
      worker, training,
      [&](weft::train::Job& job) { return Train(job, settings); }, Print);
}

}  // namespace

int main(int argc, char** argv) {
  weft::ExitIfError(weft::CatchToStatus([&] { return Run(argc, argv); }));
}
