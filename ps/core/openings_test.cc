#include "weft/ps/core/openings.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

const Caller kTrainer0 = {"trainer0", {3, 7}};
const Caller kTrainer1 = {"trainer1", {4, 8}};

TEST(Openings, ClientIsKnownToItsWorkerAlone) {
  Openings openings;
  const uint64_t number = openings.Open(kTrainer0, 42);
  EXPECT_EQ(openings.Open(kTrainer0, 42), number);  // sent again
  EXPECT_THAT(openings.NumberOf(kTrainer0, 42), IsOkAndHolds(number));
  EXPECT_THAT(openings.NumberOf(kTrainer1, 42),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "trainer1 (4@0.8) calls as client 42, which is trainer0 "
                       "(3@0.7)"));
  EXPECT_THAT(openings.NumberOf(kTrainer1, 43),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "trainer1 (4@0.8) has not opened it as client 43"));
  // Nobody can keep another from a number by taking it first.
  EXPECT_NE(openings.Open(kTrainer1, 42), number);
  EXPECT_THAT(openings.NumberOf(kTrainer0, 42), IsOkAndHolds(number));
}

TEST(Openings, ThoseOfAWorkerThatIsGoneAreClosedAndOthersStay) {
  Openings openings;
  const uint64_t other = openings.Open(kTrainer1, 1);
  const uint64_t first = openings.Open({"trainer0", {3, 6}}, 1);
  const uint64_t second = openings.Open(kTrainer0, 1);
  const uint64_t later = openings.Open({"trainer0", {3, 9}}, 1);
  EXPECT_THAT(openings.TakeClosed(), IsEmpty());
  openings.Forget(kTrainer0.key);
  EXPECT_THAT(openings.TakeClosed(), ElementsAre(first, second));
  EXPECT_THAT(openings.TakeClosed(), IsEmpty());
  EXPECT_THAT(
      openings.NumberOf(kTrainer0, 1),
      StatusIs(absl::StatusCode::kPermissionDenied));  // the later one's
  EXPECT_EQ(openings.size(), 2u);
  // A push that was under way has made a window anew.
  openings.Use(first);
  openings.Use(later);
  openings.Use(other);
  EXPECT_THAT(openings.TakeClosed(), ElementsAre(first));
}

TEST(Openings, OldestOfTooManyIsClosed) {
  Openings openings;
  const uint64_t oldest = openings.Open(kTrainer0, 0);
  for (uint64_t client = 1; client < Openings::kMostOfAWorker; ++client) {
    openings.Open(kTrainer0, client);
  }
  EXPECT_THAT(openings.TakeClosed(), IsEmpty());
  openings.Open(kTrainer0, Openings::kMostOfAWorker);
  EXPECT_THAT(openings.TakeClosed(), ElementsAre(oldest));
  EXPECT_THAT(openings.NumberOf(kTrainer0, 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, "open it again"));
  EXPECT_THAT(openings.NumberOf(kTrainer0, 1), IsOk());
}

}  // namespace
}  // namespace weft::ps
