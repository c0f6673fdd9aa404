// Driver: a job of tables that are replicated, written from the headers of
// ps/core and docs/replication.md alone: servers, clients, a keeper of the map,
// and a network that loses, doubles, delays and repeats what it has ever
// carried. It checks the guarantees after each step.

#ifndef WEFT_TESTS_OUTSIDE_REPLICATION_DRIVER_H_
#define WEFT_TESTS_OUTSIDE_REPLICATION_DRIVER_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/ps/core/replication/client_window.h"
#include "weft/ps/core/replication/leases.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/replica.h"
#include "weft/ps/core/replication/replication.h"
#include "weft/sim/random.h"
#include "weft/tests/outside/replication/network.h"
#include "weft/tests/outside/replication/strangers.h"

namespace weft::outside {

using Rows = std::vector<std::string>;

struct Wishes {
  ps::Durability level = ps::Durability::kD1;
  bool stalls_alone = false;
  int servers = 3;
  int entries = 2;
  int partitions = 4;  // two tables' worth to an entry
  int clients = 2;
  int pushes = 60;       // of a client to a partition
  double loss = 0.05;    // of messages
  double repeats = 0.1;  // old messages, again, at each step
  bool has_strangers = true;
  bool has_failures = true;
};

class Job {
 public:
  using Action = ps::Replica::Action;

  Job(uint64_t seed, Wishes wishes) : random_(seed), wishes_(wishes) {
    std::vector<ps::PartitionMap::Server> list;
    for (int i = 0; i < wishes.servers; ++i) {
      list.push_back({{static_cast<uint32_t>(i + 1), 1},
                      static_cast<uint32_t>(i % 3),
                      ps::PartitionMap::State::kLive});
    }
    map_ = *ps::PartitionMap::Assign(wishes.entries, list, 2, 3);
    for (const auto& server : list) StartServer(server.key);
    for (int c = 0; c < wishes.clients; ++c) {
      ps::ClientWindowOptions options;
      options.client = static_cast<uint64_t>(c + 1);
      options.level = wishes.level;
      if (random_.Chance(0.3)) options.most_bytes = 40;
      if (random_.Chance(0.3)) options.most_outstanding = 3;
      clients_.push_back({ps::ClientWindow(options, wishes.partitions, map_),
                          std::vector<uint64_t>(wishes.partitions),
                          {},
                          {}});
    }
    must_have_.resize(wishes.partitions);
  }

  // Why a guarantee is broken; empty: none is.
  const std::string& broken() const { return broken_; }
  // What has happened, by name.
  const std::map<std::string, int>& hits() const { return hits_; }
  void RunFor(absl::Duration duration) {
    const Instant end = now_ + duration;
    while (now_ < end && broken_.empty()) Step();
  }
  // No more failures, and a network that loses little.
  void Heal() {
    wishes_.has_failures = false;
    wishes_.has_strangers = false;
    wishes_.loss = 0;
    wishes_.repeats = 0;
  }
  bool IsDone() const {
    for (const Client& client : clients_) {
      if (!client.window.IsStable()) return false;
      for (const uint64_t n : client.pushed) {
        if (n < static_cast<uint64_t>(wishes_.pushes)) return false;
      }
    }
    return true;
  }
  std::string Describe() const {
    std::string text = absl::StrCat(map_.Summary(), "\n");
    for (const Client& client : clients_) {
      for (int p = 0; p < wishes_.partitions; ++p) {
        absl::StrAppend(&text, client.window.DescribeWait(p), "\n");
      }
    }
    return text;
  }
  // G1 and G3: each push once on whoever has the role, in any order.
  void CheckEnd() {
    for (int p = 0; p < wishes_.partitions; ++p) {
      const Server* primary = Find(map_.entry(map_.EntryOf(p)).primary);
      if (primary == nullptr) {
        broken_ = absl::StrCat("partition ", p, " is lost");
        return;
      }
      const Rows& rows = primary->copies[p].rows;
      const std::multiset<std::string> all(rows.begin(), rows.end());
      for (size_t c = 0; c < clients_.size(); ++c) {
        for (uint64_t n = 1; n <= clients_[c].pushed[p]; ++n) {
          const size_t count = all.count(Payload(c, p, n));
          if (count != 1) {
            broken_ = absl::StrCat("push ", Payload(c, p, n), " is there ",
                                   count, " times");
          }
        }
      }
    }
  }

 private:
  struct Copy {
    ps::Replica replica;
    Rows rows;
    std::map<uint64_t, std::deque<Rows>> reads;  // by token; sent again too
    uint64_t written = 0;
    int64_t generation = 0;
    Rows for_backup = {};  // as it was when it was copied
  };
  struct Server {
    ps::WorkerKey key;
    ps::PartitionMap map;
    ps::Leases leases;
    std::vector<Copy> copies;
    double speed = 1;
    absl::Duration offset;
  };
  using Read = std::pair<int, uint64_t>;  // partition, and through which push
  struct Client {
    ps::ClientWindow window;
    std::vector<uint64_t> pushed;
    std::map<uint64_t, Read> reads;
    std::set<std::pair<int, uint64_t>> answered;
  };
  static std::string Payload(size_t client, int partition, uint64_t n) {
    return absl::StrCat("c", client, ".", partition, ".", n);
  }
  ps::ReplicaOptions Replicas() const {
    ps::ReplicaOptions options;
    options.level = wishes_.level;
    options.stalls_alone = wishes_.stalls_alone;
    options.most_of_a_message = 3;
    options.most_lag = 2;
    options.most_bytes = 4000;
    options.fill_again_after = absl::Milliseconds(400);
    return options;
  }

  void StartServer(ps::WorkerKey key) {
    auto server = std::make_unique<Server>(Server{
        key, {}, ps::Leases(ps::LeaseOptions()), {}, 1, absl::ZeroDuration()});
    server->speed = 1 + 0.001 * static_cast<double>(random_.Below(9));
    server->offset = absl::Seconds(random_.Below(1000));
    for (int p = 0; p < wishes_.partitions; ++p) {
      server->copies.push_back(
          {ps::Replica(key, map_.EntryOf(p), Replicas()), {}, {}, 0, 0});
    }
    servers_.push_back(std::move(server));
    Learn(*servers_.back(), map_);
  }
  Server* Find(ps::WorkerKey key) {
    for (auto& server : servers_) {
      if (server->key == key) return server.get();
    }
    return nullptr;
  }
  Instant TimeOf(const Server& server) const {
    return Instant() + server.offset + (now_ - Instant()) * server.speed;
  }
  ps::Now NowOf(const Server& server) const {
    return {TimeOf(server), server.leases};
  }

  // --- The network. ----------------------------------------------------------

  void Carry(std::function<void()> deliver) {
    network_.Carry(now_, std::move(deliver), wishes_.loss);
  }
  void After(absl::Duration delay, std::function<void()> run) {
    network_.RunAt(now_ + delay, std::move(run));
  }

  void Step() {
    ++step_;
    now_ += absl::Milliseconds(1);
    while (network_.RunOneBefore(now_)) {
      Check();
      if (!broken_.empty()) return;
    }
    if (random_.Chance(wishes_.repeats) && network_.RunAnOldOne()) {
      ++hits_["repeated"];
    }
    if (wishes_.has_strangers && random_.Chance(0.2)) SayNonsense();
    if (step_ % 20 == 0) TickClients();
    if (step_ % 50 == 0) TickServers();
    if (step_ % 50 == 25) TickKeeper();
    if (wishes_.has_failures && random_.Chance(0.002)) Fail();
    Check();
  }

  // --- The keeper of the map, who is the coordinator too. --------------------

  void TellAll() {
    for (auto& server : servers_) SendMap(server->key);
    for (size_t c = 0; c < clients_.size(); ++c) SendMapToClient(c);
  }
  void SendMap(ps::WorkerKey to) {
    Carry([this, to, encoded = map_.Encode()] {
      Server* server = Find(to);
      if (server != nullptr) Learn(*server, *ps::PartitionMap::Decode(encoded));
    });
  }
  void SendMapToClient(size_t c) {
    Carry([this, c, encoded = map_.Encode()] {
      clients_[c].window.OnMap(*ps::PartitionMap::Decode(encoded), now_);
      Flush(c);
    });
  }
  // The servers that are not there are proven to have exited, after a while.
  void TickKeeper() {
    const uint64_t before = map_.epoch();
    const auto servers = map_.servers();
    for (const auto& server : servers) {
      if (Find(server.key) == nullptr && random_.Chance(0.2)) {
        map_.FailServer(server.key, random_.Chance(0.3)
                                        ? ps::PartitionMap::State::kSilent
                                        : ps::PartitionMap::State::kExited);
      }
    }
    for (auto& server : servers_) {
      if (map_.StateOf(server->key) == ps::PartitionMap::State::kSilent &&
          random_.Chance(0.2)) {
        map_.AddServer(server->key, server->key.id % 3);
      }
    }
    if (random_.Chance(0.5)) map_.AddBackups();
    if (map_.epoch() != before) TellAll();
  }
  void Propose(ps::WorkerKey from, ps::MapChange change) {
    if (change.kind == ps::MapChange::Kind::kMarkInSync) {
      const Server* server = Find(from);
      // "once that is so of each partition of each table in it"
      for (int p = 0; server != nullptr && p < wishes_.partitions; ++p) {
        if (map_.EntryOf(p) == change.entry &&
            !server->copies[p].replica.is_backup_ready()) {
          return;
        }
      }
    }
    Carry([this, change] {
      if (map_.Apply(change).ok()) {
        ++hits_[absl::StrCat("change ", static_cast<int>(change.kind))];
        TellAll();
      } else {
        ++hits_["change too late"];
      }
    });
  }

  // G3: "after any one failure, and after further ones that each follow the
  // repair of the last".
  void Fail() {
    if (!map_.IsReplicated()) return;
    for (int i = 0; i < map_.entries(); ++i) {
      if (Find(map_.entry(i).primary) == nullptr ||
          Find(map_.entry(i).backup) == nullptr) {
        return;  // one has failed, and nobody knows
      }
    }
    for (auto& server : servers_) {
      if (map_.StateOf(server->key) != ps::PartitionMap::State::kLive) return;
    }
    const size_t at = random_.Below(static_cast<int64_t>(servers_.size()));
    const ps::WorkerKey key = servers_[at]->key;
    if (random_.Chance(0.4)) {  // a wrong suspicion
      map_.FailServer(key, ps::PartitionMap::State::kSilent);
      ++hits_["suspected"];
      TellAll();
      return;
    }
    servers_.erase(servers_.begin() + static_cast<int64_t>(at));
    ++hits_["died"];
    After(absl::Milliseconds(200 + random_.Below(500)), [this, key] {
      const ps::WorkerKey next = {key.id, key.epoch + 1};
      map_.AddServer(next, key.id % 3);
      StartServer(next);
      TellAll();
    });
  }

  // --- Servers. --------------------------------------------------------------

  void Learn(Server& server, const ps::PartitionMap& map) {
    if (map.epoch() > server.map.epoch()) {
      server.map = map;
      std::vector<ps::WorkerKey> peers = map.PartnersOf(server.key);
      peers.push_back(ps::Leases::kCoordinator);
      server.leases.Watch(peers, TimeOf(server));
    }
    for (int p = 0; p < wishes_.partitions; ++p) {
      server.copies[p].replica.OnMap(map, NowOf(server));
      Do(server, p, {});
    }
  }
  void TickServers() {
    for (auto& server : servers_) {
      for (const auto& out :
           server->leases.OnTick(server->map.epoch(), TimeOf(*server))) {
        SendPing(server->key, out);
      }
      for (int p = 0; p < wishes_.partitions; ++p) {
        server->copies[p].replica.OnTick(NowOf(*server));
        Do(*server, p, {});
      }
    }
  }
  void SendPing(ps::WorkerKey from, const ps::Leases::Out& out) {
    Carry([this, from, out] {
      ps::Ping answer = {out.ping.number, map_.epoch()};
      if (out.to == ps::Leases::kCoordinator) {
        // It has given no lease to whom it calls exited.
        if (map_.StateOf(from) == ps::PartitionMap::State::kExited) return;
      } else {
        Server* to = Find(out.to);
        if (to == nullptr) return;
        answer =
            to->leases.OnPing(from, out.ping, to->map.epoch(), TimeOf(*to));
      }
      Carry([this, from, to = out.to, answer] {
        Server* server = Find(from);
        if (server == nullptr) return;
        if (!server->leases.OnAnswer(to, answer, server->map.epoch(),
                                     TimeOf(*server))) {
          SendMap(from);
        }
      });
    });
  }
  void Send(ps::WorkerKey from, ps::WorkerKey to, int p,
            const ps::ReplicaMessage& message, Rows rows) {
    Carry([this, from, to, p, message, rows = std::move(rows)] {
      Server* server = Find(to);
      if (server == nullptr) return;
      server->copies[p].replica.OnMessage(from, message, NowOf(*server));
      Do(*server, p, rows);
    });
  }

  void Do(Server& server, int p, const Rows& came_with) {
    Copy& copy = server.copies[p];
    using Kind = Action::Kind;
    std::deque<Action> actions;
    const auto take = [&] {
      for (const Action& action : copy.replica.TakeActions()) {
        actions.push_back(action);
      }
    };
    for (take(); !actions.empty(); actions.pop_front()) {
      const Action& action = actions.front();
      switch (action.kind) {
        case Kind::kServe:
          ++hits_["serve"];
          break;
        case Kind::kApply:
          copy.rows.emplace_back(action.log_entry.payload.view());
          break;
        case Kind::kLoad:
          copy.rows = came_with;
          ++copy.generation;
          copy.written = ~uint64_t{0};
          ++hits_["load"];
          break;
        case Kind::kCopy:
          copy.for_backup = copy.rows;
          copy.replica.OnCopied(/*pieces=*/1);
          take();
          break;
        case Kind::kDrop:
          copy.rows.clear();
          copy.reads.clear();
          break;
        case Kind::kSend:
          Send(server.key, action.to, p, action.message,
               action.message.kind == ps::ReplicaMessage::Kind::kFill
                   ? copy.for_backup
                   : Rows());
          break;
        case Kind::kAnswerPush:
          Answered(server, p, action.answer);
          Reply(p, action.answer);
          break;
        case Kind::kRead:
          copy.reads[action.answer.token].push_back(copy.rows);
          break;
        case Kind::kAnswerRead: {
          Answered(server, p, action.answer);
          Rows rows;
          std::deque<Rows>& kept = copy.reads[action.answer.token];
          if (action.answer.code == ps::Code::kOk && !kept.empty()) {
            rows = std::move(kept.front());
            kept.pop_front();
          }
          if (kept.empty()) copy.reads.erase(action.answer.token);
          ReplyRead(action.answer, rows);
          break;
        }
        case Kind::kPropose:
          Propose(server.key, action.change);
          break;
        case Kind::kLearnMap:
          SendMap(server.key);
          break;
      }
    }
    if (wishes_.level == ps::Durability::kD3 &&
        copy.replica.end() != copy.written) {
      copy.written = copy.replica.end();
      After(random_.Between(absl::ZeroDuration(), absl::Milliseconds(5)),
            [this, key = server.key, p, n = copy.written,
             generation = copy.generation] {
              Server* found = Find(key);
              if (found == nullptr) return;
              if (found->copies[p].generation != generation) return;
              found->copies[p].replica.OnDurable(n, NowOf(*found));
              Do(*found, p, {});
            });
    }
  }
  // G4, G5: "no answer leaves a server that may not".
  void Answered(const Server& server, int p, const ps::Answer& answer) {
    ++hits_[absl::StrCat("code ", static_cast<int>(answer.code))];
    if (answer.code == ps::Code::kOk &&
        !server.copies[p].replica.MayAnswer(NowOf(server))) {
      broken_ = absl::StrCat("G4: ", server.key.ToString(),
                             " has answered and may not");
    }
  }

  // --- Clients. --------------------------------------------------------------

  static constexpr uint64_t kOfStrangers = ~uint64_t{0};

  void Reply(int p, const ps::Answer& answer) {
    if (answer.token == kOfStrangers) return;
    Carry([this, p, c = answer.token, answer] {
      clients_[c].window.OnAnswer(p, answer, now_);
      Flush(c);
    });
  }
  void ReplyRead(const ps::Answer& answer, const Rows& rows) {
    if (answer.token == kOfStrangers) return;
    // "a client drops a read's answer of an epoch that it has left"
    Carry([this, answer, rows] {
      const size_t c = answer.token % 16;
      const auto found = clients_[c].reads.find(answer.token);
      if (found == clients_[c].reads.end()) return;
      const Read read = found->second;
      clients_[c].reads.erase(found);
      const auto& map = clients_[c].window.map();
      if (answer.code != ps::Code::kOk ||
          map.entry(map.EntryOf(read.first)).epoch != answer.epoch) {
        return;
      }
      ++hits_["read"];
      const std::set<std::string> all(rows.begin(), rows.end());
      // G6, but at D0, where what was answered may be lost.
      for (uint64_t n = 1;
           wishes_.level != ps::Durability::kD0 && n <= read.second; ++n) {
        if (all.count(Payload(c, read.first, n)) == 0) {
          broken_ = absl::StrCat("G6: client ", c, " does not see its push ", n,
                                 " to partition ", read.first);
        }
      }
      // G9: what is read at D2 and D3 is stable.
      if (wishes_.level >= ps::Durability::kD2) {
        must_have_[read.first].insert(all.begin(), all.end());
      }
    });
  }
  void TickClients() {
    for (size_t c = 0; c < clients_.size(); ++c) {
      Client& client = clients_[c];
      const int p = static_cast<int>(random_.Below(wishes_.partitions));
      for (int64_t i = random_.Below(8) - 4; i > 0; --i) {
        const std::string payload = Payload(c, p, client.pushed[p] + 1);
        if (client.pushed[p] < static_cast<uint64_t>(wishes_.pushes) &&
            client.window.HasRoom(p, static_cast<int64_t>(payload.size()))) {
          ++client.pushed[p];
          const uint64_t n = client.window.Push(p, Bytes::Copy(payload), now_);
          if (n != client.pushed[p]) broken_ = "a push has another number";
        }
      }
      client.window.OnTick(now_);
      Flush(c);
      ps::ReadRequest read = client.window.Read(p);
      if (ps::IsNone(read.to)) continue;
      read.token = ++reads_ * 16 + c;
      client.reads[read.token] = {p, read.through};
      Carry([this, p, read] {
        Server* server = Find(read.to);
        if (server == nullptr) return;
        server->copies[p].replica.OnRead(read, NowOf(*server));
        Do(*server, p, {});
      });
    }
  }
  void Flush(size_t c) {
    Client& client = clients_[c];
    using Kind = ps::ClientWindow::Action::Kind;
    for (auto& action : client.window.TakeActions()) {
      const int p = action.partition;
      const uint64_t n = action.request.mark.sequence;
      switch (action.kind) {
        case Kind::kSend:
          action.request.token = c;
          Carry([this, p, request = action.request, payload = action.payload] {
            Server* server = Find(request.to);
            if (server == nullptr) return;
            server->copies[p].replica.OnPush(request, payload, NowOf(*server));
            Do(*server, p, {});
          });
          break;
        case Kind::kAnswered:
          if (!client.answered.emplace(p, n).second) {
            broken_ = absl::StrCat("push ", n, " is answered twice");
          }
          if (wishes_.level >= ps::Durability::kD2) {
            must_have_[p].insert(Payload(c, p, n));
          }
          break;
        case Kind::kStable:
          for (uint64_t i = 1; wishes_.level != ps::Durability::kD0 && i <= n;
               ++i) {
            must_have_[p].insert(Payload(c, p, i));
          }
          break;
        case Kind::kLearnMap:
          SendMapToClient(c);
          break;
        case Kind::kBroken:
          broken_ = absl::StrCat("push ", n, " was refused for good");
          break;
      }
    }
  }

  // --- Who is no part of the job, or pretends. -------------------------------

  void SayNonsense() {
    if (servers_.empty()) return;
    Server& server =
        *servers_[random_.Below(static_cast<int64_t>(servers_.size()))];
    const int p = static_cast<int>(random_.Below(wishes_.partitions));
    const int entry = map_.EntryOf(p);
    const uint64_t epoch = server.map.entry(entry).epoch;
    ps::Replica& replica = server.copies[p].replica;
    Strangers strangers(random_, map_.epoch());
    const ps::WorkerKey stranger = strangers.Key();
    switch (random_.Below(4)) {
      case 0:
        replica.OnMessage(stranger, strangers.Message(entry), NowOf(server));
        break;
      case 1: {
        ps::PushRequest push =
            strangers.Push(entry, epoch, {server.key, stranger});
        push.token = kOfStrangers;
        replica.OnPush(push,
                       Bytes::Copy(absl::StrCat("s", push.mark.client, ".", p,
                                                ".", push.mark.sequence)),
                       NowOf(server));
        break;
      }
      case 2: {
        ps::ReadRequest read = strangers.Read(entry, epoch, server.key);
        read.token = kOfStrangers;
        replica.OnRead(read, NowOf(server));
        break;
      }
      default: {
        const auto absurd = [&] { return strangers.Absurd(); };
        server.leases.OnPing(stranger, {absurd(), absurd()}, server.map.epoch(),
                             TimeOf(server));
        server.leases.OnAnswer(stranger, {absurd(), absurd()},
                               server.map.epoch(), TimeOf(server));
      }
    }
    ++hits_["nonsense"];
    Do(server, p, {});
  }

  // --- What must hold. -------------------------------------------------------

  void Check() {
    const bool looks_at_rows = random_.Chance(0.05);  // which takes long
    for (int p = 0; p < wishes_.partitions && broken_.empty(); ++p) {
      // G4: "No two servers may answer for a partition at one time".
      const Server* answers = nullptr;
      for (const auto& server : servers_) {
        if (!server->copies[p].replica.MayAnswer(NowOf(*server))) continue;
        if (answers != nullptr) {
          broken_ = absl::StrCat("G4: ", server->key.ToString(), " and ",
                                 answers->key.ToString(),
                                 " may answer for partition ", p);
        }
        answers = server.get();
      }
      if (!looks_at_rows) continue;
      const ps::PartitionMap::Entry& entry = map_.entry(map_.EntryOf(p));
      for (const ps::WorkerKey key :
           {entry.primary, entry.in_sync ? entry.backup : entry.primary}) {
        const Server* server = Find(key);
        if (server == nullptr) continue;
        CheckRows(*server, p);
      }
    }
  }
  void CheckRows(const Server& server, int p) {
    const Rows& rows = server.copies[p].rows;
    const std::set<std::string> all(rows.begin(), rows.end());
    if (all.size() != rows.size()) {
      broken_ = absl::StrCat("G1: a push is applied twice at ",
                             server.key.ToString(), ", partition ", p);
    }
    if (!std::includes(all.begin(), all.end(), must_have_[p].begin(),
                       must_have_[p].end())) {
      broken_ = absl::StrCat("G2: ", server.key.ToString(),
                             " lacks what is stable of partition ", p, ", ",
                             map_.Summary());
    }
  }

  sim::Random random_;
  Wishes wishes_;
  Instant now_;
  int64_t step_ = 0;
  uint64_t reads_ = 0;
  ps::PartitionMap map_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<Client> clients_;
  std::vector<std::set<std::string>> must_have_;  // by partition
  Network network_{random_};
  std::map<std::string, int> hits_;
  std::string broken_;
};

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_REPLICATION_DRIVER_H_
