#include "weft/launch/failure/oom_kills.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CounterFiles, AreThoseOfTheGroupOfEitherVersion) {
  EXPECT_THAT(CounterFiles("0::/user.slice/a\n"),
              ElementsAre("/sys/fs/cgroup/user.slice/a/memory.events"));
  EXPECT_THAT(CounterFiles("0::/\n"),
              ElementsAre("/sys/fs/cgroup/memory.events"));
  EXPECT_THAT(CounterFiles("8:pids:/p\n4:cpu,memory:/job:1\n0::/u\n"),
              ElementsAre("/sys/fs/cgroup/memory/job:1/memory.oom_control",
                          "/sys/fs/cgroup/memory/memory.oom_control",
                          "/sys/fs/cgroup/u/memory.events"));
  EXPECT_THAT(CounterFiles(""), IsEmpty());
  EXPECT_THAT(CounterFiles("memory\n::\n4:memoryx:/\n"), IsEmpty());
}

TEST(CounterIn, IsTheNumberBehindItsName) {
  EXPECT_EQ(CounterIn("low 0\noom 7\noom_kill 3\noom_group_kill 1\n"), 3);
  EXPECT_EQ(CounterIn("oom_kill_disable 0\nunder_oom 0\noom_kill 12"), 12);
  for (const char* text : {"", "oom 7\n", "oom_kill \n", "oom_kill x\n",
                           "oom_kill -1\n", "oom_kill 1 2\n"}) {
    EXPECT_EQ(CounterIn(text), -1) << text;
  }
}

TEST(Between, IsUnknownWhereEitherIs) {
  const OomKills kills = Between({2, 5}, {3, 5});
  EXPECT_EQ(kills.cgroup, 1);
  EXPECT_EQ(kills.host, 0);
  EXPECT_EQ(Between({-1, 5}, {3, -1}).cgroup, -1);
  EXPECT_EQ(Between({-1, 5}, {3, -1}).host, -1);
  // Another group than before.
  EXPECT_EQ(Between({7, 5}, {3, 5}).cgroup, -1);
}

TEST(ReadOomKills, DoesNotGoBack) {
  const OomKills before = ReadOomKills();
  const OomKills after = ReadOomKills();
  EXPECT_GE(after.host, before.host);
  EXPECT_GE(after.cgroup, before.cgroup);
}

}  // namespace
}  // namespace weft::launch
