#include "weft/rendezvous/client/store_client.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/client/fake_link.h"
#include "weft/rendezvous/client/fake_timers.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// It is open once the key is set.
class StoreLink final : public FakeLink<v1::StoreRequest> {
 public:
  using FakeLink::FakeLink;

 private:
  std::string Answer(const v1::StoreRequest& asked,
                     bool is_open) const override {
    v1::StoreReply reply;
    if (is_open) reply.set_version(asked.version() + 1);
    return reply.SerializeAsString();
  }
};

class WaitReportTest : public ::testing::Test {
 protected:
  FakeTimers timers_;
  const std::shared_ptr<StoreLink> link_ = std::make_shared<StoreLink>(timers_);
  std::vector<std::string> said_;
  const std::unique_ptr<Store> store_ = MakeStoreClient(
      timers_, link_, "job", 1, std::make_shared<OpenCalls>(),
      [this](absl::string_view text) { said_.emplace_back(text); });
};

TEST_F(WaitReportTest, ComesAgainAfterTwiceAsLongAndAtTheEnd) {
  link_->open_at = timers_.now() + absl::Seconds(11);
  EXPECT_THAT(store_->Wait("users/0", 0, absl::Minutes(1)), IsOk());
  EXPECT_EQ(timers_.now() - Instant(), absl::Seconds(11));
  EXPECT_THAT(
      said_,
      ElementsAre("Wait for key users/0 of the store still waits after 2s: "
                  "nobody has set it",
                  "Wait for key users/0 of the store still waits after 4s: "
                  "nobody has set it",
                  "Wait for key users/0 of the store still waits after 8s: "
                  "nobody has set it",
                  "Wait for key users/0 of the store no longer waits, after "
                  "11s"));
}

TEST_F(WaitReportTest, SaysThatAKeyDidNotChangeAndHowTheWaitEnded) {
  EXPECT_THAT(store_->Wait("users 0\n", 7, absl::Seconds(3)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "did not change from version 7 within 3s"));
  EXPECT_EQ(timers_.now() - Instant(), absl::Seconds(3));
  EXPECT_THAT(
      said_,
      ElementsAre("Wait for key users?0? of the store still waits after 2s: "
                  "nobody has changed it",
                  "Wait for key users?0? of the store no longer waits, after "
                  "3s (DEADLINE_EXCEEDED)"));
}

TEST_F(WaitReportTest, SaysThatTheCoordinatorDoesNotAnswer) {
  link_->is_gone = true;
  EXPECT_THAT(store_->Wait("a", 0, absl::Seconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "the coordinator at nowhere:1 did not answer"));
  ASSERT_THAT(said_, ::testing::SizeIs(::testing::Ge(2u)));
  EXPECT_THAT(said_[0],
              ::testing::HasSubstr("the coordinator does not answer"));
}

TEST_F(WaitReportTest, IsNoneOfAShortWaitNorOfRollCalls) {
  link_->open_at = timers_.now() + absl::Seconds(1);
  EXPECT_THAT(store_->Wait("a", 0, absl::Minutes(1)), IsOk());
  link_->open_at = timers_.now() + absl::Minutes(1);
  EXPECT_THAT(store_->Wait("roll_call/role=trainer/world", 0, absl::Minutes(2)),
              IsOk());
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace weft::rendezvous
