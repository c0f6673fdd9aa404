// RoundGate with a quorum, against a model that knows what became of each part:
// every order for small sizes, and thousands of random ones.

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/round_gate.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Id {
  int shard = 0;
  int64_t round = 0;
  friend bool operator<(const Id& a, const Id& b) {
    return std::make_pair(a.shard, a.round) < std::make_pair(b.shard, b.round);
  }
  friend bool operator==(const Id& a, const Id& b) {
    return a.shard == b.shard && a.round == b.round;
  }
};
using Gate = RoundGate<Id>;
using Answer = Gate::Answer;

Quorum Of(int parts, bool folds) { return {parts, folds}; }

TEST(QuorumGate, ClosesWithoutTheSlowestAndTellsItThatItWasLate) {
  Gate gate(3, Orphans::kWait, 0, Of(2, false));
  EXPECT_EQ(gate.Needed(), 2);
  EXPECT_EQ(gate.Give(2, 2, 0, {2, 0}), Answer::kKept);
  EXPECT_THAT(gate.Close(), IsEmpty());
  EXPECT_EQ(gate.Needed(), 1);
  EXPECT_EQ(gate.Give(0, 0, 0, {0, 0}), Answer::kKept);
  EXPECT_THAT(gate.Close(), ElementsAre(Id{0, 0}, Id{2, 0}));
  EXPECT_EQ(gate.Give(1, 1, 0, {1, 0}), Answer::kDropped);
  EXPECT_EQ(gate.Give(1, 1, 0, {1, 0}), Answer::kDropped);
  EXPECT_EQ(gate.Give(0, 0, 0, {0, 0}), Answer::kApplied);
  EXPECT_EQ(gate.open(), 1);
}

TEST(QuorumGate, FoldsALatePartIntoTheOpenRoundOnce) {
  Gate gate(3, Orphans::kWait, 0, Of(2, true));
  gate.Give(0, 0, 0, {0, 0});
  gate.Give(2, 2, 0, {2, 0});
  ASSERT_EQ(gate.Close().size(), 2u);
  EXPECT_TRUE(gate.WouldFold(1, 0));
  EXPECT_EQ(gate.Give(1, 1, 0, {1, 0}), Answer::kFolded);
  EXPECT_FALSE(gate.WouldFold(1, 0));
  EXPECT_EQ(gate.Give(1, 1, 0, {1, 0}), Answer::kApplied);
  // It does not count for the quorum.
  EXPECT_EQ(gate.Needed(), 2);
  EXPECT_EQ(gate.Give(1, 1, 1, {1, 1}), Answer::kKept);
  EXPECT_THAT(gate.Close(), IsEmpty());
  EXPECT_EQ(gate.Give(0, 0, 1, {0, 1}), Answer::kKept);
  EXPECT_THAT(gate.Close(), ElementsAre(Id{0, 1}, Id{1, 0}, Id{1, 1}));
}

TEST(QuorumGate, FoldsNothingThatIsTooLate) {
  Gate gate(2, Orphans::kWait, 0, Of(1, true));
  for (int round = 0; round <= Gate::kMostLate; ++round) {
    gate.Give(0, 0, round, {0, round});
    ASSERT_EQ(gate.Close().size(), 1u);
  }
  EXPECT_EQ(gate.Give(1, 1, 0, {1, 0}), Answer::kDropped);
  EXPECT_EQ(gate.Give(1, 1, 1, {1, 1}), Answer::kFolded);
}

TEST(QuorumGate, NeedsNoMoreThanThereAre) {
  Gate gate(3, Orphans::kRetire, 0, Of(2, false));
  gate.DeclareDead(1);
  gate.DeclareDead(2);
  EXPECT_EQ(gate.Needed(), 1);
  gate.Give(0, 0, 0, {0, 0});
  EXPECT_THAT(gate.Close(), ElementsAre(Id{0, 0}));
  gate.DeclareDead(0);
  EXPECT_THAT(gate.Close(), IsEmpty());
}

TEST(QuorumGate, NothingLateIsTakenOfTheDead) {
  Gate gate(2, Orphans::kWait, 0, Of(1, true));
  gate.Give(0, 0, 0, {0, 0});
  ASSERT_EQ(gate.Close().size(), 1u);
  gate.DeclareDead(1);
  EXPECT_EQ(gate.Give(1, 1, 0, {1, 0}), Answer::kUnknown);
  EXPECT_EQ(gate.Give(1, 0, 0, {1, 0}), Answer::kFolded);  // its new owner
}

// What has become of each part, kept beside a gate. Every Give is checked.
class Model {
 public:
  Model(int shards, Orphans orphans, Quorum quorum)
      : orphans_(orphans),
        quorum_(quorum),
        gate_(shards, orphans, 0, quorum),
        dead_(shards, false) {}

  void Give(int shard, int64_t round) {
    const Id id{shard, round};
    const bool is_late = round < gate_.open();
    const bool in = in_.count(id) != 0;  // counted, or will
    const Answer answer = gate_.Give(shard, shard, round, id);
    ++answers[answer];
    switch (answer) {
      case Answer::kKept:
        ASSERT_FALSE(is_late || in || dead_[shard]);
        in_.insert(id);
        break;
      case Answer::kFolded:
        ASSERT_TRUE(is_late && quorum_.folds && !in && !dead_[shard]);
        ASSERT_LE(gate_.open() - round, Gate::kMostLate);
        in_.insert(id);
        break;
      case Answer::kDropped:
        ASSERT_TRUE(is_late && !dead_[shard]);
        ASSERT_TRUE(!quorum_.folds || gate_.open() - round > Gate::kMostLate);
        ASSERT_TRUE(!in || gate_.open() - round > Gate::kRemembered);
        break;
      case Answer::kDuplicate:
        ASSERT_TRUE(in && !is_late);
        break;
      case Answer::kApplied:
        ASSERT_TRUE(in && is_late);
        break;
      case Answer::kTooFar:
        ASSERT_GT(round, gate_.open() + Gate::kLookahead);
        break;
      case Answer::kUnknown:
      case Answer::kMissed:
        ASSERT_TRUE(dead_[shard]);
        break;
      default:
        FAIL() << static_cast<int>(answer);
    }
    Close();
  }

  void Die(int shard) {
    gate_.DeclareDead(shard);
    dead_[shard] = true;
    // What it gave to later rounds is dropped.
    for (auto it = in_.begin(); it != in_.end();) {
      const bool goes = it->shard == shard && it->round > gate_.open();
      it = goes ? in_.erase(it) : std::next(it);
    }
    Close();
  }

  int64_t open() const { return gate_.open(); }
  int64_t counted() const { return static_cast<int64_t>(done_.size()); }
  std::string Key() const {
    std::string key = absl::StrCat(gate_.open());
    for (const bool dead : dead_) absl::StrAppend(&key, dead ? "d" : "l");
    for (const Id& id : in_) {
      absl::StrAppend(&key, " ", id.shard, ".", id.round,
                      done_.count(id) != 0 ? "+" : "");
    }
    return key;
  }
  std::map<Answer, int> answers;

 private:
  void Close() {
    for (;;) {
      const int64_t round = gate_.open();
      const std::vector<Id> parts = gate_.Close();
      if (parts.empty()) break;
      int own = 0;
      for (const Id& id : parts) {
        own += id.round == round ? 1 : 0;
        ASSERT_LE(id.round, round);
        ASSERT_EQ(in_.count(id), 1u) << "was not taken";
        ASSERT_TRUE(done_.insert(id).second) << "counts twice";
      }
      ASSERT_TRUE(std::is_sorted(parts.begin(), parts.end()));
      ASSERT_GE(own, Wanted(round));
    }
    // Nobody waits for a round that has enough.
    int given = 0;
    for (const Id& id : in_) given += id.round == gate_.open() ? 1 : 0;
    const bool any_lives = orphans_ == Orphans::kWait ||
                           std::count(dead_.begin(), dead_.end(), false) > 0;
    if (any_lives) {
      ASSERT_LT(given, Wanted(gate_.open()));
    }
  }
  // How many parts of its own that round is to have.
  int Wanted(int64_t round) const {
    int count = 0;
    for (size_t shard = 0; shard < dead_.size(); ++shard) {
      const bool counts = orphans_ == Orphans::kWait || !dead_[shard] ||
                          in_.count({static_cast<int>(shard), round}) != 0;
      count += counts ? 1 : 0;
    }
    return std::min(quorum_.parts, count);
  }

  Orphans orphans_;
  Quorum quorum_;
  Gate gate_;
  std::vector<bool> dead_;
  std::set<Id> in_;    // taken: they count, or will
  std::set<Id> done_;  // in rounds that have closed
};

// Every order in which the parts of three shards in some rounds come, each up
// to so many times, with one death at any moment.
class Exploration {
 public:
  static constexpr int kShards = 3;

  explicit Exploration(int rounds) : rounds_(rounds) {}

  void Run(const Model& model, std::vector<int> left, bool may_die) {
    if (::testing::Test::HasFatalFailure()) return;
    std::string key = model.Key() + (may_die ? "?" : "!");
    for (const int times : left) absl::StrAppend(&key, times);
    if (!seen.insert(std::move(key)).second) return;
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i] == 0) continue;
      Model next = model;
      next.Give(static_cast<int>(i) / rounds_, static_cast<int>(i) % rounds_);
      std::vector<int> rest = left;
      --rest[i];
      Run(next, std::move(rest), may_die);
    }
    for (int shard = 0; may_die && shard < kShards; ++shard) {
      Model next = model;
      next.Die(shard);
      Run(next, left, false);
    }
  }
  std::set<std::string> seen;

 private:
  int rounds_;
};

TEST(QuorumGate, EveryPartCountsOnceOrNotAtAllInEveryOrder) {
  for (const int parts : {1, 2, 3}) {
    for (const bool folds : {false, true}) {
      for (const Orphans orphans : {Orphans::kWait, Orphans::kRetire}) {
        const Model model(Exploration::kShards, orphans, Of(parts, folds));
        Exploration doubled(2), longer(3);
        // Twice where there is most to get wrong.
        doubled.Run(
            model,
            std::vector<int>(Exploration::kShards * 2, parts == 2 ? 2 : 1),
            /*may_die=*/true);
        if (parts == 2) {
          longer.Run(model, std::vector<int>(Exploration::kShards * 3, 1),
                     /*may_die=*/true);
          EXPECT_GT(longer.seen.size(), 1000u);
        }
        ASSERT_FALSE(HasFatalFailure()) << parts << folds;
        EXPECT_GT(doubled.seen.size(), 100u);
      }
    }
  }
}

TEST(QuorumGateSimulation, PartsThatAreLateDoubledAndReorderedCountAtMostOnce) {
  std::map<Answer, int> answers;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    const int shards = 2 + static_cast<int>(random() % 5);
    const int parts = 1 + static_cast<int>(random() % shards);
    Model model(shards, random() % 2 == 0 ? Orphans::kWait : Orphans::kRetire,
                Of(parts, random() % 2 == 0));
    std::vector<int64_t> next(shards, 0);
    std::vector<Id> sent;  // any of them may come (again) at any time
    int deaths = 0;
    for (int event = 0; event < 300; ++event) {
      const int shard = static_cast<int>(random() % shards);
      const bool is_slow = shard == 0 && random() % 8 != 0;
      if (random() % 100 == 0 && deaths + parts < shards) {
        model.Die(shard);
        ++deaths;
      } else if (random() % 4 == 0 && !sent.empty()) {
        model.Give(sent[random() % sent.size()].shard,
                   sent[random() % sent.size()].round);
      } else if (!is_slow && next[shard] <= model.open() + 1 +
                                                (random() % 32 == 0 ? 6 : 0)) {
        sent.push_back({shard, next[shard]++});
        // Some overtake what was sent before.
        const Id& id =
            random() % 3 == 0 ? sent[random() % sent.size()] : sent.back();
        model.Give(id.shard, id.round);
      }
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << " event " << event;
    }
    for (const auto& [answer, count] : model.answers) answers[answer] += count;
  }
  for (const Answer answer :
       {Answer::kKept, Answer::kFolded, Answer::kDropped, Answer::kApplied,
        Answer::kDuplicate, Answer::kUnknown, Answer::kTooFar}) {
    EXPECT_GT(answers[answer], 100) << static_cast<int>(answer);
  }
}

}  // namespace
}  // namespace weft::ps
