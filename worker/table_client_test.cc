#include "weft/worker/table_client.h"

#include <memory>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/client.h"
#include "weft/worker/options.h"
#include "weft/worker/test_workers.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

using ::testing::ElementsAre;

TEST(TableClientOptions, ReachesAllServersOfTheJobAsTheWorkersRank) {
  TestWorkers::Options options;
  options.servers = 3;
  options.trainers = 2;
  options.configure = [](Options& each) { each.replicas = 2; };
  const auto workers = TestWorkers::Start(options).value();
  Worker& worker = workers->Get("trainer1");
  const ps::ClientOptions client = TableClientOptions(worker, absl::Seconds(7));
  EXPECT_EQ(client.agent, &worker.agent());
  EXPECT_THAT(client.servers, ElementsAre("ps0", "ps1", "ps2"));
  EXPECT_EQ(client.client, worker.self().incarnation);
  EXPECT_EQ(client.rank, 1);
  EXPECT_EQ(client.timeout, absl::Seconds(7));
  EXPECT_EQ(client.replicas, 2);
}

}  // namespace
}  // namespace weft::worker
