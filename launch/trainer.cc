// trainer: trains an image classifier, with the parameter servers of its job or
// with the other trainers only.

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/shard_tree.h"
#include "weft/device/open.h"
#include "weft/launch/address_space.h"
#include "weft/launch/image_training.h"
#include "weft/launch/standard_streams.h"
#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/update_rule.h"
#include "weft/tensor/device.h"
#include "weft/train/options.h"
#include "weft/train/run.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"

namespace {

using weft::launch::ImageTrainingOptions;
using weft::train::Result;

// No step is of use beyond it: weights are far below.
constexpr double kMostLr = 1000;

constexpr char kPs[] = "ps";
constexpr char kDdp[] = "ddp";

// A user who names no number gets one that most numbers of trainers divide.
constexpr int kShardsToBeDeterministic = 8;

absl::Status CheckDdpOptions(const weft::worker::Options& worker,
                             const ImageTrainingOptions& training) {
  if (worker.servers != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--strategy=ddp needs no parameter servers; wanted "
                     "--servers=0, found ",
                     worker.servers));
  }
  if (!training.is_sync) {
    return absl::InvalidArgumentError(
        "--async needs --strategy=ps; with ddp all trainers step together");
  }
  if (training.wire.push() != 0 || training.wire.pull() != 0) {
    return absl::InvalidArgumentError(
        "--push-dtype and --pull-dtype need --strategy=ps; with ddp gradients "
        "are averaged in f32");
  }
  if (training.virtual_shards == 0) return absl::OkStatus();
  const absl::Status shards =
      weft::ddp::CheckVirtualShards(training.virtual_shards, worker.trainers);
  if (shards.ok()) return shards;
  return absl::InvalidArgumentError(absl::StrCat(
      "--virtual-shards=", training.virtual_shards, ": ", shards.message()));
}

absl::Status CheckConsistency(const weft::worker::Options& worker,
                              const ImageTrainingOptions& training) {
  const bool has_staleness = training.staleness >= 0;
  const bool has_quorum = training.quorum != 0;
  if (!has_staleness && !has_quorum && !training.folds_late) {
    return absl::OkStatus();
  }
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(why...));
  };
  if (training.strategy != kPs) {
    return refuse("--staleness, --quorum and --late need --strategy=ps");
  }
  if (has_quorum && worker.replicas > 1) {
    return refuse("--quorum needs --replicas=1, found ", worker.replicas);
  }
  if (has_staleness && training.is_sync) {
    return refuse("--staleness=", training.staleness,
                  " needs --async: with --sync trainers wait for rounds");
  }
  if (has_quorum && !training.is_sync) {
    return refuse("--quorum=", training.quorum,
                  " needs --sync: with --async there are no rounds");
  }
  if (has_quorum &&
      (training.quorum < 1 || training.quorum > worker.trainers)) {
    return refuse("--quorum=", training.quorum,
                  ": wanted 1 to --trainers=", worker.trainers);
  }
  if (training.folds_late && !has_quorum) {
    return refuse("--late=fold needs --quorum: without it no gradient is late");
  }
  return absl::OkStatus();
}

absl::Status CheckRule(const ImageTrainingOptions& training) {
  const double lr = weft::optimizer::LearningRate(training.rule);
  if (!(lr > 0) || lr > kMostLr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--lr=", lr, ": wanted a number above 0 and at most ", kMostLr));
  }
  const weft::optimizer::ClipOptions& clip = training.clip;
  for (const auto& [flag, limit] : {std::make_pair("--clip-value", clip.value),
                                    std::make_pair("--clip-norm", clip.norm)}) {
    if (limit >= 0 && std::isfinite(limit)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, "=", limit, ": wanted a number of at least 0"));
  }
  WEFT_ASSIGN_OR_RETURN(const auto rule,
                        weft::optimizer::MakeRule(training.rule, clip));
  if (training.strategy == kDdp ||
      rule->scope() == weft::optimizer::Scope::kElement) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      clip.norm > 0 ? "--clip-norm" : "--optimizer=",
      clip.norm > 0 ? "" : weft::optimizer::RuleName(training.rule),
      " looks at whole rows of parameters, and the servers have this model as "
      "one vector; wanted --strategy=ddp, or another optimizer without "
      "--clip-norm"));
}

absl::Status CheckDevice(const weft::worker::Options& worker,
                         const ImageTrainingOptions& training) {
  // With servers models are trained on the CPU: that is what "auto" chooses.
  const bool is_cpu = worker.device == "cpu" || worker.device == "auto";
  if (is_cpu || training.strategy == kDdp) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--device=", worker.device,
                   ": wanted --strategy=ddp; with parameter "
                   "servers a model is trained in memory of the CPU"));
}

absl::Status CheckBackend(const weft::worker::Options& worker,
                          const ImageTrainingOptions& training) {
  const std::string& backend = training.backend.name;
  const auto refuse = [&](absl::string_view wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("--backend=", backend, ": wanted ", wanted));
  };
  if (!weft::worker::CheckBackendName(backend).ok()) {
    return refuse("host, nccl, same_device or auto");
  }
  if (backend != "nccl" && backend != "same_device") return absl::OkStatus();
  if (training.strategy != kDdp) return refuse("--strategy=ddp");
  if (worker.device == "cpu") {
    return refuse(backend == "nccl" ? "--device=cuda, whose tensors NCCL moves"
                                    : "--device=cuda or simulated, which the "
                                      "trainers of a host share");
  }
  if (worker.is_elastic()) {
    return refuse("host or auto in an elastic job, whose members change");
  }
  return absl::OkStatus();
}

absl::Status CheckPrecision(const ImageTrainingOptions& training) {
  if (training.precision != weft::DType::kF16 || training.strategy == kDdp) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--precision=f16: wanted --strategy=ddp, where all trainers skip a step "
      "whose gradients are not finite; servers apply each push. With "
      "parameter servers take --precision=bf16");
}

absl::Status CheckOptions(const weft::worker::Options& worker,
                          const ImageTrainingOptions& training) {
  const std::string& strategy = training.strategy;
  if (worker.role != "trainer") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--role=", worker.role,
        " (or WEFT_ROLE): this program is a trainer; "
        "wanted --role=trainer, or bin/parameter_server for a server"));
  }
  if (strategy != kPs && strategy != kDdp) {
    return absl::InvalidArgumentError(
        absl::StrCat("--strategy=", strategy, ": wanted ps or ddp"));
  }
  if (worker.is_elastic() &&
      (strategy != kDdp || training.virtual_shards == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers=", worker.min_workers, ":", worker.max_workers,
                     " (or WEFT_WORKERS): in an elastic job this program wants "
                     "--strategy=ddp and --virtual-shards=N"));
  }
  if (strategy == kDdp) {
    WEFT_RETURN_IF_ERROR(CheckDdpOptions(worker, training));
  } else if (worker.servers < 1 || worker.trainers < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted --servers=N and --trainers=N of at least 1, found ",
        worker.servers, " and ", worker.trainers,
        "; start servers too (weft run --role ps=1:bin/parameter_server --role "
        "trainer=2:bin/trainer), or train without any by --strategy=ddp"));
  }
  if (strategy != kDdp && training.virtual_shards != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--virtual-shards=", training.virtual_shards,
                     " needs --strategy=ddp; with parameter servers rounds "
                     "have the same bits anyway"));
  }
  if (training.batch_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch-size=", training.batch_size, ": wanted at least 1"));
  }
  WEFT_RETURN_IF_ERROR(CheckConsistency(worker, training));
  WEFT_RETURN_IF_ERROR(CheckRule(training));
  WEFT_RETURN_IF_ERROR(CheckPrecision(training));
  WEFT_RETURN_IF_ERROR(CheckBackend(worker, training));
  return CheckDevice(worker, training);
}

// One JSON object; a loss that is not finite as a string, as JSON has no number
// for it. Failures show when the result is written.
void PrintLoss(int64_t step, double loss) {
  nlohmann::ordered_json object = {{"step", step}, {"loss", loss}};
  if (!std::isfinite(loss)) object["loss"] = absl::StrCat(loss);
  std::printf("%s\n", object.dump().c_str());
  std::fflush(stdout);
}

// Prints the result. An error with ExitCode kResource if it cannot be written.
absl::Status Print(const Result& result, bool json) {
  if (!result.score.has_value()) return absl::OkStatus();
  if (json) {
    nlohmann::ordered_json object = {{"test_accuracy", *result.score},
                                     {"samples_per_s", result.samples_per_s},
                                     {"checkpoint", result.checkpoint}};
    if (result.was_stopped) object["interrupted"] = true;
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%stest accuracy %.2f %%, %.0f samples/s, checkpoint %s\n",
                result.was_stopped ? "interrupted: " : "", 100 * *result.score,
                result.samples_per_s,
                result.checkpoint.empty() ? "none" : result.checkpoint.c_str());
  }
  return weft::launch::FlushOutput();
}

absl::Status Usage(absl::string_view message) {
  return weft::worker::WithExitCode(absl::InvalidArgumentError(message),
                                    weft::worker::ExitCode::kUsage);
}

void AddRuleFlags(weft::worker::Flags& flags, ImageTrainingOptions& training,
                  double* lr) {
  flags.AddWith(
      "optimizer",
      [&training](const std::string& name) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(training.rule, weft::optimizer::RuleNamed(name));
        return absl::OkStatus();
      },
      "adam",
      "sgd, adam, adamw, adagrad, ftrl, rmsprop, adadelta, lion; with "
      "--strategy=ddp also lamb and rowwise_adagrad");
  flags.Add("lr", lr,
            "learning rate; that of adam is shown, others have a default of "
            "their own");
  flags.Add("clip-value", &training.clip.value,
            "largest magnitude of an element of the gradient; 0: any");
  flags.Add("clip-norm", &training.clip.norm,
            "with --strategy=ddp, largest norm of the gradient of a row of a "
            "parameter; 0: any");
}

void AddPrecisionFlag(weft::worker::Flags& flags,
                      ImageTrainingOptions& training) {
  flags.AddWith(
      "precision",
      [&training](const std::string& name) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(training.precision,
                              weft::launch::PrecisionNamed(name));
        return absl::OkStatus();
      },
      "f32",
      "f32, bf16 or f16: in which the forward pass computes; parameters and "
      "their gradients stay in f32. f16 needs --strategy=ddp");
}

void AddWireFlags(weft::worker::Flags& flags, ImageTrainingOptions& training) {
  flags.AddWith(
      "push-dtype",
      [&training](const std::string& name) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const auto dtype, weft::launch::DtypeNamed(name));
        training.wire.set_push(dtype);
        return absl::OkStatus();
      },
      "f32",
      "f32, f16, bf16 or int8: how gradients travel to the servers; what "
      "rounding loses of one is added to the next");
  flags.AddWith(
      "pull-dtype",
      [&training](const std::string& name) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const auto dtype, weft::launch::DtypeNamed(name));
        training.wire.set_pull(dtype);
        return absl::OkStatus();
      },
      "f32",
      "f32, f16, bf16 or int8: how parameters travel from the servers, which "
      "keep them in f32");
}

void AddConsistencyFlags(weft::worker::Flags& flags,
                         ImageTrainingOptions& training) {
  flags.AddWith(
      "staleness",
      [&training](const std::string& text) -> absl::Status {
        if (text == "none") return absl::OkStatus();
        if (absl::SimpleAtoi(text, &training.staleness) &&
            training.staleness >= 0) {
          return absl::OkStatus();
        }
        return absl::InvalidArgumentError(absl::StrCat(
            "'", text, "'; wanted a number of at least 0, or none"));
      },
      "none",
      "with --async: how many steps behind its own a trainer lets those of the "
      "others be that it trains on");
  flags.Add("quorum", &training.quorum,
            "with --sync: a round closes with the gradients of so many "
            "trainers; 0: of all");
  flags.AddWith(
      "late",
      [&training](const std::string& text) -> absl::Status {
        training.folds_late = text == "fold";
        if (text == "fold" || text == "drop") return absl::OkStatus();
        return absl::InvalidArgumentError(
            absl::StrCat("'", text, "'; allowed are drop and fold"));
      },
      "drop",
      "with --quorum: whether a gradient that comes late counts in a later "
      "round (fold) or not (drop)");
}

// Reads the flags into `options` and `training`, and checks them.
absl::Status ParseFlags(int argc, char** argv, weft::worker::Options& options,
                        ImageTrainingOptions& training) {
  bool sync = false;
  bool async = false;
  weft::worker::Flags flags("trainer",
                            "Trains a small CNN on IDX images with the "
                            "parameter servers or trainers of its job.");
  options.AddTo(flags);
  training.AddTo(flags);
  flags.Add("data", &training.data, "directory of the IDX files, .gz or not");
  flags.Add("strategy", &training.strategy,
            "ps: with parameter servers; ddp: without, gradients averaged over "
            "the trainers");
  flags.Add("sync", &sync, "rounds that wait for all trainers (the default)");
  flags.Add("async", &async, "each trainer's gradient counts as it comes");
  flags.Add("batch-size", &training.batch_size,
            "examples a step and trainer, or virtual shard");
  flags.Add("virtual-shards", &training.virtual_shards,
            "with --strategy=ddp, a power of two: the same bits with any "
            "number of trainers up to it; 0: each trainer is a shard");
  bool is_deterministic = false;
  flags.Add("deterministic", &is_deterministic,
            "with --strategy=ddp: as --virtual-shards=8, unless that is given");
  double lr = weft::optimizer::LearningRate(training.rule);
  AddRuleFlags(flags, training, &lr);
  AddWireFlags(flags, training);
  AddConsistencyFlags(flags, training);
  AddPrecisionFlag(flags, training);
  training.backend.name = "auto";
  flags.Add(
      "backend", &training.backend.name,
      "with --strategy=ddp, what moves gradients: host; nccl, from device "
      "to device; same_device, on the device that all share; auto: nccl where "
      "each trainer has a CUDA device of its own and the library is found, "
      "same_device where all are on one device. The log says what it took");
  int loss_every = 100;
  flags.Add("loss-every", &loss_every,
            "with --json, the loss of every so many steps; 0: of none");
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  // Its error has the form of --log.
  WEFT_RETURN_IF_ERROR(
      weft::launch::CheckAddressSpace(weft::launch::kWorkerAddressSpace));
  if (flags.Origin("lr") != "default" ||
      weft::optimizer::RuleName(training.rule) == "adam") {
    weft::optimizer::SetLearningRate(training.rule, lr);
  }
  if (sync && async) return Usage("wanted --sync or --async, found both");
  const bool no_sync = flags.Origin("sync") != "default" && !sync;
  const bool no_async = flags.Origin("async") != "default" && !async;
  if (no_sync && no_async) {
    return Usage("wanted --sync or --async, found --no-sync and --no-async");
  }
  if (loss_every < 0) {
    return Usage(absl::StrCat("--loss-every=", loss_every,
                              ": wanted a number of at least 0"));
  }
  training.is_sync = !async && !no_sync;
  WEFT_RETURN_IF_ERROR(options.Resolve());
  if (is_deterministic && training.virtual_shards == 0) {
    training.virtual_shards = kShardsToBeDeterministic;
  }
  if (absl::Status s = CheckOptions(options, training); !s.ok()) {
    return weft::worker::WithExitCode(s, weft::worker::ExitCode::kUsage);
  }
  WEFT_RETURN_IF_ERROR(training.Resolve(options));
  training.seed = options.seed;
  if (options.json && loss_every > 0) {
    training.on_loss = [loss_every](int64_t step, double loss) {
      if (step % loss_every == 0) PrintLoss(step, loss);
    };
  }
  return absl::OkStatus();
}

// Keeps what it opens in `training`. With ExitCode kConfig if it is not there.
absl::Status OpenDevice(const weft::worker::Options& options,
                        ImageTrainingOptions& training) {
  auto opened = weft::device::OpenDevice(options.device, options.local_rank);
  if (!opened.ok()) {
    return weft::worker::WithExitCode(
        absl::Status(opened.status().code(),
                     absl::StrCat("--device=", options.device, ": ",
                                  opened.status().message())),
        weft::worker::ExitCode::kConfig);
  }
  if (opened->context == nullptr) return absl::OkStatus();
  training.device = weft::Device(*opened->context, opened->index);
  training.devices = std::move(opened->context);
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  weft::worker::Options options;
  ImageTrainingOptions training;
  WEFT_RETURN_IF_ERROR(ParseFlags(argc, argv, options, training));
  // Before joining: a missing file is this trainer's own trouble.
  const auto data = weft::launch::LoadImageData(training);
  if (!data.ok()) {
    return weft::worker::WithExitCode(data.status(),
                                      weft::worker::ExitCode::kConfig);
  }
  training.settings = weft::launch::SettingsOf(training, *data);
  if (training.strategy == kDdp) {
    WEFT_RETURN_IF_ERROR(OpenDevice(options, training));
  }
  return weft::train::Run(
      options, training,
      [&](weft::train::Job& job) -> absl::StatusOr<Result> {
        if (training.strategy == kPs) {
          return weft::launch::TrainWithServers(job.worker(), *data, training);
        }
        return weft::launch::TrainTogether(job, *data, training);
      },
      [&](const Result& result) { return Print(result, options.json); });
}

}  // namespace

int main(int argc, char** argv) {
  weft::launch::OpenStandardStreams();
  weft::ExitIfError(weft::CatchToStatus([&] { return Run(argc, argv); }));
}
