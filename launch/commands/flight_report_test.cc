#include "weft/launch/commands/flight_report.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/telemetry/flight_recorder.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// A recorder that holds operations up to number `finished`, and the call of
// `called` if that is higher.
std::string TextOf(int finished, int called, int64_t last_fingerprint = 7) {
  telemetry::FlightRecorder recorder;
  recorder.Record("rpc.call", "trainer0", 1, 2);
  for (int i = 0; i <= called; ++i) {
    recorder.RecordFor("collective.start", "trainer/the world", "AllReduce", i,
                       i == called ? last_fingerprint : 7);
    if (i <= finished) {
      recorder.RecordFor("collective.end", "trainer/the world", "AllReduce", i,
                         0);
    }
  }
  return recorder.DumpText();
}

TEST(FlightReport, NamesTheWorkerThatIsBehindAndItsOperation) {
  const auto report = FlightReport({{"trainer0", TextOf(3, 4)},
                                    {"trainer1", TextOf(3, 4)},
                                    {"trainer2", TextOf(3, 3)}});
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(*report, HasSubstr("group trainer/the world, 3 workers"));
  EXPECT_THAT(*report, HasSubstr("trainer0: in AllReduce #4, called"));
  EXPECT_THAT(*report, HasSubstr("trainer2: has finished AllReduce #3; "
                                 "BEHIND: has not called #4"));
  EXPECT_THAT(*report, HasSubstr("the others wait for trainer2\n"));
}

TEST(FlightReport, NamesCallsThatDifferUnderOneNumber) {
  const auto report = FlightReport(
      {{"trainer0", TextOf(3, 4, 7)}, {"trainer1", TextOf(3, 4, 8)}});
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(*report, HasSubstr("#4 differs"));
  EXPECT_THAT(*report,
              HasSubstr("trainer0 (AllReduce) against trainer1 (AllReduce)"));
}

TEST(FlightReport, SaysThatNoWorkerWaitsWhereAllHaveFinished) {
  const auto report =
      FlightReport({{"trainer0", TextOf(4, 4)}, {"trainer1", TextOf(4, 4)}});
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(*report, HasSubstr("nobody waits"));
  EXPECT_THAT(*report, Not(HasSubstr("BEHIND")));
}

// Once a group is broken each later operation is refused.
TEST(FlightReport, NamesTheFirstFailureBeforeWhatWasRefusedForIt) {
  telemetry::FlightRecorder recorder;
  const int64_t codes[] = {0, 14, 9, 9};
  for (int i = 0; i < 4; ++i) {
    recorder.RecordFor("collective.start", "trainer/the world", "AllReduce", i,
                       7);
    recorder.RecordFor("collective.end", "trainer/the world", "AllReduce", i,
                       codes[i]);
  }
  const auto report = FlightReport(
      {{"trainer0", recorder.DumpText()}, {"trainer1", TextOf(0, 0)}});
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(*report,
              HasSubstr("trainer0: has finished AllReduce #3 with status "
                        "FAILED_PRECONDITION; the first to fail was AllReduce "
                        "#1 with status UNAVAILABLE\n"));
  EXPECT_THAT(*report,
              HasSubstr("the group has failed: first #1, on trainer0\n"));
}

TEST(FlightReport, TheGroupThatWasUsedLastIsTheFirst) {
  const std::string head = "flight recorder: 2 of 2 entries, 0 lost\n";
  const auto report = FlightReport(
      {{"trainer0", head +
                        "0 -9.0s collective.start a=0 b=7 a old AllReduce\n"
                        "1 -0.5s collective.start a=0 b=7 new AllReduce\n"}});
  ASSERT_THAT(report, IsOk());
  EXPECT_LT(report->find("group new"), report->find("group a old"));
}

TEST(FlightReport, SaysForWhomTheyWaited) {
  const std::string head = "flight recorder: 2 of 2 entries, 0 lost\n";
  const auto of = [&](const std::string& begun) {
    return head + "0 -" + begun + "s collective.start a=0 b=7 g AllReduce\n" +
           "1 -0.5s collective.end a=0 b=0 g AllReduce\n";
  };
  const auto report =
      FlightReport({{"trainer0", of("2.5")}, {"trainer1", of("0.6")}});
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(*report, HasSubstr("in 1 operations that all have finished they "
                                 "waited 1.900 s for each other: for trainer1 "
                                 "100 %\n    AllReduce like #0, 1 times: 1.900 "
                                 "s, trainer1 100 %\n"));
}

// They may have come from a peer.
TEST(FlightReport, LinesThatNoRecorderWritesDoNoHarm) {
  const std::string most = std::to_string(std::numeric_limits<int64_t>::max());
  const std::string least = std::to_string(std::numeric_limits<int64_t>::min());
  std::string text = "flight recorder: \n";
  for (const std::string& line :
       {std::string("0 -nans collective.start a=0 b=0 n AllReduce"),
        std::string("0 -infs collective.start a=0 b=0 i AllReduce"),
        "0 -0s collective.start a=" + most + " b=" + most + " g AllReduce",
        "0 -0s collective.end a=" + least + " b=" + least + " g AllReduce",
        "0 -0s collective.end a=" + most + " b=-1 h x",
        std::string("0 -0s collective.start a=1 b=2 word"),
        std::string("0 -0s collective.start a= b= g AllReduce"),
        std::string("0 -0s collective.start a=1 b=2  "), std::string(" "),
        std::string(5, '\0'), std::string(100000, ' ')}) {
    text += line + "\n";
  }
  const auto report = FlightReport({{"trainer0", text}, {"trainer1", text}});
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(*report, HasSubstr("in AllReduce #" + most));
  EXPECT_THAT(*report, Not(HasSubstr("group n,")));
  EXPECT_THAT(*report, Not(HasSubstr("group i,")));
}

TEST(FlightReport, NewestEventsAreTheLastOnesTheNewestFirst) {
  FlightFile file = {"/tmp/x-trainer0-1-0.flight", TextOf(1, 2)};
  const std::string two = NewestEvents(file, 2);
  EXPECT_THAT(two, HasSubstr("trainer0, 6 of 6 entries, 0 lost, newest first"));
  EXPECT_LT(two.find(" collective.start a=2 "),
            two.find(" collective.end a=1 "));
  EXPECT_THAT(two, Not(HasSubstr(" collective.start a=1 ")));
  EXPECT_THAT(NewestEvents(file, 100), HasSubstr(" rpc.call a=1 b=2 "));
  EXPECT_THAT(NewestEvents(file, 0), Not(HasSubstr("collective")));
  file.worker = "ps0";
  EXPECT_THAT(NewestEvents(file, 1), HasSubstr("ps0, 6 of 6 entries"));
}

TEST(FlightReport, TextThatIsNoFlightRecordersIsRefused) {
  EXPECT_THAT(FlightReport({{"/tmp/x-trainer0-1-0.flight", "hello"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "/tmp/x-trainer0-1-0.flight"));
}

TEST(FlightReport, WorkerIsFoundInTheNameOfItsFile) {
  EXPECT_EQ(WorkerOfFile("/tmp/x/my-job-trainer12-4711-0.flight"), "trainer12");
  EXPECT_EQ(WorkerOfFile("something"), "something");
}

}  // namespace
}  // namespace weft::launch
