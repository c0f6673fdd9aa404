// Operations on tables whose server dies, or never was.

#include <climits>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/gradient.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/ps/service.h"
#include "weft/rpc/function.h"
#include "weft/tests/outside/tables/cluster.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

// ---- A server that dies.

v1::TableSpec DenseSpec() {
  v1::TableSpec spec = Dense(v1::TableSpec::ASYNC, 0, 5000);
  spec.set_name("d");
  return spec;
}

// Names ps1 and its incarnation.
auto IsLost(rpc::WorkerKey key) {
  return ::testing::AllOf(
      StatusIs(absl::StatusCode::kUnavailable, "ps1"),
      StatusIs(absl::StatusCode::kUnavailable, key.ToString()));
}

// Every operation of `client` and its tables ends since ps1, as `key`, died.
void ExpectLost(rpc::WorkerKey key, Client& client, SparseTable& s,
                DenseTable& d, const std::string& path) {
  const Tensor keys = Tensor::Arange(64, DType::kI64);
  const Tensor ones = Tensor::Ones({64, 2});
  EXPECT_THAT(s.Pull(keys).Wait(kLong).status(), IsLost(key));
  EXPECT_THAT(s.Push(keys, ones).Wait(kLong), IsLost(key));
  EXPECT_THAT(s.PushPull(keys, ones, keys).Wait(kLong).status(), IsLost(key));
  EXPECT_THAT(s.SetLearningRateScale(0.5).Wait(kLong), IsLost(key));
  // Keys that the other server has are lost, too.
  EXPECT_THAT(d.Pull().Wait(kLong).status(), IsLost(key));
  EXPECT_THAT(d.Push(Tensor::Ones({5000})).Wait(kLong), IsLost(key));
  EXPECT_THAT(d.PushPull(Tensor::Ones({5000})).Wait(kLong).status(),
              IsLost(key));
  EXPECT_THAT(d.Initialize(Tensor::Ones({5000})).Wait(kLong), IsLost(key));
  EXPECT_THAT(d.SetLearningRateScale(0.5).Wait(kLong), IsLost(key));
  EXPECT_THAT(client.Sparse(Sparse(v1::TableSpec::ASYNC)).status(),
              IsLost(key));
  EXPECT_THAT(client.Dense(DenseSpec()).status(), IsLost(key));
  EXPECT_THAT(client.Describe().status(), IsLost(key));
  EXPECT_THAT(client.Save(path, "x", -1).status(), IsLost(key));
  EXPECT_THAT(client.CheckCheckpointDirectory(path), IsLost(key));
}

TEST(ServerDeath, EveryOperationNamesTheServerAndItsIncarnationForGood) {
  const TempDir temp;
  Directory directory(temp);
  Cluster cluster(2, 2, temp.path());
  const auto client = cluster.MakeClient(0);
  const v1::TableSpec dense_spec = DenseSpec();
  auto sparse = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  auto dense = client->Dense(dense_spec);
  ASSERT_THAT(sparse, IsOk());
  ASSERT_THAT(dense, IsOk());
  const Tensor keys = Tensor::Arange(64, DType::kI64);
  const Tensor ones = Tensor::Ones({64, 2});
  ASSERT_THAT((*sparse)->Push(keys, ones).Wait(kLong), IsOk());
  ASSERT_THAT((*dense)->Initialize(Tensor::Ones({5000})).Wait(kLong), IsOk());
  const auto name = directory.Save(*client, -1);
  ASSERT_THAT(name, IsOk());
  ASSERT_THAT((*sparse)->Push(keys, ones).Wait(kLong), IsOk());

  const auto expect_lost = [&](rpc::WorkerKey key) {
    ExpectLost(key, *client, **sparse, **dense, directory.path);
  };
  const rpc::WorkerKey first = cluster.KillServer(1);
  expect_lost(first);
  cluster.StartServer(1, 2);
  expect_lost(first);
  {
    const auto other = cluster.MakeClient(1);
    auto again = other->Sparse(Sparse(v1::TableSpec::ASYNC));
    ASSERT_THAT(again, IsOk());
    EXPECT_THAT(other->Dense(dense_spec), IsOk());
    EXPECT_THAT((*again)->Push(keys, ones).Wait(kLong), IsOk());
  }
  expect_lost(first);

  // A Restore that fails changes nothing.
  EXPECT_FALSE(client->Restore(directory.path, "ckpt-000077-step-1").ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE((*sparse)->Pull(keys).Wait(kLong).ok());
    EXPECT_FALSE((*dense)->Pull().Wait(kLong).ok());
  }
  ASSERT_THAT(client->Restore(directory.path, *name), IsOk());
  // Never initial values, nor those of others, through the old tables.
  EXPECT_FALSE((*sparse)->Pull(keys).Wait(kLong).ok());
  EXPECT_FALSE((*sparse)->Push(keys, ones).Wait(kLong).ok());
  EXPECT_FALSE((*dense)->Pull().Wait(kLong).ok());
  sparse = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  dense = client->Dense(dense_spec);
  ASSERT_THAT(sparse, IsOk());
  ASSERT_THAT(dense, IsOk());
  EXPECT_THAT((*sparse)->Pull(keys).Wait(kLong)->ToVector<float>(),
              Each(-1.0f));
  EXPECT_THAT((*dense)->Pull().Wait(kLong)->ToVector<float>(), Each(1.0f));

  const rpc::WorkerKey second = cluster.KillServer(1);
  cluster.StartServer(1, 3);
  expect_lost(second);
}

// Keys of which the dead server had none: the client is lost all the same.
TEST(ServerDeath, OperationsOnTheOtherServersRowsEndToo) {
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(64, DType::kI64);
  ASSERT_THAT((*table)->Push(keys, Tensor::Ones({64, 2})).Wait(kLong), IsOk());
  cluster.KillServer(1);
  cluster.StartServer(1, 2);
  EXPECT_THAT((*table)->Pull(keys).Wait(kLong).status(),
              StatusIs(absl::StatusCode::kUnavailable, "ps1"));
  for (int64_t key = 0; key < 8; ++key) {
    const Tensor one = Tensor::FromVector<int64_t>({key});
    EXPECT_THAT((*table)->Pull(one).Wait(kLong).status(),
                StatusIs(absl::StatusCode::kUnavailable, "ps1"));
    EXPECT_THAT((*table)->Push(one, Tensor::Ones({1, 2})).Wait(kLong),
                StatusIs(absl::StatusCode::kUnavailable, "ps1"));
  }
}

TEST(ServerDeath, ServerThatWasNeverThereIsNamed) {
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0, absl::Seconds(2), {"ps0", "ghost"});
  const auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  EXPECT_THAT(table.status(), Not(IsOk()));
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("ghost"));
}

}  // namespace
}  // namespace weft::ps
