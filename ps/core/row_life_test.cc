#include "weft/ps/core/row_life.h"

#include <cstdint>
#include <random>
#include <string>
#include <unordered_map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Entry = RowLife::Entry;
using Verdict = RowLife::Verdict;

RowLimits AdmitAfter(int pushes, int counters = 1024) {
  RowLimits limits;
  limits.admit_after = pushes;
  limits.counters = counters;
  return limits;
}

TEST(RowLife, RowIsMadeByTheNthPush) {
  for (const int n : {2, 5, kMostAdmitAfter}) {
    RowLife life(AdmitAfter(n));
    for (int push = 1; push < n; ++push) {
      ASSERT_EQ(life.Enter(7), Entry::kNotYet) << push;
    }
    EXPECT_EQ(life.Enter(7), Entry::kMade);
  }
}

TEST(RowLife, WithoutAdmissionEachRowIsMadeAtOnce) {
  RowLimits limits;
  limits.most_rows = 5;
  RowLife life(limits);
  EXPECT_EQ(life.Enter(7), Entry::kMade);
}

// Keys that come once pass by chance only; keys that come twice within what the
// sketch remembers always do.
TEST(RowLife, SketchLetsFewKeysInThatComeOnce) {
  RowLife life(AdmitAfter(2));
  std::mt19937_64 random(1);
  int made = 0;
  constexpr int kKeys = 200000;
  for (int i = 0; i < kKeys; ++i) made += life.Enter(random()) == Entry::kMade;
  EXPECT_LT(made, kKeys / 100);
  EXPECT_LT(life.memory_bytes(), 8192);
  int late = 0;
  for (int i = 0; i < 10000; ++i) {
    const uint64_t key = random();
    (void)life.Enter(key);
    for (int other = 0; other < 20; ++other) (void)life.Enter(random());
    late += life.Enter(key) == Entry::kNotYet;
  }
  EXPECT_LT(late, 1000);  // those between which the counts were halved
}

TEST(RowLife, ChanceIsAFunctionOfSeedKeyAndVersion) {
  RowLimits limits;
  limits.admit_probability = 0.25;
  RowLife life(limits);
  RowLife twin(limits);
  limits.seed = 1;
  RowLife other(limits);
  int made = 0;
  int differ = 0;
  constexpr int kPushes = 40000;
  for (int push = 0; push < kPushes; ++push) {
    for (RowLife* each : {&life, &twin, &other}) each->Advance();
    const uint64_t key = push % 100;
    const Entry entry = life.Enter(key);
    ASSERT_EQ(twin.Enter(key), entry);
    differ += other.Enter(key) != entry;
    made += entry == Entry::kMade;
  }
  // Six standard deviations.
  EXPECT_NEAR(made, kPushes / 4, 6 * 87);
  EXPECT_GT(differ, kPushes / 5);
}

TEST(RowLife, OldestRowGoesOnceItIsIdleOrOneTooMany) {
  RowLimits limits;
  limits.most_rows = 3;
  limits.idle_versions = 2;
  RowLife life(limits);
  life.Advance();  // 1
  EXPECT_EQ(life.CheckOldest(3, 1), Verdict::kStays);
  EXPECT_EQ(life.CheckOldest(4, 1), Verdict::kFull);
  life.Advance();
  life.Advance();  // 3
  EXPECT_EQ(life.CheckOldest(3, 1), Verdict::kStays);
  life.Advance();
  EXPECT_EQ(life.CheckOldest(1, 1), Verdict::kIdle);
  EXPECT_EQ(life.CheckOldest(1, 2), Verdict::kStays);
}

TEST(RowLife, PushThatComesJustAfterItsRowWentIsDropped) {
  RowLimits limits;
  limits.most_rows = 1;
  limits.drop_versions = 2;
  RowLife life(limits);
  life.Advance();
  life.NoteEvicted(7);
  for (int i = 0; i < 2; ++i) {
    life.Advance();
    EXPECT_EQ(life.Enter(7), Entry::kTooLate);
    EXPECT_EQ(life.Enter(8), Entry::kMade);
  }
  life.Advance();
  EXPECT_EQ(life.Enter(7), Entry::kMade);
}

TEST(RowLife, RemembersABoundedNumberOfRowsThatWent) {
  RowLimits limits;
  limits.most_rows = 1;
  limits.drop_versions = kMostIdleVersions;
  RowLife life(limits);
  for (uint64_t key = 0; key < 100000; ++key) life.NoteEvicted(key);
  EXPECT_EQ(life.Enter(0), Entry::kMade);
  EXPECT_EQ(life.Enter(99999), Entry::kTooLate);
  EXPECT_LE(static_cast<int64_t>(life.Format().size()),
            RowLife::MostBytes(limits));
}

// Two that are the same at some moment go on alike for ever.
TEST(RowLife, GoesOnWhereItWasFormatted) {
  RowLimits limits = AdmitAfter(3, 64);
  limits.most_rows = 10;
  limits.drop_versions = 20;
  RowLife life(limits);
  RowLife copy(limits);
  std::mt19937_64 random(9);
  for (int push = 0; push < 5000; ++push) {
    if (push % 100 == 0) {
      copy = RowLife(limits);
      ASSERT_THAT(copy.Load(life.Format()), IsOk());
    }
    life.Advance();
    copy.Advance();
    ASSERT_EQ(copy.clock(), life.clock());
    for (int i = 0; i < 5; ++i) {
      const uint64_t key = random() % 200;
      const Entry entry = life.Enter(key);
      ASSERT_EQ(copy.Enter(key), entry) << push;
      if (entry != Entry::kMade || key % 3 != 0) continue;
      life.NoteEvicted(key);
      copy.NoteEvicted(key);
    }
  }
  EXPECT_EQ(copy.Format(), life.Format());
}

TEST(RowLife, StateOfOtherLimitsKeepsTheClockAlone) {
  RowLimits limits = AdmitAfter(3, 64);
  limits.most_rows = 10;
  limits.drop_versions = 20;
  RowLife life(limits);
  for (int i = 0; i < 9; ++i) life.Advance();
  life.NoteEvicted(5);
  (void)life.Enter(6);
  RowLife other(AdmitAfter(3, 128));
  ASSERT_THAT(other.Load(life.Format()), IsOk());
  EXPECT_EQ(other.clock(), 9);
  EXPECT_EQ(other.Enter(5), Entry::kNotYet);
  EXPECT_EQ(other.Enter(6), Entry::kNotYet);
  EXPECT_EQ(other.Enter(6), Entry::kNotYet);
}

TEST(RowLife, WhatIsNoStateIsRefused) {
  RowLimits limits = AdmitAfter(2, 16);
  limits.most_rows = 4;
  limits.drop_versions = 9;
  RowLife life(limits);
  for (int i = 0; i < 3; ++i) life.Advance();
  life.NoteEvicted(1);
  life.NoteEvicted(2);
  const std::string good = life.Format();
  for (size_t n = 1; n < good.size(); ++n) {
    EXPECT_THAT(RowLife(limits).Load(good.substr(0, n)),
                StatusIs(absl::StatusCode::kInvalidArgument, "partition"));
  }
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    RowLife any(limits);
    if (!any.Load(bad).ok()) continue;
    any.Advance();  // with whatever it says
    (void)any.Enter(1);
    any.NoteEvicted(3);
  }
}

}  // namespace
}  // namespace weft::ps
