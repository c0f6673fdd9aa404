#include "weft/ps/server.h"

#include <memory>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// A SYNC table of two shards with 10 elements, which step by the gradient.
v1::TableSpec Spec(const std::string& name) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_kind(v1::TableSpec::DENSE);
  spec.set_elements(10);
  spec.set_mode(v1::TableSpec::SYNC);
  spec.set_shards(2);
  spec.set_partitions(8);
  spec.mutable_rule()->mutable_sgd()->set_lr(1.0);
  return spec;
}

// Pulls the values after round 0, which has not closed.
Future<ShardReply> PullRoundOne(TableShard& table, Instant deadline) {
  EXPECT_THAT(table.Initialize(Tensor::Ones({10})), IsOk());
  v1::Request request;
  request.set_table(table.spec().name());
  request.set_pull(true);
  request.set_round(1);
  return table.Handle(request, Tensor(), Tensor(), Tensor(), deadline);
}

Instant Later() { return SteadyClock().Now() + absl::Minutes(1); }

absl::Status StatusNow(const Future<ShardReply>& reply) {
  return reply.Wait(absl::ZeroDuration()).status();
}

TEST(Server, EqualSpecFindsTheSameTable) {
  Server server({.server = 0, .servers = 1});
  const auto made = server.CreateTable(Spec("t"));
  ASSERT_THAT(made, IsOk());
  const auto found = server.CreateTable(Spec("t"));
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(*made, *found);
}

TEST(Server, OtherSpecOfTheSameNameIsRefusedWithTheDifference) {
  Server server({.server = 0, .servers = 1});
  ASSERT_THAT(server.CreateTable(Spec("t")), IsOk());
  v1::TableSpec other = Spec("t");
  other.set_elements(11);
  EXPECT_THAT(server.CreateTable(other),
              StatusIs(absl::StatusCode::kFailedPrecondition, "elements"));
  EXPECT_THAT(server.CreateTable(v1::TableSpec()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Server, TableBeyondMaxTablesIsRefused) {
  Server server({.server = 0, .servers = 1, .max_tables = 1});
  ASSERT_THAT(server.CreateTable(Spec("first")), IsOk());
  EXPECT_THAT(server.CreateTable(Spec("second")),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "'second' would be one more than the 1"));
  EXPECT_THAT(server.CreateTable(Spec("first")), IsOk());
}

TEST(Server, TablesWithTooManyPartsAreRefused) {
  Server server({.max_parts = 20});
  ASSERT_THAT(server.CreateTable(Spec("first")), IsOk());  // 8 and a slice
  ASSERT_THAT(server.CreateTable(Spec("second")), IsOk());
  EXPECT_THAT(server.CreateTable(Spec("third")),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "'third' has 9 partitions and slices, those on server 0 "
                       "have 18, and 20 are the most"));
  v1::TableSpec huge = Spec("huge");
  huge.set_elements(int64_t{1} << 40);
  EXPECT_THAT(Server({}).CreateTable(huge),
              StatusIs(absl::StatusCode::kResourceExhausted, "fewer elements"));
}

TEST(Server, FindOfAnUnknownTableNamesTheTables) {
  Server server({.server = 0, .servers = 1});
  EXPECT_THAT(server.Find("t"),
              StatusIs(absl::StatusCode::kNotFound, "it has none"));
  ASSERT_THAT(server.CreateTable(Spec("dense")), IsOk());
  EXPECT_THAT(server.Find("t"),
              StatusIs(absl::StatusCode::kNotFound, "it has dense"));
  EXPECT_THAT(server.Find("dense"), IsOk());
}

// Shard 1 is served by nobody: shard 0's part alone closes the round.
TEST(Server, TableMadeAfterADeathGoesOnWithoutTheDeadRank) {
  Server server({.server = 0, .servers = 1});
  server.DeclareDead(1);
  const auto table = server.CreateTable(Spec("t"));
  ASSERT_THAT(table, IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Ones({10})), IsOk());
  const auto push = [&](int round) {
    v1::Request request;
    request.set_table("t");
    request.set_client(7);
    request.set_push(true);
    request.set_pull(true);
    request.set_round(round);
    // One slice, of the partition that has it.
    const TableShard::Image image = (*table)->Save();
    for (const auto& [partition, rows] : image.partitions) {
      request.add_partitions(partition);
      request.add_rows(1);
    }
    return (*table)->Handle(request, Tensor(), Tensor::Ones({10}), Tensor(),
                            Later());
  };
  EXPECT_THAT(StatusNow(push(0)), IsOk());
  server.Admit(1);
  EXPECT_THAT(StatusNow(push(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(Server, ExpireEndsPullsWhoseDeadlineHasPassed) {
  Server server({.server = 0, .servers = 1});
  const auto table = server.CreateTable(Spec("t"));
  ASSERT_THAT(table, IsOk());
  const Instant deadline = Later();
  const Future<ShardReply> pull = PullRoundOne(**table, deadline);
  server.Expire(deadline - absl::Seconds(1));
  EXPECT_FALSE(pull.IsReady());
  server.Expire(deadline + absl::Seconds(1));
  ASSERT_TRUE(pull.IsReady());
  EXPECT_THAT(StatusNow(pull), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(Server, ShutdownEndsWaitingPullsAndLaterRequestsWithItsReason) {
  Server server({.server = 0, .servers = 1});
  const auto table = server.CreateTable(Spec("t"));
  ASSERT_THAT(table, IsOk());
  const Future<ShardReply> pull = PullRoundOne(**table, Later());
  EXPECT_FALSE(pull.IsReady());
  server.Shutdown(absl::UnavailableError("the job has ended"));
  server.Shutdown(absl::InternalError("a second reason is ignored"));
  ASSERT_TRUE(pull.IsReady());
  for (const absl::Status& status : {StatusNow(pull), server.Find("t").status(),
                                     server.CreateTable(Spec("u")).status()}) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable, "the job has ended"));
  }
}

TEST(Server, FailedRestoreLeavesTheTables) {
  const testing::TempDir directory;
  Server server({.checkpoint_dir = directory.path()});
  const auto table = server.CreateTable(Spec("t"));
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT(server.Restore(directory.path(), "ckpt-000001-step-1"),
              StatusIs(absl::StatusCode::kNotFound));
  const auto found = server.Find("t");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(*found, *table);
}

}  // namespace
}  // namespace weft::ps
