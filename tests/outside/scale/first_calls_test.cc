// First calls of many workers of one process: from many threads at once, of
// sizes at which something changes, with too little shared memory, among groups
// that meet, and over connections that come and go.

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/function.h"
#include "weft/telemetry/logger.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/shm/memory_budget.h"
#include "weft/worker/join_group.h"
#include "weft/worker/options.h"
#include "weft/worker/test_workers.h"
#include "weft/worker/worker.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::worker::TestWorkers;
using ::weft::worker::Worker;

constexpr absl::Duration kLong = absl::Seconds(100);

std::atomic<int64_t> served{0};

// The bytes turned round, and as many more.
std::string Turned(const std::string& bytes, int64_t more) {
  ++served;
  std::string turned(bytes.rbegin(), bytes.rend());
  turned.resize(turned.size() + more, 'x');
  return turned;
}
WEFT_RPC(Turned);

std::string Text(int64_t bytes) {
  std::string text(bytes, '\0');
  for (int64_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>(i * 31 + i / 251);
  }
  return text;
}

// Whether Turned gives `answer`.
bool IsTurned(const std::string& answer, const std::string& bytes,
              int64_t more = 0) {
  return answer.size() == bytes.size() + more &&
         std::equal(bytes.rbegin(), bytes.rend(), answer.begin()) &&
         std::count(answer.begin() + bytes.size(), answer.end(), 'x') == more;
}

absl::StatusOr<std::unique_ptr<TestWorkers>> StartTrainers(
    int trainers,
    std::function<void(worker::Options& options)> configure = {}) {
  TestWorkers::Options options;
  options.trainers = trainers;
  options.start_timeout = kLong;
  options.configure = std::move(configure);
  return TestWorkers::Start(options);
}

// Each test has a directory of its own where its jobs count their memory.
class FirstCalls : public ::testing::Test {
 protected:
  FirstCalls() {
    chmod(runtime_.path().c_str(), 0700);
    setenv("XDG_RUNTIME_DIR", runtime_.path().c_str(), 1);
  }

 private:
  const weft::testing::TempDir runtime_;
};

std::string NameOf(int rank) { return absl::StrCat("trainer", rank); }

// Each of `threads` threads of each worker calls all others with `text`.
std::vector<absl::Status> CallAll(TestWorkers& workers, int trainers,
                                  int threads, const std::string& text) {
  std::vector<Worker*> all;
  for (int r = 0; r < trainers; ++r) all.push_back(&workers.Get(NameOf(r)));
  return RunRanks(trainers * threads, [&](int thread) -> absl::Status {
    Worker& from = *all[thread % trainers];
    std::vector<Future<std::string>> answers;
    for (int i = 1; i < trainers; ++i) {
      answers.push_back(rpc::CallAsync(
          from.agent().To(NameOf((thread + i) % trainers), kLong), Turned, text,
          int64_t{0}));
    }
    for (auto& answer : answers) {
      WEFT_ASSIGN_OR_RETURN(const std::string turned, answer.Wait(kLong));
      if (!IsTurned(turned, text)) return absl::DataLossError("a wrong answer");
    }
    return absl::OkStatus();
  });
}

TEST_F(FirstCalls, OfManyThreadsAtOnceRunOnceEach) {
  constexpr int kTrainers = 12;
  constexpr int kThreads = 4;
  WEFT_ASSERT_OK_AND_ASSIGN(const auto workers, StartTrainers(kTrainers));
  served = 0;
  EXPECT_THAT(CallAll(*workers, kTrainers, kThreads, Text(100)), Each(IsOk()));
  EXPECT_EQ(served, kTrainers * kThreads * (kTrainers - 1));
  EXPECT_THAT(workers->Shutdown(), IsOk());
}

// The first message of a connection has any size, in either direction: of a
// page, of a ring, of what goes by the memory for bodies (32 KiB), of a chunk
// and of all of that memory; one byte less, and one more.
TEST_F(FirstCalls, OfAnySizeBringTheSameBytes) {
  std::vector<int64_t> sizes;
  for (const int64_t place : {int64_t{4} << 10, int64_t{32} << 10,
                              int64_t{256} << 10, int64_t{4} << 20}) {
    for (const int64_t more : {-1, 0, 1}) sizes.push_back(place + more);
  }
  for (const bool back : {false, true}) {
    const int callers = static_cast<int>(sizes.size());
    WEFT_ASSERT_OK_AND_ASSIGN(const auto workers, StartTrainers(callers + 1));
    std::vector<Worker*> all;
    for (int r = 0; r <= callers; ++r) all.push_back(&workers->Get(NameOf(r)));
    const auto called = RunRanks(callers, [&](int i) -> absl::Status {
      const std::string text = Text(back ? 1 : sizes[i]);
      const int64_t more = back ? sizes[i] : 0;
      for (int again = 0; again < 2; ++again) {
        WEFT_ASSIGN_OR_RETURN(
            const std::string answer,
            rpc::Call(all[i + 1]->agent().To("trainer0", kLong), Turned, text,
                      more));
        if (!IsTurned(answer, text, more)) {
          return absl::DataLossError("other bytes");
        }
      }
      return absl::OkStatus();
    });
    for (int i = 0; i < callers; ++i) {
      EXPECT_THAT(called[i], IsOk()) << sizes[i] << (back ? " back" : "");
    }
    EXPECT_THAT(workers->Shutdown(), IsOk());
  }
}

// With what stands before the bytes of a call, whatever that takes, one of
// these ends at the end of the first page, or of the ring, and one a byte
// later.
TEST_F(FirstCalls, FillAPageOrTheRingToTheByte) {
  constexpr int kCallers = 20;
  for (const int64_t place : {int64_t{4} << 10, int64_t{256} << 10}) {
    WEFT_ASSERT_OK_AND_ASSIGN(const auto workers, StartTrainers(kCallers + 1));
    std::vector<Worker*> all;
    for (int r = 0; r <= kCallers; ++r) all.push_back(&workers->Get(NameOf(r)));
    const auto called = RunRanks(kCallers, [&](int i) -> absl::Status {
      for (int j = 0; j < 8; ++j) {
        const std::string text = Text(place - 8 * (i + 1) + j);
        WEFT_ASSIGN_OR_RETURN(
            const std::string answer,
            rpc::Call(all[i + 1]->agent().To("trainer0", kLong), Turned, text,
                      int64_t{0}));
        if (!IsTurned(answer, text)) {
          return absl::DataLossError(absl::StrCat(text.size(), " bytes"));
        }
      }
      return absl::OkStatus();
    });
    EXPECT_THAT(called, Each(IsOk()));
    EXPECT_THAT(workers->Shutdown(), IsOk());
  }
}

// "A connection for which nothing is left uses its stream", as does one beyond
// --shared-memories (docs/shared_memory.md): calls do not notice.
TEST_F(FirstCalls, WithoutMemoryForAllConnectionsUseTheirStreams) {
  constexpr int kTrainers = 6;
  for (const int memories : {0, 1, 3}) {
    WEFT_ASSERT_OK_AND_ASSIGN(
        const auto workers,
        StartTrainers(kTrainers, [&](worker::Options& options) {
          options.shared_memories = memories;
        }));
    EXPECT_THAT(CallAll(*workers, kTrainers, 2, Text(100'000)), Each(IsOk()))
        << memories;
    EXPECT_THAT(workers->Shutdown(), IsOk());
  }
  for (const int64_t budget :
       {int64_t{1}, int64_t{516} << 10, int64_t{600} << 10, int64_t{9} << 20}) {
    WEFT_ASSERT_OK_AND_ASSIGN(
        const auto workers,
        StartTrainers(kTrainers, [&](worker::Options& options) {
          options.shared_memory_budget = budget;
        }));
    EXPECT_THAT(CallAll(*workers, kTrainers, 2, Text(100'000)), Each(IsOk()))
        << budget;
    const auto in_use = workers->Get("trainer0").memory_budget();
    ASSERT_NE(in_use, nullptr);
    EXPECT_LE(in_use->used_bytes(),
              budget + transport::MemoryBudget::kUnitBytes);
    EXPECT_THAT(workers->Shutdown(), IsOk());
  }
}

// Groups of one, of two and of all meet while all call each other for the first
// time.
TEST_F(FirstCalls, GroupsMeetMeanwhile) {
  constexpr int kTrainers = 10;
  WEFT_ASSERT_OK_AND_ASSIGN(const auto workers, StartTrainers(kTrainers));
  std::vector<absl::Status> called;
  std::thread caller(
      [&] { called = CallAll(*workers, kTrainers, 2, Text(5000)); });
  const absl::Status met = workers->Run([&](Worker& worker) -> absl::Status {
    for (const int size : {1, 2, kTrainers - 1, kTrainers}) {
      if (worker.options().rank >= size) continue;
      worker::JoinGroupOptions join;
      join.name = absl::StrCat("of", size);
      join.join_timeout = kLong;
      for (int i = 0; i < size; ++i) join.members.push_back(NameOf(i));
      WEFT_ASSIGN_OR_RETURN(const auto group, worker::JoinGroup(worker, join));
      const Tensor ones = Tensor::Ones({100});
      WEFT_RETURN_IF_ERROR(group->AllReduce(ones));
      if (ones.data<float>()[99] != static_cast<float>(size)) {
        return absl::DataLossError("a wrong sum");
      }
      WEFT_RETURN_IF_ERROR(group->Barrier());
    }
    return absl::OkStatus();
  });
  caller.join();
  EXPECT_THAT(met, IsOk());
  EXPECT_THAT(called, Each(IsOk()));
  EXPECT_THAT(workers->Shutdown(), IsOk());
}

int64_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

// A worker that joins, calls all, is called and leaves, again and again under
// one name, leaves neither descriptors nor memory with those that stay.
TEST_F(FirstCalls, OfWorkersThatComeAndGoLeaveNothing) {
  weft::testing::TempDir directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0700), 0);
  const auto start = [&](int rank) {
    worker::Options options;
    options.job = "come-and-go";
    options.rank = rank;
    options.min_workers = 1;
    options.max_workers = 3;
    options.coordinator = "unix:" + directory.Path("c.sock");
    options.dump_dir = directory.path();
    options.log_level = telemetry::Level::kError;
    return Worker::Start(std::move(options));
  };
  WEFT_ASSERT_OK_AND_ASSIGN(auto host, start(0));
  const auto come_and_go = [&]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto guest, start(1));
    const std::string text = Text(100'000);
    WEFT_RETURN_IF_ERROR(rpc::Call(guest->agent().To("trainer0", kLong), Turned,
                                   text, int64_t{0})
                             .status());
    WEFT_RETURN_IF_ERROR(
        rpc::Call(host->agent().To("trainer1", kLong), Turned, text, int64_t{0})
            .status());
    return guest->Shutdown(kLong).status();
  };
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(come_and_go(), IsOk());
  }
  // What remains of the last of them goes by and by.
  const auto budget = host->memory_budget();
  ASSERT_NE(budget, nullptr);
  ASSERT_TRUE(Becomes([&] { return budget->used_bytes() == 0; }));
  const int64_t before = OpenDescriptors();
  for (int i = 0; i < 25; ++i) {
    ASSERT_THAT(come_and_go(), IsOk()) << i;
  }
  EXPECT_TRUE(Becomes([&] { return budget->used_bytes() == 0; }))
      << budget->used_bytes();
  EXPECT_TRUE(Becomes([&] { return OpenDescriptors() <= before + 2; }))
      << before << " before, " << OpenDescriptors() << " now";
  EXPECT_THAT(host->Shutdown(kLong).status(), IsOk());
}

}  // namespace
}  // namespace weft::outside
