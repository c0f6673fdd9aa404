#include "weft/launch/serve_tables.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/clock.h"
#include "weft/launch/stop_signal.h"
#include "weft/ps/server.h"
#include "weft/ps/service.h"
#include "weft/rendezvous/view.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/metrics.h"
#include "weft/telemetry/status_page.h"

namespace weft::launch {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kShowEvery = absl::Seconds(2);

std::string TrainerName(int rank) { return absl::StrCat("trainer", rank); }

// What a view says of the trainer of that rank.
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

// Rounds wait for the trainers that are here or still to come.
void TellServer(const rendezvous::View& view, int trainers,
                ps::Server& server) {
  for (int rank = 0; rank < trainers; ++rank) {
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

absl::Status HowTheyEnded(const rendezvous::View& view, int trainers) {
  std::vector<std::string> died;
  for (const rendezvous::Departed& departed : view.departed()) {
    for (int rank = 0; rank < trainers; ++rank) {
      if (departed.name == TrainerName(rank) && !departed.left) {
        died.push_back(absl::StrCat(departed.name, ": ", departed.reason));
      }
    }
  }
  if (died.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("trainers died: ", absl::StrJoin(died, "; ")));
}

// What a table's owner watches.
void Show(const ps::Server& server, telemetry::Metrics& metrics) {
  const ps::v1::ServerStats stats = server.Stats();
  for (const ps::v1::TableStats& table : stats.tables()) {
    const telemetry::Metrics::Labels label = {{"table", table.spec().name()}};
    metrics.GaugeFor("weft_ps_table_rows", label).Set(table.rows());
    metrics.GaugeFor("weft_ps_table_memory_bytes", label)
        .Set(table.memory_bytes());
    metrics.GaugeFor("weft_ps_table_version", label).Set(table.version());
  }
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

// Until all trainers have gone.
absl::Status Serve(worker::Worker& worker, ps::Server& server,
                   absl::FunctionRef<bool()> asked_to_stop,
                   absl::Duration grace) {
  const int trainers = worker.options().trainers;
  const auto follow = worker.membership().OnChange(
      [&](std::shared_ptr<const rendezvous::View> view) {
        TellServer(*view, trainers, server);
      });
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
    if (gone.ok()) return HowTheyEnded(**gone, trainers);
    if (!absl::IsDeadlineExceeded(gone.status())) return gone.status();
    if (stop_by == Instant::Infinite() && asked_to_stop()) {
      WEFT_LOG(worker.telemetry().logger(), Info,
               "asked to stop; serving until the trainers have left, for ")
          << absl::FormatDuration(grace) << " (--grace) at most; "
          << kEndsAtOnce;
      stop_by = now + grace;
    }
    if (now >= stop_by) return absl::OkStatus();
  }
}

}  // namespace

absl::Status ServeTables(worker::Worker& worker, ps::Server& server,
                         absl::FunctionRef<bool()> asked_to_stop,
                         absl::Duration grace) {
  worker.agent().SetLocal(&server);
  const auto page = worker.telemetry().status().Register(
      "ps", [&server] { return Describe(server); });
  const absl::Status ended = Serve(worker, server, asked_to_stop, grace);
  // Whoever waits here learns why, and that another server may be asked.
  server.Shutdown(absl::UnavailableError(
      absl::StrCat("parameter server ", worker.self().name, " shuts down",
                   ended.ok() ? "" : ": ", ended.message())));
  return ended;
}

}  // namespace weft::launch
