#include "weft/train/state/given_share.h"

#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/tensor/tensor.h"
#include "weft/train/state_parts.h"

namespace weft::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr int64_t kPart = int64_t{2} << 20;
constexpr int64_t kElements = kPart / 4;  // of a part

class GivenShareTest : public ::testing::Test {
 protected:
  // Six parts of zeros.
  StateParts Parts() { return StateParts({{"state", state_}}); }
  GivenShare Share(int share, int shares, int steps = 1000) {
    return GivenShare(Parts(), share, shares, {kPart, steps, absl::Seconds(2)});
  }
  static std::optional<std::map<int, Tensor>> TakeNow(GivenShare& given) {
    return given.Take(SteadyClock().Now());
  }

  const Tensor state_ = Tensor::Zeros({6 * kElements}, DType::kF32);
  const Instant begin_ = SteadyClock().Now();
};

std::vector<int> PartsOf(const std::map<int, Tensor>& copies) {
  std::vector<int> parts;
  for (const auto& [part, copy] : copies) parts.push_back(part);
  return parts;
}

// Three parts in three steps; each is as of the step after which it was copied.
TEST_F(GivenShareTest, ALittleIsCopiedAfterEachStep) {
  GivenShare given = Share(1, 2);
  for (const float step : {1.0f, 2.0f, 3.0f}) {
    EXPECT_EQ(TakeNow(given), std::nullopt);
    state_.Fill(step);
    given.CopySome(begin_);
  }
  state_.Fill(4);
  given.CopySome(begin_);  // nothing is left
  const auto copies = TakeNow(given);
  ASSERT_NE(copies, std::nullopt);
  EXPECT_THAT(PartsOf(*copies), ElementsAre(1, 3, 5));
  EXPECT_THAT(copies->at(1).ToVector<float>(), Each(1.0f));
  EXPECT_THAT(copies->at(3).ToVector<float>(), Each(2.0f));
  EXPECT_THAT(copies->at(5).ToVector<float>(), Each(3.0f));
}

TEST_F(GivenShareTest, OfAnyStateItTakesAFewSteps) {
  GivenShare given = Share(0, 1, /*steps=*/2);
  given.CopySome(begin_);
  EXPECT_EQ(TakeNow(given), std::nullopt);
  given.CopySome(begin_);
  EXPECT_THAT(TakeNow(given), ::testing::Optional(SizeIs(6)));
}

TEST_F(GivenShareTest, WhereStepsTakeLongAllThatIsLeftIsCopied) {
  GivenShare given = Share(0, 1);
  given.CopySome(begin_);
  EXPECT_EQ(TakeNow(given), std::nullopt);
  given.CopySome(begin_ + absl::Seconds(2));
  EXPECT_THAT(TakeNow(given), ::testing::Optional(SizeIs(6)));
}

TEST_F(GivenShareTest, MoreSharesThanPartsAreEmpty) {
  GivenShare given = Share(7, 8);
  given.CopySome(begin_);
  EXPECT_THAT(TakeNow(given), ::testing::Optional(SizeIs(0)));
}

TEST_F(GivenShareTest, WhoWaitsForItHearsThatItIsWholeOrStopped) {
  for (const bool stops : {false, true}) {
    GivenShare given = Share(0, 6);
    std::optional<std::map<int, Tensor>> copies;
    std::thread taker(
        [&] { copies = given.Take(SteadyClock().Now() + absl::Seconds(60)); });
    if (stops) given.Stop();
    given.CopySome(begin_);
    given.Stop();  // what is whole stays so
    taker.join();
    EXPECT_EQ(copies.has_value(), !stops);
  }
}

}  // namespace
}  // namespace weft::train
