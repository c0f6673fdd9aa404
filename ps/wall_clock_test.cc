// Tables with two replicas where somebody sets the wall clock back.

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/core/openings.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/rpc/call.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace {

// How far the wall clock of this process is set back.
std::atomic<int64_t> set_back_seconds{0};

}  // namespace

// Replaces the C library's function in the whole process.
extern "C" int clock_gettime(clockid_t clock, struct timespec* now) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec -= set_back_seconds;
  return static_cast<int>(result);
}

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class WallClock : public ::testing::Test {
 protected:
  ~WallClock() override { set_back_seconds = 0; }
  void SetBackAnHour() {
    const absl::Time before = absl::Now();
    set_back_seconds = 3600;
    // Between two looks at the system's clock absl::Now counts cycles.
    ASSERT_TRUE(testing::Becomes(
        [&] { return absl::Now() < before - absl::Minutes(30); }));
  }

  const Tensor key_ = Tensor::FromVector<int64_t>({7});
  const Tensor gradient_ = Tensor::Ones({1, 2});
};

TEST_F(WallClock, AnOpeningIsTheNewestOfItsWorkerThoughTheClockWasSetBack) {
  TestJob job(/*servers=*/2, /*trainers=*/1, nullptr, "", /*replicas=*/2);
  const auto client = job.MakeClient(0);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 1);
  std::vector<std::unique_ptr<SparseTable>> tables;
  for (size_t i = 0; i < Openings::kMostOfAWorker; ++i) {
    auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    tables.push_back(*std::move(table));
  }
  ASSERT_NO_FATAL_FAILURE(SetBackAnHour());
  auto newest = client->Sparse(spec);
  ASSERT_THAT(newest, IsOk());
  EXPECT_THAT((*newest)->Push(key_, gradient_).Wait(kTimeout), IsOk());
  EXPECT_THAT(tables[1]->Push(key_, gradient_).Wait(kTimeout), IsOk());
  EXPECT_THAT(tables[0]->Push(key_, gradient_).Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

// A table whose row `key_` is -1 at a checkpoint of two servers.
class WallClockAndCheckpoint : public WallClock {
 protected:
  WallClockAndCheckpoint()
      : job_(/*servers=*/2, /*trainers=*/1, nullptr, dir_.path(),
             /*replicas=*/2),
        client_(job_.MakeClient(0)),
        saved_(dir_.Path("saved")) {}

  void Save() {
    auto table = client_->Sparse(spec_);
    ASSERT_THAT(table, IsOk());
    ASSERT_THAT((*table)->Push(key_, gradient_).Wait(kTimeout), IsOk());
    const auto directory = checkpoint::CheckpointDirectory::Open({saved_});
    ASSERT_THAT(directory, IsOk());
    const auto attempt = (*directory)->Begin(1);
    ASSERT_THAT(attempt, IsOk());
    const auto files = client_->Save(saved_, *attempt, -1);
    ASSERT_THAT(files, IsOk());
    const auto name = (*directory)->Commit(*attempt, *files, {});
    ASSERT_THAT(name, IsOk());
    name_ = *name;
  }
  void Push() {
    auto table = client_->Sparse(spec_);
    ASSERT_THAT(table, IsOk());
    ASSERT_THAT((*table)->Push(key_, gradient_).Wait(kTimeout), IsOk());
  }
  void ExpectRestored() {
    ASSERT_THAT(client_->Restore(saved_, name_), IsOk());
    const auto table = client_->Sparse(spec_);
    ASSERT_THAT(table, IsOk());
    const auto row = (*table)->Pull(key_).Wait(kTimeout);
    ASSERT_THAT(row, IsOk());
    EXPECT_THAT(row->ToVector<float>(), ElementsAre(-1, -1));
  }

  const testing::TempDir dir_;
  TestJob job_;
  const std::unique_ptr<Client> client_;
  const std::string saved_;
  const v1::TableSpec spec_ = SparseSpec(v1::TableSpec::ASYNC, 1);
  std::string name_;
};

TEST_F(WallClockAndCheckpoint, IsRestoredAfterAnotherThoughTheClockWasSetBack) {
  ASSERT_NO_FATAL_FAILURE(Save());
  ASSERT_NO_FATAL_FAILURE(ExpectRestored());
  ASSERT_NO_FATAL_FAILURE(SetBackAnHour());
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(Push());
    ASSERT_NO_FATAL_FAILURE(ExpectRestored());
  }
}

// One server had loaded it when its client died, so the map says nothing of it.
TEST_F(WallClockAndCheckpoint,
       IsRestoredAfterOneThatWasAbandonedThoughTheClockWasSetBack) {
  ASSERT_NO_FATAL_FAILURE(Save());
  const auto abandoned = static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));
  ASSERT_THAT(
      rpc::CallAsync(job_.trainer(0).To("ps1", kTimeout), &RestoreReplicated,
                     saved_, name_, abandoned, job_.replicated(1).map().epoch())
          .Wait(kTimeout),
      IsOk());
  ASSERT_NO_FATAL_FAILURE(SetBackAnHour());
  ExpectRestored();
}

}  // namespace
}  // namespace weft::ps
