#include "weft/train/background_task.h"

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "weft/base/failpoint.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::train {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;
using Task = BackgroundTask<std::string>;

TEST(BackgroundTask, EndsOnceWhileItsCallerGoesOn) {
  Task task;
  EXPECT_FALSE(task.has_begun());
  EXPECT_FALSE(task.Take().has_value());
  absl::Notification may_end;
  ASSERT_THAT(task.Begin("a test",
                         [&]() -> Task::Result {
                           may_end.WaitForNotification();
                           return std::string("ckpt-1");
                         }),
              IsOk());
  EXPECT_TRUE(task.has_begun());
  EXPECT_FALSE(task.is_done());
  EXPECT_FALSE(task.TakeIfDone().has_value());
  may_end.Notify();
  EXPECT_TRUE(Becomes([&] { return task.is_done(); }));
  EXPECT_TRUE(task.has_begun());
  const std::optional<Task::Result> result = task.TakeIfDone();
  ASSERT_TRUE(result.has_value());
  EXPECT_THAT(*result, IsOkAndHolds("ckpt-1"));
  EXPECT_FALSE(task.has_begun());
  EXPECT_FALSE(task.is_done());
  EXPECT_FALSE(task.Take().has_value());
}

TEST(BackgroundTask, TakeWaitsForTheEndAndMovesTheResult) {
  BackgroundTask<std::unique_ptr<int>> task;
  absl::Notification may_end;
  ASSERT_THAT(task.Begin("a test",
                         [&]() -> absl::StatusOr<std::unique_ptr<int>> {
                           may_end.WaitForNotification();
                           return std::make_unique<int>(7);
                         }),
              IsOk());
  may_end.Notify();
  const auto result = task.Take();
  ASSERT_TRUE(result.has_value());
  ASSERT_THAT(*result, IsOk());
  EXPECT_EQ(***result, 7);
}

TEST(BackgroundTask, ErrorsAndExceptionsAreItsResultAndTheNextOneMayBegin) {
  Task task;
  ASSERT_THAT(
      task.Begin("a test",
                 []() -> Task::Result { throw std::runtime_error("thrown"); }),
      IsOk());
  EXPECT_THAT(*task.Take(), StatusIs(absl::StatusCode::kInternal, "thrown"));
  ASSERT_THAT(task.Begin("a test",
                         []() -> Task::Result {
                           return absl::DeadlineExceededError("nobody came");
                         }),
              IsOk());
  EXPECT_THAT(*task.Take(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "nobody came"));
}

TEST(BackgroundTask, WithoutAThreadTheErrorIsItsResultToo) {
  const ScopedFailpoint threads("base/start_thread",
                                "1*error(RESOURCE_EXHAUSTED,no threads left)");
  Task task;
  bool has_run = false;
  EXPECT_THAT(task.Begin("a test",
                         [&]() -> Task::Result {
                           has_run = true;
                           return std::string("ckpt-1");
                         }),
              StatusIs(absl::StatusCode::kResourceExhausted, "no threads"));
  EXPECT_FALSE(has_run);
  EXPECT_TRUE(task.has_begun());
  EXPECT_TRUE(task.is_done());
  EXPECT_THAT(*task.Take(),
              StatusIs(absl::StatusCode::kResourceExhausted, "no threads"));
  EXPECT_FALSE(task.has_begun());
}

TEST(BackgroundTask, DestructorWaitsForTheTaskThatGoesOn) {
  std::atomic<bool> has_ended{false};
  {
    Task task;
    ASSERT_THAT(task.Begin("a test",
                           [&]() -> Task::Result {
                             has_ended = true;
                             return absl::CancelledError("ended");
                           }),
                IsOk());
  }
  EXPECT_TRUE(has_ended);
}

}  // namespace
}  // namespace weft::train
