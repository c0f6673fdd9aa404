// A client as a node of a simulated network, for the simulation of replication:
// it pushes, reads, and, of a table with a staleness, joins, ticks and leaves.

#ifndef WEFT_PS_CORE_REPLICATION_CLIENT_NODE_H_
#define WEFT_PS_CORE_REPLICATION_CLIENT_NODE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/ps/core/replication/client_window.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/replication_nodes.h"
#include "weft/sim/random.h"
#include "weft/sim/sim_network.h"

namespace weft::ps::simulated {

class Client final : public sim::SimNode {
 public:
  Client(World& world, int index, const PartitionMap& map)
      : world_(world), index_(index), name_(absl::StrCat("c", index)) {
    ClientWindowOptions options;
    options.client = world.job.is_sync ? kRounds : index + 1;
    options.level = world.job.level;
    options.retry_after = absl::Milliseconds(10);
    options.resend_after = absl::Milliseconds(100);
    // Rounds that a gate keeps ahead of the open one.
    if (world.job.is_sync) options.most_outstanding = 4;
    if (world.simulator.random().Chance(0.3)) options.most_bytes = 60;
    window_.emplace(options, kPartitions, map);
    pushed_.assign(kPartitions, 0);
    world.simulator.After(
        absl::ZeroDuration(), [this] { Tick(); }, name_);
  }

  // [partition]: the numbers of pushes made, and those acknowledged.
  const std::vector<uint64_t>& pushed() const { return pushed_; }
  const std::set<std::pair<int, uint64_t>>& answered() const {
    return answered_;
  }
  bool is_done() const {
    return is_dead_ || (left() == 0 && window_->IsStable() &&
                        (!world_.job.staleness || has_left_));
  }
  // Whether that push is of a clock.
  bool IsOfClock(int partition, uint64_t sequence) const {
    return of_clock_.count({partition, sequence}) != 0;
  }
  std::string Describe() const {
    std::string text;
    for (int p = 0; p < kPartitions; ++p) {
      absl::StrAppend(&text, name_, ": ", window_->DescribeWait(p), "\n");
    }
    return text;
  }
  std::string PayloadOf(int partition, uint64_t sequence) const {
    return absl::StrCat(name_, ".", partition, ".", sequence);
  }

  void OnCrash() override {
    is_dead_ = true;
    world_.dead.insert(index_);
  }
  void OnMessage(const std::string& /*from*/, int64_t /*incarnation*/,
                 const Bytes& bytes) override {
    if (is_dead_) return;
    const Message& message = world_.Find(bytes);
    const Instant now = world_.simulator.Now();
    if (message.kind == Message::kMap) {
      const auto map = PartitionMap::Decode(message.map);
      ASSERT_TRUE(map.ok()) << map.status();
      window_->OnMap(*map, now);
    } else if (message.kind == Message::kAnswer) {
      if (message.answer.code == Code::kOk && message.answer.sequence == 1) {
        joined_[message.answer.entry] = message.clock;
      }
      window_->OnAnswer(message.answer.entry, message.answer, now);
    } else if (message.kind == Message::kReadAnswer) {
      CheckRead(message);
    }
    Flush();
  }

 private:
  int left() const {
    uint64_t made = 0;
    for (uint64_t n : pushed_) made += n;
    return world_.job.pushes - static_cast<int>(made - of_clock_.size());
  }

  // Pushes that to those partitions, if all have room.
  bool PushClock(char kind, int64_t clock, const std::set<int>& partitions) {
    const std::string payload = ModelClock{kind, index_, clock}.Text();
    const auto bytes = static_cast<int64_t>(payload.size() * kPartitions);
    for (int p : partitions) {
      if (!window_->HasRoom(p, bytes)) return false;
    }
    for (int p : partitions) {
      window_->Push(p, Bytes::Copy(payload), world_.simulator.Now());
      of_clock_.emplace(p, ++pushed_[p]);
    }
    return true;
  }

  // Joins, ticks, reads at each clock, and leaves at last. Whether it may push.
  bool StepClock() {
    static const std::set<int> kAll = {0, 1, 2, 3};
    static_assert(kPartitions == 4);
    if (phase_ == 0 && PushClock('J', 0, kAll)) phase_ = 1;
    if (phase_ == 1 && joined_.size() == kPartitions) {
      std::set<int> lower;
      for (const auto& [p, at] : joined_) clock_ = std::max(clock_, at);
      for (const auto& [p, at] : joined_) {
        if (at < clock_) lower.insert(p);
      }
      if (PushClock('T', clock_, lower)) phase_ = 2;
    }
    if (phase_ != 2) return false;
    for (const int p : unread_) Read(p, clock_);
    if (!unread_.empty()) return false;
    if (left() == 0) {
      if (!has_left_ && PushClock('L', 0, kAll)) has_left_ = true;
      return false;
    }
    if (world_.simulator.random().Chance(0.3) &&
        PushClock('T', clock_ + 1, kAll)) {
      ++clock_;
      unread_ = kAll;
      ++world_.hits["ticks"];
    }
    return true;
  }

  void Tick() {
    if (is_dead_) return;
    const Instant now = world_.simulator.Now();
    sim::Random& random = world_.simulator.random();
    const int partition = static_cast<int>(random.Below(kPartitions));
    // In SYNC every client has a part of each round.
    const bool may_push = !world_.job.staleness || StepClock();
    const std::string payload = PayloadOf(partition, pushed_[partition] + 1);
    const bool wants =
        may_push && left() > 0 &&
        (!world_.job.is_sync ||
         pushed_[partition] <
             static_cast<uint64_t>(world_.job.pushes / kPartitions));
    if (wants) {
      if (window_->HasRoom(partition, static_cast<int64_t>(payload.size()))) {
        ++pushed_[partition];
        world_.made[partition].push_back({payload, index_, clock_});
        window_->Push(partition, Bytes::Copy(payload), now);
      } else {
        ++world_.hits["waited for room"];
      }
    }
    if (random.Chance(0.2) && !world_.job.is_sync) Read(partition);
    window_->OnTick(now);
    Flush();
    world_.simulator.After(
        random.Between(absl::Milliseconds(5), absl::Milliseconds(40)),
        [this] { Tick(); }, name_);
  }

  // `clock`: negative: at none.
  void Read(int partition, int64_t clock = -1) {
    Message message;
    message.clock = clock;
    message.kind = Message::kRead;
    message.read = window_->Read(partition);
    if (IsNone(message.read.to)) return;
    message.read.token = ++reads_ * 16 + index_;
    expected_[message.read.token] = {partition, message.read.through, clock};
    world_.Send(name_, NameOf(message.read.to), std::move(message));
  }

  void CheckRead(const Message& message) {
    const auto expected = expected_.find(message.answer.token);
    if (expected == expected_.end()) return;
    const auto [partition, through, clock] = expected->second;
    expected_.erase(expected);
    if (clock >= 0 && message.answer.code == Code::kBehind) {
      ++world_.hits["reads that waited for clocks"];
    }
    if (message.answer.code != Code::kOk ||
        world_.job.level == Durability::kD0) {
      return;
    }
    ++world_.hits["reads"];
    const std::set<std::string> rows(message.rows.begin(), message.rows.end());
    if (world_.job.level >= Durability::kD2) {
      world_.seen[partition].insert(rows.begin(), rows.end());
    }
    for (uint64_t s = 1; s <= through; ++s) {
      if (IsOfClock(partition, s)) continue;
      if (rows.count(PayloadOf(partition, s)) != 0) continue;
      world_.broken = absl::StrCat(name_, " does not see its own push ", s,
                                   " to partition ", partition);
    }
    if (clock < 0) return;
    ++world_.hits["reads at a clock"];
    if (clock == clock_) unread_.erase(partition);
    for (const World::Made& made : world_.made[partition]) {
      if (made.step >= clock - *world_.job.staleness ||
          world_.dead.count(made.client) != 0 ||
          rows.count(made.payload) != 0) {
        continue;
      }
      world_.broken = absl::StrCat(name_, " lacks push ", made.payload,
                                   " of step ", made.step, " at clock ", clock);
    }
  }

  void Flush() {
    using Kind = ClientWindow::Action::Kind;
    for (ClientWindow::Action& action : window_->TakeActions()) {
      Message message;
      switch (action.kind) {
        case Kind::kSend:
          message.kind = Message::kPush;
          message.push = action.request;
          message.push.token = index_;
          message.payload = action.payload;
          message.shard = index_;
          world_.Send(name_, NameOf(action.request.to), std::move(message));
          break;
        case Kind::kLearnMap:
          message.kind = Message::kAskMap;
          world_.Send(name_, "map", std::move(message));
          break;
        case Kind::kAnswered:
          answered_.emplace(action.partition, action.request.mark.sequence);
          break;
        case Kind::kBroken:
          world_.broken = "a push was refused for good";
          break;
        case Kind::kStable:
          break;
      }
    }
  }

  World& world_;
  const int index_;
  const std::string name_;
  std::optional<ClientWindow> window_;
  std::vector<uint64_t> pushed_;
  std::set<std::pair<int, uint64_t>> answered_;
  uint64_t reads_ = 0;
  struct Expected {
    int partition;
    uint64_t through;
    int64_t clock;
  };
  std::map<uint64_t, Expected> expected_;  // by token
  int phase_ = 0;  // 0: to join; 1: joins; 2: has a clock
  int64_t clock_ = 0;
  bool has_left_ = false;
  std::map<int, int64_t> joined_;  // by partition: where it is
  std::set<int> unread_;           // at this clock
  std::set<std::pair<int, uint64_t>> of_clock_;
  bool is_dead_ = false;
};

}  // namespace weft::ps::simulated

#endif  // WEFT_PS_CORE_REPLICATION_CLIENT_NODE_H_
