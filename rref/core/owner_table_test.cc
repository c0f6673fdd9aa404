#include "weft/rref/core/owner_table.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rref {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr WorkerKey kOwner{0, 1};
constexpr WorkerKey kMaker{1, 1};
constexpr WorkerKey kOther{2, 1};
const ObjectId kObject{kOwner, kMaker, 1};

Token TokenOf(WorkerKey parent, uint64_t number, uint64_t secret = 7) {
  return {kObject, {parent, number}, secret};
}

class OwnerTableTest : public ::testing::Test {
 protected:
  OwnerTableTest() { Tell(OwnerTable::Made{TokenOf(kMaker, 1)}).IgnoreError(); }

  // The answer to the event, or how many objects were freed, as text.
  absl::Status Tell(const OwnerTable::Event& event) {
    std::vector<OwnerTable::Action> actions;
    table_.OnEvent(event, &actions);
    absl::Status answer = absl::UnknownError("no answer");
    for (const OwnerTable::Action& action : actions) {
      if (const auto* a = std::get_if<OwnerTable::Answer>(&action)) {
        answer = a->status;
      } else {
        ++freed_;
      }
    }
    return answer;
  }
  absl::Status Request(WorkerKey from, const Token& token) {
    return Tell(OwnerTable::ForkRequested{from, token, /*may_come=*/false});
  }

  OwnerTable table_{2};
  int freed_ = 0;
};

TEST_F(OwnerTableTest, ForgedSecretIsRefused) {
  EXPECT_THAT(Request(kOther, TokenOf(kMaker, 2, /*secret=*/8)),
              StatusIs(absl::StatusCode::kPermissionDenied, "secret"));
  EXPECT_THAT(Request(kOther, TokenOf(kMaker, 2)), IsOk());
}

TEST_F(OwnerTableTest, ReplayedForkIsRefused) {
  ASSERT_THAT(Request(kOther, TokenOf(kMaker, 2)), IsOk());
  EXPECT_THAT(Request(kOther, TokenOf(kMaker, 2)),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(Request(kOther, TokenOf(kMaker, 1)),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(OwnerTableTest, ForksBeyondTheQuotaAreRefused) {
  ASSERT_THAT(Request(kOther, TokenOf(kMaker, 2)), IsOk());
  ASSERT_THAT(Request(kOther, TokenOf(kMaker, 3)), IsOk());
  EXPECT_THAT(Request(kOther, TokenOf(kMaker, 4)),
              StatusIs(absl::StatusCode::kResourceExhausted, "limit 2"));
  ASSERT_THAT(Tell(OwnerTable::DeleteRequested{kOther, kObject, {kMaker, 2}}),
              IsOk());
  EXPECT_THAT(Request(kOther, TokenOf(kMaker, 5)), IsOk());
}

TEST_F(OwnerTableTest, ForkOfAnotherHolderIsNotDeleted) {
  EXPECT_THAT(Tell(OwnerTable::DeleteRequested{kOther, kObject, {kMaker, 1}}),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_TRUE(table_.Contains(kObject));
  ASSERT_THAT(Tell(OwnerTable::DeleteRequested{kMaker, kObject, {kMaker, 1}}),
              IsOk());
  EXPECT_EQ(freed_, 1);
  EXPECT_THAT(Request(kOther, TokenOf(kMaker, 2)),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(OwnerTableTest, RequestBeforeTheObjectWaitsForIt) {
  const Token later{{kOwner, kMaker, 2}, {kMaker, 9}, 7};
  EXPECT_THAT(Tell(OwnerTable::ForkRequested{kOther, later, /*may_come=*/true}),
              StatusIs(absl::StatusCode::kUnknown));
  EXPECT_EQ(table_.waiting_requests(), 1u);
  const Token made{{kOwner, kMaker, 2}, {kMaker, 8}, 7};
  EXPECT_THAT(Tell(OwnerTable::Made{made}), IsOk());
  EXPECT_EQ(table_.waiting_requests(), 0u);
}

// A creator hears that its object is made before the owner's table does.
TEST_F(OwnerTableTest, ExpectedObjectIsDeletedByItsCreatorAlone) {
  const Token expected{{kOwner, kMaker, 2}, {kMaker, 8}, 7};
  Tell(OwnerTable::Expected{expected}).IgnoreError();
  EXPECT_THAT(
      Tell(OwnerTable::DeleteRequested{kOther, expected.object, expected.fork}),
      StatusIs(absl::StatusCode::kPermissionDenied, "is not held by"));
  EXPECT_THAT(
      Tell(OwnerTable::DeleteRequested{kMaker, expected.object, expected.fork}),
      IsOk());
  Tell(OwnerTable::Made{expected}).IgnoreError();
  EXPECT_EQ(freed_, 1);
}

}  // namespace
}  // namespace weft::rref
