#include "weft/transport/shm/memory_budget.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr int64_t kUnit = MemoryBudget::kUnitBytes;

class MemoryBudgetTest : public ::testing::Test {
 protected:
  MemoryBudgetTest() { chmod(directory_.path().c_str(), 0700); }
  std::shared_ptr<MemoryBudget> Open(int64_t units) {
    return MemoryBudget::Open(directory_.path(), units * kUnit).value();
  }

  testing::TempDir directory_;
};

TEST_F(MemoryBudgetTest, IsSharedByAllThatOpenIt) {
  const auto a = Open(10);
  const auto b = Open(10);  // as another process, or another worker of this one
  auto six = a->Reserve(6 * kUnit);
  WEFT_ASSERT_OK(six.status());
  EXPECT_EQ(b->used_bytes(), 6 * kUnit);
  auto four = b->Reserve(3 * kUnit + 1);  // rounded up
  WEFT_ASSERT_OK(four.status());
  EXPECT_EQ(a->used_bytes(), 10 * kUnit);
  const absl::Status full = a->Reserve(1).status();
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr("have 0.625 MiB of the 0.625 MiB"),
                    HasSubstr(directory_.path()),
                    HasSubstr("0.0625 MiB more are wanted"),
                    HasSubstr("--shared-memory-budget")));
  *six = {};
  EXPECT_EQ(b->used_bytes(), 4 * kUnit);
}

TEST_F(MemoryBudgetTest, FreedPiecesServeOneLargerReservation) {
  const auto a = Open(12);
  const auto b = Open(12);
  std::vector<MemoryBudget::Reservation> places;
  for (int i = 0; i < 12; ++i) {
    auto place = (i % 2 == 0 ? a : b)->Reserve(kUnit);
    WEFT_ASSERT_OK(place.status());
    places.push_back(*std::move(place));
  }
  for (int i = 0; i < 12; i += 2) places[i] = {};  // those of a
  EXPECT_EQ(a->used_bytes(), 6 * kUnit);
  EXPECT_THAT(b->Reserve(7 * kUnit).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  const auto six = b->Reserve(6 * kUnit);
  EXPECT_THAT(six.status(), IsOk());
  EXPECT_EQ(a->used_bytes(), 12 * kUnit);
}

TEST_F(MemoryBudgetTest, KilledProcessHoldsNothing) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    const auto place = Open(4)->Reserve(4 * kUnit);
    const char byte = place.ok() ? 1 : 0;
    (void)!write(ready[1], &byte, 1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 1);
  const auto budget = Open(4);
  EXPECT_THAT(budget->Reserve(kUnit).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  kill(pid, SIGKILL);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  EXPECT_THAT(budget->Reserve(4 * kUnit).status(), IsOk());
}

TEST_F(MemoryBudgetTest, ManyThreadsNeverHaveMoreThanAll) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const auto budget = Open(8);
      for (int i = 0; i < 200; ++i) {
        const auto place = budget->Reserve((1 + (i + t) % 5) * kUnit);
        EXPECT_LE(budget->used_bytes(), 8 * kUnit);
        if (!place.ok()) continue;
        EXPECT_GT(budget->used_bytes(), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Open(8)->used_bytes(), 0);
}

TEST_F(MemoryBudgetTest, FileIsRemovedWithItsLastUser) {
  auto a = Open(10);
  auto b = Open(10);
  a = nullptr;
  EXPECT_FALSE(std::filesystem::is_empty(directory_.path()));
  WEFT_ASSERT_OK(b->Reserve(kUnit).status());
  b = nullptr;
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(MemoryBudgetTest, FileOfKilledProcessIsRemovedUnlessItIsUsed) {
  const pid_t child = fork();
  if (child == 0) {
    const auto own = Open(10);
    raise(SIGKILL);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(std::filesystem::is_empty(directory_.path()));
  {
    const auto used = Open(10);
    MemoryBudget::RemoveUnused(directory_.path());
    const auto another = Open(10);
    auto all = used->Reserve(10 * kUnit);
    WEFT_ASSERT_OK(all.status());
    EXPECT_EQ(another->used_bytes(), 10 * kUnit) << "of another file";
  }
  MemoryBudget::RemoveUnused(directory_.path());
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  MemoryBudget::RemoveUnused(directory_.path());
  MemoryBudget::RemoveUnused(directory_.Path("none"));
}

TEST_F(MemoryBudgetTest, OpenBesideTheLastUserThatEndsCountsInOneFile) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) {
        const auto one = Open(10);
        const auto other = Open(10);
        auto unit = one->Reserve(kUnit);
        WEFT_ASSERT_OK(unit.status());
        EXPECT_GE(other->used_bytes(), kUnit);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(MemoryBudgetTest, DirectoryOpenToOthersOrNoBytesAreRefused) {
  EXPECT_THAT(MemoryBudget::Open(directory_.path(), 0).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  chmod(directory_.path().c_str(), 0755);
  EXPECT_THAT(MemoryBudget::Open(directory_.path(), kUnit).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace weft::transport
