// Servers and a coordinator that keeps the map, as nodes of a simulated
// network; for the simulation of replication. replication_client_node.h has the
// clients.

#ifndef WEFT_PS_CORE_REPLICATION_NODES_H_
#define WEFT_PS_CORE_REPLICATION_NODES_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/ps/core/replication/leases.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/replication.h"
#include "weft/ps/core/replication/replication_model.h"
#include "weft/ps/core/replication/revival.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/random.h"
#include "weft/sim/sim_network.h"
#include "weft/sim/simulator.h"

namespace weft::ps::simulated {

using Out = ServerModel::Out;

inline constexpr int kPartitions = 4;
inline constexpr absl::Duration kTick = absl::Milliseconds(20);
inline constexpr absl::Duration kSilence = absl::Milliseconds(200);
inline constexpr absl::Duration kDeadAfter = absl::Seconds(1);

// What a seed chooses.
struct SimulatedJob {
  Durability level = Durability::kD1;
  bool is_sync = false;
  bool stalls_alone = false;
  int servers = 3;
  int clients = 2;
  int pushes = 40;  // of a client
  bool client_dies = false;
  bool drains = false;  // servers, one after another, which take part again
  std::optional<int64_t> staleness;
  // D3: any servers die, at any time, also all at once; what they had not
  // synced goes.
  bool any_deaths = false;

  static SimulatedJob Of(sim::Random& random, bool any_deaths) {
    SimulatedJob job;
    job.any_deaths = any_deaths;
    const int64_t level = any_deaths ? 1 : random.Below(8);
    job.level = level == 0   ? Durability::kD0
                : level == 1 ? Durability::kD3
                : level < 4  ? Durability::kD2
                             : Durability::kD1;
    // A round whose parts were forgotten would never close: no D0.
    job.is_sync = job.level != Durability::kD0 && random.Chance(0.4);
    job.stalls_alone = random.Chance(0.3);
    job.servers = 3 + static_cast<int>(random.Below(3));
    job.clients = 2 + static_cast<int>(random.Below(3));
    job.client_dies =
        !job.is_sync && job.level >= Durability::kD2 && random.Chance(0.5);
    job.drains = random.Chance(0.6);
    // No table has a staleness at D0.
    const bool may_have_clocks = !job.is_sync && job.level != Durability::kD0;
    const bool has_clocks = may_have_clocks && random.Chance(0.5);
    if (has_clocks) job.staleness = random.Below(3);
    return job;
  }
};

struct Message {
  enum Kind {
    kPing,
    kPingAnswer,
    kJoin,
    kPropose,
    kAskMap,
    kMap,  // and the coordinator
    kReplica,
    kPush,
    kRead,
    kAnswer,
    kReadAnswer
  };
  Kind kind = kPing;
  WorkerKey from;
  Ping ping;
  std::string map;
  MapChange change;
  ReplicaMessage replica;
  ModelRows rows;
  PartitionClocks::State clocks;
  int64_t clock = -1;  // of kRead, at which; of kAnswer, of the client
  PushRequest push;
  Bytes payload;
  int shard = 0;
  ReadRequest read;
  Answer answer;
};

// Everything of one seed. Messages lie here; the network carries their numbers.
struct World {
  World(uint64_t seed, sim::FaultPlan& plan)
      : simulator(seed), faults(plan), network(simulator, faults) {}

  void Send(const std::string& from, const std::string& to, Message message) {
    const uint64_t number = messages.size();
    messages.push_back(std::move(message));
    network.Send(from, to,
                 Bytes::Copy(absl::string_view(
                     reinterpret_cast<const char*>(&number), sizeof(number))));
  }
  const Message& Find(const Bytes& bytes) const {
    uint64_t number = 0;
    std::copy_n(bytes.data(), sizeof(number),
                reinterpret_cast<uint8_t*>(&number));
    return messages[number];
  }

  sim::Simulator simulator;
  sim::FaultPlan& faults;
  sim::SimNetwork network;
  std::deque<Message> messages;
  SimulatedJob job;
  std::string broken;
  std::map<std::string, int64_t> hits;
  Instant last_proposal;
  // D2 and D3, by partition: what reads have shown. It must not vanish.
  std::map<int, std::set<std::string>> seen;
  // With a staleness, by partition: what clients have pushed, and in which
  // step; and those that died.
  struct Made {
    std::string payload;
    int client = 0;
    int64_t step = 0;
  };
  std::map<int, std::vector<Made>> made;
  std::set<int> dead;
};

inline std::string NameOf(WorkerKey key) {
  return IsNone(key) ? "map" : absl::StrCat("ps", key.id - 1);
}

// Keeps the map, and watches the servers.
class Coordinator final : public sim::SimNode {
 public:
  Coordinator(World& world, PartitionMap map)
      : world_(world), map_(std::move(map)) {
    for (const PartitionMap::Server& server : map_.servers()) {
      heard_[server.key] = world.simulator.Now();
    }
    Tick();
  }

  const PartitionMap& map() const { return map_; }

  void OnMessage(const std::string& from, int64_t /*incarnation*/,
                 const Bytes& bytes) override {
    const Message& message = world_.Find(bytes);
    const uint64_t before = map_.epoch();
    switch (message.kind) {
      case Message::kPing: {
        // A server that was declared dead gets no lease.
        if (map_.StateOf(message.from) == PartitionMap::State::kExited) break;
        heard_[message.from] = world_.simulator.Now();
        map_.AddServer(message.from, message.from.id);
        if (world_.job.level == Durability::kD3) map_.SetLogged(message.from);
        Message answer;
        answer.kind = Message::kPingAnswer;
        answer.ping = {message.ping.number, map_.epoch()};
        world_.Send("map", from, std::move(answer));
        break;
      }
      case Message::kJoin:
        if (map_.AddServer(message.from, message.from.id)) {
          heard_[message.from] = world_.simulator.Now();
          if (world_.job.level == Durability::kD3) map_.SetLogged(message.from);
          ++world_.hits["joined anew"];
        }
        SendMap(from);
        break;
      case Message::kPropose: {
        const bool applied = map_.Apply(message.change).ok();
        static constexpr const char* kNames[] = {
            "marked in sync",  "dropped a backup",
            "promoted itself", "took the next copy",
            "dropped a next",  "handed over",
            "kept its role",   "moved a copy",
            "moved a role",    "revived",
            "disowned"};
        if (applied)
          ++world_.hits[kNames[static_cast<int>(message.change.kind)]];
        if (!applied) ++world_.hits["proposed too late"];
        break;
      }
      case Message::kAskMap:
        SendMap(from);
        break;
      default:
        ADD_FAILURE() << "a message that is not for the coordinator";
    }
    if (map_.epoch() != before) TellAll();
  }

  // Server `i` is to have nothing, or takes part again. Does nothing where too
  // few servers live to drain one.
  void Drain(int i, bool is_drained) {
    MapChange change;
    change.kind =
        is_drained ? MapChange::Kind::kDrain : MapChange::Kind::kUndrain;
    change.server = static_cast<uint32_t>(i + 1);
    if (!map_.Apply(change).ok()) return;
    ++world_.hits[is_drained ? "drained" : "took part again"];
    TellAll();
  }

  // The exits of servers are proven.
  void Exited(const std::vector<WorkerKey>& servers) {
    if (!map_.FailServers(servers)) return;
    ++world_.hits["proven exits"];
    if (map_.lost() > 0) ++world_.hits["lost all copies of partitions"];
    for (int i = 0; i < map_.entries(); ++i) {
      if (map_.entry(i).heirs.size() == 2) ++world_.hits["two heirs"];
    }
    TellAll();
  }

 private:
  void Tick() {
    const uint64_t before = map_.epoch();
    const Instant now = world_.simulator.Now();
    const std::vector<PartitionMap::Server> servers = map_.servers();
    for (const PartitionMap::Server& server : servers) {
      const absl::Duration silence = now - heard_[server.key];
      if (silence > kDeadAfter) {
        if (map_.FailServer(server.key, PartitionMap::State::kExited)) {
          ++world_.hits["declared dead by silence"];
        }
      } else if (silence > kSilence && AreHeard(server.key)) {
        if (map_.FailServer(server.key, PartitionMap::State::kSilent)) {
          ++world_.hits["suspected"];
        }
      }
    }
    map_.AddBackups();
    map_.AddMoves();
    if (map_.epoch() != before) TellAll();
    world_.simulator.After(
        kTick, [this] { Tick(); }, "coordinator");
  }

  // Whether those that would take its partitions over are there: heard of since
  // it was.
  bool AreHeard(WorkerKey server) {
    for (int i = 0; i < map_.entries(); ++i) {
      const PartitionMap::Entry& entry = map_.entry(i);
      if (entry.primary == server && entry.in_sync &&
          heard_[entry.backup] <= heard_[server] + kSilence / 2) {
        return false;
      }
    }
    return true;
  }

  void SendMap(const std::string& to) {
    Message news;
    news.kind = Message::kMap;
    news.map = map_.Encode();
    world_.Send("map", to, std::move(news));
  }
  void TellAll() {
    for (int i = 0; i < world_.job.servers; ++i) SendMap(absl::StrCat("ps", i));
    for (int i = 0; i < world_.job.clients; ++i) SendMap(absl::StrCat("c", i));
  }

  World& world_;
  PartitionMap map_;
  std::map<WorkerKey, Instant> heard_;
};

class Server final : public sim::SimNode {
 public:
  Server(World& world, int index, const PartitionMap& map)
      : world_(world),
        name_(absl::StrCat("ps", index)),
        key_{static_cast<uint32_t>(index + 1), 1} {
    Begin();
    Learn(map);
  }

  WorkerKey key() const { return key_; }
  // Null: it has not joined.
  const ServerModel* model() const { return model_ ? &*model_ : nullptr; }
  bool MayAnswer(int entry) const {
    return model_ && world_.network.IsUp(name_) &&
           model_->cells[entry].replica.MayAnswer(model_->NowAt(Time()));
  }

  void OnStart(int64_t incarnation) override {
    if (incarnation == 1) return;  // has begun
    key_.epoch = incarnation;
    Begin();
  }
  void OnCrash() override {
    model_.reset();
    ++life_;
    // A part of what was not synced may be there all the same.
    const size_t unsynced = disk_.size() - synced_;
    const size_t kept = world_.simulator.random().Below(unsynced + 1);
    world_.hits["records lost by a disk"] +=
        static_cast<int64_t>(unsynced - kept);
    disk_.resize(synced_ + kept);
  }

  void OnMessage(const std::string& from, int64_t /*incarnation*/,
                 const Bytes& bytes) override {
    const Message& message = world_.Find(bytes);
    if (message.kind == Message::kMap) {
      const auto map = PartitionMap::Decode(message.map);
      ASSERT_TRUE(map.ok()) << map.status();
      Learn(*map);
    }
    if (!model_) return;
    const Instant at = Time();
    switch (message.kind) {
      case Message::kPing: {
        Message answer;
        answer.kind = Message::kPingAnswer;
        answer.from = key_;
        answer.ping = model_->leases.OnPing(message.from, message.ping,
                                            model_->map.epoch(), at);
        world_.Send(name_, from, std::move(answer));
        break;
      }
      case Message::kPingAnswer:
        if (!model_->leases.OnAnswer(message.from, message.ping,
                                     model_->map.epoch(), at)) {
          Ask(Message::kAskMap);
        }
        break;
      case Message::kReplica:
        model_->OnMessage(message.from, message.replica, message.rows, at,
                          message.clocks);
        break;
      case Message::kPush:
        model_->OnPush(message.push, message.shard, message.payload, at);
        break;
      case Message::kRead:
        if (message.clock < 0) {
          model_->OnRead(message.read, at);
        } else {
          const auto rank = static_cast<int>(message.read.client) - 1;
          model_->OnRead(message.read, at,
                         ModelClock{'T', rank, message.clock});
        }
        break;
      default:
        break;
    }
    Flush();
  }

 private:
  Instant Time() const {
    return Instant() + (world_.simulator.Now() - Instant()) * speed_;
  }

  void Begin() {
    speed_ =
        0.996 + 0.001 * static_cast<double>(world_.simulator.random().Below(9));
    world_.simulator.After(
        absl::ZeroDuration(), [this, life = life_] { Tick(life); }, name_);
  }

  void Learn(const PartitionMap& map) {
    const auto is_in = [&](const PartitionMap::Server& s) {
      return s.key == key_;
    };
    if (!model_ &&
        std::none_of(map.servers().begin(), map.servers().end(), is_in)) {
      return;
    }
    if (!model_) {
      ServerModel::Options options;
      options.replica.level = world_.job.level;
      options.replica.stalls_alone = world_.job.stalls_alone;
      options.replica.resend_after = absl::Milliseconds(40);
      options.replica.fill_again_after = absl::Milliseconds(100);
      options.replica.resend_pieces_after = absl::Milliseconds(50);
      options.replica.most_pieces = 2;
      options.replica.fills_when_told = world_.simulator.random().Chance(0.5);
      options.pieces =
          1 + static_cast<uint32_t>(world_.simulator.random().Below(5));
      options.replica.silence = kSilence;
      options.replica.stall = kSilence;
      options.replica.most_lag = 4;
      options.leases.lease = kSilence * 0.7;
      options.leases.coordinator_lease = kDeadAfter * 0.9;
      options.leases.ping_every = kTick;
      options.shards = world_.job.is_sync ? world_.job.clients : 0;
      options.staleness = world_.job.staleness;
      // It is read, so it is there.
      synced_ = disk_.size();
      model_.emplace(key_, map, options, Time(), disk_);
      born_ = world_.simulator.Now();
      owners_.insert(key_);
      if (!disk_.empty()) ++world_.hits["began with a log"];
    } else {
      model_->OnMap(map, Time());
    }
    Flush();
  }

  void Ask(Message::Kind kind) {
    Message message;
    message.kind = kind;
    message.from = key_;
    world_.Send(name_, "map", std::move(message));
  }

  void Tick(int64_t life) {
    if (life != life_) return;
    if (!model_) {
      Ask(Message::kJoin);
    } else {
      for (const Leases::Out& out :
           model_->leases.OnTick(model_->map.epoch(), Time())) {
        Message ping;
        ping.kind = Message::kPing;
        ping.from = key_;
        ping.ping = out.ping;
        world_.Send(name_, NameOf(out.to), std::move(ping));
      }
      // It hears of deaths at a time of its own.
      for (const int client : world_.dead) {
        const auto id = static_cast<ClientId>(client + 1);
        const bool has_heard = model_->closed.count(id) != 0;
        if (has_heard || world_.simulator.random().Chance(0.1)) {
          model_->Close(id);
        }
      }
      model_->OnTick(Time());
      model_->BeginFill(Time());
      Revive();
      Flush();
    }
    world_.simulator.After(
        kTick, [this, life] { Tick(life); }, name_);
  }

  // While it has the role, the lowest clock does not fall.
  void CheckClocks() {
    if (!model_->refused.empty()) world_.broken = model_->refused;
    for (int p = 0; p < kPartitions; ++p) {
      const ServerModel::Cell& cell = model_->cells[p];
      const std::pair<uint64_t, int64_t> now = {model_->map.entry(p).epoch,
                                                cell.clocks.gate().least()};
      std::pair<uint64_t, int64_t>& last = least_[p];
      if (!cell.replica.is_primary() || cell.clocks.gate().size() == 0) {
        last = {0, 0};
        continue;
      }
      if (last.first == now.first && now.second < last.second) {
        world_.broken = absl::StrCat("the lowest clock fell at ", name_);
      }
      last = now;
    }
  }

  void Revive() {
    if (world_.job.level != Durability::kD3) return;
    const bool is_patient = world_.simulator.Now() - born_ < kSilence;
    for (const MapChange& change : Revivals(
             model_->map, key_, owners_, [](int) { return true; },
             is_patient)) {
      Message message;
      message.kind = Message::kPropose;
      message.from = key_;
      message.change = change;
      world_.Send(name_, "map", std::move(message));
    }
  }

  void Flush() {
    CheckClocks();
    disk_ = model_->log;
    for (Out& out : std::exchange(model_->out, {})) {
      Message message;
      message.from = key_;
      switch (out.kind) {
        case Out::kMessage:
          message.kind = Message::kReplica;
          if (out.message.kind == ReplicaMessage::Kind::kFill) {
            ++world_
                  .hits[out.message.piece == 0 ? "copies sent" : "pieces sent"];
          }
          message.replica = std::move(out.message);
          message.rows = std::move(out.rows);
          message.clocks = std::move(out.clocks);
          world_.Send(name_, NameOf(out.to), std::move(message));
          break;
        case Out::kPush:
        case Out::kRead:
          Count(out.answer);
          message.kind =
              out.kind == Out::kPush ? Message::kAnswer : Message::kReadAnswer;
          message.answer = out.answer;
          message.clock = out.clock;
          message.rows = std::move(out.rows);
          world_.Send(name_, absl::StrCat("c", out.answer.token % 16),
                      std::move(message));
          break;
        case Out::kPropose:
          world_.last_proposal = world_.simulator.Now();
          message.kind = Message::kPropose;
          message.change = out.change;
          world_.Send(name_, "map", std::move(message));
          break;
        case Out::kLearnMap:
          Ask(Message::kAskMap);
          break;
        case Out::kWrite:
          world_.simulator.After(
              world_.simulator.random().Between(absl::ZeroDuration(),
                                                absl::Milliseconds(5)),
              [this, life = life_, out] {
                if (life != life_ || !model_) return;
                synced_ = std::max(synced_, out.position);
                model_->OnDurable(out.entry, out.n, out.generation, Time());
                Flush();
              },
              "disk");
          break;
      }
    }
  }

  void Count(const Answer& answer) {
    if (answer.code == Code::kOk && !MayAnswer(answer.entry)) {
      world_.broken = absl::StrCat(name_, " has answered without a lease");
    }
    static constexpr const char* kNames[] = {
        "answered",      "refused: stale map", "refused: fenced",
        "refused: busy", "refused: behind",    "refused: too far"};
    ++world_.hits[kNames[static_cast<int>(answer.code)]];
  }

  World& world_;
  const std::string name_;
  WorkerKey key_;
  int64_t life_ = 0;
  double speed_ = 1;              // of its clock
  std::vector<DiskRecord> disk_;  // outlives it
  size_t synced_ = 0;
  std::set<WorkerKey> owners_;  // of the disk
  Instant born_;
  std::optional<ServerModel> model_;
  std::map<int, std::pair<uint64_t, int64_t>> least_;  // epoch and clock
};

}  // namespace weft::ps::simulated

#endif  // WEFT_PS_CORE_REPLICATION_NODES_H_
