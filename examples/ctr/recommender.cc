// recommender: DLRM on click data. Its 26 embeddings are sparse tables, its two
// MLPs a dense one, or each trainer has them (--dense=ddp; served_model.h); a
// round is a batch of 1,024 rows, shared among the trainers. Servers may be
// killed while it trains, and it is saved meanwhile: run.sh shows both, and
// reader.cc reads what was saved.
//
//   weft run --replicas=2 --role ps=2:'parameter_server --checkpoint-dir=saved'
//     --role trainer=2:'recommender --checkpoint-dir=saved'

#include <algorithm>
#include <cstdio>
#include <memory>
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
using weft::Tensor;
using weft::input::Example;
using weft::train::Options;
using weft::train::Result;
namespace ps = weft::ps;

constexpr int64_t kBatch = 1024;

struct Settings {
  example::ClickOptions clicks;
  int tables = Dlrm::kFields;
  std::string dense = "server";        // who has the MLPs: "server" or "ddp"
  std::string durability = "applied";  // of the tables: or "logged"
};

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

// What one trainer has of a job.
class Training {
 public:
  Training(weft::train::Job& job, const Settings& settings)
      : job_(job),
        settings_(settings),
        rank_(job.worker().options().rank),
        trainers_(job.worker().options().trainers),
        client_(ClientOptionsOf(job)) {}

  absl::StatusOr<Result> Run() {
    WEFT_ASSIGN_OR_RETURN(clicks_, Clicks::Open(settings_.clicks));
    Result result;
    const absl::Status opened = Open();
    result.was_stopped =
        absl::IsCancelled(opened) && job_.options().IsAskedToStop();
    if (result.was_stopped) return result;
    WEFT_RETURN_IF_ERROR(opened);
    // Batches of one pass over the rows; the last may be smaller.
    const int64_t batches = (clicks_.rows + kBatch - 1) / kBatch;
    const int64_t rounds = batches * job_.options().epochs;
    WEFT_RETURN_IF_ERROR(Learn(batches, rounds, result));
    result.samples_per_s = pace_.total();
    // What was learned since the last snapshot, --resume learns again.
    if (rank_ != 0 || result.was_stopped) return result;
    WEFT_ASSIGN_OR_RETURN(result.score, model_->TestAuc(clicks_));
    if (checkpoints_.has_value()) {
      WEFT_ASSIGN_OR_RETURN(result.checkpoint,
                            checkpoints_->Save(rounds, model_->OwnState()));
    }
    return result;
  }

 private:
  static ps::ClientOptions ClientOptionsOf(weft::train::Job& job) {
    ps::ClientOptions options =
        weft::worker::TableClientOptions(job.worker(), absl::Minutes(2));
    // No wait for servers that are gone while the tables are opened.
    options.is_asked_to_stop = [&job] { return job.options().IsAskedToStop(); };
    return options;
  }
  bool is_averaged() const { return settings_.dense == "ddp"; }

  absl::Status Open() {
    const weft::train::Options& options = job_.options();
    if (rank_ == 0 && !options.checkpoint_dir.empty()) {
      WEFT_ASSIGN_OR_RETURN(
          checkpoints_,
          TableCheckpoints::Open(options.checkpoint_dir, options.keep,
                                 options.full_snapshot_every,
                                 options.settings.fixed, client_));
    }
    // Nobody opens a table before it is restored.
    WEFT_ASSIGN_OR_RETURN(group_, job_.JoinGroup());
    std::string resumed;
    if (checkpoints_.has_value() && options.resume) {
      WEFT_ASSIGN_OR_RETURN(resumed, checkpoints_->Restore());
    }
    WEFT_ASSIGN_OR_RETURN(resumed, group_->BroadcastBytes(resumed, 0));
    if (!is_averaged()) group_.reset();
    ServedModel::Options served;
    served.tables = settings_.tables;
    served.rank = rank_;
    served.trainers = trainers_;
    served.batch = kBatch;
    served.seed = job_.worker().options().seed;
    served.group = group_.get();
    if (settings_.durability == "logged") {
      served.durability = ps::v1::TableSpec::LOGGED;
    }
    served.asked_to_stop = [this] { return job_.options().IsAskedToStop(); };
    WEFT_ASSIGN_OR_RETURN(model_, ServedModel::Open(client_, served));
    if (resumed.empty() || !is_averaged()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(const auto own, TableCheckpoints::ReadOwnState(
                                              options.checkpoint_dir, resumed));
    return model_->LoadOwnState(own);
  }

  // Trainer r of n takes the r-th part of each batch.
  absl::StatusOr<Example> PartOf(int64_t round, int64_t batches) const {
    const int64_t begin = round % batches * kBatch;
    const int64_t size = std::min(kBatch, clicks_.rows - begin);
    return clicks_.Batch(begin + size * rank_ / trainers_,
                         begin + size * (rank_ + 1) / trainers_);
  }

  // Whether a trainer was asked to stop. Those that meet in each step end with
  // the same one.
  absl::StatusOr<bool> IsToStop() {
    const bool asked = job_.options().IsAskedToStop();
    if (group_ == nullptr) return asked;
    const Tensor all = Tensor::Full({1}, asked ? 1 : 0);
    WEFT_RETURN_IF_ERROR(group_->AllReduce(all));
    return all.data<float>()[0] > 0;
  }

  absl::Status Learn(int64_t batches, int64_t rounds, Result& result) {
    Example next;
    if (model_->round() < rounds) {
      WEFT_ASSIGN_OR_RETURN(next, PartOf(model_->round(), batches));
    }
    while (model_->round() < rounds) {
      WEFT_ASSIGN_OR_RETURN(result.was_stopped, IsToStop());
      if (result.was_stopped) return absl::OkStatus();
      const int64_t round = model_->round();
      if (checkpoints_.has_value()) {
        checkpoints_->SnapshotIfDue(round, job_.options().snapshot_every,
                                    [this] { return model_->OwnState(); });
      }
      const Example batch = std::move(next);
      const bool has_next = round + 1 < rounds;
      if (has_next) {
        WEFT_ASSIGN_OR_RETURN(next, PartOf(round + 1, batches));
      }
      const absl::Status stepped =
          model_->Step(batch, has_next ? &next : nullptr);
      if (group_ == nullptr && job_.options().IsAskedToStop()) {
        result.was_stopped = true;
        return absl::OkStatus();
      }
      WEFT_RETURN_IF_ERROR(stepped);
      const int64_t rows =
          std::min(kBatch, clicks_.rows - round % batches * kBatch);
      if (rank_ == 0) pace_.Show(model_->round(), rows);
    }
    return absl::OkStatus();
  }

  weft::train::Job& job_;
  const Settings& settings_;
  const int rank_;
  const int trainers_;
  Clicks clicks_;
  ps::Client client_;
  std::optional<TableCheckpoints> checkpoints_;
  std::unique_ptr<weft::collectives::ProcessGroup> group_;
  std::unique_ptr<ServedModel> model_;
  Pace pace_;
};

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
  flags.Add("dense", &settings.dense,
            "who has the MLPs: server, or ddp, the trainers, who average "
            "their gradients");
  flags.Add("durability", &settings.durability,
            "of the tables: applied, or logged, for which the servers want "
            "--table-log-dir");
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
  if (settings.dense != "server" && settings.dense != "ddp") {
    return weft::worker::WithExitCode(
        absl::InvalidArgumentError(
            absl::StrCat("--dense=", settings.dense, ": wanted server or ddp")),
        weft::worker::ExitCode::kUsage);
  }
  if (settings.durability != "applied" && settings.durability != "logged") {
    return weft::worker::WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                                          "--durability=", settings.durability,
                                          ": wanted applied or logged")),
                                      weft::worker::ExitCode::kUsage);
  }
  training.settings.fixed = {
      {"--tables", absl::StrCat(settings.tables)},
      {"--dense", settings.dense},
      {"--factors", absl::StrCat(settings.clicks.has_factors)}};
  training.settings.common = {
      {"--rows", absl::StrCat(settings.clicks.rows)},
      {"--criteo", settings.clicks.criteo},
      {"--skip-bad-lines", absl::StrCat(settings.clicks.skip_bad_lines)}};
  return weft::train::Run(
      worker, training,
      [&](weft::train::Job& job) { return Training(job, settings).Run(); },
      Print);
}

}  // namespace

int main(int argc, char** argv) {
  weft::ExitIfError(weft::CatchToStatus([&] { return Run(argc, argv); }));
}
