// Groups of up to 32 ranks in which some lack the state: ranks die in the
// middle of a round, send what is not theirs, or what changes on its way, and
// others come. Each rank has a StateHandover of its own; a seed gives the same
// run each time.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/sim/random.h"
#include "weft/train/core/state_handover.h"

namespace weft::train {
namespace {

struct Totals {
  int64_t rounds = 0;
  int64_t deaths = 0;
  int64_t wrong = 0;         // parts
  int64_t resumed = 0;       // parts that came before a death
  int64_t replaced = 0;      // parts that another sent than who died
  int64_t unobtainable = 0;  // ranks
};

constexpr int kNone = -1;

// What a rank has of the state: equal numbers, equal bits.
struct Rank {
  bool holds = false;
  std::vector<int> content;  // of each part
  // The sender that died before the part had come.
  std::vector<int> lost_from;
};

class World {
 public:
  World(uint64_t seed, Totals* totals) : random_(seed), totals_(totals) {
    const int ranks = seed % 8 == 0 ? 32 : Draw(2, 12);
    bytes_.resize(Draw(1, 40));
    for (int64_t& bytes : bytes_) bytes = Draw(1, 4096);
    const int holders = Draw(1, ranks - 1);
    for (int r = 0; r < ranks; ++r) Add(r < holders);
    std::swap(ranks_.front(), ranks_[random_.Below(ranks)]);
    deaths_left_ = Draw(0, ranks);
    corruption_ = random_.Chance(0.3) ? 0.05 : 0;
  }

  void Run() {
    for (int group = 0; HasHolder() && HasTaker(); ++group) {
      ASSERT_LT(group, 200) << "they go on for ever";
      RunGroup();
      if (::testing::Test::HasFailure()) return;
      if (random_.Chance(0.3) && ranks_.size() < 32) Add(false);
    }
  }

 private:
  int Draw(int low, int high) {
    return low + static_cast<int>(random_.Below(high - low + 1));
  }
  void Add(bool holds) {
    Rank rank;
    rank.holds = holds;
    rank.content.assign(bytes_.size(), holds ? 0 : kNone);
    rank.lost_from.assign(bytes_.size(), kNone);
    // A few hold something else, in some parts or in all.
    if (holds && random_.Chance(0.15)) {
      const double share = random_.Chance(0.5) ? 0.1 : 1;
      for (int& part : rank.content) {
        if (random_.Chance(share)) part = ++unique_;
      }
    }
    ranks_.push_back(rank);
  }
  bool HasHolder() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return rank.holds; });
  }
  bool HasTaker() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return !rank.holds; });
  }
  // Of the first `told` parts.
  std::vector<std::vector<int>> Lacks(int source, int told) const {
    std::vector<std::vector<int>> lacks(ranks_.size());
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].holds) continue;
      for (int p = 0; p < told; ++p) {
        if (ranks_[r].content[p] != ranks_[source].content[p]) {
          lacks[r].push_back(p);
        }
      }
    }
    return lacks;
  }

  // Until a rank is lost, or all have the state.
  void RunGroup() {
    std::vector<bool> holds;
    for (const Rank& rank : ranks_) holds.push_back(rank.holds);
    const int source = static_cast<int>(
        std::find(holds.begin(), holds.end(), true) - holds.begin());
    const auto deviants =
        std::count_if(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
          return rank.holds && rank.content != ranks_[source].content;
        });
    std::vector<StateHandover> all(
        ranks_.size(), StateHandover(holds, source, bytes_, Draw(1, 20000)));
    wrong_.clear();
    int told = 0, stretches = 0;
    for (int round = 0;; ++round) {
      const auto lacks = Lacks(source, told);
      const StateHandover::Stretch stretch = all[0].stretch();
      ASSERT_EQ(stretch.begin, told);
      const auto transfers = all[0].NextRound(lacks);
      for (size_t r = 1; r < all.size(); ++r) {
        ASSERT_EQ(all[r].NextRound(lacks) == transfers, true) << "H1";
        ASSERT_EQ(all[r].is_over(), all[0].is_over()) << "H1";
      }
      told = stretch.end;
      stretches += stretch.begin < stretch.end;
      ++totals_->rounds;
      Check(holds, lacks, transfers, all[0]);
      if (all[0].is_over()) {
        ASSERT_EQ(told, static_cast<int>(bytes_.size()));
        return End(source);
      }
      if (EndWhoHasNoHope(all[0])) return;
      if (corruption_ == 0) {
        ASSERT_LE(round, stretches + deviants + 1) << "H6";
      }
      int dies = kNone;
      if (deaths_left_ > 0 && random_.Chance(0.4)) {
        --deaths_left_;
        dies = static_cast<int>(random_.Below(ranks_.size()));
      }
      Move(transfers, source, dies);
      if (dies == kNone) continue;
      ++totals_->deaths;
      ranks_.erase(ranks_.begin() + dies);
      for (Rank& rank : ranks_) {
        for (int& from : rank.lost_from) {
          if (from != kNone) from = kNone - 1;  // it is gone
        }
      }
      return;
    }
  }

  // With a death only some of them.
  void Move(const std::vector<StateHandover::Transfer>& transfers, int source,
            int dies) {
    const double arrives = dies == kNone ? 1 : random_.Below(101) / 100.0;
    for (const auto& [from, to, part] : transfers) {
      Rank& taker = ranks_[to];
      if (!random_.Chance(arrives)) {
        if (from == dies) taker.lost_from[part] = from;
        continue;
      }
      totals_->replaced += taker.lost_from[part] < kNone;
      taker.lost_from[part] = kNone;
      taker.content[part] =
          random_.Chance(corruption_) ? ++unique_ : ranks_[from].content[part];
      if (taker.content[part] != ranks_[source].content[part]) {
        wrong_.emplace(std::make_pair(to, part), from);
        ++totals_->wrong;
      } else if (dies != kNone) {
        ++totals_->resumed;
      }
    }
  }

  void Check(const std::vector<bool>& holds,
             const std::vector<std::vector<int>>& lacks,
             const std::vector<StateHandover::Transfer>& transfers,
             const StateHandover& one) {
    std::set<std::pair<int, int>> asked;
    std::map<int, int64_t> load;
    int64_t total = 0;
    for (const auto& [from, to, part] : transfers) {
      ASSERT_TRUE(holds[from] && !holds[to]) << "H2";
      ASSERT_EQ(std::count(lacks[to].begin(), lacks[to].end(), part), 1)
          << "H2";
      ASSERT_TRUE(asked.emplace(to, part).second) << "H2";
      const auto [begin, end] = wrong_.equal_range({to, part});
      for (auto at = begin; at != end; ++at) {
        ASSERT_NE(at->second, from) << "H3";
      }
      load[from] += bytes_[part];
      total += bytes_[part];
    }
    const auto holders = std::count(holds.begin(), holds.end(), true);
    for (size_t r = 0; r < lacks.size(); ++r) {
      for (const int part : lacks[r]) {
        if (asked.count({static_cast<int>(r), part}) > 0) continue;
        ASSERT_EQ(static_cast<long>(wrong_.count({static_cast<int>(r), part})),
                  holders)
            << "H4";
        ASSERT_TRUE(one.Unobtainable(static_cast<int>(r)).has_value()) << "H4";
      }
    }
    if (!wrong_.empty()) return;
    const int64_t most = *std::max_element(bytes_.begin(), bytes_.end());
    for (const auto& [from, sent] : load) {
      ASSERT_LE(sent, total / holders + most) << "H5";
    }
  }

  // They say who has sent what was wrong, and their group ends.
  bool EndWhoHasNoHope(const StateHandover& one) {
    std::vector<Rank> left;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const int rank = static_cast<int>(r);
      const auto part = one.Unobtainable(rank);
      if (!part.has_value()) {
        left.push_back(ranks_[r]);
        continue;
      }
      ++totals_->unobtainable;
      EXPECT_GT(corruption_, 0);
      EXPECT_FALSE(one.SentWrong(rank, *part).empty());
    }
    const bool any = left.size() < ranks_.size();
    ranks_ = left;
    return any;
  }

  // But for whom nobody can help all have the state.
  void End(int source) {
    const std::vector<int> state = ranks_[source].content;
    for (auto rank = ranks_.begin(); rank != ranks_.end();) {
      if (!rank->holds && rank->content != state) {
        ++totals_->unobtainable;
        ASSERT_GT(corruption_, 0);
        rank = ranks_.erase(rank);
        continue;
      }
      rank->holds = true;
      ++rank;
    }
  }

  sim::Random random_;
  Totals* const totals_;
  std::vector<int64_t> bytes_;
  std::vector<Rank> ranks_;
  std::multimap<std::pair<int, int>, int> wrong_;  // of this group
  int unique_ = 0;
  int deaths_left_ = 0;
  double corruption_ = 0;
};

TEST(StateHandoverSimulation, AllGetTheStateWhoeverDiesAndSendsWhatIsWrong) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 10000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    World(seed, &totals).Run();
    if (HasFailure()) return;
  }
  std::cout << totals.rounds << " rounds, " << totals.deaths << " deaths, "
            << totals.wrong << " wrong parts, " << totals.resumed
            << " parts kept over a death, " << totals.replaced
            << " senders replaced, " << totals.unobtainable
            << " ranks without hope\n";
  EXPECT_GT(totals.deaths, 1000);
  EXPECT_GT(totals.wrong, 1000);
  EXPECT_GT(totals.resumed, 1000);
  EXPECT_GT(totals.replaced, 1000);
  EXPECT_GT(totals.unobtainable, 10);
}

}  // namespace
}  // namespace weft::train
