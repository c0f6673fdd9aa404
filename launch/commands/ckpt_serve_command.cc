// weft ckpt serve: exported tables for programs that only read them.

#include <signal.h>
#include <time.h>

#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/ckpt_commands.h"
#include "weft/ps/export/export_service.h"
#include "weft/ps/export/served_exports.h"
#include "weft/telemetry/logger.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace weft::launch {
namespace {

constexpr char kAbout[] =
    "Serves files of weft ckpt export until it is asked to end (SIGTERM, "
    "Ctrl-C): ps::LookUp and ps::DescribeExports,\nto an rpc::Client, weft "
    "call "
    "or the Python client. It is the only worker, ps0, of a job of its own. "
    "A file\nthat another takes the place of, as weft ckpt export does it, is "
    "served from within a second on.\n\n"
    "  weft ckpt serve words.safetensors "
    "--listen=unix:$XDG_RUNTIME_DIR/words.sock\n"
    "  weft ckpt serve words.safetensors --listen=node1:7000 --job=mnist "
    "--certs=certs\n"
    "  weft ckpt serve --follow=ckpts --tables=words,users "
    "--listen=node1:7000\n";

constexpr timespec kPollEvery = {1, 0};
constexpr absl::Duration kGoodBye = absl::Seconds(10);

absl::Status Usage(absl::string_view wanted) {
  return worker::WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                                  "weft ckpt serve: wanted ", wanted)),
                              worker::ExitCode::kUsage);
}

struct Sources {
  std::vector<std::string> files;
  std::vector<ps::ServedExports::Followed> followed;
};

absl::StatusOr<Sources> ReadFlags(int argc, char** argv,
                                  worker::Options& options) {
  worker::Flags flags("weft ckpt serve", kAbout);
  std::string follow;
  std::string tables;
  flags.Add("follow", &follow, "a directory of checkpoints");
  flags.Add("tables", &tables,
            "which of its tables, with commas between; empty: all");
  options.AddTo(flags);
  flags.AllowPositional("FILE...", /*anywhere=*/true);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  for (const char* name :
       {"role", "rank", "servers", "trainers", "workers", "replicas", "init",
        "coordinator", "coordinator-host", "coordinator-log"}) {
    if (flags.Origin(name) != "flag") continue;
    return Usage(absl::StrCat("no --", name,
                              ": it is the only worker of a job of its own; "
                              "--listen says where"));
  }
  if (flags.positional().empty() && follow.empty()) {
    return Usage("FILE..., written by weft ckpt export, or --follow=DIR");
  }
  if (follow.empty() && !tables.empty()) {
    return Usage("no --tables without --follow=DIR: a file has one");
  }
  if (options.listen.empty()) {
    return Usage("--listen=unix:PATH or --listen=HOST:PORT");
  }
  // What the environment of a rank says does not concern it.
  options.role = "ps";
  options.rank = 0;
  options.servers = 1;
  options.trainers = options.min_workers = options.max_workers = 0;
  options.replicas = 1;
  options.init.clear();
  options.coordinator = std::exchange(options.listen, "");
  options.coordinator_host = options.name();
  options.coordinator_log.clear();
  WEFT_RETURN_IF_ERROR(options.Resolve());
  Sources sources;
  sources.files = flags.positional();
  if (!follow.empty()) {
    const std::vector<std::string> names =
        absl::StrSplit(tables, ',', absl::SkipEmpty());
    const std::set<std::string> once(names.begin(), names.end());
    if (once.size() < names.size()) {
      return Usage(absl::StrCat("each table once, found --tables=", tables));
    }
    sources.followed.push_back({follow, names});
  }
  return sources;
}

void Tell(const std::vector<ps::ServedExports::Change>& changes,
          telemetry::Telemetry& telemetry) {
  for (const ps::ServedExports::Change& change : changes) {
    if (change.status.ok()) {
      WEFT_LOG(telemetry.logger(), Info,
               "another file, or checkpoint, is served")
          .With("file", change.path)
          .With("table", change.table->name())
          .With("version", change.table->version())
          .With("rows", change.table->rows());
    } else {
      WEFT_LOG(telemetry.logger(), Warning,
               "what was there before is served on: ")
          << change.status.message();
    }
  }
}

}  // namespace

absl::StatusOr<int> CkptServeCommand(int argc, char** argv) {
  worker::Options options;
  WEFT_ASSIGN_OR_RETURN(const Sources sources, ReadFlags(argc, argv, options));
  auto opened = ps::ServedExports::Open(sources.files, sources.followed);
  if (!opened.ok()) {
    if (absl::IsAlreadyExists(opened.status())) {  // a table in two places
      return worker::WithExitCode(opened.status(), worker::ExitCode::kUsage);
    }
    // Nothing is there, or a file in place of a directory; else it is damaged.
    const bool is_elsewhere = absl::IsNotFound(opened.status()) ||
                              absl::IsFailedPrecondition(opened.status());
    return worker::WithExitCode(
        opened.status(), is_elsewhere ? worker::ExitCode::kConfig
                                      : worker::ExitCode::kBadCheckpoint);
  }
  const std::shared_ptr<ps::ServedExports> exports = *std::move(opened);
  // Blocked before any thread is there, which inherit it.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<worker::Worker> worker,
                        worker::Worker::Start(std::move(options)));
  worker->agent().SetLocal(exports);
  for (const ps::ServedExports::Table& table : exports->tables()) {
    std::printf("table %s: %lld rows of dim %lld, version %lld\n",
                table->name().c_str(), static_cast<long long>(table->rows()),
                static_cast<long long>(table->dim()),
                static_cast<long long>(table->version()));
  }
  std::printf("serving at %s\n", worker->endpoint().address().c_str());
  std::fflush(stdout);
  while (sigtimedwait(&ends, nullptr, &kPollEvery) < 0) {
    Tell(exports->Poll(), worker->telemetry());
  }
  WEFT_RETURN_IF_ERROR(worker->Shutdown(kGoodBye).status());
  return 0;
}

}  // namespace weft::launch
