#include "weft/ps/core/sequence_window.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using Answer = SequenceWindow::Answer;

TEST(SequenceWindow, AppliesEachNumberOnceInOrder) {
  SequenceWindow window;
  for (uint64_t n = 1; n <= 1000; ++n) {
    ASSERT_EQ(window.Ask(n), Answer::kNew);
    window.Mark(n);
    ASSERT_EQ(window.Ask(n), Answer::kDuplicate);
  }
  EXPECT_EQ(window.Ask(1), Answer::kDuplicate);
  EXPECT_EQ(window.high(), 1000u);
}

TEST(SequenceWindow, TakesNumbersOutOfOrderWithinItsWidth) {
  SequenceWindow window;
  for (uint64_t n = 64; n >= 1; --n) {
    ASSERT_EQ(window.Ask(n), Answer::kNew) << n;
    window.Mark(n);
  }
  for (uint64_t n = 1; n <= 64; ++n) {
    EXPECT_EQ(window.Ask(n), Answer::kDuplicate);
  }
}

TEST(SequenceWindow, RefusesToForgetAMissingNumber) {
  SequenceWindow window;
  window.Mark(2);  // 1 is missing
  EXPECT_EQ(window.Ask(65), Answer::kTooFar);
  EXPECT_EQ(window.Ask(64), Answer::kNew);
  window.Mark(1);
  EXPECT_EQ(window.Ask(65), Answer::kNew);
}

TEST(SequenceWindow, RefusesZeroAndTheFarFuture) {
  SequenceWindow window;
  EXPECT_EQ(window.Ask(0), Answer::kTooFar);
  EXPECT_EQ(window.Ask(65), Answer::kTooFar);
  EXPECT_EQ(window.Ask(~uint64_t{0}), Answer::kTooFar);
}

// The window against a set that forgets nothing, under random resends of the
// client's outstanding numbers.
TEST(SequenceWindow, AgreesWithASetUnderRandomResends) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    SequenceWindow window;
    std::set<uint64_t> applied;
    uint64_t next = 1;
    std::vector<uint64_t> outstanding;
    for (int step = 0; step < 500; ++step) {
      if (outstanding.empty() ||
          (next - outstanding.front() < SequenceWindow::kWidth &&
           random() % 2 == 0)) {
        outstanding.push_back(next++);
      }
      const size_t i = random() % outstanding.size();
      const uint64_t n = outstanding[i];
      const Answer answer = window.Ask(n);
      ASSERT_EQ(answer,
                applied.count(n) != 0 ? Answer::kDuplicate : Answer::kNew)
          << "seed " << seed << " number " << n;
      if (answer == Answer::kNew) {
        window.Mark(n);
        applied.insert(n);
      }
      // The client gets the reply, or does not and sends it again.
      if (random() % 2 == 0) outstanding.erase(outstanding.begin() + i);
    }
  }
}

TEST(SequenceWindow, SaysThroughWhichNumberAllWereApplied) {
  SequenceWindow window;
  EXPECT_EQ(window.through(), 0u);
  for (const auto& [applied, through] :
       std::vector<std::pair<uint64_t, uint64_t>>{
           {1, 1}, {3, 1}, {5, 1}, {2, 3}, {4, 5}, {64, 5}}) {
    window.Mark(applied);
    EXPECT_EQ(window.through(), through) << applied;
  }
}

TEST(SequenceWindow, TakesWhatIsSkippedForApplied) {
  SequenceWindow window;
  window.Mark(3);
  window.SkipTo(1);
  EXPECT_EQ(window.through(), 1u);
  EXPECT_EQ(window.Ask(2), Answer::kNew);
  EXPECT_EQ(window.Ask(70), Answer::kTooFar) << "2 would look applied";
  window.SkipTo(2);
  EXPECT_EQ(window.through(), 3u);
  window.SkipTo(100);
  EXPECT_EQ(window.through(), 100u);
  EXPECT_EQ(window.Ask(99), Answer::kDuplicate);
  EXPECT_EQ(window.Ask(101), Answer::kNew);
  window.SkipTo(7);
  EXPECT_EQ(window.through(), 100u);
}

}  // namespace
}  // namespace weft::ps
