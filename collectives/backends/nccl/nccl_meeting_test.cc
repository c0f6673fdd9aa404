#include "weft/collectives/backends/nccl/nccl_meeting.h"

#include <cstring>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kNow = absl::Milliseconds(1);
constexpr absl::Duration kLong = absl::Seconds(60);

class NcclMeetingTest : public ::testing::Test {
 protected:
  NcclMeetingTest() {
    functions_.GetUniqueId = [this](nccl::UniqueId* id) {
      ++made_;
      memset(id->bytes, made_, sizeof id->bytes);
      return result_;
    };
    functions_.GetLastError = [](nccl::Comm) { return ""; };
  }

  NcclOptions OptionsOf(int rank, const std::string& host = "h") {
    NcclOptions options;
    options.store = &store_;
    options.name = "group";
    options.rank = rank;
    options.size = 3;
    options.host = host;
    return options;
  }

  absl::StatusOr<nccl::UniqueId> Meet(
      const NcclOptions& options, absl::Duration timeout = kLong,
      const std::function<absl::Status()>& check = nullptr) {
    return MeetForNccl(options, functions_, SteadyClock().Now() + timeout,
                       check);
  }

  static std::string TextOf(const nccl::UniqueId& id) {
    return std::string(id.bytes, sizeof id.bytes);
  }

  rendezvous::MemoryStore store_;
  NcclFunctions functions_;
  nccl::Result result_ = nccl::Result::kSuccess;
  int made_ = 0;
};

TEST_F(NcclMeetingTest, AllRanksGetTheIdentifierThatRank0HasMadeOnce) {
  const auto first = Meet(OptionsOf(0));
  ASSERT_THAT(first, IsOk());
  for (const int rank : {1, 2}) {
    const auto found = Meet(OptionsOf(rank));
    ASSERT_THAT(found, IsOk());
    EXPECT_EQ(TextOf(*found), TextOf(*first));
  }
  EXPECT_EQ(made_, 1);
}

TEST_F(NcclMeetingTest, RankThatComesBeforeRank0WaitsUntilItsDeadline) {
  EXPECT_THAT(Meet(OptionsOf(1), kNow).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "waited for rank 0, which makes the identifier"));
  EXPECT_EQ(made_, 0);
}

TEST_F(NcclMeetingTest, CheckEndsTheWaitForRank0) {
  EXPECT_THAT(Meet(OptionsOf(1), kLong,
                   [] { return absl::UnavailableError("trainer0 is gone"); })
                  .status(),
              StatusIs(absl::StatusCode::kUnavailable, "trainer0 is gone"));
}

TEST_F(NcclMeetingTest, ErrorOfNcclOnRank0IsThatOfAllRanks) {
  result_ = nccl::Result::kSystemError;
  EXPECT_FALSE(Meet(OptionsOf(0)).ok());
  for (const int rank : {1, 2}) {
    EXPECT_THAT(Meet(OptionsOf(rank)).status(),
                StatusIs(absl::StatusCode::kUnavailable, "on rank 0: "));
    EXPECT_THAT(Meet(OptionsOf(rank)).status(),
                StatusIs(absl::StatusCode::kUnavailable, "ncclGetUniqueId"));
  }
}

TEST_F(NcclMeetingTest, RankOnAnotherHostIsRefusedUnlessItIsInsecure) {
  ASSERT_THAT(Meet(OptionsOf(0, "a")), IsOk());
  EXPECT_THAT(Meet(OptionsOf(1, "b")).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "rank 1 is on another host than rank 0"));
  NcclOptions insecure = OptionsOf(1, "b");
  insecure.insecure = true;
  EXPECT_THAT(Meet(insecure), IsOk());
  EXPECT_THAT(Meet(OptionsOf(2, "a")), IsOk());
}

// The host is what the machine says, where the options do not.
TEST_F(NcclMeetingTest, RanksOfThisMachineAreOnOneHost) {
  ASSERT_THAT(Meet(OptionsOf(0, "")), IsOk());
  EXPECT_THAT(Meet(OptionsOf(1, "")), IsOk());
  EXPECT_THAT(Meet(OptionsOf(2, "b")).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(NcclMeetingTest, WhatIsNoInvitationIsRefused) {
  for (const char* wrong : {"", "id ", "id too short", "hello"}) {
    ASSERT_THAT(store_.Set("nccl/group/id", wrong, kLong), IsOk());
    EXPECT_THAT(Meet(OptionsOf(1)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wanted the identifier of a communicator of NCCL"))
        << wrong;
  }
}

TEST_F(NcclMeetingTest, OnlyRank0RemovesTheInvitation) {
  ASSERT_THAT(Meet(OptionsOf(0)), IsOk());
  EndNcclMeeting(OptionsOf(1));
  EXPECT_THAT(Meet(OptionsOf(2)), IsOk());
  EndNcclMeeting(OptionsOf(0));
  EXPECT_THAT(Meet(OptionsOf(2), kNow).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EndNcclMeeting(OptionsOf(0));  // twice
}

// Each group has its own.
TEST_F(NcclMeetingTest, MeetingsOfOtherNamesAreOthers) {
  NcclOptions other = OptionsOf(0);
  other.name = "other";
  ASSERT_THAT(Meet(other), IsOk());
  EXPECT_THAT(Meet(OptionsOf(1), kNow).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

}  // namespace
}  // namespace weft::collectives
