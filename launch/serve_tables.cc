#include "weft/launch/serve_tables.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/clock.h"
#include "weft/base/parker.h"
#include "weft/base/status_macros.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/replicated/service.h"
#include "weft/ps/replicated/table_log.h"
#include "weft/ps/server.h"
#include "weft/ps/service.h"
#include "weft/ps/waits/wait_board.h"
#include "weft/rendezvous/store.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/metrics.h"
#include "weft/telemetry/status_page.h"
#include "weft/telemetry/telemetry.h"
#include "weft/train/job_outcome.h"
#include "weft/train/stop_signal.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kShowEvery = absl::Seconds(2);
constexpr absl::Duration kTellWaitsEvery = absl::Milliseconds(500);
constexpr absl::Duration kStoreTimeout = absl::Seconds(5);
// The number of groups of partitions: a group is what moves from one server to
// another.
constexpr int kGroups = 64;

constexpr char kTrainerRole[] = "trainer";

std::string TrainerName(int rank) { return absl::StrCat(kTrainerRole, rank); }

// The rank that a name of a trainer ends with; negative: it is another's.
int RankOfTrainer(absl::string_view name) {
  int rank = -1;
  if (!absl::ConsumePrefix(&name, kTrainerRole) ||
      !absl::SimpleAtoi(name, &rank)) {
    return -1;
  }
  return rank;
}

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

// Those of a job with a fixed number, and those that are or were here: in an
// elastic job any may come.
std::set<int> TrainersIn(const rendezvous::View& view, int trainers) {
  std::set<int> ranks;
  for (int rank = 0; rank < trainers; ++rank) ranks.insert(rank);
  for (const rendezvous::Member& member : view.members()) {
    if (member.role == kTrainerRole) ranks.insert(member.rank);
  }
  for (const rendezvous::Departed& departed : view.departed()) {
    const int rank = RankOfTrainer(departed.name);
    if (rank >= 0) ranks.insert(rank);
  }
  return ranks;
}

// The incarnation of each trainer, by rank, that a server knows.
using KnownKeys = std::map<int, rendezvous::WorkerKey>;

// Rounds wait for the trainers that are here or still to come.
void TellServer(const rendezvous::View& view, int trainers, ps::Server& server,
                KnownKeys& known_keys) {
  for (const int rank : TrainersIn(view, trainers)) {
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
  const std::set<int> ranks = TrainersIn(view, trainers);
  return std::none_of(ranks.begin(), ranks.end(), [&](int rank) {
    const Trainer state = StateOf(view, rank);
    return state == Trainer::kToCome || state == Trainer::kHere;
  });
}

// What a server has to do for a table.
void ShowLoad(const ps::v1::TableLoad& table, telemetry::Metrics& metrics) {
  const telemetry::Metrics::Labels label = {{"table", table.table()}};
  const std::pair<const char*, double> sums[] = {
      {"weft_ps_requests_total", table.sum().requests()},
      {"weft_ps_rows_total", table.sum().rows()},
      {"weft_ps_bytes_total", table.sum().bytes()},
      {"weft_ps_busy_seconds_total", table.sum().busy()},
      {"weft_ps_backup_seconds_total", table.sum().backup()}};
  for (const auto& [name, sum] : sums) {
    telemetry::Counter& counter = metrics.CounterFor(name, label);
    counter.Increment(sum - counter.Value());
  }
  const double busy = table.load().busy();
  const double hottest =
      table.hottest_size() == 0 ? 0 : table.hottest(0).load().busy();
  metrics.GaugeFor("weft_ps_hottest_partition_ratio", label)
      .Set(busy > 0 ? hottest / busy : 0);
  metrics.GaugeFor("weft_ps_replication_lag_changes", label)
      .Set(static_cast<double>(table.lag()));
}

// Clocks of a table with a staleness, late parts of one with a quorum.
void ShowConsistency(const ps::v1::TableStats& table,
                     telemetry::Metrics& metrics) {
  const auto show = [&](const char* name, int64_t value,
                        telemetry::Metrics::Labels more = {}) {
    more["table"] = table.spec().name();
    metrics.GaugeFor(name, more).Set(static_cast<double>(value));
  };
  if (table.spec().has_staleness()) {
    show("weft_ps_clock_workers", table.clocks());
    show("weft_ps_clock_least", table.least_clock());
    show("weft_ps_clock_most", table.most_clock());
    show("weft_ps_clock_slowest_rank", table.slowest_rank());
  }
  if (table.spec().has_quorum()) {
    show("weft_ps_late_parts_folded", table.late_folded());
    show("weft_ps_late_parts_dropped", table.late_dropped());
  }
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
    metrics.GaugeFor("weft_ps_waiting_pulls", label).Set(table.waiting_pulls());
    ShowConsistency(table, metrics);
    if (!table.spec().has_life() && table.refused_pushes() == 0) continue;
    const std::pair<const char*, int64_t> counts[] = {
        {"weft_ps_table_evicted_idle", table.evicted_idle()},
        {"weft_ps_table_evicted_full", table.evicted_full()},
        {"weft_ps_table_not_admitted", table.not_admitted()},
        {"weft_ps_table_dropped_late", table.dropped_late()},
        {"weft_ps_table_refused_pushes", table.refused_pushes()}};
    for (const auto& [name, count] : counts) {
      metrics.GaugeFor(name, label).Set(count);
    }
  }
  const ps::v1::ServerLoads loads = server.Loads();
  for (const ps::v1::TableLoad& table : loads.tables()) {
    ShowLoad(table, metrics);
  }
  server.ExportMetrics(metrics);
}

// For a table that stays bounded: the rows that it evicted and those that it
// did not make.
std::string LifeOf(const ps::v1::TableStats& table) {
  std::string text;
  if (table.spec().has_life()) {
    absl::StrAppend(&text, ", ", table.evicted_full() + table.evicted_idle(),
                    " evicted, ", table.not_admitted(), " not admitted, ",
                    table.dropped_late(), " dropped late");
  }
  if (table.refused_pushes() > 0) {
    absl::StrAppend(&text, ", ", table.refused_pushes(), " pushes refused");
  }
  return text;
}

telemetry::Fields Describe(const ps::Server& server) {
  const ps::v1::ServerStats stats = server.Stats();
  telemetry::Fields fields;
  for (const ps::v1::TableStats& table : stats.tables()) {
    fields.emplace_back(
        absl::StrCat("table ", table.spec().name()),
        absl::StrCat(table.rows(), " rows, ", table.memory_bytes(),
                     " bytes, version ", table.version(), LifeOf(table),
                     table.initialized() ? "" : ", not initialized"));
  }
  return fields;
}

// Warns of the trainers that died in a job that others have completed.
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

// Servers of one number can be lost together.
uint32_t HostOf(const rendezvous::Member& member) {
  if (absl::StartsWith(member.address, "unix:")) return 0;
  const absl::string_view address = member.address;
  return static_cast<uint32_t>(std::hash<std::string_view>()(std::string_view(
      address.data(), std::min(address.rfind(':'), address.size()))));
}

// kFailedPrecondition: a server of the job has another --replicas. Each server
// tells its own first: of two that begin at once one sees the other's.
absl::Status CheckReplicas(worker::Worker& worker) {
  const auto key = [](const std::string& server) {
    return absl::StrCat("ps/replicas/", server);
  };
  const auto said = [](const rendezvous::Member& member, int replicas) {
    return absl::StrCat(member.incarnation, " ", replicas);
  };
  rendezvous::Membership& membership = worker.membership();
  const rendezvous::Member& self = membership.self();
  const int own = worker.options().replicas;
  const auto told =
      membership.store().Set(key(self.name), said(self, own), kStoreTimeout);
  if (!told.ok()) {
    WEFT_LOG(worker.telemetry().logger(), Warning,
             "the other servers do not know this one's --replicas: ")
        << told.status().message();
  }
  const auto view = membership.view();
  for (const rendezvous::Member& member : view->members()) {
    if (member.role != "ps" || member.name == self.name) continue;
    const auto entry = membership.store().Get(key(member.name), kStoreTimeout);
    // Only the value of another --replicas is an error. Any other value is of
    // an earlier incarnation, and none is still to come.
    const int other = own == 1 ? 2 : 1;
    if (!entry.ok() || entry->value != said(member, other)) continue;
    return worker::WithExitCode(
        absl::FailedPreconditionError(absl::StrCat(
            "--replicas is ", own, " at ", self.name, " and ", other, " at ",
            member.name, "; start all workers with the same --replicas")),
        worker::ExitCode::kConfig);
  }
  return absl::OkStatus();
}

// The log of tables of this server, or null if there is to be none.
absl::StatusOr<std::shared_ptr<ps::TableLog>> OpenLog(
    const std::string& directory, const std::string& name) {
  if (directory.empty()) return std::shared_ptr<ps::TableLog>();
  ps::TableLog::Options options;
  options.directory = absl::StrCat(directory, "/", name);
  absl::StatusOr<std::unique_ptr<ps::TableLog>> log =
      ps::TableLog::Open(options);
  if (log.ok()) return std::shared_ptr<ps::TableLog>(*std::move(log));
  return worker::WithExitCode(
      absl::Status(log.status().code(),
                   absl::StrCat("--table-log-dir=", directory, ": ",
                                log.status().message())),
      absl::IsDataLoss(log.status()) ? worker::ExitCode::kBadCheckpoint
                                     : worker::ExitCode::kConfig);
}

// The replicas of a job with two.
std::shared_ptr<ps::ReplicatedServer> StartReplicas(
    worker::Worker& worker, const ps::ServerOptions& of_server,
    std::shared_ptr<ps::TableLog> log) {
  ps::ReplicatedServer::Options options;
  options.log = std::move(log);
  options.agent = &worker.agent();
  options.store = &worker.membership().store();
  options.self = worker.membership().self().key;
  options.host = HostOf(worker.membership().self());
  options.max_tables = of_server.max_tables;
  options.round_budget = of_server.round_budget;
  options.table_memory = of_server.table_memory;
  // With 16 groups three servers would have 6, 5 and 5, which is uneven
  // already.
  options.entries = kGroups;
  options.rebalance = of_server.rebalance;
  options.access = of_server.access;
  // Whoever holds a lease of the coordinator is not declared gone by it.
  options.leases.coordinator_lease =
      std::min(options.leases.coordinator_lease,
               0.9 * worker.options().limits.dead_after);
  return std::make_shared<ps::ReplicatedServer>(options);
}

void TellReplicas(const rendezvous::View& view, int servers,
                  ps::ReplicatedServer& replicas) {
  std::vector<ps::PartitionMap::Server> live;
  for (const rendezvous::Member& member : view.members()) {
    if (member.role != "ps") continue;
    live.push_back(
        {member.key, HostOf(member), ps::PartitionMap::State::kLive});
  }
  std::vector<rendezvous::WorkerKey> exited;
  for (const rendezvous::Departed& departed : view.departed()) {
    if (absl::StartsWith(departed.name, "ps")) exited.push_back(departed.key);
  }
  replicas.OnServers(std::move(live), std::move(exited), servers);
}

// Whether all that it had is with other servers: it was drained.
bool HasMoved(worker::Worker& worker, const ps::Server& server) {
  const auto replicas = server.replicated();
  if (replicas == nullptr) return false;
  const auto map = replicas->map();
  return map.entries() > 0 && map.PartsOf(worker.agent().key()).is_empty();
}

// How it ended for a server whose trainers have all gone; nothing: in an
// elastic job others come.
std::optional<absl::Status> EndOf(worker::Worker& worker,
                                  const rendezvous::View& view,
                                  uint64_t completed_before, int stop_signal) {
  const int trainers = worker.options().trainers;
  train::JobOutcome outcome(worker.membership(), trainers);
  if (!worker.options().is_elastic()) {
    const absl::Status ended = outcome.Of(view);
    if (ended.ok()) WarnOfDead(view, trainers, worker.telemetry());
    return ended;
  }
  if (outcome.CountCompleted().value_or(0) > completed_before) {
    return absl::OkStatus();
  }
  if (stop_signal == 0) return std::nullopt;
  return worker::EndedBySignal(stop_signal,
                               "asked to stop, and no trainer is there");
}

// Serves until all trainers have gone.
absl::Status Serve(worker::Worker& worker, ps::Server& server,
                   ps::WaitBoard& board, absl::FunctionRef<int()> stop_signal,
                   absl::Duration grace) {
  const int trainers = worker.options().trainers;
  uint64_t completed_before = 0;
  if (worker.options().is_elastic()) {
    // Trainers may have completed in an earlier run of the job.
    completed_before = train::JobOutcome(worker.membership(), trainers)
                           .CountCompleted()
                           .value_or(0);
  }
  const auto follow = worker.membership().OnChange(
      [&, known_keys = KnownKeys(),
       forgotten = std::set<rendezvous::WorkerKey>()](
          std::shared_ptr<const rendezvous::View> view) mutable {
        TellServer(*view, trainers, server, known_keys);
        // Also those that were gone before this server came: copies of tables
        // may still name them.
        for (const rendezvous::Departed& departed : view->departed()) {
          if (forgotten.insert(departed.key).second) {
            server.Forget(departed.key);
          }
        }
        if (const auto replicas = server.replicated()) {
          TellReplicas(*view, worker.options().servers, *replicas);
        }
      });
  const auto forget = worker.agent().OnPeerGone(
      [&server](const rpc::Agent::GonePeer& gone) { server.Forget(gone.key); });
  Instant stop_by = Instant::Infinite();
  Instant show_at;
  Instant tell_waits_at;
  Parker wait;
  for (;;) {
    const auto gone = worker.membership().WaitFor(
        [&](const rendezvous::View& view) { return AllGone(view, trainers); },
        kTick);
    const Instant now = SteadyClock().Now();
    server.Expire(now);
    if (now >= tell_waits_at) {
      board.Set(server.Waits(now));
      tell_waits_at = now + kTellWaitsEvery;
    }
    if (now >= show_at) {
      Show(server, worker.telemetry().metrics());
      show_at = now + kShowEvery;
    }
    if (gone.ok()) {
      const auto ended = EndOf(worker, **gone, completed_before, stop_signal());
      if (ended.has_value()) return *ended;
      // The view is as it was: nothing else is waited for.
      wait.ParkUntil(SteadyClock().Now() + kTick);
    } else if (!absl::IsDeadlineExceeded(gone.status())) {
      return gone.status();
    }
    if (stop_signal() != 0 && HasMoved(worker, server)) {
      return worker::EndedBySignal(stop_signal(),
                                   "asked to stop, and it has no partitions");
    }
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
  WEFT_RETURN_IF_ERROR(CheckReplicas(worker));
  if (worker.options().replicas > 1) {
    WEFT_ASSIGN_OR_RETURN(
        auto log, OpenLog(server.options().table_log_dir, worker.self().name));
    const auto replicas =
        StartReplicas(worker, server.options(), std::move(log));
    server.SetReplicated(replicas);
    worker.agent().SetLocal(replicas);
  } else {
    worker.agent().SetLocal(std::make_shared<ps::OneReplica>());
  }
  const auto board = std::make_shared<ps::WaitBoard>();
  worker.agent().SetLocal(board);
  worker.agent().SetLocal(&server);
  const auto page = worker.telemetry().status().Register(
      "ps", [&server] { return Describe(server); });
  const absl::Status ended = Serve(worker, server, *board, stop_signal, grace);
  // The error of pending calls names the cause, and that another server may
  // be asked.
  server.Shutdown(absl::UnavailableError(
      absl::StrCat("parameter server ", worker.self().name, " shuts down",
                   ended.ok() ? "" : ": ", ended.message())));
  worker.agent().SetLocal(std::shared_ptr<ps::ReplicatedServer>());
  server.SetReplicated(nullptr);
  return ended;
}

}  // namespace weft::launch
