#include "weft/launch/run/end_notes.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::launch {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

std::unique_ptr<Child> Start(const std::string& name,
                             const std::string& script) {
  ChildSpec spec;
  spec.name = name;
  spec.argv = {"sh", "-c", script};
  auto child = Child::Start(std::move(spec));
  EXPECT_THAT(child, testing::IsOk());
  return child.ok() ? *std::move(child) : nullptr;
}

void AwaitEnd(const Child& child) {
  pollfd fd = {child.exit_fd(), POLLIN, 0};
  while (poll(&fd, 1, -1) < 0) {
  }
}

class EndNotesTest : public ::testing::Test {
 protected:
  EndNotesTest() { notes_.Begin(start_); }
  void Reap(Child& child, absl::Duration after) {
    AwaitEnd(child);
    notes_.Look();
    child.Reap();
    while (child.output_fd(0) >= 0) child.ReadLines(0);
    notes_.End(child, start_ + after);
  }

  const Instant start_ = SteadyClock().Now();
  EndNotes notes_;
};

// A process that had ended before the others were asked to end was not asked.
TEST_F(EndNotesTest, OneThatHasEndedBeforeItWasAskedWasNotAsked) {
  const auto dead = Start("a", "exit 3");
  const auto living = Start("b", "exec sleep 1000");
  AwaitEnd(*dead);
  EXPECT_TRUE(HasProcessEnded(*dead));
  EXPECT_FALSE(HasProcessEnded(*living));
  for (const auto* child : {dead.get(), living.get()}) notes_.Ask(*child);
  living->Signal(SIGTERM);
  Reap(*dead, absl::Seconds(1));
  Reap(*living, absl::Seconds(2));
  EXPECT_FALSE(notes_.ReportOf(*dead).was_asked);
  EXPECT_TRUE(notes_.ReportOf(*living).was_asked);
  EXPECT_EQ(notes_.ReportOf(*dead).after, absl::Seconds(1));
  EXPECT_NE(notes_.ReportOf(*dead).look, notes_.ReportOf(*living).look);
}

TEST_F(EndNotesTest, OneThatIsStoppedWhenItIsAskedWasStopped) {
  const auto child = Start("a", "exec sleep 1000");
  kill(child->pid(), SIGSTOP);
  int status = 0;
  waitpid(child->pid(), &status, WUNTRACED);
  notes_.Ask(*child);
  child->Signal(SIGKILL);
  notes_.Kill(*child);
  Reap(*child, absl::Seconds(1));
  EXPECT_TRUE(notes_.was_stopped("a"));
  EXPECT_TRUE(notes_.ReportOf(*child).was_stopped);
  EXPECT_TRUE(notes_.ReportOf(*child).was_killed);
}

TEST_F(EndNotesTest, FailuresAreLateForFiveSecondsAndTheNewestOfAName) {
  for (const int code : {3, 7}) {
    const auto child = Start("a", absl::StrCat("echo $$; exit ", code));
    Reap(*child, absl::Seconds(code));
  }
  const auto well = Start("b", "exit 0");
  Reap(*well, absl::Seconds(7));
  const auto lately = notes_.FailedLately(start_ + absl::Seconds(12));
  ASSERT_THAT(lately, SizeIs(1));
  EXPECT_EQ(lately[0].exit.code, 7);
  EXPECT_THAT(lately[0].tail, SizeIs(1));
  EXPECT_THAT(notes_.FailedLately(start_ + absl::Seconds(13)), IsEmpty());
}

}  // namespace
}  // namespace weft::launch
