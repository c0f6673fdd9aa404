// The log of a coordinator, as a file.

#include "weft/rendezvous/journal/coordinator_log.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/journal/journal.h"
#include "weft/rendezvous/membership_fixture.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::rendezvous {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(CoordinatorLog, KeepsRecordsAndDropsATornEnd) {
  testing::TempDir dir;
  const std::string path = dir.Path("log");
  {
    auto log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk());
    EXPECT_EQ(LastTermOf((*log)->history()), 0u);
    EXPECT_THAT((*log)->Append({Opened(1, "a"), Opened(2, "a")}), IsOk());
  }
  std::ofstream(path, std::ios::app | std::ios::binary) << "\x10";
  {
    auto log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk());
    EXPECT_EQ(LastTermOf((*log)->history()), 2u);
    EXPECT_EQ((*log)->history().size(), 2u);
    EXPECT_THAT((*log)->Append({Opened(3, "a")}), IsOk());
    EXPECT_THAT((*log)->Rewrite({Opened(9, "a")}), IsOk());
    EXPECT_THAT((*log)->Append({Opened(10, "a")}), IsOk());
  }
  auto log = CoordinatorLog::Open(path);
  ASSERT_THAT(log, IsOk());
  EXPECT_EQ((*log)->history().size(), 2u);
  EXPECT_EQ(LastTermOf((*log)->history()), 10u);
}

TEST(CoordinatorLog, FileThatIsRemovedIsMadeAgainWithTheNextRecord) {
  testing::TempDir dir;
  const std::string path = dir.Path("sub/log");
  std::filesystem::create_directory(dir.Path("sub"));
  {
    auto log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk());
    EXPECT_THAT((*log)->Append({Opened(1, "a")}), IsOk());
    std::filesystem::remove(path);
    EXPECT_THAT((*log)->Append({Opened(2, "a")}), IsOk());
    EXPECT_THAT((*log)->Append({Opened(3, "a")}), IsOk());
    EXPECT_THAT(CoordinatorLog::Open(path),
                StatusIs(absl::StatusCode::kFailedPrecondition, "has it open"));
    // Where it cannot be made again the records are those of this process.
    std::filesystem::remove_all(dir.Path("sub"));
    EXPECT_THAT((*log)->Append({Opened(4, "a")}), IsOk());
    std::filesystem::create_directory(dir.Path("sub"));
    EXPECT_THAT((*log)->Append({Opened(5, "a")}), IsOk());
  }
  auto log = CoordinatorLog::Open(path);
  ASSERT_THAT(log, IsOk());
  EXPECT_EQ((*log)->history().size(), 5u);
  EXPECT_EQ(LastTermOf((*log)->history()), 5u);
}

// A power loss may leave the new size of a file without what was written there.
TEST(CoordinatorLog, DropsAnAppendThatEndsInZeros) {
  testing::TempDir dir;
  const std::string path = dir.Path("log");
  const std::string zeros(4096, '\0');
  const std::string append = FrameRecords({Opened(2, "aaaa"), Opened(3, "b")});
  for (size_t written = 0; written < append.size(); ++written) {
    std::ofstream(path, std::ios::binary)
        << "WEFTCRD2" << FrameRecords({Opened(1, "a")})
        << append.substr(0, written) << zeros;
    auto log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk()) << written;
    EXPECT_EQ((*log)->history().front().opened().term(), 1u);
    EXPECT_LE((*log)->history().size(), 2u);
    EXPECT_THAT((*log)->Append({Opened(4, "a")}), IsOk());
    log->reset();
    log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk()) << written;
    EXPECT_EQ((*log)->history().back().opened().term(), 4u);
  }
}

TEST(CoordinatorLog, RefusesADamagedOrForeignFileAndASecondUser) {
  testing::TempDir dir;
  const std::string path = dir.Path("log");
  {
    auto log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk());
    EXPECT_THAT((*log)->Append({Opened(1, "aaaa"), Opened(2, "bbbb")}), IsOk());
    EXPECT_THAT(CoordinatorLog::Open(path),
                StatusIs(absl::StatusCode::kFailedPrecondition, "has it open"));
  }
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(22);  // within the first record
    file.put('!');
  }
  EXPECT_THAT(CoordinatorLog::Open(path),
              StatusIs(absl::StatusCode::kDataLoss, "at byte 8"));
  std::ofstream(dir.Path("other")) << "something else entirely";
  EXPECT_THAT(CoordinatorLog::Open(dir.Path("other")),
              StatusIs(absl::StatusCode::kDataLoss,
                       "not a log of Weft's coordinator; name another file"));
  EXPECT_THAT(CoordinatorLog::Open(dir.Path("no/log")),
              StatusIs(absl::StatusCode::kNotFound, "name another file"));
  // Has no end.
  EXPECT_THAT(CoordinatorLog::Open("/dev/zero"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "wanted a file, found a device"));
}

TEST(CoordinatorLog, HasOneUserAlsoWhileItIsWrittenAnew) {
  testing::TempDir dir;
  const std::string path = dir.Path("log");
  auto log = CoordinatorLog::Open(path);
  ASSERT_THAT(log, IsOk());
  std::atomic<bool> is_over{false};
  std::atomic<int> taken{0};
  std::atomic<int> tries{0};
  std::thread other([&] {
    while (!is_over) {
      taken += CoordinatorLog::Open(path).ok();
      ++tries;
    }
  });
  int rewrites = 0;
  EXPECT_TRUE(Becomes([&] {
    EXPECT_THAT((*log)->Rewrite({Opened(1, "a")}), IsOk());
    return ++rewrites >= 50 && tries >= 50;
  }));
  is_over = true;
  other.join();
  EXPECT_EQ(taken, 0);
}

}  // namespace
}  // namespace weft::rendezvous
