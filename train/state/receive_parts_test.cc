#include "weft/train/state/receive_parts.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Sends parts rank, rank + 2, ... of `parts`, filled with their numbers.
absl::Status SendShare(collectives::ProcessGroup& group, int parts) {
  std::vector<collectives::PointToPoint> sends;
  for (int part = group.rank(); part < parts; part += 2) {
    sends.push_back({collectives::PointToPoint::kSend,
                     Tensor::Full({1000}, static_cast<float>(part)), 2,
                     static_cast<uint64_t>(part)});
  }
  return group.Exchange(sends);
}

std::vector<IncomingPart> IncomingParts(int parts) {
  std::vector<IncomingPart> incoming;
  for (int part = 0; part < parts; ++part) {
    incoming.push_back({part, part % 2, static_cast<uint64_t>(part),
                        Tensor::Zeros({1000}, DType::kF32)});
  }
  return incoming;
}

// One part of each sender at a time, and nothing left out.
TEST(ReceiveParts, PartsOfSeveralSendersComeInTurns) {
  collectives::LocalWorld world(3);
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
    if (rank < 2) return SendShare(*group, 5);
    std::vector<std::string> turns;
    const absl::Status received = ReceiveParts(
        *group, IncomingParts(5), [&](const std::vector<IncomingPart>& some) {
          std::string turn;
          for (const IncomingPart& one : some) {
            absl::StrAppend(&turn, one.part, " ");
            EXPECT_THAT(one.tensor.ToVector<float>(),
                        Each(static_cast<float>(one.part)));
          }
          turns.push_back(turn);
        });
    EXPECT_THAT(turns, ElementsAre("0 1 ", "2 3 ", "4 "));
    return received;
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(ReceiveParts, OfNoPartsThereIsNothingToDo) {
  collectives::LocalWorld world(1);
  const auto group = collectives::ProcessGroup::Create(world.Connect(0));
  EXPECT_THAT(
      ReceiveParts(*group, {}, [](const auto&) { ADD_FAILURE() << "none"; }),
      IsOk());
}

TEST(ReceiveParts, SenderThatIsLostIsAnError) {
  collectives::LocalWorld world(3);
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    auto group = collectives::ProcessGroup::Create(world.Connect(rank));
    if (rank == 1) return absl::OkStatus();  // it ends
    if (rank == 0)
      return SendShare(*group, 5).ok() ? group->Barrier() : absl::OkStatus();
    int came = 0;
    const absl::Status received =
        ReceiveParts(*group, IncomingParts(5),
                     [&](const std::vector<IncomingPart>&) { ++came; });
    EXPECT_EQ(came, 0);
    return received;
  });
  EXPECT_THAT(statuses[2], StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace weft::train
