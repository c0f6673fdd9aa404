// The version of an asynchronous table never goes back: not by a restore, on
// however many servers and with one replica or two, nor where servers die.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::TempDir;

constexpr int64_t kKeys = 200;  // in each of the 16 partitions

class RestoredVersion : public ::testing::Test {
 protected:
  RestoredVersion() {
    checkpoint::CheckpointDirectory::Options options;
    options.path = dir_.path();
    directory_ = *checkpoint::CheckpointDirectory::Open(options);
  }

  // The highest of any server that lives.
  int64_t VersionOn(Client& client) {
    const auto all = client.Describe();
    EXPECT_THAT(all, IsOk());
    int64_t version = -1;
    if (!all.ok()) return version;
    for (const v1::ServerStats& server : *all) {
      for (const v1::TableStats& table : server.tables()) {
        version = std::max(version, table.version());
      }
    }
    return version;
  }

  void Push(SparseTable& table) {
    ASSERT_THAT(table.Push(keys_, Tensor::Full({kKeys, 2}, -1)).Wait(kTimeout),
                IsOk());
  }

  // What `job` restores, and goes on with, is never of an earlier version.
  void GoOn(TestJob& job, int servers, int replicas) {
    const auto client = job.MakeClient(0);
    if (replicas == 2 && servers > 1) {
      ASSERT_TRUE(job.BecomesReplicated());
    }
    if (!name_.empty()) {
      ASSERT_THAT(client->Restore(dir_.path(), name_), IsOk());
      EXPECT_EQ(VersionOn(*client), version_);
    }
    // The first to open it may change its rule's numbers.
    v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 2);
    spec.mutable_rule()->mutable_sgd()->set_lr(1.0 + servers + replicas);
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    EXPECT_EQ(VersionOn(*client), version_);
    for (int i = 0; i < 3; ++i) Push(**table);
    EXPECT_EQ(VersionOn(*client), version_ + 3);
    version_ += 3;
    for (int victim = 0; replicas == 2 && victim < servers; ++victim) {
      if (servers == 1) break;
      ASSERT_TRUE(job.BecomesReplicated());
      job.KillServer(victim);
      ASSERT_THAT((*table)->Pull(keys_).Wait(kTimeout), IsOk());
      job.StartServer(victim);
      ASSERT_TRUE(job.BecomesReplicated());
      EXPECT_EQ(VersionOn(*client), version_) << "ps" << victim;
      Push(**table);
      EXPECT_EQ(VersionOn(*client), ++version_) << "ps" << victim;
    }
    const std::string attempt = *directory_->Begin(++step_);
    const auto files = client->Save(dir_.path(), attempt, -1);
    ASSERT_THAT(files, IsOk());
    name_ = *directory_->Commit(attempt, *files, {});
  }

  const TempDir dir_;
  std::unique_ptr<checkpoint::CheckpointDirectory> directory_;
  const Tensor keys_ = Tensor::Arange(kKeys, DType::kI64);
  std::string name_;
  int64_t version_ = 0;
  int64_t step_ = 0;
};

TEST_F(RestoredVersion, GoesOnWithOneReplicaAndTwoAndThroughDeaths) {
  for (const int replicas : {1, 2, 2, 1, 2}) {
    for (const int servers : {2, 1, 3}) {
      SCOPED_TRACE(::testing::Message()
                   << servers << " servers, " << replicas << " replicas");
      TestJob job(servers, 1, nullptr, dir_.path(), replicas);
      GoOn(job, servers, replicas);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace weft::ps
