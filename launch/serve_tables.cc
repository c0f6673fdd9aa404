#include "weft/launch/serve_tables.h"

#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/train/job_outcome.h"
#include "weft/train/stop_signal.h"
#include "weft/ps/server.h"
#include "weft/ps/service.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/metrics.h"
#include "weft/telemetry/status_page.h"
#include "weft/telemetry/telemetry.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kShowEvery = absl::Seconds(2);

std::string TrainerName(int rank) { return absl::StrCat("trainer", rank); }

// The state of a trainer in a view.
enum class Trainer { kToCome, kHere, kLeft, kDied };

Trainer StateOf(const rendezvous::View& view, int rank) {
  const std::string name = TrainerName(rank);
  if (view.Find(name) != nullptr) return Trainer::kHere;
  for (const rendezvous::Departed& departed : view.departed()) {
    if (departed.name == name) {
      return departed.left ? Trainer::kLeft : Trainer::kDied;
    }
  }
  return Trainer::kToCome;
}

// The incarnation of each trainer, by rank, that a server knows.
using KnownKeys = std::map<int, rendezvous::WorkerKey>;

// Rounds wait for the trainers that are here or still to come.
void TellServer(const rendezvous::View& view, int trainers, ps::Server& server,
                KnownKeys& known_keys) {
  for (int rank = 0; rank < trainers; ++rank) {
    if (const auto* member = view.Find(TrainerName(rank))) {
      // The view in which the former incarnation was gone may have been
      // skipped.
      const auto [known, is_first] = known_keys.emplace(rank, member->key);
      if (!is_first && known->second != member->key) server.DeclareDead(rank);
      known->second = member->key;
    }
    switch (StateOf(view, rank)) {
      case Trainer::kToCome:
      case Trainer::kHere:
        server.Admit(rank);
        break;
      case Trainer::kLeft:
      case Trainer::kDied:
        server.DeclareDead(rank);
        break;
    }
  }
}

bool AllGone(const rendezvous::View& view, int trainers) {
  for (int rank = 0; rank < trainers; ++rank) {
    const Trainer state = StateOf(view, rank);
    if (state == Trainer::kToCome || state == Trainer::kHere) return false;
  }
  return true;
}

// Metrics of the tables.
void Show(const ps::Server& server, telemetry::Metrics& metrics) {
  const ps::v1::ServerStats stats = server.Stats();
  for (const ps::v1::TableStats& table : stats.tables()) {
    const telemetry::Metrics::Labels label = {{"table", table.spec().name()}};
    metrics.GaugeFor("weft_ps_table_rows", label).Set(table.rows());
    metrics.GaugeFor("weft_ps_table_memory_bytes", label)
        .Set(table.memory_bytes());
    metrics.GaugeFor("weft_ps_table_version", label).Set(table.version());
  }
  server.ExportMetrics(metrics);
}

telemetry::Fields Describe(const ps::Server& server) {
  const ps::v1::ServerStats stats = server.Stats();
  telemetry::Fields fields;
  for (const ps::v1::TableStats& table : stats.tables()) {
    fields.emplace_back(
        absl::StrCat("table ", table.spec().name()),
        absl::StrCat(table.rows(), " rows, ", table.memory_bytes(),
                     " bytes, version ", table.version(),
                     table.initialized() ? "" : ", not initialized"));
  }
  return fields;
}

// Of a job that others have completed.
void WarnOfDead(const rendezvous::View& view, int trainers,
                telemetry::Telemetry& telemetry) {
  for (const rendezvous::Departed& departed : view.departed()) {
    for (int rank = 0; rank < trainers; ++rank) {
      if (departed.left || departed.name != TrainerName(rank)) continue;
      WEFT_LOG(telemetry.logger(), Warning,
               "a trainer died; others have completed the training")
          .With("trainer", departed.name)
          .With("why", departed.reason);
    }
  }
}

// Until all trainers have gone.
absl::Status Serve(worker::Worker& worker, ps::Server& server,
                   absl::FunctionRef<int()> stop_signal, absl::Duration grace) {
  const int trainers = worker.options().trainers;
  const auto follow = worker.membership().OnChange(
      [&, known_keys = KnownKeys()](
          std::shared_ptr<const rendezvous::View> view) mutable {
        TellServer(*view, trainers, server, known_keys);
      });
  const auto forget = worker.agent().OnPeerGone(
      [&server](const rpc::Agent::GonePeer& gone) { server.Forget(gone.key); });
  Instant stop_by = Instant::Infinite();
  Instant show_at;
  for (;;) {
    const auto gone = worker.membership().WaitFor(
        [&](const rendezvous::View& view) { return AllGone(view, trainers); },
        kTick);
    const Instant now = SteadyClock().Now();
    server.Expire(now);
    if (now >= show_at) {
      Show(server, worker.telemetry().metrics());
      show_at = now + kShowEvery;
    }
    if (gone.ok()) {
      const absl::Status outcome =
          train::JobOutcome(worker.membership(), trainers).Of(**gone);
      if (outcome.ok()) WarnOfDead(**gone, trainers, worker.telemetry());
      return outcome;
    }
    if (!absl::IsDeadlineExceeded(gone.status())) return gone.status();
    if (stop_by == Instant::Infinite() && stop_signal() != 0) {
      WEFT_LOG(worker.telemetry().logger(), Info,
               "asked to stop; serving until the trainers have left, for ")
          << absl::FormatDuration(grace) << " (--grace) at most; "
          << train::kEndsAtOnce;
      stop_by = now + grace;
    }
    if (now >= stop_by) {
      return worker::EndedBySignal(stop_signal(),
                                   "asked to stop while trainers were at work");
    }
  }
}

}  // namespace

absl::Status ServeTables(worker::Worker& worker, ps::Server& server,
                         absl::FunctionRef<int()> stop_signal,
                         absl::Duration grace) {
  worker.agent().SetLocal(&server);
  const auto page = worker.telemetry().status().Register(
      "ps", [&server] { return Describe(server); });
  const absl::Status ended = Serve(worker, server, stop_signal, grace);
  // The error of pending calls names the cause, and that another server may
  // be asked.
  server.Shutdown(absl::UnavailableError(
      absl::StrCat("parameter server ", worker.self().name, " shuts down",
                   ended.ok() ? "" : ": ", ended.message())));
  return ended;
}

}  // namespace weft::launch
