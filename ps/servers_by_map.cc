#include "weft/ps/servers_by_map.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/status_macros.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/lost_partition.h"
#include "weft/ps/replicated/service.h"
#include "weft/ps/service.h"
#include "weft/rpc/session/failure.h"

namespace weft::ps {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(20);
// How often an opening looks whether it has waited for so long that it says so.
constexpr absl::Duration kLookEvery = absl::Milliseconds(200);
// Of a server that does not say what it has in that time nothing is known.
constexpr absl::Duration kAskTimeout = absl::Seconds(1);
// A checkpoint that is not found for so long is not there.
constexpr absl::Duration kNotFoundFor = absl::Seconds(2);

// Whether another map may end the error.
bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsNotFound(status);
}

// kUnavailable, to ask again by the next map, while a server that has rows is
// silent, which it adds to `awaited`, or a checkpoint is being restored.
absl::Status CheckAllLive(const PartitionMap& map,
                          std::vector<WorkerKey>& awaited) {
  if (map.is_restoring()) {
    return absl::UnavailableError(
        "a checkpoint is being restored; if whoever began that is gone, "
        "restore "
        "one again");
  }
  for (int i = 0; i < map.entries(); ++i) {
    const WorkerKey primary = map.entry(i).primary;
    if (IsNone(primary) && !map.entry(i).heirs.empty()) {
      awaited = map.entry(i).heirs;
      return absl::UnavailableError(absl::StrCat(
          "partition ", i, " waits for server ",
          map.entry(i).heirs.front().ToString(), " to come back with its log"));
    }
    if (IsNone(primary)) {
      return LostPartition(absl::StrCat(
          "all servers that had partition ", i, ", and ", map.lost() - 1,
          " more of ", map.entries(),
          ", are gone: restore a checkpoint (ps::Client::Restore) and open the "
          "tables again, or start the job again with --resume"));
    }
    if (map.StateOf(primary) != PartitionMap::State::kLive) {
      awaited = {primary};
      return absl::UnavailableError(absl::StrCat("server ", primary.ToString(),
                                                 ", which has partition ", i,
                                                 ", is silent"));
    }
  }
  return absl::OkStatus();
}

// The place of a server's id among those of the map, the same for all.
int IndexOf(WorkerKey key, const PartitionMap& map) {
  std::set<uint32_t> smaller;
  for (const PartitionMap::Server& server : map.servers()) {
    if (server.key.id < key.id) smaller.insert(server.key.id);
  }
  return static_cast<int>(smaller.size());
}

// Above `newest`, that of the restores before. It is the time, unless the wall
// clock was set back since then: the step beyond `newest` is taken by chance
// then, for two clients that restore at once must not have the same one.
uint64_t NextGeneration(uint64_t newest, WorkerKey self) {
  const auto now = static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));
  if (now > newest) return now;
  constexpr uint64_t kMostSteps = uint64_t{1} << 20;
  const auto chance = static_cast<uint64_t>(SteadyClock().Now().nanoseconds());
  return newest + 1 +
         Mix64(chance ^ Mix64(self.epoch ^ Mix64(self.id))) % kMostSteps;
}

absl::Status GaveUp(const absl::Status& why) {
  return absl::CancelledError(
      absl::StrCat("gave up waiting for servers, for this worker is asked to "
                   "stop: ",
                   why.message()));
}

absl::Duration LeftUntil(Instant give_up) {
  return std::max(give_up - SteadyClock().Now(), absl::ZeroDuration());
}

}  // namespace

absl::Status ServersByMap::Begin() {
  if (session_ != nullptr) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<ReplicaSession> session,
                        ReplicaSession::Begin({options_.agent, options_.servers,
                                               options_.is_asked_to_stop},
                                              options_.timeout));
  session_ = session.get();
  open_ = std::make_shared<const OpenSession>(std::move(session));
  return absl::OkStatus();
}

bool ServersByMap::AwaitNewerMap(Instant give_up) {
  if (SteadyClock().Now() + kPause >= give_up) return false;
  session_->Learn();
  const BlockingScope blocking;
  absl::SleepFor(kPause);
  return true;
}

template <typename T>
absl::StatusOr<std::vector<T>> ServersByMap::Try(Scope scope, Instant give_up,
                                                 CallServer<T> call) {
  const PartitionMap map = session_->map();
  awaited_.clear();
  if (scope != Scope::kLive) WEFT_RETURN_IF_ERROR(CheckAllLive(map, awaited_));
  std::vector<WorkerKey> servers;
  std::vector<Future<T>> calls;
  for (const PartitionMap::Server& server : map.servers()) {
    if (server.state != PartitionMap::State::kLive) continue;
    const rpc::Target target =
        options_.agent->To(server.key, LeftUntil(give_up));
    calls.push_back(call(target, IndexOf(server.key, map), map.epoch()));
    servers.push_back(server.key);
  }
  const Future<std::vector<T>> all = WhenAllOk(calls);
  while (wait_ != nullptr) {
    (void)all.Wait(std::min(LeftUntil(give_up), kLookEvery));
    awaited_.clear();
    for (size_t i = 0; i < calls.size(); ++i) {
      const Result<T>* const answer = calls[i].Peek();
      if (answer == nullptr || !answer->ok()) awaited_.push_back(servers[i]);
    }
    wait_->OnTime(SteadyClock().Now());
    if (all.IsReady() || LeftUntil(give_up) == absl::ZeroDuration()) break;
  }
  return all.Wait(LeftUntil(give_up) + absl::Seconds(1));
}

template <typename T>
absl::StatusOr<std::vector<T>> ServersByMap::OnLive(Scope scope,
                                                    CallServer<T> call) {
  const Instant give_up = SteadyClock().Now() + options_.timeout;
  WEFT_RETURN_IF_ERROR(Begin());
  // What was lost may have been restored since, by another client.
  if (scope != Scope::kLive && session_->map().lost() > 0) {
    session_->LearnFromAll();
  }
  for (;;) {
    absl::StatusOr<std::vector<T>> results = Try<T>(scope, give_up, call);
    if (!MayPass(results.status())) return results;
    if (scope == Scope::kOpening && IsAskedToStop()) {
      return GaveUp(results.status());
    }
    if (wait_ != nullptr) wait_->OnTime(SteadyClock().Now());
    if (!AwaitNewerMap(give_up)) return results;
  }
}

std::vector<std::string> ServersByMap::Awaited() const {
  std::vector<std::string> names;
  for (const WorkerKey& server : awaited_) {
    names.push_back(session_->NameOf(server));
  }
  return names;
}

absl::StatusOr<std::vector<v1::TableStats>> ServersByMap::Open(
    const v1::TableSpec& spec, uint64_t opening, uint64_t opened_at) {
  WEFT_RETURN_IF_ERROR(Begin());
  ServerWaits::Operation operation;
  operation.table = spec.name();
  operation.what = "Open";
  operation.servers = [this] { return Awaited(); };
  wait_ = std::make_unique<ServerWaits::Wait>(
      *session_->waits(), std::move(operation), SteadyClock().Now());
  auto opened = OpenOnAll(spec, opening, opened_at);
  wait_->End(SteadyClock().Now());
  wait_ = nullptr;
  return opened;
}

absl::StatusOr<std::vector<v1::TableStats>> ServersByMap::OpenOnAll(
    const v1::TableSpec& spec, uint64_t opening, uint64_t opened_at) {
  const Instant give_up = SteadyClock().Now() + options_.timeout;
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(
        std::vector<v1::TableStats> stats,
        OnLive<v1::TableStats>(
            Scope::kOpening, [&](const rpc::Target& server, int, uint64_t) {
              return rpc::CallAsync(server, &OpenReplicated, spec, opening,
                                    opened_at);
            }));
    const bool are_equal =
        std::all_of(stats.begin(), stats.end(), [&](const v1::TableStats& one) {
          return one.generation() == stats[0].generation();
        });
    if (are_equal) return stats;
    const absl::Status differ = absl::UnavailableError(absl::StrCat(
        "table '", spec.name(),
        "': servers have it of different checkpoints: a restore has not ended; "
        "restore one again"));
    if (IsAskedToStop()) return GaveUp(differ);
    if (!AwaitNewerMap(give_up)) return differ;
  }
}

absl::StatusOr<std::vector<v1::SaveReply>> ServersByMap::Save(
    absl::FunctionRef<v1::SaveRequest(int index)> request) {
  return OnLive<v1::SaveReply>(
      Scope::kAll, [&](const rpc::Target& server, int index, uint64_t epoch) {
        v1::SaveRequest asked = request(index);
        asked.set_map_epoch(epoch);
        return rpc::CallAsync(server, &ps::Save, asked);
      });
}

absl::StatusOr<Future<std::vector<v1::SaveReply>>> ServersByMap::Snapshot(
    absl::FunctionRef<v1::SaveRequest(int index)> request,
    absl::Duration write_timeout) {
  struct Asked {
    rpc::Target server;
    v1::SaveRequest request;
  };
  std::vector<Asked> asked;  // of the last map that was tried
  WEFT_RETURN_IF_ERROR(
      OnLive<std::monostate>(Scope::kAll, [&](const rpc::Target& server,
                                              int index, uint64_t epoch) {
        v1::SaveRequest freeze = request(index);
        freeze.set_map_epoch(epoch);
        if (!asked.empty() && asked[0].request.map_epoch() != epoch) {
          asked.clear();
        }
        asked.push_back({server, freeze});
        return rpc::CallAsync(server, &ps::Freeze, freeze).Then([] {
          return std::monostate();
        });
      }).status());
  std::set<int> shards;
  std::vector<Future<v1::SaveReply>> calls;
  for (const Asked& one : asked) {  // more than once by one map, it may be
    if (!shards.insert(one.request.first_shard()).second) continue;
    calls.push_back(rpc::CallAsync(one.server.WithTimeout(write_timeout),
                                   &ps::Save, one.request));
  }
  return WhenAllOk(std::move(calls));
}

absl::Status ServersByMap::CheckCheckpointDirectory(const std::string& path) {
  return OnLive<std::monostate>(
             Scope::kLive,
             [&](const rpc::Target& server, int, uint64_t) {
               return rpc::CallAsync(server, &ps::CheckCheckpointDirectory,
                                     path)
                   .Then([] { return std::monostate(); });
             })
      .status();
}

absl::StatusOr<std::vector<v1::ServerStats>> ServersByMap::Describe() {
  return OnLive<v1::ServerStats>(Scope::kLive,
                                 [](const rpc::Target& server, int, uint64_t) {
                                   return rpc::CallAsync(server, &ps::Describe);
                                 });
}

// --- Restore -----------------------------------------------------------------

absl::Status ServersByMap::Restore(const std::string& path,
                                   const std::string& name) {
  const Instant give_up = SteadyClock().Now() + options_.timeout;
  WEFT_RETURN_IF_ERROR(Begin());
  Restoring restoring(
      NextGeneration(NewestGeneration(), options_.agent->key()));
  Instant found_at = SteadyClock().Now();
  for (;;) {
    const PartitionMap map = session_->map();
    const Restoring::Step step = restoring.Next(map);
    if (step.kind == Restoring::Step::Kind::kDone) return absl::OkStatus();
    if (step.kind == Restoring::Step::Kind::kFailed) return step.status;
    const absl::Status status =
        Take(step, map, path, name, LeftUntil(give_up), restoring);
    const Instant now = SteadyClock().Now();
    // A call to a server that is gone is not begun (IsLocal): it is not found
    // until the map names it no more, however long that takes.
    if (!absl::IsNotFound(status) || rpc::IsLocal(status)) found_at = now;
    if ((!status.ok() && !MayPass(status)) || now - found_at > kNotFoundFor) {
      return status;
    }
    // After an end or a beginning the map tells whether it was made.
    const bool may_go_on =
        status.ok() && step.kind == Restoring::Step::Kind::kLoad;
    if (may_go_on || AwaitNewerMap(give_up)) continue;
    if (!status.ok()) return status;
    return absl::DeadlineExceededError(absl::StrCat(
        "restoring ", path, "/", name, ": the map did not change within ",
        absl::FormatDuration(options_.timeout), ": ", map.Summary()));
  }
}

uint64_t ServersByMap::NewestGeneration() {
  const PartitionMap map = session_->map();
  uint64_t newest = map.generation();
  std::vector<Future<v1::ServerStats>> asked;
  for (const PartitionMap::Server& server : map.servers()) {
    if (server.state != PartitionMap::State::kLive) continue;
    asked.push_back(rpc::CallAsync(options_.agent->To(server.key, kAskTimeout),
                                   &ps::Describe));
  }
  for (const Future<v1::ServerStats>& one : asked) {
    const auto stats = one.Wait(2 * kAskTimeout);
    if (!stats.ok()) continue;
    for (const v1::TableStats& table : stats->tables()) {
      newest = std::max(newest, table.generation());
    }
  }
  return newest;
}

absl::Status ServersByMap::Take(const Restoring::Step& step,
                                const PartitionMap& map,
                                const std::string& path,
                                const std::string& name, absl::Duration timeout,
                                Restoring& restoring) {
  using Kind = Restoring::Step::Kind;
  if (step.kind == Kind::kWait) return step.status;
  if (step.kind == Kind::kLoad) {
    std::vector<Future<uint64_t>> calls;
    for (const WorkerKey& server : step.servers) {
      calls.push_back(rpc::CallAsync(options_.agent->To(server, timeout),
                                     &ps::RestoreReplicated, path, name,
                                     step.generation, map.epoch()));
    }
    absl::Status failed;
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto by_map = calls[i].Wait(timeout + absl::Seconds(1));
      if (by_map.ok()) {
        restoring.Loaded(step.servers[i], step.generation, *by_map);
      } else if (failed.ok() || MayPass(failed)) {
        failed = by_map.status();
      }
    }
    return failed;
  }
  const auto live = std::find_if(
      map.servers().begin(), map.servers().end(), [](const auto& server) {
        return server.state == PartitionMap::State::kLive;
      });
  if (live == map.servers().end()) {
    return absl::UnavailableError("no server is there");
  }
  const rpc::Target target = options_.agent->To(live->key, timeout);
  if (step.kind == Kind::kBegin) {
    return rpc::CallAsync(target, &ps::BeginRestore, path, name,
                          step.generation)
        .Wait(timeout + absl::Seconds(1));
  }
  v1::EndRestoreRequest request;
  request.set_generation(step.generation);
  for (const auto& [server, epoch] : restoring.End().loaded) {
    v1::EndRestoreRequest::Loaded* loaded = request.add_loaded();
    loaded->mutable_server()->set_id(server.id);
    loaded->mutable_server()->set_epoch(server.epoch);
    loaded->set_map_epoch(epoch);
  }
  return rpc::CallAsync(target, &ps::EndRestore, request)
      .Wait(timeout + absl::Seconds(1));
}

}  // namespace weft::ps
