#include "weft/rendezvous/client/view_feed.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/driver.h"
#include "weft/base/executor.h"
#include "weft/base/parker.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

class ViewFeedTest : public ::testing::Test {
 protected:
  void Publish(Epoch version) {
    feed_->Publish(std::make_shared<const View>(
        version, World(), std::vector<Member>(), std::vector<Departed>()));
  }

  // Follows the feed into told_.
  std::function<void()> Follow() {
    return feed_->OnChange(
        [this](const std::shared_ptr<const View>& view) {
          told_.push_back(absl::StrCat(view->version()));
        },
        [this](const absl::Status& why) {
          told_.push_back(std::string(why.message()));
        });
  }

  InlineExecutor executor_;
  const std::shared_ptr<ViewFeed> feed_ = std::make_shared<ViewFeed>(
      ParkingDriver(), executor_, telemetry::OrSilent(nullptr), "job");
  std::vector<std::string> told_;
};

TEST_F(ViewFeedTest, FollowerGetsThePresentViewThenEachNewOneAndTheLossLast) {
  Publish(1);
  const auto end = Follow();
  Publish(2);
  Publish(3);
  feed_->End(absl::AbortedError("out"));
  EXPECT_THAT(told_, ElementsAre("1", "2", "3"));  // until all know
  feed_->TellLost();
  EXPECT_THAT(told_, ElementsAre("1", "2", "3", "out"));
  end();
}

TEST_F(ViewFeedTest, FollowerThatComesAfterTheLossIsToldOfIt) {
  Publish(1);
  feed_->End(absl::AbortedError("out"));
  feed_->TellLost();
  Follow();
  EXPECT_THAT(told_, ElementsAre("1", "out"));
}

TEST_F(ViewFeedTest, FollowerThatHasEndedIsToldNothing) {
  Follow()();
  Publish(1);
  EXPECT_THAT(told_, ElementsAre("0"));
}

TEST_F(ViewFeedTest, AWaitJudgesEachViewInOrder) {
  std::vector<Epoch> judged;
  Parker waits;
  std::thread waiter([&] {
    const auto view = feed_->WaitFor(
        [&](const View& view) {
          judged.push_back(view.version());
          waits.Unpark();
          return view.version() == 2;
        },
        kLong);
    EXPECT_THAT(view, IsOk());
  });
  EXPECT_TRUE(IsWoken(waits));
  Publish(1);
  Publish(2);
  waiter.join();
  EXPECT_THAT(judged, ElementsAre(0, 1, 2));
}

TEST_F(ViewFeedTest, EndOfTheFeedEndsEachWaitWithItsReason) {
  Parker waits;
  std::thread waiter([&] {
    const auto view = feed_->WaitFor(
        [&](const View&) {
          waits.Unpark();
          return false;
        },
        kLong);
    EXPECT_THAT(view, StatusIs(absl::StatusCode::kAborted, "out"));
  });
  EXPECT_TRUE(IsWoken(waits));
  feed_->End(absl::AbortedError("out"));
  waiter.join();
  EXPECT_THAT(feed_->status(), StatusIs(absl::StatusCode::kAborted, "out"));
}

TEST_F(ViewFeedTest, AWaitThatHasNoTimeStillJudgesTheNewestView) {
  Publish(7);
  EXPECT_THAT(
      feed_->WaitFor([](const View& view) { return view.version() == 7; },
                     absl::ZeroDuration()),
      IsOk());
  EXPECT_THAT(
      feed_->WaitFor([](const View&) { return false; }, absl::ZeroDuration()),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "job \"job\""));
}

}  // namespace
}  // namespace weft::rendezvous
