#include "weft/train/state/first_copy.h"

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/train/state/given_share.h"
#include "weft/train/state_parts.h"

namespace weft::train {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using Told = FirstCopy::Told;

constexpr int64_t kModel = 77;

Told Gives(int64_t share, int64_t shares, int64_t steps = 5) {
  return {Told::kGives, share, shares, steps, kModel, /*parts=*/6};
}
Told Takes(int64_t fingerprint = kModel, int64_t parts = 6) {
  return {Told::kTakes, 0, 1, 0, fingerprint, parts};
}

// "1>2: 0 2 4": rank 1 sends rank 2 these parts.
std::string TextOf(const std::vector<FirstCopy::Transfer>& transfers) {
  std::string text;
  int from = -1, to = -1;
  for (const FirstCopy::Transfer& one : transfers) {
    if (one.from != from || one.to != to) {
      from = one.from;
      to = one.to;
      absl::StrAppend(&text, text.empty() ? "" : "; ", from, ">", to, ":");
    }
    absl::StrAppend(&text, " ", one.part);
  }
  return text;
}

TEST(FirstCopy, EachGivesItsShareToEachNewcomer) {
  EXPECT_EQ(TextOf(FirstCopy::Plan(
                {Gives(0, 2), Takes(), Gives(1, 2), Takes(), Told()})),
            "0>1: 0 2 4; 2>1: 1 3 5; 0>3: 0 2 4; 2>3: 1 3 5");
  // One of three is lost.
  EXPECT_EQ(TextOf(FirstCopy::Plan({Takes(), Gives(2, 3), Gives(0, 3)})),
            "2>0: 0 3; 1>0: 2 5");
  EXPECT_THAT(FirstCopy::Plan({Takes(), Takes(), Told()}), IsEmpty());
  EXPECT_THAT(FirstCopy::Plan({Gives(0, 1), Told()}), IsEmpty());
}

TEST(FirstCopy, OtherModelsAndOtherStatesAreLeftOut) {
  EXPECT_THAT(FirstCopy::Plan({Gives(0, 1), Takes(kModel + 1)}), IsEmpty());
  EXPECT_THAT(FirstCopy::Plan({Gives(0, 1), Takes(kModel, 7)}), IsEmpty());
  EXPECT_EQ(
      TextOf(FirstCopy::Plan({Gives(0, 2), Gives(1, 2, /*steps=*/6), Takes()})),
      "0>2: 0 2 4");
}

// Whoever is in the group may have sent it.
TEST(FirstCopy, WhatNoRankTellsDoesNoHarm) {
  const int64_t values[] = {-1,
                            0,
                            1,
                            3,
                            std::numeric_limits<int64_t>::min(),
                            std::numeric_limits<int64_t>::max()};
  for (const int64_t value : values) {
    for (int64_t Told::*const field :
         {&Told::kind, &Told::share, &Told::shares, &Told::steps,
          &Told::fingerprint, &Told::parts}) {
      Told other = Gives(0, 2);
      other.*field = value;
      for (const FirstCopy::Transfer& one :
           FirstCopy::Plan({other, Gives(1, 2), Takes()})) {
        EXPECT_GE(one.part, 0);
        EXPECT_LT(one.part, 6);
      }
    }
  }
}

// Tensors of several parts, filled with `value`.
StateParts PartsOf(float value, std::vector<Tensor>* tensors) {
  *tensors = {Tensor::Full({3}, value), Tensor::Full({1 << 20}, value),
              Tensor::Full({1 << 16}, value)};
  return StateParts(
      {{"a", (*tensors)[0]}, {"b", (*tensors)[1]}, {"c", (*tensors)[2]}});
}

TEST(FirstCopy, NewcomerHasTheStateOfThatStep) {
  constexpr int kRanks = 3;
  collectives::LocalWorld world(kRanks);
  std::atomic<bool> is_there{false};
  const auto statuses = testing::RunRanks(kRanks, [&](int rank) {
    const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
    std::vector<Tensor> tensors;
    const StateParts parts = PartsOf(rank == 2 ? 0.0f : 4.0f, &tensors);
    FirstCopy copy = FirstCopy::OfTaker(parts, kModel);
    if (rank != 2) {
      const auto given = std::make_shared<GivenShare>(parts, rank, 2);
      copy = FirstCopy::OfGiver(given, 5, kModel);
      given->CopySome(SteadyClock().Now());
      tensors[1].Fill(9);  // it trains meanwhile
    }
    bool has_taken = false;
    copy.Run(
        *group, [] {}, [&] { is_there = has_taken = true; });
    EXPECT_EQ(has_taken, rank == 2);
    EXPECT_TRUE(is_there) << "rank " << rank << " has waited for nobody";
    if (rank != 2) return absl::OkStatus();
    for (const Tensor& tensor : tensors) {
      EXPECT_THAT(tensor.ToVector<float>(), Each(4.0f));
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// The group with it is of use all the same, and one share less is there.
TEST(FirstCopy, RankThatCopiesNoMoreGivesNothing) {
  constexpr int kRanks = 3;
  collectives::LocalWorld world(kRanks);
  const auto statuses = testing::RunRanks(kRanks, [&](int rank) {
    const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
    std::vector<Tensor> tensors;
    const StateParts parts = PartsOf(rank == 2 ? 0.0f : 4.0f, &tensors);
    FirstCopy copy = FirstCopy::OfTaker(parts, kModel);
    if (rank != 2) {
      const auto given = std::make_shared<GivenShare>(parts, rank, 2);
      copy = FirstCopy::OfGiver(given, 5, kModel);
      if (rank == 1) given->Stop();
      given->CopySome(SteadyClock().Now());
    }
    copy.Run(*group);
    if (rank == 2) {
      EXPECT_EQ(tensors[0].ToVector<float>()[0], 4);  // part 0
      EXPECT_EQ(tensors[1].ToVector<float>()[0], 0);  // part 1
    }
    return group->Barrier();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

}  // namespace
}  // namespace weft::train
