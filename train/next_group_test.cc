#include "weft/train/next_group.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <utility>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::train {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(NextGroup, IsMadeWhileAnotherIsAtWork) {
  collectives::LocalWorld world(1);
  absl::Notification may_meet;
  NextGroup next;
  EXPECT_FALSE(next.has_begun());
  next.Begin([&]() -> NextGroup::Made {
    may_meet.WaitForNotification();
    return collectives::ProcessGroup::Create(world.Connect(0));
  });
  EXPECT_TRUE(next.has_begun());
  EXPECT_FALSE(next.is_made());
  may_meet.Notify();
  EXPECT_TRUE(Becomes([&] { return next.is_made(); }));
  const NextGroup::Made made = next.Take();
  ASSERT_THAT(made, IsOk());
  EXPECT_EQ((*made)->size(), 1);
  EXPECT_FALSE(next.has_begun());
  EXPECT_FALSE(next.is_made());
}

TEST(NextGroup, ErrorsAndExceptionsAreWhatTakeGives) {
  NextGroup next;
  next.Begin([]() -> NextGroup::Made {
    return absl::DeadlineExceededError("nobody came");
  });
  EXPECT_THAT(next.Take(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "nobody came"));
  next.Begin([]() -> NextGroup::Made { throw std::runtime_error("thrown"); });
  EXPECT_THAT(next.Take(), StatusIs(absl::StatusCode::kInternal, "thrown"));
}

TEST(NextGroup, EndWaitsForWhatHasBegun) {
  std::atomic<bool> has_ended{false};
  {
    NextGroup next;
    next.Begin([&]() -> NextGroup::Made {
      has_ended = true;
      return absl::CancelledError("ended");
    });
  }
  EXPECT_TRUE(has_ended);
}

}  // namespace
}  // namespace weft::train
