// weft servers: what the parameter servers of a job with two replicas have, and
// moves of it: a server that is drained has nothing and can be stopped.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/commands.h"
#include "weft/launch/commands/question.h"
#include "weft/proto/ps.pb.h"
#include "weft/proto/ps_load.pb.h"
#include "weft/ps/server_list.h"
#include "weft/ps/service.h"
#include "weft/rendezvous/view.h"
#include "weft/rpc/client.h"
#include "weft/telemetry/field.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"

namespace weft::launch {
namespace {

using nlohmann::json;

constexpr absl::Duration kAskEvery = absl::Milliseconds(100);
// When `balance --wait` says what holds it up.
constexpr absl::Duration kTellAfter = absl::Seconds(1);
constexpr absl::Duration kTellEvery = absl::Seconds(10);
constexpr char kLive[] = "live";  // ps::ServerList::Server::state

absl::Status Usage(absl::string_view message) {
  return worker::WithExitCode(
      absl::InvalidArgumentError(absl::StrCat("weft servers: ", message)),
      worker::ExitCode::kUsage);
}

absl::Status HasOneReplica(const std::string& job, const std::string& server) {
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", job, " has --replicas=1, as ", server,
      " says: each partition has one copy, on one server for as long as the "
      "job runs, so no server can be added, drained or relieved; `weft status "
      "--tables` shows what each has. To have others, stop the job and start "
      "it again from its checkpoint (trainers: --checkpoint-dir, --resume) "
      "with the servers that it is to have; with --replicas=2, which wants two "
      "servers at least, tables move while it runs"));
}

// The servers of a job, asked from outside: one of them, and another where that
// one is gone or does not answer.
class Servers {
 public:
  // kNotFound: the job has no server; kFailedPrecondition: it has one replica;
  // else why none has answered.
  static absl::StatusOr<Servers> Find(const Question& question,
                                      const Meeting& meeting) {
    Servers servers(question, meeting);
    WEFT_RETURN_IF_ERROR(servers.FindOne());
    return servers;
  }

  absl::StatusOr<ps::ServerList> List() {
    WEFT_ASSIGN_OR_RETURN(
        const ps::v1::MapReply reply,
        Call([](const rpc::Target& to) { return rpc::Call(to, ps::GetMap); }));
    return ps::ServerList::Of(reply.map());
  }

  // Drains the server, or ends that. Calls again until the job's map says so,
  // and returns the epoch of that map.
  absl::StatusOr<uint64_t> SetDrained(uint32_t id, bool is_drained) {
    return Call([&](const rpc::Target& to) {
      return rpc::Call(to, ps::SetDrained, id, is_drained);
    });
  }

  // One round of moves, or what it would be. kUnavailable, kDeadlineExceeded: a
  // server is gone, or has not answered.
  absl::StatusOr<ps::v1::BalanceReply> Balance(bool dry_run) const {
    return rpc::Call(asked_->To(question_.timeout), ps::BalanceServers,
                     dry_run);
  }

  // "ps1"; its number, if the coordinator knows it no longer.
  std::string NameOf(rendezvous::WorkerKey key) const {
    for (const rendezvous::Member& member : view_.members()) {
      if (member.key.id == key.id) return member.name;
    }
    for (const rendezvous::Departed& departed : view_.departed()) {
      if (departed.key.id == key.id) return departed.name;
    }
    return key.ToString();
  }

  // The server of that name, whether it lives or is gone.
  absl::StatusOr<ps::ServerList::Server> FindByName(const std::string& name) {
    WEFT_ASSIGN_OR_RETURN(const ps::ServerList list, List());
    std::vector<std::string> names;
    for (const ps::ServerList::Server& server : list.servers) {
      names.push_back(NameOf(server.key));
      if (names.back() == name) return server;
    }
    return absl::NotFoundError(
        absl::StrCat("job ", meeting_.job, " has no parameter server \"", name,
                     "\"; there are: ", absl::StrJoin(names, ", ")));
  }

  // What it says of its tables; none: it does not answer.
  std::optional<ps::v1::ServerStats> Ask(rendezvous::WorkerKey key) const {
    for (const rendezvous::Member& member : view_.members()) {
      if (member.key != key) continue;
      const auto client = Connect(member);
      if (!client.ok()) return std::nullopt;
      const auto stats =
          rpc::Call((*client)->To(question_.timeout), ps::Describe);
      if (!stats.ok()) return std::nullopt;
      return *stats;
    }
    return std::nullopt;
  }

 private:
  Servers(Question question, Meeting meeting)
      : question_(std::move(question)), meeting_(std::move(meeting)) {}

  // Asks who is there, and each server until one answers; those last that have
  // not answered before.
  absl::Status FindOne() {
    WEFT_ASSIGN_OR_RETURN(view_, AskForMembers(question_, meeting_));
    std::vector<rendezvous::Member> servers;
    for (const rendezvous::Member& member : view_.members()) {
      if (member.role == "ps") servers.push_back(member);
    }
    std::stable_partition(
        servers.begin(), servers.end(),
        [&](const auto& server) { return unheard_.count(server.key) == 0; });
    absl::Status last = absl::NotFoundError(absl::StrCat(
        "job ", meeting_.job, " has no parameter server that is there"));
    for (const rendezvous::Member& server : servers) {
      auto client = Connect(server);
      if (!client.ok()) {
        unheard_.insert(server.key);
        last = client.status();
        continue;
      }
      last = rpc::Call((*client)->To(question_.timeout), ps::GetMap).status();
      if (absl::IsFailedPrecondition(last)) {
        const auto stats =
            rpc::Call((*client)->To(question_.timeout), ps::Describe);
        if (stats.ok() && stats->entries() == 0) {
          return HasOneReplica(meeting_.job, server.name);
        }
      }
      if (!last.ok()) {
        unheard_.insert(server.key);
        continue;
      }
      asked_ = *std::move(client);
      asked_key_ = server.key;
      return absl::OkStatus();
    }
    return last;
  }

  // The answer of the server that is asked. Where it is kUnavailable, for the
  // server is gone or the map has changed meanwhile, it is asked for again, of
  // whoever is there, for as long as one answer may take; where none comes,
  // each other server is asked.
  template <typename Function>
  auto Call(Function ask) -> decltype(ask(std::declval<rpc::Target>())) {
    const Instant deadline = SteadyClock().Now() + question_.timeout;
    for (;;) {
      auto answer = ask(asked_->To(question_.timeout));
      const absl::Status& status = StatusOf(answer);
      const bool asks_again =
          absl::IsDeadlineExceeded(status)
              ? unheard_.insert(asked_key_).second
              : absl::IsUnavailable(status) && SteadyClock().Now() <= deadline;
      if (!asks_again) return answer;
      absl::SleepFor(kAskEvery);
      // If none is found the next answer says why.
      FindOne().IgnoreError();
    }
  }
  static const absl::Status& StatusOf(const absl::Status& status) {
    return status;
  }
  template <typename T>
  static const absl::Status& StatusOf(const absl::StatusOr<T>& answer) {
    return answer.status();
  }

  absl::StatusOr<std::unique_ptr<rpc::Client>> Connect(
      const rendezvous::Member& member) const {
    rpc::ClientOptions options;
    WEFT_ASSIGN_OR_RETURN(options.credentials, CredentialsOf(question_));
    options.worker = member.name;
    options.job = meeting_.job;
    options.connect_timeout = question_.timeout;
    return rpc::Client::Connect(member.address, options);
  }

  Question question_;
  Meeting meeting_;
  rendezvous::View view_;
  std::unique_ptr<rpc::Client> asked_;
  rendezvous::WorkerKey asked_key_;
  std::set<rendezvous::WorkerKey> unheard_;  // gave no answer when asked
};

// Rows and bytes of the partitions of which a server is the primary.
struct Held {
  int64_t rows = 0;
  int64_t bytes = 0;
};

std::optional<Held> HeldBy(const Servers& servers, rendezvous::WorkerKey key) {
  const auto stats = servers.Ask(key);
  if (!stats) return std::nullopt;
  Held held;
  for (const ps::v1::TableStats& table : stats->tables()) {
    held.rows += table.rows();
    held.bytes += table.memory_bytes();
  }
  return held;
}

json ToJson(const Servers& servers, const ps::ServerList& list) {
  json answer = {{"epoch", list.epoch},
                 {"entries", list.entries},
                 {"lost", list.lost},
                 {"single", list.single},
                 {"servers", json::array()}};
  for (const ps::ServerList::Server& server : list.servers) {
    json one = {{"name", servers.NameOf(server.key)},
                {"key", server.key.ToString()},
                {"state", server.state},
                {"drained", server.is_drained},
                {"primary", server.primaries},
                {"backup", server.backups},
                {"filling", server.filling},
                {"rows", nullptr},
                {"bytes", nullptr}};
    if (const auto held = HeldBy(servers, server.key)) {
      one["rows"] = held->rows;
      one["bytes"] = held->bytes;
    }
    answer["servers"].push_back(std::move(one));
  }
  return answer;
}

void PrintText(const Servers& servers, const ps::ServerList& list) {
  using telemetry::Printable;
  std::printf("map %llu: %d groups of partitions, %d with one copy, %d lost\n",
              static_cast<unsigned long long>(list.epoch), list.entries,
              list.single, list.lost);
  std::printf("  %-10s %-8s %-7s %8s %7s %8s %10s %12s\n", "server", "key",
              "state", "primary", "backup", "filling", "rows", "bytes");
  for (const ps::ServerList::Server& server : list.servers) {
    const auto held = HeldBy(servers, server.key);
    std::printf("  %-10s %-8s %-7s %8d %7d %8d %10s %12s%s\n",
                Printable(servers.NameOf(server.key)).c_str(),
                server.key.ToString().c_str(), server.state.c_str(),
                server.primaries, server.backups, server.filling,
                held ? absl::StrCat(held->rows).c_str() : "-",
                held ? absl::StrCat(held->bytes).c_str() : "-",
                !server.is_drained     ? ""
                : server.has_nothing() ? "  drained: it may be stopped"
                                       : "  draining");
  }
}

absl::StatusOr<int> Drain(Servers& servers, const std::string& name,
                          absl::Duration wait) {
  WEFT_ASSIGN_OR_RETURN(const ps::ServerList::Server server,
                        servers.FindByName(name));
  WEFT_ASSIGN_OR_RETURN(uint64_t newest,
                        servers.SetDrained(server.key.id, true));
  const Instant deadline = SteadyClock().Now() + wait;
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const ps::ServerList list, servers.List());
    const ps::ServerList::Server* const now = list.Find(server.key.id);
    // Another server may be asked now, which does not know the newest map yet.
    const bool is_news = list.epoch >= newest;
    if (is_news) {
      newest = list.epoch;
      // It was drained in the map of the epoch that SetDrained has returned.
      if (now != nullptr && !now->is_drained) {
        return absl::FailedPreconditionError(
            absl::StrCat(name, " takes part again: `weft servers add ", name,
                         "` was called meanwhile"));
      }
    }
    const int left =
        now == nullptr ? 0 : now->primaries + now->backups + now->filling;
    if (is_news && left == 0) {
      std::printf("%s has nothing: it may be stopped\n", name.c_str());
      return 0;
    }
    if (wait == absl::ZeroDuration()) {
      std::printf(
          "%s is drained: %d groups of partitions move away; weft servers "
          "list shows when it has nothing\n",
          name.c_str(), left);
      return 0;
    }
    if (SteadyClock().Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          name, " still has ", left, " groups of partitions after ",
          absl::FormatDuration(wait),
          "; it stays drained, and they go on to move"));
    }
    absl::SleepFor(kAskEvery);
  }
}

absl::StatusOr<int> Add(Servers& servers, const std::string& name) {
  WEFT_ASSIGN_OR_RETURN(const ps::ServerList::Server server,
                        servers.FindByName(name));
  WEFT_RETURN_IF_ERROR(servers.SetDrained(server.key.id, false).status());
  std::printf("%s takes part again\n", name.c_str());
  return 0;
}

rendezvous::WorkerKey KeyOf(const ps::v1::BalanceReply::Key& key) {
  return {key.id(), key.epoch()};
}

void Print(const Servers& servers, const ps::v1::BalanceReply& reply) {
  const auto name = [&](const ps::v1::BalanceReply::Key& key) {
    return telemetry::Printable(servers.NameOf(KeyOf(key)));
  };
  for (const auto& server : reply.servers()) {
    std::printf("%s: %.3g s of work a second, %.3g after these moves\n",
                name(server.key()).c_str(), server.before(), server.after());
  }
  for (const auto& move : reply.moves()) {
    std::printf(
        "group %u: primary %s to %s, backup %s to %s; %s has %.3g s of work "
        "a second less\n",
        move.entry(), name(move.primary_before()).c_str(),
        name(move.primary()).c_str(), name(move.backup_before()).c_str(),
        name(move.backup()).c_str(), name(move.relieved()).c_str(),
        move.load());
  }
  std::fflush(stdout);  // it may go on for long
  if (reply.moves_size() > 0) return;
  std::printf("nothing to move: %s\n",
              reply.held().empty()
                  ? "no move helps, or no server has more than 1.1 of the mean"
                  : telemetry::Printable(reply.held()).c_str());
}

using Keys = std::set<rendezvous::WorkerKey>;

// Those that live and take part.
Keys TakersIn(const ps::ServerList& list) {
  Keys takers;
  for (const ps::ServerList::Server& server : list.servers) {
    if (server.state == kLive && !server.is_drained) takers.insert(server.key);
  }
  return takers;
}

// What keeps moves from being begun for a while; empty: nothing does.
std::string WhyUnsettled(const Servers& servers, const ps::ServerList& list) {
  std::vector<std::string> why;
  if (list.single > 0) {
    why.push_back(absl::StrCat(list.single, " groups have one copy"));
  }
  for (const ps::ServerList::Server& server : list.servers) {
    if (server.has_nothing()) continue;
    const std::string name = telemetry::Printable(servers.NameOf(server.key));
    if (server.state != kLive) {
      why.push_back(absl::StrCat(name, " is ", server.state));
    } else if (server.is_drained) {
      why.push_back(absl::StrCat(name, " is being drained"));
    } else if (server.filling > 0) {
      why.push_back(
          absl::StrCat(name, " is filled with ", server.filling, " groups"));
    }
  }
  return absl::StrJoin(why, ", ");
}

// Waits until the groups that `reply` names are where it says, or the servers
// that take part are no longer `takers`, so that it may be given up, or until
// `deadline`.
absl::Status AwaitMoves(Servers& servers, const ps::v1::BalanceReply& reply,
                        const Keys& takers, Instant deadline) {
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const ps::ServerList list, servers.List());
    if (TakersIn(list) != takers) return absl::OkStatus();
    int left = 0;
    for (const auto& move : reply.moves()) {
      const size_t entry = move.entry();
      left += entry >= list.placed.size() ||
                      list.placed[entry].primary != KeyOf(move.primary()) ||
                      list.placed[entry].backup != KeyOf(move.backup())
                  ? 1
                  : 0;
    }
    if (left == 0) return absl::OkStatus();
    if (SteadyClock().Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          left, " of ", reply.moves_size(),
          " groups of partitions have not moved; they go on to move, unless a "
          "server has died or a copy could not be made: look at weft servers "
          "list, and balance again"));
    }
    absl::SleepFor(kAskEvery);
  }
}

absl::StatusOr<int> BalanceOnce(Servers& servers, bool dry_run) {
  WEFT_ASSIGN_OR_RETURN(const ps::v1::BalanceReply reply,
                        servers.Balance(dry_run));
  Print(servers, reply);
  return 0;
}

// Goes on until no move helps. A server that stops, dies or comes meanwhile
// holds it up until those that are there have two copies of all.
absl::StatusOr<int> BalanceAll(Servers& servers, absl::Duration wait) {
  const Instant deadline = SteadyClock().Now() + wait;
  Instant tell_at = Instant::Infinite();
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const ps::ServerList list, servers.List());
    std::string why = WhyUnsettled(servers, list);
    if (why.empty()) {
      const auto reply = servers.Balance(/*dry_run=*/false);
      if (reply.ok() && reply->moves_size() > 0) {
        Print(servers, *reply);
        tell_at = Instant::Infinite();
        WEFT_RETURN_IF_ERROR(
            AwaitMoves(servers, *reply, TakersIn(list), deadline));
        continue;
      }
      if (reply.ok()) {
        // A server may have gone since the list was made.
        WEFT_ASSIGN_OR_RETURN(const ps::ServerList now, servers.List());
        why = reply->held().empty() ? "" : WhyUnsettled(servers, now);
        if (why.empty()) {
          Print(servers, *reply);
          return 0;
        }
      } else if (absl::IsUnavailable(reply.status()) ||
                 absl::IsDeadlineExceeded(reply.status())) {
        why = telemetry::Printable(reply.status().message());
      } else {
        return reply.status();
      }
    }
    const Instant now = SteadyClock().Now();
    if (now > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no more could be moved within ", absl::FormatDuration(wait), ": ",
          why, "; look at weft servers list, and balance again"));
    }
    if (tell_at == Instant::Infinite()) tell_at = now + kTellAfter;
    if (now >= tell_at) {
      std::printf("waits: %s\n", why.c_str());
      std::fflush(stdout);
      tell_at = now + kTellEvery;
    }
    absl::SleepFor(kAskEvery);
  }
}

}  // namespace

absl::StatusOr<int> ServersCommand(int argc, char** argv) {
  Question question;
  Meeting meeting;
  bool as_json = false;
  bool dry_run = false;
  absl::Duration wait = absl::ZeroDuration();
  worker::Flags flags(
      "weft servers",
      "Shows what the parameter servers of a job with --replicas=2 have, and "
      "moves it while the job runs.\n\n"
      "  weft servers list\n"
      "  weft servers drain ps1   all that ps1 has moves to others; then it "
      "may be stopped\n"
      "  weft servers add ps1     it takes part again\n"
      "  weft servers balance     moves some of what a server has that has "
      "more to do than others\n");
  flags.AllowPositional("list|drain|add|balance [SERVER]", /*anywhere=*/true);
  meeting.AddTo(flags);
  flags.Add("json", &as_json, "list: as one JSON object");
  flags.Add("wait", &wait,
            "drain: wait for so long until the server has nothing; balance: "
            "until no move helps any more");
  flags.Add("dry-run", &dry_run, "balance: show what would move");
  question.AddTo(flags);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  const std::vector<std::string>& words = flags.positional();
  const std::string verb = words.empty() ? "" : words[0];
  const bool is_list = verb == "list" && words.size() == 1;
  const bool is_move = (verb == "drain" || verb == "add") && words.size() == 2;
  const bool is_balance = verb == "balance" && words.size() == 1;
  if (!is_list && !is_move && !is_balance) {
    return Usage("wanted list, drain SERVER, add SERVER or balance");
  }
  if (dry_run && !is_balance) return Usage("--dry-run is of balance");
  WEFT_ASSIGN_OR_RETURN(Servers servers, Servers::Find(question, meeting));
  if (verb == "drain") return Drain(servers, words[1], wait);
  if (verb == "add") return Add(servers, words[1]);
  if (is_balance && (dry_run || wait == absl::ZeroDuration())) {
    return BalanceOnce(servers, dry_run);
  }
  if (is_balance) return BalanceAll(servers, wait);
  WEFT_ASSIGN_OR_RETURN(const ps::ServerList list, servers.List());
  if (as_json) {
    std::printf("%s\n", ToJson(servers, list).dump().c_str());
  } else {
    PrintText(servers, list);
  }
  return 0;
}

}  // namespace weft::launch
