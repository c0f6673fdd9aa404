#include "weft/launch/run/event_log.h"

#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::testing::IsOk;
using weft::testing::StatusIs;

TEST(EventLog, WritesAnObjectALineBehindWhatIsThere) {
  const testing::TempDir dir;
  const std::string path = dir.Path("events");
  std::ofstream(path) << "before\n";
  EventLog log("mnist", 2);
  log.Write(0, "nowhere", {});
  ASSERT_THAT(log.Open(path), IsOk());
  log.Write(1, "rank_ended", {{"rank", "ps\"1\n"}, {"exit_code", 137}});
  log.Write(1, "ranks_ended", {});
  std::ifstream file(path);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(line, "before");
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_THAT(line, AllOf(HasSubstr(R"("job":"mnist","node":2,"start":1,)"),
                          HasSubstr(R"("event":"rank_ended")"),
                          HasSubstr(R"("rank":"ps\"1\n","exit_code":137})")));
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_THAT(line, HasSubstr("ranks_ended"));
  EXPECT_FALSE(std::getline(file, line));
  EXPECT_THAT(log.TakeError(), IsOk());
}

TEST(EventLog, SaysWhereItCannotWrite) {
  EventLog log("j", 0);
  EXPECT_THAT(log.Open("/no/such/directory/events"),
              StatusIs(absl::StatusCode::kNotFound, "/no/such/directory"));
}

TEST(EventLog, SaysOnceThatTheDiskIsFull) {
  EventLog log("j", 0);
  if (!log.Open("/dev/full").ok()) GTEST_SKIP() << "there is no /dev/full";
  log.Write(0, "a", {});
  EXPECT_THAT(log.TakeError(),
              StatusIs(absl::StatusCode::kResourceExhausted, "/dev/full"));
  log.Write(0, "b", {});
  EXPECT_THAT(log.TakeError(), IsOk());
}

}  // namespace
}  // namespace weft::launch
