#include "weft/launch/commands/job_recordings.h"

#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/telemetry/flight_recorder.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/telemetry/flight_recording.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

std::string ContentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(JobRecordings, TheLongestThatARecorderGivesIsTaken) {
  telemetry::FlightRecorder recorder;
  const std::string longest(telemetry::FlightRecorder::kDetailBytes, '\xff');
  const int64_t least = std::numeric_limits<int64_t>::min();
  for (size_t i = 0; i < telemetry::FlightRecorder::kCapacity; ++i) {
    recorder.Record("rpc.a_name_as_long_as_any_that_there_is", longest, least,
                    least);
  }
  const std::string text = recorder.DumpText();
  EXPECT_LT(text.size(), worker::kMostRecordingBytes / 2);
  // What is printable stays as it is.
  EXPECT_THAT(CheckRecording(text), IsOkAndHolds(text));
}

TEST(JobRecordings, WhatIsNoRecordingIsRefused) {
  for (const std::string& said :
       {std::string(), std::string("error"), std::string(100, '\0')}) {
    EXPECT_THAT(CheckRecording(said),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "what is no flight recording"));
  }
  const std::string head = "flight recorder: 1 of 1 entries, 0 lost\n";
  const std::string most =
      head + std::string(worker::kMostRecordingBytes - head.size(), 'x');
  EXPECT_THAT(CheckRecording(most).status(), IsOk());
  EXPECT_THAT(CheckRecording(most + "x"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       absl::StrCat(most.size() + 1, " bytes")));
}

TEST(JobRecordings, BytesThatATerminalObeysAreShownAsText) {
  const auto text = CheckRecording(
      "flight recorder: \x1b[2J\n0 -0s collective.start a=1 b=2 g\r \xff "
      "Al\x07l\n\n");
  EXPECT_THAT(text,
              IsOkAndHolds("flight recorder: \\x1b[2J\n0 -0s collective.start "
                           "a=1 b=2 g\\r \\xff Al\\x07l\n"));
}

TEST(JobRecordings, AreWrittenToFilesOfWhichNoneIsReplaced) {
  const TempDir dir;
  const std::string out = dir.Path("out");
  ASSERT_THAT(MakeDirectory(out), IsOk());
  ASSERT_THAT(MakeDirectory(out), IsOk());
  const std::string text = "flight recorder: 0 of 0 entries, 0 lost\n";
  const std::vector<FlightFile> files = {
      {"my-job-trainer0-1@1.2", text, "trainer0"},
      {"my-job-ps0-0@1.1", text, "ps0"}};
  EXPECT_THAT(
      WriteRecordings(files, out),
      IsOkAndHolds(ElementsAre(EndsWith("/out/my-job-trainer0-1@1.2-0.flight"),
                               EndsWith("/out/my-job-ps0-0@1.1-0.flight"))));
  const auto again = WriteRecordings(files, out);
  ASSERT_THAT(again, IsOk());
  EXPECT_THAT((*again)[0], EndsWith("/out/my-job-trainer0-1@1.2-1.flight"));
  EXPECT_EQ(WorkerOfFile((*again)[0]), "trainer0");
  EXPECT_EQ(ContentOf((*again)[0]), text);
  struct stat found = {};
  ASSERT_EQ(stat((*again)[0].c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600);
}

TEST(JobRecordings, APlaceThatCannotBeWrittenToIsNamed) {
  const TempDir dir;
  std::ofstream(dir.Path("file")) << "text";
  const absl::Status file = MakeDirectory(dir.Path("file"));
  EXPECT_THAT(file, StatusIs(absl::StatusCode::kFailedPrecondition,
                             "--out=" + dir.Path("file")));
  EXPECT_EQ(worker::ExitCodeFor(file), worker::ExitCode::kConfig);
  const auto written =
      WriteRecordings({{"job-ps0-1", "text", "ps0"}}, dir.Path("none"));
  EXPECT_THAT(written.status().message(), HasSubstr(dir.Path("none")));
  EXPECT_EQ(worker::ExitCodeFor(written.status()), worker::ExitCode::kResource);
}

}  // namespace
}  // namespace weft::launch
