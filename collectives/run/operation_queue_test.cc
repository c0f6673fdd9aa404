#include "weft/collectives/run/operation_queue.h"

#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/driver.h"
#include "weft/base/mutex.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(60);

// The numbers of the operations that have run, in their order.
class Log {
 public:
  void Add(uint64_t number) {
    MutexLock lock(mu_);
    numbers_.push_back(number);
  }
  std::vector<uint64_t> numbers() {
    MutexLock lock(mu_);
    return numbers_;
  }
  // A body that adds its number.
  OperationQueue::Body Body() {
    return [this](uint64_t number) {
      Add(number);
      return absl::OkStatus();
    };
  }

 private:
  Mutex mu_;
  std::vector<uint64_t> numbers_ ABSL_GUARDED_BY(mu_);
};

// A body that runs until `go`, and tells when it has begun.
class Gate {
 public:
  OperationQueue::Body Body() {
    return [this](uint64_t) {
      begun_.set_value();
      go_.get_future().wait();
      return absl::OkStatus();
    };
  }
  void AwaitBegun() { begun_.get_future().wait(); }
  void Open() { go_.set_value(); }

 private:
  std::promise<void> begun_, go_;
};

TEST(OperationQueue, NumbersCountFromZeroInTheOrderOfTheCalls) {
  Log log;
  OperationQueue queue;
  EXPECT_TRUE(queue.is_idle());
  const auto add = [&](uint64_t number) {
    log.Add(number);
    return absl::OkStatus();
  };
  EXPECT_THAT(queue.RunHere(add), IsOk());
  EXPECT_TRUE(queue.TryRunHere(add));
  Future<void> scheduled = queue.Schedule(log.Body());
  EXPECT_THAT(queue.RunHere(add), IsOk());
  EXPECT_THAT(scheduled.Wait(kPatience), IsOk());
  EXPECT_THAT(log.numbers(), ElementsAre(0, 1, 2, 3));
}

TEST(OperationQueue, StatusOfTheBodyIsTheResult) {
  OperationQueue queue;
  EXPECT_THAT(queue.RunHere([](uint64_t) {
    return absl::UnavailableError("rank 1 is gone");
  }),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1"));
  EXPECT_THAT(
      queue.Schedule([](uint64_t) { return absl::AbortedError("refused"); })
          .Wait(kPatience),
      StatusIs(absl::StatusCode::kAborted, "refused"));
  EXPECT_TRUE(queue.is_idle());
}

// The turn passes on all the same.
TEST(OperationQueue, BodyThatThrowsEndsWithItsErrorAndTheNextRuns) {
  OperationQueue queue;
  EXPECT_THAT(queue.RunHere([](uint64_t) -> absl::Status {
    throw std::runtime_error("thrown here");
  }),
              StatusIs(absl::StatusCode::kInternal, "thrown here"));
  EXPECT_THAT(queue
                  .Schedule([](uint64_t) -> absl::Status {
                    throw std::runtime_error("thrown there");
                  })
                  .Wait(kPatience),
              StatusIs(absl::StatusCode::kInternal, "thrown there"));
  EXPECT_TRUE(queue.TryRunHere(
      [](uint64_t) -> absl::Status { throw std::runtime_error("dropped"); }));
  EXPECT_THAT(queue.RunHere([](uint64_t) { return absl::OkStatus(); }), IsOk());
}

TEST(OperationQueue, TryRunHereRunsNothingBehindAnother) {
  Gate gate;
  Log log;
  OperationQueue queue;
  const auto add = [&](uint64_t number) {
    log.Add(number);
    return absl::OkStatus();
  };
  Future<void> first = queue.Schedule(gate.Body());
  EXPECT_FALSE(queue.TryRunHere(add));
  gate.AwaitBegun();
  EXPECT_FALSE(queue.TryRunHere(add));
  EXPECT_FALSE(queue.is_idle());
  EXPECT_THAT(log.numbers(), IsEmpty());
  gate.Open();
  EXPECT_THAT(first.Wait(kPatience), IsOk());
  EXPECT_TRUE(queue.TryRunHere(add));
  EXPECT_THAT(log.numbers(), ElementsAre(1));  // the others took none
}

TEST(OperationQueue, RefusalsTakeANumberAndDoNotKeepItBusy) {
  Gate gate;
  Log log;
  OperationQueue queue;
  EXPECT_THAT(queue.ScheduleRefusal(gate.Body()), IsOkAndHolds(0));
  gate.AwaitBegun();
  EXPECT_TRUE(queue.is_idle());
  EXPECT_THAT(queue.ScheduleRefusal(log.Body()), IsOkAndHolds(1));
  EXPECT_TRUE(queue.is_idle());
  Future<void> operation = queue.Schedule(log.Body());
  EXPECT_FALSE(queue.is_idle());
  gate.Open();
  EXPECT_THAT(operation.Wait(kPatience), IsOk());
  EXPECT_THAT(log.numbers(), ElementsAre(1, 2));
  EXPECT_TRUE(queue.is_idle());
}

TEST(OperationQueue, ThreadsThatCallAtOnceRunOneAfterTheOther) {
  constexpr int kThreads = 4, kEach = 100;
  std::vector<uint64_t> numbers;  // guarded by the turn
  int inside = 0;
  OperationQueue queue;
  const auto body = [&](uint64_t number) {
    EXPECT_EQ(++inside, 1);
    numbers.push_back(number);
    --inside;
    return absl::OkStatus();
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        if (t % 2 == 0) {
          EXPECT_THAT(queue.RunHere(body), IsOk());
        } else {
          EXPECT_THAT(queue.Schedule(body).Wait(kPatience), IsOk());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(numbers.size(), static_cast<size_t>(kThreads * kEach));
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], i);
}

TEST(OperationQueue, CallbacksRunOnItsThreadAndMayNotWait) {
  std::thread::id body_thread, callback_thread;
  absl::Status waited;
  Promise<void> never;
  std::promise<void> called;
  Gate gate;
  OperationQueue queue;
  Future<void> first =
      queue.Schedule([&, body = gate.Body()](uint64_t number) mutable {
        body_thread = std::this_thread::get_id();
        return std::move(body)(number);
      });
  first.OnReady([&](const absl::Status&) {
    callback_thread = std::this_thread::get_id();
    waited = never.future().Wait(kPatience);
    called.set_value();
  });
  gate.Open();
  called.get_future().wait();
  EXPECT_EQ(callback_thread, body_thread);
  EXPECT_NE(body_thread, std::this_thread::get_id());
  EXPECT_THAT(waited, StatusIs(absl::StatusCode::kFailedPrecondition));
  never.Set(absl::OkStatus());
}

TEST(OperationQueue, EndWaitsForAllThatWasScheduled) {
  Log log;
  std::vector<Future<void>> results;
  {
    OperationQueue queue;
    for (int i = 0; i < 50; ++i) results.push_back(queue.Schedule(log.Body()));
  }
  EXPECT_EQ(log.numbers().size(), 50u);
  for (Future<void>& result : results) {
    EXPECT_TRUE(result.IsReady());
    EXPECT_THAT(result.Wait(kPatience), IsOk());
  }
}

TEST(OperationQueue, OneThatWasNeverUsedEndsAtOnce) { OperationQueue queue; }

}  // namespace
}  // namespace weft::collectives
