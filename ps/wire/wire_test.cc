// Tables whose pushes and pulls travel as f16, bf16 or int8.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/many.h"
#include "weft/ps/service.h"
#include "weft/ps/shard/table_shard.h"
#include "weft/ps/test_job.h"
#include "weft/ps/wire/wire_values.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/function.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using v1::TableSpec;
using v1::WireValues;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr WireDtype kAll[] = {WireValues::F32, WireValues::F16,
                              WireValues::BF16, WireValues::INT8};

TableSpec In(TableSpec spec, WireDtype push, WireDtype pull) {
  spec.mutable_wire()->set_push(push);
  spec.mutable_wire()->set_pull(pull);
  return spec;
}

std::vector<float> ValuesOf(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

std::unique_ptr<SparseTable> Open(Client& client, const TableSpec& spec) {
  auto table = client.Sparse(spec);
  EXPECT_THAT(table, IsOk());
  return table.ok() ? *std::move(table) : nullptr;
}

std::vector<float> Pull(SparseTable& table, const Tensor& keys) {
  const auto rows = table.Pull(keys).Wait(kTimeout);
  EXPECT_THAT(rows, IsOk());
  return rows.ok() ? ValuesOf(*rows) : std::vector<float>();
}

struct Way {
  TableSpec::Mode mode;
  WireDtype push, pull;

  TableSpec Of(TableSpec spec) const {
    spec.set_name(
        absl::StrCat("t", mode, "-", WireName(push), "-", WireName(pull)));
    return In(spec, push, pull);
  }
};

std::vector<Way> Ways() {
  std::vector<Way> ways;
  for (const auto mode : {TableSpec::ASYNC, TableSpec::SYNC}) {
    for (const WireDtype push : kAll) {
      ways.push_back({mode, push, kAll[(push + mode) % 4]});
      ways.push_back({mode, push, push});
    }
  }
  return ways;
}

// Calls `body(client)` with two servers that have one or two replicas.
template <typename Body>
void WithReplicasAndWithout(Body body) {
  for (const int replicas : {1, 2}) {
    SCOPED_TRACE(absl::StrCat("replicas ", replicas));
    TestJob job(2, 1, nullptr, "", replicas);
    body(*job.MakeClient(0));
  }
}

// The values are small integers, which all dtypes can represent.
TEST(Wire, SparseRowsArriveBothWays) {
  WithReplicasAndWithout([](Client& client) {
    for (const Way& way : Ways()) {
      const TableSpec spec = way.Of(SparseSpec(way.mode, 1));
      SCOPED_TRACE(spec.name());
      const auto table = Open(client, spec);
      const Tensor keys = Tensor::FromVector<int64_t>({7, 900, 7, 12345678});
      const Tensor rows =
          Tensor::FromVector<float>({1, 127, 2, 0, 3, 0, -127, 5}, {4, 2});
      ASSERT_THAT(table->Push(keys, rows).Wait(kTimeout), IsOk());
      const std::vector<float> wanted = {-4, -127, -2, 0, -4, -127, 127, -5};
      EXPECT_EQ(Pull(*table, keys), wanted);
      const auto both = table->PushPull(keys, rows, keys).Wait(kTimeout);
      ASSERT_THAT(both, IsOk());
      std::vector<float> twice;
      for (const float x : wanted) twice.push_back(2 * x);
      EXPECT_EQ(ValuesOf(*both), twice);
    }
  });
}

TEST(Wire, DenseValuesArriveBothWays) {
  constexpr int64_t kElements = 5000;  // five slices, one of them short
  WithReplicasAndWithout([](Client& client) {
    for (const Way& way : Ways()) {
      const TableSpec spec = way.Of(DenseSpec(way.mode, 1, kElements));
      SCOPED_TRACE(spec.name());
      const auto table = client.Dense(spec);
      ASSERT_THAT(table, IsOk());
      Tensor gradient = Tensor::Empty({kElements});
      std::vector<float> wanted(kElements);
      for (int64_t i = 0; i < kElements; ++i) {
        // A 127 in each slice, so that the quantum of INT8 is 1.
        gradient.data<float>()[i] =
            i % 100 == 0 ? 127.0f : static_cast<float>(i % 255 - 127);
        wanted[i] = -gradient.data<float>()[i];
      }
      ASSERT_THAT(
          (*table)->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
          IsOk());
      const auto pulled = (*table)->PushPull(gradient).Wait(kTimeout);
      ASSERT_THAT(pulled, IsOk());
      EXPECT_EQ(ValuesOf(*pulled), wanted);
      EXPECT_EQ(ValuesOf(*(*table)->Pull().Wait(kTimeout)), wanted);
    }
  });
}

// A push of one worker of the sums, and one of many keys, which leaves in
// pieces of partitions while the keys are sorted.
TEST(Wire, PushesInPiecesHaveTheValuesOfTheirKeys) {
  TestJob job(2, 1);
  const auto client = job.MakeClient(0);
  TableSpec spec =
      In(SparseSpec(TableSpec::ASYNC, 1), WireValues::INT8, WireValues::BF16);
  spec.set_dim(1);
  const auto table = Open(*client, spec);
  constexpr int64_t kKeys = 20000;
  Tensor keys = Tensor::Empty({kKeys}, DType::kI64);
  Tensor rows = Tensor::Empty({kKeys, 1});
  for (int64_t i = 0; i < kKeys; ++i) {
    keys.data<int64_t>()[i] = i * 77;
    rows.data<float>()[i] = static_cast<float>(i % 200);
  }
  ASSERT_THAT(table->Push(keys, rows).Wait(kTimeout), IsOk());
  const std::vector<float> pulled = Pull(*table, keys);
  for (int64_t i = 0; i < kKeys; ++i) {
    // The largest of its row: exact but for the rounding of a product.
    ASSERT_NEAR(pulled[i], -static_cast<float>(i % 200), 1e-4) << i;
  }
}

// Master values stay f32: a pull has them rounded, an f32 pull does not.
TEST(Wire, ServersKeepF32) {
  for (const int replicas : {1, 2}) {
    TestJob job(2, 1, nullptr, "", replicas);
    const auto client = job.MakeClient(0);
    TableSpec spec =
        In(SparseSpec(TableSpec::ASYNC, 1), WireValues::F32, WireValues::BF16);
    const auto table = Open(*client, spec);
    const Tensor keys = Tensor::FromVector<int64_t>({3});
    const Tensor small = Tensor::Full({1, 2}, -1.0f);
    ASSERT_THAT(table->Push(keys, Tensor::Full({1, 2}, -256.0f)).Wait(kTimeout),
                IsOk());
    for (int i = 0; i < 3; ++i) {
      ASSERT_THAT(table->Push(keys, small).Wait(kTimeout), IsOk());
    }
    // 259, which bf16 has not. Had the server rounded, it would be 256.
    EXPECT_THAT(Pull(*table, keys), Each(260));
  }
}

// ------------------------------------------------------- what is on the wire

struct Traffic {
  Mutex mu;
  int64_t pushed ABSL_GUARDED_BY(mu) = 0;
  int64_t pulled ABSL_GUARDED_BY(mu) = 0;
  std::vector<std::vector<uint8_t>> pushes ABSL_GUARDED_BY(mu);
} traffic;

Future<ExchangeReply> Watched(rpc::CallContext& context, v1::Request request,
                              const std::optional<Tensor>& push_keys,
                              const std::optional<Tensor>& push_values,
                              const std::optional<Tensor>& pull_keys) {
  if (push_values.has_value()) {
    MutexLock lock(traffic.mu);
    traffic.pushed += push_values->bytes();
    if (push_values->dtype() == DType::kU8) {
      const auto bytes = push_values->span<uint8_t>();
      traffic.pushes.emplace_back(bytes.begin(), bytes.end());
    }
  }
  return Exchange(context, std::move(request), push_keys, push_values,
                  pull_keys)
      .Then([](const ExchangeReply& reply) {
        MutexLock lock(traffic.mu);
        const std::optional<Pulled>& pulled = std::get<1>(reply);
        if (pulled.has_value()) traffic.pulled += pulled->values.bytes();
        return reply;
      });
}

// Opens as a client of an older build does, which knows nothing of `wire`.
absl::StatusOr<v1::TableStats> OpenAsOf1(rpc::CallContext& context,
                                         const TableSpec& spec,
                                         uint64_t client) {
  auto stats = OpenTable(context, spec, client);
  if (stats.ok()) stats->clear_wire();
  return stats;
}

rpc::Registry Functions(bool is_old) {
  using rpc::RunsOn;
  using rpc::internal::Describe;
  rpc::Registry functions;
  if (is_old) {
    functions.Add(
        Describe<&OpenAsOf1>(RunsOn::kExecutor, "weft::ps::OpenTable"));
  } else {
    functions.Add(
        Describe<&OpenTable>(RunsOn::kExecutor, "weft::ps::OpenTable"));
  }
  functions.Add(Describe<&Watched>(RunsOn::kExecutor, "weft::ps::Exchange"));
  MutexLock lock(traffic.mu);
  traffic.pushed = traffic.pulled = 0;
  traffic.pushes.clear();
  return functions;
}

TEST(Wire, BytesOfARowOf64Floats) {
  constexpr int64_t kKeys = 100;
  const std::vector<int64_t> bytes_of_row = {256, 128, 128, 68};
  for (const WireDtype dtype : kAll) {
    const rpc::Registry functions = Functions(/*is_old=*/false);
    TestJob job(2, 1, &functions);
    const auto client = job.MakeClient(0);
    TableSpec spec = In(SparseSpec(TableSpec::ASYNC, 1), dtype, dtype);
    spec.set_dim(64);
    const auto table = Open(*client, spec);
    const Tensor keys = Tensor::Arange(kKeys, DType::kI64);
    ASSERT_THAT(table->Push(keys, Tensor::Ones({kKeys, 64})).Wait(kTimeout),
                IsOk());
    EXPECT_THAT(Pull(*table, keys), Each(-1));
    MutexLock lock(traffic.mu);
    EXPECT_EQ(traffic.pushed, kKeys * bytes_of_row[dtype]) << WireName(dtype);
    EXPECT_EQ(traffic.pulled, kKeys * bytes_of_row[dtype]) << WireName(dtype);
  }
}

TEST(Wire, PartThatIsPushedAgainHasTheSameBytes) {
  const rpc::Registry functions = Functions(/*is_old=*/false);
  TestJob job(1, 1, &functions);
  const auto client = job.MakeClient(0);
  const auto table = Open(*client, In(SparseSpec(TableSpec::SYNC, 1),
                                      WireValues::INT8, WireValues::F32));
  const Tensor keys = Tensor::FromVector<int64_t>({7, 8});
  const Tensor rows = Tensor::FromVector<float>({1000, 3, 2000, 3}, {2, 2});
  for (int64_t round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_THAT(table->PushShard({0, round, true}, keys, rows).Wait(kTimeout),
                  IsOk());
    }
    table->EndRound();
  }
  MutexLock lock(traffic.mu);
  ASSERT_EQ(traffic.pushes.size(), 9u);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(traffic.pushes[3 * round], traffic.pushes[3 * round + 1]);
    EXPECT_EQ(traffic.pushes[3 * round], traffic.pushes[3 * round + 2]);
  }
  // What the first round lost was added in the second.
  EXPECT_NE(traffic.pushes[0], traffic.pushes[3]);
}

TEST(Wire, ServerOfAnOlderBuildIsToldAtTheOpening) {
  const rpc::Registry functions = Functions(/*is_old=*/true);
  TestJob job(1, 1, &functions);
  const auto client = job.MakeClient(0);
  const auto refused = client->Sparse(
      In(SparseSpec(TableSpec::ASYNC, 1), WireValues::BF16, WireValues::F32));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition,
                                "table 't': wanted pushes in bf16 and pulls in "
                                "f32, found a server that has f32 and f32"));
  EXPECT_THAT(refused.status().message(),
              HasSubstr("start servers of this build"));
  TableSpec plain = SparseSpec(TableSpec::ASYNC, 1);
  plain.set_name("plain");
  EXPECT_THAT(client->Sparse(plain), IsOk());
}

// ------------------------------------------------------------ error feedback

// Gradients of integers, of which the servers' sum has the value: of each row
// it is off by one quantum at most, 33 of INT8 (4,097 / 127), 32 of BF16 and 4
// of F16, however many pushes there were.
TEST(Wire, SumOfPushesIsWithinAQuantumOfWhatWasPushed) {
  constexpr int kPushes = 200;
  constexpr float kQuantum[] = {0, 4, 32, 33};
  const Tensor keys = Tensor::FromVector<int64_t>({7, 900});
  const Tensor rows = Tensor::FromVector<float>({4097, 1, 5, 4097}, {2, 2});
  const std::vector<float> sum = {-4097 * kPushes, -kPushes, -5 * kPushes,
                                  -4097 * kPushes};
  WithReplicasAndWithout([&](Client& client) {
    for (const Way& way : Ways()) {
      if (way.push == WireValues::F32 || way.pull != way.push) continue;
      TableSpec spec = way.Of(SparseSpec(way.mode, 1));
      spec.mutable_wire()->set_pull(WireValues::F32);
      SCOPED_TRACE(spec.name());
      const auto with = Open(client, spec);
      spec.set_name("without-" + spec.name());
      spec.mutable_wire()->set_residual(WireValues::DROP);
      const auto without = Open(client, spec);
      for (int i = 0; i < kPushes; ++i) {
        ASSERT_THAT(with->Push(keys, rows).Wait(kTimeout), IsOk());
        ASSERT_THAT(without->Push(keys, rows).Wait(kTimeout), IsOk());
      }
      const std::vector<float> found = Pull(*with, keys);
      const std::vector<float> plain = Pull(*without, keys);
      float off = 0;
      for (size_t i = 0; i < sum.size(); ++i) {
        EXPECT_NEAR(found[i], sum[i], kQuantum[way.push]) << i;
        off = std::max(off, std::fabs(plain[i] - sum[i]));
      }
      EXPECT_GE(off, kPushes) << "nothing is lost without feedback";
    }
  });
}

// Gradient descent on |w - target|^2 / 2 of a dense table whose workers see the
// weights rounded as well: it ends where f32 does, to the quantum of the pulls.
TEST(Wire, QuadraticProblemConverges) {
  constexpr int64_t kElements = 2000;
  WithReplicasAndWithout([](Client& client) {
    for (const WireDtype dtype : kAll) {
      TableSpec spec =
          In(DenseSpec(TableSpec::SYNC, 1, kElements), dtype, WireValues::F32);
      spec.set_name(std::string(WireName(dtype)));
      spec.mutable_rule()->mutable_sgd()->set_lr(0.25);
      const auto table = client.Dense(spec);
      ASSERT_THAT(table, IsOk());
      Tensor values = Tensor::Zeros({kElements});
      ASSERT_THAT((*table)->Initialize(values).Wait(kTimeout), IsOk());
      const auto target = [](int64_t i) {
        return i % 7 == 0 ? 100.0f : 0.001f * static_cast<float>(i % 13);
      };
      for (int step = 0; step < 100; ++step) {
        Tensor gradient = Tensor::Empty({kElements});
        for (int64_t i = 0; i < kElements; ++i) {
          gradient.data<float>()[i] = values.data<float>()[i] - target(i);
        }
        const auto pulled = (*table)->PushPull(gradient).Wait(kTimeout);
        ASSERT_THAT(pulled, IsOk());
        values = *pulled;
      }
      for (int64_t i = 0; i < kElements; ++i) {
        ASSERT_NEAR(values.data<float>()[i], target(i), 1e-4)
            << WireName(dtype) << " " << i;
      }
    }
  });
}

// ---------------------------------------------------------------- the rest

TEST(Wire, TablesOfSeveralDtypesTravelInOneMessage) {
  TestJob job(2, 1);
  const auto client = job.MakeClient(0);
  std::vector<std::unique_ptr<SparseTable>> tables;
  std::vector<PushPullOf> all;
  const Tensor keys = Tensor::Arange(50, DType::kI64);
  for (const WireDtype dtype : kAll) {
    TableSpec spec = In(SparseSpec(TableSpec::SYNC, 1), dtype, dtype);
    spec.set_name(std::string(WireName(dtype)));
    tables.push_back(Open(*client, spec));
    all.push_back({tables.back().get(), keys,
                   Tensor::Full({50, 2}, -1.0f * (dtype + 1)), keys});
  }
  const auto rows = PushPullMany(all).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  for (const WireDtype dtype : kAll) {
    EXPECT_THAT(ValuesOf((*rows)[dtype]), Each(dtype + 1)) << WireName(dtype);
  }
}

TEST(Wire, Int8RefusesToPushWhatIsNotFinite) {
  TestJob job(1, 1);
  const auto client = job.MakeClient(0);
  const auto table = Open(*client, In(SparseSpec(TableSpec::ASYNC, 1),
                                      WireValues::INT8, WireValues::F32));
  const Tensor keys = Tensor::FromVector<int64_t>({1});
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity()};
  for (const float x : bad) {
    EXPECT_THAT(table->Push(keys, Tensor::FromVector<float>({1, x}, {1, 2}))
                    .Wait(kTimeout),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "table 't': gradients: element 1 of 2 is"));
  }
  // Nothing was sent, and the table is open.
  ASSERT_THAT(table->Push(keys, Tensor::Full({1, 2}, -1)).Wait(kTimeout),
              IsOk());
  EXPECT_THAT(Pull(*table, keys), Each(1));
}

TEST(Wire, HalvesCarryNaNToTheServerAndBack) {
  TestJob job(1, 1);
  const auto client = job.MakeClient(0);
  const auto table = Open(*client, In(SparseSpec(TableSpec::ASYNC, 1),
                                      WireValues::BF16, WireValues::F16));
  const Tensor keys = Tensor::FromVector<int64_t>({1});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ASSERT_THAT(table->Push(keys, Tensor::FromVector<float>({1, nan}, {1, 2}))
                  .Wait(kTimeout),
              IsOk());
  EXPECT_THAT(Pull(*table, keys), ElementsAre(-1, ::testing::IsNan()));
}

TEST(Wire, ClientThatWantsAnotherDtypeIsRefused) {
  for (const int replicas : {1, 2}) {
    TestJob job(2, 2, nullptr, "", replicas);
    const auto first = job.MakeClient(0), second = job.MakeClient(1);
    const TableSpec spec =
        In(SparseSpec(TableSpec::ASYNC, 2), WireValues::BF16, WireValues::F32);
    const auto table = Open(*first, spec);
    EXPECT_THAT(second->Sparse(SparseSpec(TableSpec::ASYNC, 2)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "table 't' is there with another spec"));
    EXPECT_THAT(second->Sparse(spec), IsOk());
  }
}

TEST(Wire, UnknownDtypeAndResidualsWithoutNeedAreRefused) {
  TestJob job(1, 1);
  const auto client = job.MakeClient(0);
  EXPECT_THAT(client->Sparse(In(SparseSpec(TableSpec::ASYNC, 1),
                                static_cast<WireDtype>(9), WireValues::F32)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "table 't': wire.push is 9"));
  TableSpec spec = SparseSpec(TableSpec::ASYNC, 1);
  spec.mutable_wire()->set_residual_bytes(5);
  EXPECT_THAT(client->Sparse(spec),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "table 't': wire.residual_bytes is 5"));
}

// A request as a client that knows nothing of `wire` makes it, and wrong ones.
TEST(Wire, ServerRefusesValuesOfAnotherDtypeOrLength) {
  const TableSpec spec =
      In(SparseSpec(TableSpec::ASYNC, 1), WireValues::INT8, WireValues::F32);
  const auto shard = *TableShard::Create(spec, 0, 1);
  const Tensor key = Tensor::FromVector<int64_t>({7});
  v1::Request request;
  request.set_table("t");
  request.set_push(true);
  request.add_partitions(static_cast<uint32_t>(
      Placement("t", spec.partitions(), 1).PartitionOfKey(7)));
  request.add_rows(1);
  request.add_sequences(1);
  const auto push = [&](const Tensor& values) {
    return shard->Handle(request, key, values, Tensor(), Instant::Infinite())
        .Wait(absl::ZeroDuration());
  };
  const std::vector<Tensor> wrong = {
      Tensor::Ones({1, 2}), Tensor::Zeros({5}, DType::kU8),
      Tensor::Zeros({7}, DType::kU8), Tensor::Zeros({2, 3}, DType::kU8),
      Tensor()};
  for (const Tensor& values : wrong) {
    EXPECT_THAT(push(values),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wanted values u8[6] of int8, as wire.push says"));
  }
  Tensor nan = Tensor::Full({6}, 255, DType::kU8);
  EXPECT_THAT(push(nan), StatusIs(absl::StatusCode::kInvalidArgument,
                                  "row 7 has a scale of nan"));
  EXPECT_EQ(shard->Stats().rows(), 0);
  EXPECT_THAT(push(Tensor::Zeros({6}, DType::kU8)), IsOk());
  EXPECT_EQ(shard->Stats().rows(), 1);
}

// It holds f32, whatever travels, and the first to open what was restored says
// what travels then.
TEST(Wire, CheckpointHasTheServersValues) {
  const TempDir directory;
  for (const int replicas : {1, 2}) {
    const std::string path = directory.Path(absl::StrCat(replicas));
    const auto checkpoints = checkpoint::CheckpointDirectory::Open({path});
    ASSERT_THAT(checkpoints, IsOk());
    TestJob job(2, 1, nullptr, directory.path(), replicas);
    const auto client = job.MakeClient(0);
    const Tensor keys = Tensor::FromVector<int64_t>({7, 900});
    {
      const auto table = Open(*client, In(SparseSpec(TableSpec::SYNC, 1),
                                          WireValues::F32, WireValues::INT8));
      ASSERT_THAT(table
                      ->Push(keys, Tensor::FromVector<float>(
                                       {-1000, -0.125f, -1, 0}, {2, 2}))
                      .Wait(kTimeout),
                  IsOk());
      EXPECT_EQ(Pull(*table, keys)[1], 0) << "below half a quantum";
    }
    const auto attempt = (*checkpoints)->Begin(1);
    ASSERT_THAT(attempt, IsOk());
    const auto files = client->Save(path, *attempt, 1);
    ASSERT_THAT(files, IsOk());
    const auto name = (*checkpoints)->Commit(*attempt, *files, {});
    ASSERT_THAT(name, IsOk());
    ASSERT_THAT(client->Restore(path, *name), IsOk());
    const auto restored = Open(*client, SparseSpec(TableSpec::SYNC, 1));
    EXPECT_THAT(Pull(*restored, keys), ElementsAre(1000, 0.125f, 1, 0));
  }
}

}  // namespace
}  // namespace weft::ps
