#include "weft/ps/server.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/core/cut.h"
#include "weft/ps/core/placement.h"
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

// A server with a table of 1,000 rows of 16 partitions, and a checkpoint of it.
class SavingServerTest : public ::testing::Test {
 protected:
  SavingServerTest() {
    spec_.set_name("rows");
    spec_.set_kind(v1::TableSpec::SPARSE);
    spec_.set_dim(2);
    spec_.set_mode(v1::TableSpec::SYNC);
    spec_.set_shards(1);
    spec_.set_partitions(16);
    spec_.mutable_rule()->mutable_sgd()->set_lr(1.0);
    directory_ = *checkpoint::CheckpointDirectory::Open({temp_.Path("ckpt")});
  }

  ServerOptions Options() const {
    ServerOptions options;
    options.checkpoint_dir = temp_.path();
    return options;
  }
  v1::SaveRequest Begin() {
    v1::SaveRequest request;
    request.set_directory(temp_.Path("ckpt"));
    request.set_attempt(*directory_->Begin(1));
    request.set_version(-1);
    return request;
  }
  std::string Commit(const v1::SaveRequest& request,
                     const v1::SaveReply& saved) {
    std::vector<checkpoint::FileRecord> files;
    for (const v1::SavedFile& file : saved.files()) {
      files.push_back({file.name(),
                       file.writer(),
                       {file.bytes(), file.sha256(), file.xxh3()}});
    }
    return *directory_->Commit(request.attempt(), files, {});
  }
  // One more round, of which each row steps by -1.
  void Round(TableShard& table) {
    std::vector<int64_t> keys(1000);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
    const SparseCut cut = CutSparse(keys, Placement("rows", 16, 1));
    v1::Request request;
    request.set_table("rows");
    request.set_client(1);
    request.set_push(true);
    request.set_round(round_++);
    std::vector<int64_t> sorted(cut.keys.begin(), cut.keys.end());
    for (const SparsePart::Group& group : cut.parts[0].groups) {
      request.add_partitions(group.partition);
      request.add_rows(group.end - group.begin);
    }
    EXPECT_THAT(
        StatusNow(table.Handle(request, Tensor::FromVector<int64_t>(sorted),
                               Tensor::Ones({1000, 2}), Tensor(), Later())),
        IsOk());
  }
  // Expects `version` of the table that a server restores from checkpoint
  // `name`.
  void ExpectRestored(const std::string& name, int64_t version) {
    Server server(Options());
    ASSERT_THAT(server.Restore(temp_.Path("ckpt"), name), IsOk());
    const auto table = server.Find("rows");
    ASSERT_THAT(table, IsOk());
    const TableShard::Image image = (*table)->Save();
    EXPECT_EQ(image.version, version);
    size_t rows = 0;
    for (const auto& [partition, part] : image.partitions) {
      rows += part.keys.size();
      EXPECT_THAT(part.weights, ::testing::Each(-1.0f * version));
    }
    EXPECT_EQ(rows, 1000);
  }

  const weft::testing::TempDir temp_;
  v1::TableSpec spec_;
  std::unique_ptr<checkpoint::CheckpointDirectory> directory_;
  int64_t round_ = 0;
};

TEST_F(SavingServerTest, SaveWritesTheTablesAsTheyWereWhenTheyWereFrozen) {
  Server server(Options());
  const auto table = server.CreateTable(spec_);
  ASSERT_THAT(table, IsOk());
  Round(**table);
  const v1::SaveRequest request = Begin();
  ASSERT_THAT(server.Freeze(request), IsOk());
  Round(**table);
  Round(**table);
  const auto saved = server.Save(request);
  ASSERT_THAT(saved, IsOk());
  EXPECT_EQ(saved->files_size(), 1);
  ExpectRestored(Commit(request, *saved), 1);
  // The next one is of now.
  const v1::SaveRequest next = Begin();
  const auto again = server.Save(next);
  ASSERT_THAT(again, IsOk());
  ExpectRestored(Commit(next, *again), 3);
}

TEST_F(SavingServerTest, TableOfMoreBytesIsWrittenInSeveralFiles) {
  ServerOptions options = Options();
  options.checkpoint_file_bytes = 4000;
  Server server(options);
  const auto table = server.CreateTable(spec_);
  ASSERT_THAT(table, IsOk());
  Round(**table);
  const v1::SaveRequest request = Begin();
  const auto saved = server.Save(request);
  ASSERT_THAT(saved, IsOk());
  EXPECT_GT(saved->files_size(), 3);
  EXPECT_LT(saved->files_size(), 16);
  ExpectRestored(Commit(request, *saved), 1);
}

TEST_F(SavingServerTest, TablesThatNobodySavesAreNotKeptFrozen) {
  Server server(Options());
  const auto table = server.CreateTable(spec_);
  ASSERT_THAT(table, IsOk());
  Round(**table);
  v1::SaveRequest request = Begin();
  for (size_t i = 0; i < Server::kMostFrozen; ++i) {
    request.set_attempt("tmp-00000" + std::to_string(i));
    ASSERT_THAT(server.Freeze(request), IsOk());
    ASSERT_THAT(server.Freeze(request), IsOk());  // asked again
  }
  request = Begin();
  EXPECT_THAT(
      server.Freeze(request),
      StatusIs(absl::StatusCode::kResourceExhausted, "have been begun"));
  server.Expire(SteadyClock().Now() + Server::kFrozenFor + absl::Seconds(1));
  ASSERT_THAT(server.Freeze(request), IsOk());
  server.Expire(SteadyClock().Now() + Server::kFrozenFor + absl::Seconds(1));
  // Too late, and nothing else is saved in its place.
  Round(**table);
  EXPECT_THAT(server.Save(request),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "are there no longer: wanted a Save within 30s"));
  request = Begin();
  EXPECT_THAT(server.Freeze(request), IsOk());
  EXPECT_THAT(server.Save(request), IsOk());
}

TEST_F(SavingServerTest, AttemptsThatWereLetGoAreForgottenAtLast) {
  Server server(Options());
  ASSERT_THAT(server.CreateTable(spec_), IsOk());
  v1::SaveRequest request = Begin();
  const std::string first = request.attempt();
  for (int i = 0; i < 100; ++i) {
    if (i > 0) request.set_attempt("tmp-" + std::to_string(900000 + i));
    ASSERT_THAT(server.Freeze(request), IsOk());
    server.Expire(SteadyClock().Now() + Server::kFrozenFor + absl::Seconds(1));
  }
  request.set_attempt(first);
  EXPECT_THAT(server.Save(request), IsOk());
}

TEST_F(SavingServerTest, SaveOfAnotherVersionThanThatAskedForIsRefused) {
  Server server(Options());
  const auto table = server.CreateTable(spec_);
  ASSERT_THAT(table, IsOk());
  Round(**table);
  v1::SaveRequest request = Begin();
  request.set_version(2);
  EXPECT_THAT(server.Save(request),
              StatusIs(absl::StatusCode::kFailedPrecondition, "version 1"));
}

TEST_F(SavingServerTest, FreezeOutsideTheServersDirectoryIsRefused) {
  Server server(Options());
  v1::SaveRequest request = Begin();
  request.set_directory("/");
  EXPECT_THAT(server.Freeze(request),
              StatusIs(absl::StatusCode::kPermissionDenied));
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
