// Simulation of members and their coordinator under a seeded network: loss,
// duplication, delay, partitions, crashes and restarts of either side.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/core/coordinator_core.h"
#include "weft/rendezvous/core/member_core.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/sim_network.h"
#include "weft/sim/simulator.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using sim::Fault;

// One message of the wire: a request or its answer.
struct Envelope {
  uint8_t is_answer = 0;
  uint8_t method = 0;  // index in MemberCore::Request
  uint8_t code = 0;    // of an answer
  uint64_t call = 0;
  std::string body;

  Bytes Pack() const {
    std::string bytes = {static_cast<char>(is_answer),
                         static_cast<char>(method), static_cast<char>(code)};
    bytes.append(reinterpret_cast<const char*>(&call), sizeof(call));
    return Bytes::Own(bytes + body);
  }
  static Envelope Unpack(const Bytes& bytes) {
    Envelope e;
    e.is_answer = bytes[0];
    e.method = bytes[1];
    e.code = bytes[2];
    std::memcpy(&e.call, bytes.data() + 3, sizeof(e.call));
    e.body = std::string(bytes.view().substr(3 + sizeof(e.call)));
    return e;
  }
};

struct Network {
  sim::Simulator& simulator;
  sim::SimNetwork& network;
  uint64_t last_incarnation = 0;
  // Of the whole run, what must never go back or come back.
  std::map<std::string, Epoch> highest;  // epoch of a name
  std::map<WorkerKey, std::string> gone;
  std::map<std::string, int64_t> hits;
};

class CoordinatorNode final : public sim::SimNode {
 public:
  explicit CoordinatorNode(Network& world) : world_(world) { Begin(); }

  void OnStart(int64_t /*incarnation*/) override { Begin(); }
  void OnCrash() override { core_.reset(); }
  void OnMessage(const std::string& from, int64_t /*from_incarnation*/,
                 const Bytes& message) override {
    const Envelope e = Envelope::Unpack(message);
    const uint64_t ticket = ++last_ticket_;
    callers_[ticket] = {from, e.method, e.call};
    CoordinatorCore::Request request;
    switch (e.method) {
      case 0:
        request = Parse<v1::JoinRequest>(e.body);
        break;
      case 1:
        request = Parse<v1::HeartbeatRequest>(e.body);
        break;
      case 2:
        request = Parse<v1::WatchRequest>(e.body);
        break;
      default:
        request = Parse<v1::LeaveRequest>(e.body);
    }
    Do(CoordinatorCore::Call{ticket, std::move(request)});
  }

  const v1::View& view() const { return core_->view(); }

 private:
  struct Caller {
    std::string name;
    uint8_t method;
    uint64_t call;
  };

  template <typename T>
  static T Parse(const std::string& bytes) {
    T message;
    EXPECT_TRUE(message.ParseFromString(bytes));
    return message;
  }

  void Begin() {
    ++life_;
    callers_.clear();
    v1::LogRecord opened;
    opened.mutable_opened()->set_term(++term_);
    log_.push_back(opened);
    CoordinatorCore::Options options;
    options.is_durable = true;
    core_ = std::make_unique<CoordinatorCore>(options, term_, log_,
                                              world_.simulator.Now());
    if (term_ > 1) ++world_.hits["coordinator restarted"];
    Arm();
  }

  void Arm() {
    const Instant at = std::min(
        core_->NextTick(), world_.simulator.Now() + absl::Milliseconds(500));
    world_.simulator.Schedule(
        at,
        [this, life = life_] {
          if (life != life_ || core_ == nullptr) return;
          Do(CoordinatorCore::Tick{});
          Arm();
        },
        "coordinator tick");
  }

  void Do(CoordinatorCore::Event event) {
    for (auto& action :
         core_->OnEvent(world_.simulator.Now(), std::move(event))) {
      if (auto* persist = std::get_if<CoordinatorCore::Persist>(&action)) {
        if (persist->record.has_departed()) {
          const v1::Departed& departed = persist->record.departed();
          world_.gone[FromWire(departed.key())] = departed.reason();
          ++world_.hits[departed.left() ? "left" : "declared gone"];
        }
        log_.push_back(persist->record);
      } else if (auto* answer = std::get_if<CoordinatorCore::Answer>(&action)) {
        const auto caller = callers_.find(answer->ticket);
        ASSERT_NE(caller, callers_.end()) << "answered twice";
        Envelope e;
        e.is_answer = 1;
        e.method = caller->second.method;
        e.call = caller->second.call;
        e.code = static_cast<uint8_t>(answer->status.code());
        if (answer->status.ok()) {
          e.body =
              std::visit([](const auto& m) { return m.SerializeAsString(); },
                         answer->reply);
        } else {
          ++world_.hits[absl::StrCat(
              "refused ", absl::StatusCodeToString(answer->status.code()))];
        }
        world_.network.Send("coordinator", caller->second.name, e.Pack());
        callers_.erase(caller);
      }
    }
  }

  Network& world_;
  // On disk.
  std::vector<v1::LogRecord> log_;
  uint32_t term_ = 0;
  // In memory.
  int64_t life_ = 0;
  std::unique_ptr<CoordinatorCore> core_;
  uint64_t last_ticket_ = 0;
  std::map<uint64_t, Caller> callers_;
};

// A worker whose supervisor starts it anew whenever it has ended.
class MemberNode final : public sim::SimNode {
 public:
  MemberNode(Network& world, int rank)
      : world_(world), rank_(rank), name_(absl::StrCat("trainer", rank)) {}

  void OnStart(int64_t /*incarnation*/) override { Begin(); }
  void OnCrash() override {
    ++life_;
    core_.reset();
  }
  void OnMessage(const std::string& /*from*/, int64_t /*from_incarnation*/,
                 const Bytes& message) override {
    if (core_ == nullptr) return;
    const Envelope e = Envelope::Unpack(message);
    if (calls_.count(e.call) == 0) return;  // of a former life, or answered
    calls_.erase(e.call);
    MemberCore::Replied replied{e.call, absl::UnknownError("")};
    if (e.code != 0) {
      replied.reply = absl::Status(static_cast<absl::StatusCode>(e.code), "");
    } else if (e.method == 0) {
      replied.reply = Parse<v1::JoinReply>(e.body);
    } else if (e.method == 1) {
      replied.reply = Parse<v1::HeartbeatReply>(e.body);
    } else if (e.method == 2) {
      replied.reply = Parse<v1::WatchReply>(e.body);
    } else {
      replied.reply = Parse<v1::LeaveReply>(e.body);
    }
    Do(replied);
  }

  void Begin() {
    ++life_;
    calls_.clear();
    seen_ = 0;
    MemberCore::Options options;
    options.job = "job";
    options.self.set_name(name_);
    options.self.set_role("trainer");
    options.self.set_rank(rank_);
    options.self.set_incarnation(++world_.last_incarnation);
    options.world = ToWire(World::Fixed(0, 3));
    core_ = std::make_unique<MemberCore>(options, world_.simulator.Now());
    Do(MemberCore::Start{});
  }
  void Leave() {
    if (core_ != nullptr) Do(MemberCore::WantToLeave{});
  }

  bool is_in() const {
    return core_ != nullptr && core_->state() == MemberCore::State::kIn;
  }
  View view() const { return FromWire(core_->view()); }
  WorkerKey key() const { return core_->key(); }

 private:
  template <typename T>
  static MemberCore::Reply Parse(const std::string& bytes) {
    T message;
    EXPECT_TRUE(message.ParseFromString(bytes));
    return message;
  }

  void Do(const MemberCore::Event& event) {
    bool has_ended = false;
    for (auto& action : core_->OnEvent(world_.simulator.Now(), event)) {
      if (auto* send = std::get_if<MemberCore::Send>(&action)) {
        Send(*send);
      } else if (auto* timer = std::get_if<MemberCore::SetTimer>(&action)) {
        world_.simulator.After(
            timer->after,
            [this, life = life_] {
              if (life == life_ && core_ != nullptr) Do(MemberCore::Timer{});
            },
            "member timer");
      } else if (auto* joined = std::get_if<MemberCore::Joined>(&action)) {
        EXPECT_GT(joined->key.epoch, world_.highest[name_])
            << name_ << ": its epoch went back";
        world_.highest[name_] = joined->key.epoch;
        ++world_.hits["joined"];
      } else if (auto* changed = std::get_if<MemberCore::NewView>(&action)) {
        Check(FromWire(changed->view));
      } else if (std::holds_alternative<MemberCore::Ended>(action)) {
        has_ended = true;
      }
    }
    if (!has_ended) return;
    ++world_.hits["restarted by its supervisor"];
    core_.reset();
    world_.simulator.After(
        absl::Milliseconds(200),
        [this, life = life_] {
          if (life == life_ && core_ == nullptr) Begin();
        },
        "supervisor");
  }

  void Check(const View& view) {
    EXPECT_GT(view.version(), seen_) << name_ << ": a view went back";
    seen_ = view.version();
    for (const Member& member : view.members()) {
      EXPECT_EQ(view.Find(member.name)->key, member.key) << "in twice";
      EXPECT_FALSE(view.IsGone(member.key)) << member.name;
    }
    for (const Departed& departed : view.departed()) {
      EXPECT_EQ(world_.gone.count(departed.key), 1u)
          << departed.name << " is gone, which nobody decided";
    }
  }

  void Send(const MemberCore::Send& send) {
    Envelope e;
    e.method = static_cast<uint8_t>(send.request.index());
    e.call = send.call;
    e.body = std::visit([](const auto& m) { return m.SerializeAsString(); },
                        send.request);
    calls_.insert(send.call);
    world_.network.Send(name_, "coordinator", e.Pack());
    world_.simulator.After(
        send.timeout,
        [this, life = life_, call = send.call] {
          if (life != life_ || core_ == nullptr || calls_.erase(call) == 0) {
            return;
          }
          Do(MemberCore::Replied{call, absl::DeadlineExceededError("")});
        },
        "call timeout");
  }

  Network& world_;
  const int rank_;
  const std::string name_;
  int64_t life_ = 0;
  std::unique_ptr<MemberCore> core_;
  std::set<uint64_t> calls_;
  Epoch seen_ = 0;
};

// One seed: two minutes of faults, one of peace. Returns the trace's hash.
uint64_t RunSeed(uint64_t seed, sim::FaultPlan& total,
                 std::map<std::string, int64_t>& hits) {
  sim::Simulator simulator(seed);
  sim::FaultPlan::Options rates = sim::FaultPlan::Options::Of(
      {Fault::kLoss, Fault::kDuplication, Fault::kDelay, Fault::kReordering},
      0.02);
  for (const Fault fault : {Fault::kOneWayPartition, Fault::kTwoWayPartition,
                            Fault::kReset, Fault::kCrash}) {
    rates.rate[static_cast<int>(fault)] = 0.05;
  }
  sim::FaultPlan faults(seed, rates);
  sim::SimNetwork network(simulator, faults);
  Network world{simulator, network, 0, {}, {}, {}};
  CoordinatorNode coordinator(world);
  MemberNode members[3] = {{world, 0}, {world, 1}, {world, 2}};
  network.AddNode("coordinator", coordinator);
  for (int i = 0; i < 3; ++i) {
    network.AddNode(absl::StrCat("trainer", i), members[i]);
    simulator.After(
        absl::Milliseconds(simulator.random().Below(3000)),
        [&members, &network, i] {
          if (network.IsUp(absl::StrCat("trainer", i)) && !members[i].is_in()) {
            members[i].Begin();
          }
        });
  }
  for (int i = 0; i < 6; ++i) {
    simulator.After(absl::Seconds(simulator.random().Below(120)),
                    [&members, who = simulator.random().Below(3)] {
                      members[who].Leave();
                    });
  }
  sim::SimNetwork::Chaos chaos;
  chaos.every = absl::Seconds(1);
  chaos.until = simulator.Now() + absl::Seconds(120);
  chaos.max_partition = absl::Seconds(20);
  chaos.max_down = absl::Seconds(15);
  network.StartChaos(chaos);
  simulator.RunUntil(chaos.until + absl::Seconds(20));
  network.HealAll();
  // Messages are still lost, so they agree not at every moment, but soon.
  const auto agree = [&] {
    const View truth = FromWire(coordinator.view());
    return truth.IsComplete() &&
           std::all_of(std::begin(members), std::end(members),
                       [&](const MemberNode& member) {
                         return member.is_in() &&
                                member.view().version() == truth.version() &&
                                truth.Find(member.key()) != nullptr;
                       });
  };
  const Instant deadline = simulator.Now() + absl::Seconds(60);
  while (!agree() && simulator.Now() < deadline) {
    simulator.RunUntil(simulator.Now() + absl::Milliseconds(100));
  }
  EXPECT_TRUE(agree()) << "seed " << seed << ": "
                       << FromWire(coordinator.view()).Summary();
  total.Absorb(faults);
  for (const auto& [what, count] : world.hits) hits[what] += count;
  return simulator.trace_hash();
}

TEST(MembershipSimulation, MembersAgreeOnOneViewAfterAnyNetworkFaults) {
  constexpr uint64_t kSeeds = 40;
  sim::FaultPlan::Options rates = sim::FaultPlan::Options::Of(
      {Fault::kLoss, Fault::kDuplication, Fault::kDelay, Fault::kReordering,
       Fault::kOneWayPartition, Fault::kTwoWayPartition, Fault::kReset,
       Fault::kCrash},
      0.01);
  sim::FaultPlan total(0, rates);
  std::map<std::string, int64_t> hits;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RunSeed(seed, total, hits);
    if (HasFailure()) {
      FAIL() << "seed " << seed;
    }
  }
  WEFT_EXPECT_OK(total.CheckHits());
  std::cout << total.Report() << "\n";
  for (const auto& [what, count] : hits) {
    std::cout << "  " << what << ": " << count << "\n";
  }
  for (const char* what :
       {"coordinator restarted", "declared gone", "left", "joined",
        "restarted by its supervisor", "refused FAILED_PRECONDITION",
        "refused UNAVAILABLE"}) {
    EXPECT_GT(hits[what], 0) << what << " never happened";
  }
}

TEST(MembershipSimulation, ASeedReplaysBitForBit) {
  sim::FaultPlan total(0);
  std::map<std::string, int64_t> hits;
  EXPECT_EQ(RunSeed(7, total, hits), RunSeed(7, total, hits));
  EXPECT_NE(RunSeed(7, total, hits), RunSeed(8, total, hits));
}

}  // namespace
}  // namespace weft::rendezvous
