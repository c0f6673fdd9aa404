#include "weft/worker/test_workers.h"

#include <atomic>
#include <stdexcept>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/test_functions.h"

namespace weft::worker {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

TestWorkers::Options GroupOf(int servers, int trainers) {
  TestWorkers::Options options;
  options.servers = servers;
  options.trainers = trainers;
  return options;
}

absl::StatusOr<int64_t> CallTwice(Worker& from, const std::string& to) {
  return rpc::Call(from.agent().To(to, kLong), Twice, int64_t{21});
}

TEST(TestWorkers, StartCallEachOtherAndEndFromOneThread) {
  WEFT_ASSERT_OK_AND_ASSIGN(auto workers, TestWorkers::Start(GroupOf(1, 3)));
  EXPECT_THAT(workers->names(),
              ElementsAre("ps0", "trainer0", "trainer1", "trainer2"));
  for (const std::string& from : workers->names()) {
    for (const std::string& to : workers->names()) {
      EXPECT_THAT(CallTwice(workers->Get(from), to), IsOkAndHolds(42))
          << from << " to " << to;
    }
  }
  EXPECT_THAT(workers->Shutdown(), IsOk());
  EXPECT_THAT(workers->names(), ElementsAre());
  EXPECT_THAT(workers->Shutdown(), IsOk());
}

TEST(TestWorkers, RunIsTheMainOfEachWorkerAndTheyMayWaitForEachOther) {
  WEFT_ASSERT_OK_AND_ASSIGN(auto workers, TestWorkers::Start(GroupOf(0, 3)));
  std::atomic<int> ran{0};
  EXPECT_THAT(workers->Run([&](Worker& worker) {
    ++ran;
    return worker.AwaitAll("ran", kLong);
  }),
              IsOk());
  EXPECT_EQ(ran, 3);
  EXPECT_THAT(
      workers->Run([](Worker& worker) {
        return worker.self().name == "trainer1"
                   ? absl::DataLossError("a row is missing")
                   : absl::OkStatus();
      }),
      StatusIs(absl::StatusCode::kDataLoss, "trainer1: a row is missing"));
  EXPECT_THAT(workers->Run([](Worker&) -> absl::Status {
    throw std::runtime_error("clumsy");
  }),
              StatusIs(absl::StatusCode::kInternal, "clumsy"));
  EXPECT_THAT(workers->Shutdown(), IsOk());
}

TEST(TestWorkers, TwoGroupsDoNotMeet) {
  WEFT_ASSERT_OK_AND_ASSIGN(auto one, TestWorkers::Start(GroupOf(1, 1)));
  WEFT_ASSERT_OK_AND_ASSIGN(auto other, TestWorkers::Start(GroupOf(0, 2)));
  EXPECT_THAT(CallTwice(one->Get("trainer0"), "trainer1"),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(CallTwice(other->Get("trainer0"), "trainer1"), IsOkAndHolds(42));
}

TEST(TestWorkers, AKilledOneIsUnavailableToTheOthers) {
  TestWorkers::Options options = GroupOf(1, 2);
  options.configure = [](worker::Options& one) {
    one.log_level = telemetry::Level::kError;  // that one is killed is meant
    // Longer than a busy machine leaves a worker without time.
    one.limits.dead_after = absl::Seconds(4);
    one.limits.give_up_after = absl::Seconds(4);
  };
  WEFT_ASSERT_OK_AND_ASSIGN(auto workers, TestWorkers::Start(options));
  ASSERT_THAT(CallTwice(workers->Get("trainer0"), "trainer1"),
              IsOkAndHolds(42));
  workers->Kill("trainer1");
  EXPECT_THAT(workers->names(), ElementsAre("ps0", "trainer0"));
  EXPECT_TRUE(Becomes([&] {
    return absl::IsUnavailable(
        CallTwice(workers->Get("trainer0"), "trainer1").status());
  }));
  EXPECT_THAT(CallTwice(workers->Get("trainer0"), "ps0"), IsOkAndHolds(42));
}

TEST(TestWorkers, OneThatCannotStartIsNamedAndNoneIsLeft) {
  EXPECT_THAT(TestWorkers::Start(GroupOf(0, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, "trainers=0"));
  TestWorkers::Options options = GroupOf(1, 2);
  options.start_timeout = absl::Seconds(5);
  options.configure = [](worker::Options& one) {
    one.log_level = telemetry::Level::kError;
    if (one.name() == "trainer1") one.rpc_timeout = -absl::Seconds(1);
  };
  EXPECT_THAT(TestWorkers::Start(options),
              StatusIs(absl::StatusCode::kInvalidArgument, "trainer1: "));
}

}  // namespace
}  // namespace weft::worker
