#include "weft/dist_autograd/core/message_set.h"

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace weft::dist_autograd {
namespace {

constexpr WorkerKey kA{0, 1};
constexpr WorkerKey kB{1, 1};

TEST(MessageSet, JoinsNeighboursAndKeepsGaps) {
  MessageSet set;
  for (const uint64_t number : {5, 1, 3, 9}) set.Add({kA, number});
  EXPECT_EQ(set.ToString(), "0@0.1: 1-1 3-3 5-5 9-9");
  set.Add(kA, {2, 4});
  EXPECT_EQ(set.ToString(), "0@0.1: 1-5 9-9");
  set.Add({kB, 7});
  EXPECT_EQ(set.ToString(), "0@0.1: 1-5 9-9; 1@0.1: 7-7");
  EXPECT_EQ(set.intervals(), 3u);
  EXPECT_EQ(set.CountOf(kA), 6u);
  EXPECT_FALSE(set.Contains({kB, 5}));
}

TEST(MessageSet, EqualsASetOfNumbersAfterRandomAdds) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    MessageSet set;
    std::set<uint64_t> model;
    for (int i = 0; i < 15; ++i) {
      const uint64_t first = 1 + random() % 50;
      const uint64_t last = first + random() % 5;
      set.Add(kA, {first, last});
      for (uint64_t n = first; n <= last; ++n) model.insert(n);
    }
    size_t runs = 0;
    for (uint64_t n = 1; n < 64; ++n) {
      ASSERT_EQ(set.Contains({kA, n}), model.count(n) > 0) << set.ToString();
      runs += model.count(n) > 0 && model.count(n - 1) == 0 ? 1 : 0;
    }
    ASSERT_EQ(set.intervals(), runs);
    ASSERT_EQ(set.CountOf(kA), model.size());
  }
}

TEST(MessageSet, UnionContainsBoth) {
  MessageSet a;
  a.Add(kA, {1, 3});
  MessageSet b;
  b.Add(kA, {3, 6});
  b.Add(kB, {2, 2});
  EXPECT_FALSE(a.ContainsAll(b));
  a.Add(b);
  EXPECT_TRUE(a.ContainsAll(b));
  EXPECT_EQ(a.ToString(), "0@0.1: 1-6; 1@0.1: 2-2");
}

TEST(MessageSet, ShortenedReplacesTheLongestListsByAllMessages) {
  MessageSet set;
  for (const uint64_t number : {1, 3, 5, 7}) set.Add({kA, number});
  for (const uint64_t number : {2, 4}) set.Add({kB, number});
  MessageSet same = set;
  same.Shorten(6);
  EXPECT_EQ(same, set);
  MessageSet shorter = set;
  shorter.Shorten(3);
  EXPECT_EQ(shorter.ToString(), "0@0.1: all; 1@0.1: 2-2 4-4");
  EXPECT_EQ(shorter.producers_of_all(), std::vector<WorkerKey>{kA});
  EXPECT_TRUE(shorter.ContainsAll(set));
  shorter.Add({kA, 9});  // the union with a later message changes nothing
  EXPECT_EQ(shorter.intervals(), 3u);
  set.Shorten(0);
  EXPECT_EQ(set.ToString(), "0@0.1: all; 1@0.1: all");
}

}  // namespace
}  // namespace weft::dist_autograd
