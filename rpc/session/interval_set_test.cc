#include "weft/rpc/session/interval_set.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(IntervalSet, JoinsNeighboursAndKeepsGaps) {
  IntervalSet set;
  for (const uint64_t id : {5, 1, 3, 9}) set.Add(id);
  EXPECT_EQ(set.ToString(), "1-1 3-3 5-5 9-9");
  set.Add(Interval{2, 4});
  EXPECT_EQ(set.ToString(), "1-5 9-9");
  set.Add(Interval{4, 20});
  EXPECT_EQ(set.ToString(), "1-20");
  EXPECT_TRUE(set.Contains(20));
  EXPECT_FALSE(set.Contains(21));
}

TEST(IntervalSet, EqualsASetOfIdsAfterRandomAdds) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    IntervalSet set;
    std::vector<bool> model(64, false);
    for (int i = 0; i < 20; ++i) {
      const uint64_t first = random() % 60;
      const uint64_t last = first + random() % 4;
      set.Add(Interval{first, last});
      for (uint64_t id = first; id <= last; ++id) model[id] = true;
    }
    size_t runs = 0;
    for (uint64_t id = 0; id < model.size(); ++id) {
      ASSERT_EQ(set.Contains(id), model[id]) << set.ToString() << " " << id;
      if (model[id] && (id == 0 || !model[id - 1])) ++runs;
    }
    ASSERT_EQ(set.size(), runs);
  }
}

TEST(IntervalSet, RemovesAndCutsAsASetOfIdsDoes) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    IntervalSet set;
    std::vector<bool> model(80, false);
    for (int i = 0; i < 30; ++i) {
      const uint64_t first = 1 + random() % 60;
      const uint64_t last = first + random() % 9;
      const bool adds = random() % 2 == 0;
      adds ? set.Add(Interval{first, last}) : set.Remove(Interval{first, last});
      for (uint64_t id = first; id <= last; ++id) model[id] = adds;
    }
    const uint64_t first = 1 + random() % 70;
    const uint64_t last = first + random() % 9;
    uint64_t next = first;
    std::optional<bool> before;
    set.ForEachPart(Interval{first, last}, [&](Interval part, bool belongs) {
      ASSERT_EQ(part.first, next);
      ASSERT_NE(before, belongs) << "two parts are one";
      for (; next <= part.last; ++next) ASSERT_EQ(model[next], belongs);
      before = belongs;
    });
    ASSERT_EQ(next, last + 1);
    for (uint64_t id = 1; id < model.size(); ++id) {
      ASSERT_EQ(set.Contains(id), model[id]) << set.ToString() << " " << id;
    }
  }
}

}  // namespace
}  // namespace weft::rpc
