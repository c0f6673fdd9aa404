// Tests that the limits of a Worker's options reach the parts that enforce
// them.

#include <stdlib.h>
#include <sys/stat.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/channel.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

double SecondsLeft(rpc::CallContext& context) {
  return absl::ToDoubleSeconds(context.Remaining());
}
WEFT_RPC(SecondsLeft);

class LimitsTest : public ::testing::Test {
 protected:
  LimitsTest() { chmod(dir_.path().c_str(), 0700); }

  Options OptionsOf(const std::string& role, int trainers,
                    const std::string& limits) {
    Options options;
    options.job = "job";
    options.role = role;
    options.servers = 1;
    options.trainers = trainers;
    options.coordinator = absl::StrCat("unix:", dir_.Path("c.sock"));
    options.join_timeout = kLong;
    options.log_level = telemetry::Level::kError;
    EXPECT_THAT(SetLimits(limits, &options.limits), IsOk());
    return options;
  }

  // ps0 with these limits, and trainer0.
  void StartTwo(const std::string& limits) {
    const std::vector<Options> ranks = {OptionsOf("ps", 1, limits),
                                        OptionsOf("trainer", 1, "rpc_calls=9")};
    const auto started = testing::RunRanks(2, [&](int rank) {
      auto worker = Worker::Start(ranks[rank]);
      if (worker.ok()) workers_[rank] = *std::move(worker);
      return worker.status();
    });
    for (const absl::Status& status : started) ASSERT_THAT(status, IsOk());
  }

  static nlohmann::json NetOf(Worker& worker) {
    const auto page =
        nlohmann::json::parse(worker.telemetry().status().RenderJson(kLong));
    for (const auto& section : page["sections"]) {
      if (section["name"] == "net") return section["fields"];
    }
    return nullptr;
  }

  testing::TempDir dir_;
  std::unique_ptr<Worker> workers_[2];  // ends in the opposite order
};

TEST_F(LimitsTest, ReachTheLoopAndTheEndpoint) {
  Options options = OptionsOf(
      "ps", 0, "max_connections=7,max_message_bytes=1000000,max_bytes=1000");
  options.ranks_on_host = 1000;
  const auto worker = Worker::Start(options);
  ASSERT_THAT(worker, IsOk());
  const nlohmann::json net = NetOf(**worker);
  ASSERT_TRUE(net.is_object());
  EXPECT_EQ(net["max_connections"], 7);
  EXPECT_EQ(net["ranks_on_host"], 1000);
  EXPECT_EQ(net["spin"], "0");  // they outnumber the cores
  const auto loop = net::Loop::Create();
  ASSERT_THAT(loop, IsOk());
  const auto channel =
      net::Channel::Create(**loop, (*worker)->endpoint().address(), {"ps0"});
  ASSERT_THAT(channel, IsOk());
  const auto answer_to = [&](size_t bytes) {
    return (*channel)
        ->UnaryCall("/weft.rpc.v1.Worker/Call",
                    {Bytes::Own(std::string(bytes, 'x'))}, kLong)
        .Wait(kLong);
  };
  EXPECT_THAT(answer_to(2000),
              StatusIs(absl::StatusCode::kResourceExhausted, "max_bytes"));
  EXPECT_THAT(answer_to(2000000),
              StatusIs(absl::StatusCode::kResourceExhausted, "1000000"));
}

TEST_F(LimitsTest, TheSizeOfTheWorldReachesTheLoop) {
  Options options = OptionsOf("trainer", 0, "rpc_calls=9");
  options.servers = 0;
  options.min_workers = 1;
  options.max_workers = 9;
  const auto worker = Worker::Start(options);
  ASSERT_THAT(worker, IsOk());
  EXPECT_EQ(NetOf(**worker)["max_connections"], 4 * 9 + 64);
}

TEST_F(LimitsTest, ReachTheAgent) {
  Options options = OptionsOf("ps", 0, "rpc_calls=9");
  options.rpc_timeout = absl::Seconds(17);
  {
    const auto worker = Worker::Start(options);
    ASSERT_THAT(worker, IsOk());
    EXPECT_EQ((*worker)->agent().default_timeout(), absl::Seconds(17));
  }
  StartTwo("rpc_timeout=5s,give_up_after=3s,dead_after=10m");
  ASSERT_NE(workers_[1], nullptr);
  const auto left =
      rpc::Call(workers_[0]->agent().To("trainer0", kLong), SecondsLeft);
  ASSERT_THAT(left, IsOk());
  EXPECT_LE(*left, 5);
  workers_[1].reset();  // without a notice to anybody
  EXPECT_THAT(
      rpc::Call(workers_[0]->agent().To("trainer0", kLong), SecondsLeft),
      StatusIs(absl::StatusCode::kUnavailable, "for 3s"));
}

TEST_F(LimitsTest, ReachTheCoordinator) {
  StartTwo("suspect_after=2s,dead_after=4s");
  ASSERT_NE(workers_[1], nullptr);
  workers_[1].reset();
  const auto view = workers_[0]->membership().WaitFor(
      [](const rendezvous::View& v) { return v.Find("trainer0") == nullptr; },
      kLong);
  ASSERT_THAT(view, IsOk());
  EXPECT_EQ((*view)->departed().front().reason, "silent for 4s");
}

}  // namespace
}  // namespace weft::worker
