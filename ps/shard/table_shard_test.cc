#include "weft/ps/shard/table_shard.h"

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/shard/table_shard_fixture.h"
#include "weft/telemetry/metrics.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(TableShard, ARoundIsAppliedOnceAllWorkersGaveTheirPart) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  Worker a(shard.get(), 0), b(shard.get(), 1);
  Future<ShardReply> first = a.Sparse(0, {7}, 2.0f);
  EXPECT_FALSE(first.IsReady());
  Future<ShardReply> second = b.Sparse(0, {7, 9}, 4.0f);
  ASSERT_THAT(Now(first), IsOk());
  EXPECT_THAT(Now(first)->values.ToVector<float>(), Each(-3.0f));
  EXPECT_EQ(Now(first)->reply.version(), 1);
  ASSERT_THAT(Now(second), IsOk());
  EXPECT_EQ(Now(second)->values.numel(), 4);
}

TEST(TableShard, CountsTheWorkOfItsPartitions) {
  const auto at = [](int second) {
    return Instant::FromNanoseconds(second * int64_t{1'000'000'000});
  };
  for (const auto mode : {v1::TableSpec::ASYNC, v1::TableSpec::SYNC}) {
    const auto shard = Shard(v1::TableSpec::SPARSE, mode);
    shard->Expire(at(1));
    Worker first(shard.get(), 0);
    Worker second(shard.get(), 1);
    const bool is_sync = mode == v1::TableSpec::SYNC;
    EXPECT_THAT(Now(first.Sparse(0, {1, 2, 3}, 1, /*pull=*/!is_sync)), IsOk());
    if (is_sync) {
      EXPECT_THAT(Now(second.Sparse(0, {1, 2, 3}, 1)), IsOk());
    }
    shard->Expire(at(2));
    const Load sum = shard->load().Sum();
    // A key takes 8 bytes, and so does its row.
    const int rows = is_sync ? 3 * 3 : 2 * 3;
    EXPECT_EQ(sum.rows, rows);
    EXPECT_EQ(sum.bytes, 16 * rows);
    EXPECT_GT(sum.requests, 1);
    EXPECT_GT(sum.busy, 0);
    EXPECT_EQ(sum.backup, 0);
    double of_all = 0;
    for (const auto& one : shard->load().Loads()) of_all += one.load.rows;
    EXPECT_NEAR(of_all, rows, 1e-3);
  }
}

// The value of the series `name`; "": there is none.
std::string ValueIn(const std::string& page, const std::string& name) {
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (absl::StartsWith(line, absl::StrCat(name, "{"))) {
      return std::string(line.substr(line.rfind(' ') + 1));
    }
  }
  return "";
}

constexpr char kLockWaits[] = "weft_ps_lock_wait_seconds_count";
constexpr char kRepeated[] = "weft_ps_repeated_pushes_total";

TEST(TableShard, CountsLockWaitsAndRepetitionsOfAsynchronousPushes) {
  for (const bool is_repeated : {false, true}) {
    const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::ASYNC);
    Worker worker(shard.get(), 0);
    std::set<int> partitions;
    for (int key = 0; key < 3; ++key) {
      partitions.insert(Placement("t", kPartitions, 1).PartitionOfKey(key));
    }
    ASSERT_THAT(Now(worker.Sparse(0, {0, 1, 2}, 1)), IsOk());
    if (is_repeated) {
      ASSERT_THAT(Now(worker.Sparse(0, {0, 1, 2}, 1, /*pull=*/false)), IsOk());
    }
    telemetry::Metrics metrics{{}};
    shard->metrics().Export(metrics, "t");
    const std::string page = metrics.Text();
    // Of the push, of the pull, of the push that was sent again.
    EXPECT_EQ(ValueIn(page, kLockWaits), is_repeated ? "3" : "2");
    EXPECT_EQ(ValueIn(page, kRepeated),
              absl::StrCat(is_repeated ? partitions.size() : 0));
  }
}

TEST(TableShard, APartSentAgainCountsOnce) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  Worker a(shard.get(), 0), b(shard.get(), 1);
  Future<ShardReply> first = a.Sparse(0, {7}, 2.0f);
  Future<ShardReply> again = a.Sparse(0, {7}, 2.0f);
  Future<ShardReply> other = b.Sparse(0, {7}, 2.0f);
  Future<ShardReply> late = a.Sparse(0, {7}, 2.0f);
  for (const auto& future : {first, again, other, late}) {
    ASSERT_THAT(Now(future), IsOk());
    EXPECT_THAT(Now(future)->values.ToVector<float>(), Each(-2.0f));
  }
  telemetry::Metrics metrics{{}};
  shard->metrics().Export(metrics, "t");
  EXPECT_EQ(ValueIn(metrics.Text(), kRepeated), "2");
}

// Two workers of one rank would otherwise lose one's gradient without a word.
TEST(TableShard, RefusesAPartOfARankThatAnotherClientGave) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  Worker a(shard.get(), 0), impostor(shard.get(), 0);
  impostor.set_client(999);
  Future<ShardReply> first = a.Sparse(0, {7}, 2.0f);
  EXPECT_THAT(Now(impostor.Sparse(0, {7}, 2.0f)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "given by another client"));
  EXPECT_FALSE(first.IsReady());
}

TEST(TableShard, ASynchronousSumHasTheSameBitsInAnyOrderOfArrival) {
  std::vector<float> bits;
  for (const bool reversed : {false, true}) {
    const auto shard = Shard(v1::TableSpec::DENSE, v1::TableSpec::SYNC);
    ASSERT_THAT(shard->Initialize(Tensor::Ones({5})), IsOk());
    Worker a(shard.get(), 0), b(shard.get(), 1);
    const std::vector<float> x = {0.1f, 1e8f, 3.3f, 1e-7f, 7.0f};
    const std::vector<float> y = {0.7f, -1e8f, 1.1f, 1.0f, 0.3f};
    if (reversed) {
      b.Dense(0, y).OnReady([](const auto&) {});
      a.Dense(0, x).OnReady([](const auto&) {});
    } else {
      a.Dense(0, x).OnReady([](const auto&) {});
      b.Dense(0, y).OnReady([](const auto&) {});
    }
    v1::Request pull;
    pull.set_pull(true);
    pull.set_round(1);
    const auto read = Now(
        shard->Handle(pull, Tensor(), Tensor(), Tensor(), Instant::Infinite()));
    ASSERT_THAT(read, IsOk());
    if (bits.empty()) bits = read->values.ToVector<float>();
    EXPECT_EQ(read->values.ToVector<float>(), bits);
  }
}

// Also where pulls travel in another dtype, and where a part does not have all
// partitions.
TEST(TableShard, ADenseRoundIsReadOnceForAllThatWaitForIt) {
  constexpr int64_t kElements = 5000;  // five slices
  for (const auto dtype : {v1::WireValues::F32, v1::WireValues::F16}) {
    v1::TableSpec spec = Spec(v1::TableSpec::DENSE, v1::TableSpec::SYNC);
    spec.set_elements(kElements);
    spec.set_shards(3);
    spec.set_reduction(v1::TableSpec::SUM);
    spec.mutable_wire()->set_pull(dtype);
    const auto shard = *TableShard::Create(spec, 0, 1);
    ASSERT_THAT(shard->Initialize(Tensor::Full({kElements}, 9.0f)), IsOk());
    std::vector<Worker> workers;
    for (int rank = 0; rank < 3; ++rank)
      workers.emplace_back(shard.get(), rank);
    for (int64_t round = 0; round < 2; ++round) {
      const std::vector<float> gradient(kElements, 0.5f);
      std::vector<Future<ShardReply>> replies;
      for (Worker& worker : workers) {
        replies.push_back(worker.Dense(round, gradient));
      }
      for (const auto& reply : replies) {
        ASSERT_THAT(Now(reply), IsOk());
        EXPECT_EQ(Now(reply)->reply.version(), round + 1);
        EXPECT_EQ(Now(reply)->values.raw(), Now(replies[0])->values.raw());
      }
      v1::Request pull;
      pull.set_pull(true);
      const auto later = Now(shard->Handle(pull, Tensor(), Tensor(), Tensor(),
                                           Instant::Infinite()));
      ASSERT_THAT(later, IsOk());
      EXPECT_NE(later->values.raw(), Now(replies[0])->values.raw());
      const size_t bytes = later->values.bytes();
      ASSERT_EQ(Now(replies[0])->values.bytes(), static_cast<int64_t>(bytes));
      EXPECT_EQ(std::memcmp(later->values.raw(), Now(replies[0])->values.raw(),
                            bytes),
                0);
      if (dtype == v1::WireValues::F32) {
        EXPECT_THAT(later->values.ToVector<float>(),
                    Each(9.0f - 1.5f * static_cast<float>(round + 1)));
      }
    }
  }
}

TEST(TableShard, ARoundWithoutSomePartitionsIsReadWhole) {
  constexpr int64_t kElements = 5000;
  v1::TableSpec spec = Spec(v1::TableSpec::DENSE, v1::TableSpec::SYNC);
  spec.set_elements(kElements);
  spec.set_shards(1);
  const auto shard = *TableShard::Create(spec, 0, 1);
  ASSERT_THAT(shard->Initialize(Tensor::Ones({kElements})), IsOk());
  const auto layout = *TableLayout::Create(spec);
  const std::vector<DensePart> cut =
      CutDense(*layout, Placement("t", kPartitions, 1));
  ASSERT_THAT(cut[0].groups, SizeIs(5));
  v1::Request request;
  request.set_client(100);
  request.set_push(true);
  request.set_pull(true);
  const DensePart::Group& second = cut[0].groups[1];
  request.add_partitions(second.partition);
  request.add_rows(second.slices.size());
  const auto reply = Now(shard->Handle(request, Tensor(),
                                       Tensor::Full({second.elements}, 3.0f),
                                       Tensor(), Instant::Infinite()));
  ASSERT_THAT(reply, IsOk());
  std::vector<float> wanted(kElements, 1.0f);
  std::fill_n(wanted.begin() + cut[0].groups[0].elements, second.elements,
              -2.0f);
  EXPECT_EQ(reply->values.ToVector<float>(), wanted);
}

TEST(TableShard, RoundDoesNotWaitForADeadWorker) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  Worker a(shard.get(), 0), b(shard.get(), 1);
  Future<ShardReply> waiting = a.Sparse(0, {7}, 2.0f);
  EXPECT_FALSE(waiting.IsReady());
  shard->DeclareDead(1);
  ASSERT_THAT(Now(waiting), IsOk());
  EXPECT_THAT(Now(waiting)->values.ToVector<float>(), Each(-2.0f));
  EXPECT_THAT(
      Now(b.Sparse(0, {7}, 1.0f)),
      StatusIs(absl::StatusCode::kFailedPrecondition, "closed without it"));
}

// The owner of shard 1 ends in the middle of round 0: it had given its part, or
// had not, and rank 0 takes the shard over and gives the part again. Also where
// the server has no notice of the death, and where the notice is late.
TEST(TableShard, AShardThatChangesItsOwnerMidRoundCountsOnceWithEqualBits) {
  const std::vector<float> x = {0.1f, 1e8f, 3.3f, 1e-7f, 7.0f};
  const std::vector<float> y = {0.7f, -1e8f, 1.1f, 1.0f, 0.3f};
  std::vector<float> bits;
  std::vector<std::vector<float>> results;
  for (const bool gave : {false, true}) {
    for (const bool changes : {false, true}) {
      for (const bool declared : {false, true}) {
        if (!changes && (declared || !gave)) continue;  // the undisturbed run
        v1::TableSpec spec = Spec(v1::TableSpec::DENSE, v1::TableSpec::SYNC);
        spec.set_orphans(v1::TableSpec::WAIT);
        spec.mutable_rule()->mutable_adam()->set_lr(0.1);
        const auto shard = *TableShard::Create(spec, 0, 1);
        ASSERT_THAT(shard->Initialize(Tensor::Ones({5})), IsOk());
        Worker a(shard.get(), 0), b(shard.get(), 1);
        Future<ShardReply> first = a.Dense(0, x);
        if (gave) (void)b.Dense(0, y);
        if (declared) shard->DeclareDead(1);
        EXPECT_EQ(first.IsReady(), gave);  // no round goes on without a shard
        if (changes) (void)a.Dense(0, y, /*of_shard=*/1, /*take_over=*/true);
        if (changes && !declared) shard->DeclareDead(1);
        ASSERT_THAT(Now(first), IsOk());
        // Two parts make the mean of the next round too.
        Future<ShardReply> second = a.Dense(1, y);
        EXPECT_FALSE(second.IsReady());
        if (changes) {
          EXPECT_THAT(
              Now(b.Dense(1, x)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "declared dead"));
          (void)a.Dense(1, x, /*of_shard=*/1);
        } else {
          (void)b.Dense(1, x);
        }
        ASSERT_THAT(Now(second), IsOk());
        EXPECT_EQ(Now(second)->reply.version(), 2);
        if (!changes) bits = Now(second)->values.ToVector<float>();
        results.push_back(Now(second)->values.ToVector<float>());
      }
    }
  }
  EXPECT_THAT(results, SizeIs(5));
  EXPECT_THAT(results, Each(bits));
}

TEST(TableShard, RefusesAPartOfAShardThatAnotherRankServes) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  Worker a(shard.get(), 0), b(shard.get(), 1);
  (void)b.Sparse(0, {7}, 1.0f);
  EXPECT_THAT(Now(a.Sparse(1, {7}, 1.0f, false, /*of_shard=*/1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "rank 1 serves this shard"));
  EXPECT_THAT(Now(a.Sparse(0, {7}, 1.0f, false, /*of_shard=*/2)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "no such shard"));
}

TEST(TableShard, ExpiredWaitNamesMissingWorkers) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  Worker a(shard.get(), 0);
  v1::Request pull;
  pull.set_pull(true);
  pull.set_round(1);
  const Tensor keys = Tensor::FromVector<int64_t>({1});
  Future<ShardReply> waiting = shard->Handle(pull, Tensor(), Tensor(), keys,
                                             Instant() + absl::Seconds(5));
  Future<ShardReply> patient = a.Sparse(0, {7}, 2.0f);
  shard->Expire(Instant() + absl::Seconds(6));
  EXPECT_THAT(Now(waiting),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
  EXPECT_FALSE(patient.IsReady());
  shard->Shutdown(absl::CancelledError("end"));
  EXPECT_THAT(Now(patient), StatusIs(absl::StatusCode::kCancelled, "end"));
}

TEST(TableShard, AsynchronousPushesAreAppliedAsTheyComeAndOnce) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::ASYNC);
  Worker a(shard.get(), 0), b(shard.get(), 1);
  ASSERT_THAT(Now(a.Sparse(0, {1, 2, 3}, 1.0f)), IsOk());
  const auto again = Now(a.Sparse(0, {1, 2, 3}, 1.0f));
  ASSERT_THAT(again, IsOk());
  EXPECT_GT(again->reply.duplicates(), 0);
  EXPECT_THAT(again->values.ToVector<float>(), Each(-1.0f));
  const auto other = Now(b.Sparse(0, {2}, 1.0f));
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT(other->values.ToVector<float>(), Each(-2.0f));
}

TEST(TableShard, ADenseTableNeedsFirstValuesAndKeepsTheFirst) {
  const auto shard = Shard(v1::TableSpec::DENSE, v1::TableSpec::ASYNC);
  Worker a(shard.get(), 0);
  EXPECT_THAT(Now(a.Dense(0, {1, 1, 1, 1, 1})),
              StatusIs(absl::StatusCode::kFailedPrecondition, "Initialize"));
  EXPECT_THAT(shard->Initialize(Tensor::Ones({4})),
              StatusIs(absl::StatusCode::kInvalidArgument, "f32[5]"));
  ASSERT_THAT(shard->Initialize(Tensor::Ones({5})), IsOk());
  ASSERT_THAT(shard->Initialize(Tensor::Zeros({5})), IsOk());
  const auto pushed = Now(a.Dense(0, {1, 2, 3, 4, 5}));
  ASSERT_THAT(pushed, IsOk());
  EXPECT_THAT(pushed->values.ToVector<float>(), ElementsAre(0, -1, -2, -3, -4));
}

// A pull that names partitions, as a push does, is served.
TEST(TableShard, PullIgnoresSpansThatOnlyAPushHas) {
  for (const auto mode : {v1::TableSpec::SYNC, v1::TableSpec::ASYNC}) {
    const auto shard = Shard(v1::TableSpec::SPARSE, mode);
    v1::Request request;
    request.set_pull(true);
    request.add_partitions(1);  // with neither rows nor sequences
    EXPECT_THAT(Now(shard->Handle(request, Tensor(), Tensor(),
                                  Tensor::FromVector<int64_t>({7}),
                                  Instant::Infinite()))
                    .status(),
                IsOk());
  }
}

// Pulls of a version that none will reach would wait without end.
TEST(TableShard, PullOfAVersionTooFarAheadIsRefused) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  const Tensor keys = Tensor::FromVector<int64_t>({1});
  v1::Request pull;
  pull.set_pull(true);
  for (const int64_t version : {int64_t{6}, int64_t{1} << 62}) {
    pull.set_round(version);
    EXPECT_THAT(
        Now(shard->Handle(pull, Tensor(), Tensor(), keys, Instant::Infinite())),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 "is too far ahead: round 0 is open"));
  }
  pull.set_round(5);
  EXPECT_FALSE(
      shard->Handle(pull, Tensor(), Tensor(), keys, Instant::Infinite())
          .IsReady());
}

TEST(TableShard, PartsAheadLeaveRoomForThoseOfTheOpenRound) {
  // A part of one row has 8 bytes of key and 8 of values.
  const auto budget = ByteBudget::Of(64);
  auto shard = *TableShard::Create(
      Spec(v1::TableSpec::SPARSE, v1::TableSpec::SYNC), 0, 1, budget);
  Worker a(shard.get(), 0), b(shard.get(), 1);
  const auto give = [](Worker& worker, int64_t round) {
    return Now(worker.Sparse(round, {7}, 1.0f, /*pull=*/false));
  };
  ASSERT_THAT(give(a, 1), IsOk());
  ASSERT_THAT(give(a, 2), IsOk());
  EXPECT_EQ(budget->held(), 32);
  EXPECT_THAT(give(a, 3),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "a part of a round that is ahead of 16 bytes would wait "
                       "beside 32 bytes that do already, and 32 are the most"));
  EXPECT_EQ(budget->held(), 32);
  ASSERT_THAT(give(a, 0), IsOk());
  ASSERT_THAT(give(b, 0), IsOk());
  EXPECT_EQ(budget->held(), 32);  // round 0 is closed
  ASSERT_THAT(give(b, 1), IsOk());
  ASSERT_THAT(give(b, 2), IsOk());
  EXPECT_EQ(budget->held(), 0);
  EXPECT_EQ(shard->Stats().version(), 3);
  ASSERT_THAT(give(a, 3), IsOk());
  shard.reset();
  EXPECT_EQ(budget->held(), 0);
}

TEST(TableShard, MissingPartsOfManyShardsAreNotAllNamed) {
  v1::TableSpec spec = Spec(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  spec.set_shards(1000);
  const auto shard = *TableShard::Create(spec, 0, 1);
  v1::Request pull;
  pull.set_pull(true);
  pull.set_round(1);
  const Future<ShardReply> waiting = shard->Handle(
      pull, Tensor(), Tensor(), Tensor::FromVector<int64_t>({1}), Instant());
  shard->Expire(Instant() + absl::Seconds(1));
  EXPECT_THAT(Now(waiting), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     "shard 15 of rank 15 and 984 more"));
}

TEST(TableShard, RefusesMismatchedRequests) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::ASYNC);
  const Placement placement("t", kPartitions, 1);
  v1::Request request;
  request.set_push(true);
  request.add_partitions(placement.PartitionOfKey(7));
  request.add_sequences(1);
  request.add_rows(1);
  const Tensor key = Tensor::FromVector<int64_t>({7});
  const Tensor row = Tensor::Ones({1, 2});
  const auto push = [&](const v1::Request& r, Tensor keys, Tensor values) {
    return Now(shard->Handle(r, keys, values, Tensor(), Instant::Infinite()));
  };
  const auto invalid = [](const char* part) {
    return StatusIs(absl::StatusCode::kInvalidArgument, part);
  };
  EXPECT_THAT(push(request, key, Tensor::Ones({1, 3})), invalid("f32[1, 2]"));
  EXPECT_THAT(push(request, key, Tensor::Ones({2})), invalid("f32[1, 2]"));
  EXPECT_THAT(push(request, key, Tensor()), invalid("no tensor"));
  EXPECT_THAT(push(request, Tensor::Ones({1}), row), invalid("keys i64[n]"));
  EXPECT_THAT(push(request, Tensor(), row), invalid("keys i64[n]"));
  EXPECT_THAT(push(request, Tensor::FromVector<int64_t>({7, 8}), row),
              invalid("2 keys were sent"));
  v1::Request bad = request;
  bad.set_partitions(0, kPartitions + 3);
  EXPECT_THAT(push(bad, key, row), invalid("not held here"));
  bad = request;
  bad.set_partitions(0, (placement.PartitionOfKey(7) + 1) % kPartitions);
  EXPECT_THAT(push(bad, key, row), invalid("belongs to"));
  bad = request;
  bad.set_rows(0, 4000000000u);
  EXPECT_THAT(push(bad, key, row), invalid("more rows"));
  bad = request;
  bad.set_sequences(0, 0);
  EXPECT_THAT(push(bad, key, row), invalid("no sequence"));
  bad = request;
  bad.add_partitions(bad.partitions(0));
  EXPECT_THAT(push(bad, key, row), invalid("rows for each of 2 spans"));
  bad.add_rows(0);
  bad.add_sequences(2);
  EXPECT_THAT(push(bad, key, row), invalid("out of order"));
  bad = request;
  bad.set_rows(0, 2);
  EXPECT_THAT(
      push(bad, Tensor::FromVector<int64_t>({7, 7}), Tensor::Ones({2, 2})),
      invalid("do not strictly ascend"));
  EXPECT_EQ(shard->Stats().rows(), 0);
  EXPECT_THAT(push(request, key, row), IsOk());
}

// Found by fuzzing: keys of another type than i64 ended in an exception.
TEST(TableShard, RefusesKeysOfADensePush) {
  const auto shard = Shard(v1::TableSpec::DENSE, v1::TableSpec::ASYNC);
  v1::Request request;
  request.set_push(true);
  for (const Tensor& keys :
       {Tensor::Ones({3}), Tensor::FromVector<int64_t>({7})}) {
    EXPECT_THAT(Now(shard->Handle(request, keys, Tensor::Ones({3}), Tensor(),
                                  Instant::Infinite())),
                StatusIs(absl::StatusCode::kInvalidArgument, "wanted no keys"));
  }
}

// 64 KiB of keys must not make a server allocate 2 GiB.
// A message of several parts is counted before its parts are looked at.
TEST(TableShard, CountsWhatAPullWouldBringWhateverItsKeysAre) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::ASYNC);
  EXPECT_EQ(shard->PulledBytes(Tensor()), 0);
  EXPECT_EQ(shard->PulledBytes(Tensor::Arange(3, DType::kI64)), 3 * 2 * 4);
  EXPECT_EQ(shard->PulledBytes(Tensor::Zeros({2, 2})), 4 * 2 * 4);
}

TEST(TableShard, RefusesAPullThatWouldBringTooMuch) {
  v1::TableSpec spec = Spec(v1::TableSpec::SPARSE, v1::TableSpec::ASYNC);
  spec.set_dim(kMaxDim);
  const auto shard = *TableShard::Create(spec, 0, 1);
  v1::Request pull;
  pull.set_pull(true);
  const auto read = [&](int64_t keys) {
    return Now(shard->Handle(pull, Tensor(), Tensor(),
                             Tensor::Arange(keys, DType::kI64),
                             Instant::Infinite()));
  };
  EXPECT_THAT(read(3), IsOk());
  EXPECT_THAT(read(8192), StatusIs(absl::StatusCode::kInvalidArgument,
                                   "ask in several pulls"));
}

}  // namespace
}  // namespace weft::ps
