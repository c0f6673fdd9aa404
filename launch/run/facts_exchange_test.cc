#include "weft/launch/run/facts_exchange.h"

#include <memory>
#include <set>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/test_workers.h"

namespace weft::launch {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;

std::vector<RankFacts> Own(const char* name) {
  RankFacts rank;
  rank.name = name;
  rank.process = RankFacts::Process::kRuns;
  rank.pid = 7;
  return {rank};
}

class FactsExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker::TestWorkers::Options options;
    options.trainers = 1;
    auto started = worker::TestWorkers::Start(options);
    ASSERT_THAT(started, IsOk());
    workers_ = *std::move(started);
    const worker::Options& own = workers_->Get("trainer0").options();
    options_.job = own.job;
    options_.coordinator = own.coordinator;
    options_.host = "trainer0";
  }

  std::unique_ptr<worker::TestWorkers> workers_;
  CoordinatorChannelOptions options_;
};

TEST_F(FactsExchangeTest, WhatOneLauncherSeesAnotherKnowsOnceItAsks) {
  CoordinatorChannel one(options_), other(options_);
  FactsExchange first(one, 0), second(other, 1);
  std::vector<RankFacts> known;
  EXPECT_TRUE(Becomes([&] {
    known = first.Exchange(Own("trainer0"), {1});
    EXPECT_THAT(second.Exchange(Own("trainer1"), {}), IsEmpty());
    return !known.empty();
  }));
  ASSERT_THAT(known, SizeIs(1));
  EXPECT_EQ(known[0].name, "trainer1");
  EXPECT_EQ(known[0].pid, 7);
  EXPECT_NE(known[0].host, "");
}

TEST_F(FactsExchangeTest, WithoutACoordinatorNothingIsKnown) {
  options_.coordinator = "unix:/nowhere/coordinator.sock";
  CoordinatorChannel nobody(options_);
  FactsExchange exchange(nobody, 0);
  EXPECT_THAT(exchange.Exchange(Own("trainer0"), {1}), IsEmpty());
  options_.coordinator = "127.0.0.1:1";
  options_.certs = "/nowhere";
  CoordinatorChannel without_certificate(options_);
  FactsExchange refused(without_certificate, 0);
  EXPECT_THAT(refused.Exchange(Own("trainer0"), {1}), IsEmpty());
}

}  // namespace
}  // namespace weft::launch
