#include "weft/worker/telemetry/trace_file.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"

namespace weft::worker {
namespace {

namespace fs = std::filesystem;

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class TraceFileTest : public ::testing::Test {
 protected:
  TraceFileTest() : telemetry_(Tracing()) {}

  static telemetry::Telemetry::Options Tracing() {
    telemetry::Telemetry::Options options;
    options.tracing = true;
    return options;
  }
  TraceFile At(const std::string& path) {
    return TraceFile(path, "ps0", telemetry_);
  }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static bool IsTrace(const std::string& text) {
    const auto json = nlohmann::json::parse(text, nullptr, false);
    return !json.is_discarded() && json.contains("traceEvents");
  }
  // No file but those of the test.
  int CountFiles() const {
    const fs::directory_iterator all(dir_.path());
    return static_cast<int>(std::distance(begin(all), end(all)));
  }

  const testing::TempDir dir_;
  telemetry::Telemetry telemetry_;
};

TEST_F(TraceFileTest, FileThatIsNoTraceIsNotReplaced) {
  std::ofstream(dir_.Path("thesis")) << "years of work";
  const absl::Status refused = At(dir_.Path("thesis")).Open();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, "no trace"));
  EXPECT_EQ(ExitCodeFor(refused), ExitCode::kConfig);
  EXPECT_EQ(Read(dir_.Path("thesis")), "years of work");
  EXPECT_EQ(CountFiles(), 1);
}

TEST_F(TraceFileTest, TraceOfAnotherProgramIsNotReplaced) {
  const std::string other = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[]}";
  std::ofstream(dir_.Path("other")) << other;
  EXPECT_THAT(At(dir_.Path("other")).Open(),
              StatusIs(absl::StatusCode::kUnavailable, "no trace"));
  EXPECT_EQ(Read(dir_.Path("other")), other);
}

// Runs `f` on a thread to which the modes of files apply, also if the test is
// root's.
void WithoutRightsOfRoot(const std::function<void()>& f) {
  std::thread([&] {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
    ASSERT_EQ(syscall(SYS_capset, &header, none), 0);
    f();
  }).join();
}

TEST_F(TraceFileTest, FileThatMayNotBeReadIsNotTakenForEmpty) {
  std::ofstream(dir_.Path("thesis")) << "years of work";
  ASSERT_EQ(chmod(dir_.Path("thesis").c_str(), 0200), 0);
  absl::Status refused;
  WithoutRightsOfRoot([&] { refused = At(dir_.Path("thesis")).Open(); });
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kPermissionDenied,
                                dir_.Path("thesis")));
  EXPECT_EQ(ExitCodeFor(refused), ExitCode::kConfig);
  ASSERT_EQ(chmod(dir_.Path("thesis").c_str(), 0600), 0);
  EXPECT_EQ(Read(dir_.Path("thesis")), "years of work");
  EXPECT_EQ(CountFiles(), 1);
}

TEST_F(TraceFileTest, FileThatCameAfterOpenIsNotReplaced) {
  TraceFile trace = At(dir_.Path("trace"));
  ASSERT_THAT(trace.Open(), IsOk());
  std::ofstream(dir_.Path("trace")) << "years of work";
  EXPECT_THAT(trace.Write(),
              StatusIs(absl::StatusCode::kUnavailable, "no trace"));
  EXPECT_EQ(Read(dir_.Path("trace")), "years of work");
}

TEST_F(TraceFileTest, FileInPlaceOfTheTemporaryFileIsKept) {
  std::ofstream(dir_.Path("t.part")) << "years of work";
  EXPECT_THAT(At(dir_.Path("t")).Open(),
              StatusIs(absl::StatusCode::kUnavailable, dir_.Path("t.part")));
  EXPECT_EQ(Read(dir_.Path("t.part")), "years of work");
}

TEST_F(TraceFileTest, ReplacesAnEmptyFileAndAFormerTrace) {
  std::ofstream(dir_.Path("ps0.json")) << "";
  EXPECT_THAT(At(dir_.Path("{name}.json")).Open(), IsOk());
  TraceFile trace = At(dir_.Path("{name}.json"));
  EXPECT_THAT(trace.Open(), IsOk());
  EXPECT_TRUE(IsTrace(Read(dir_.Path("ps0.json"))));
  EXPECT_THAT(trace.Write(), IsOk());
  EXPECT_TRUE(IsTrace(Read(dir_.Path("ps0.json"))));
  EXPECT_EQ(CountFiles(), 1);
}

TEST_F(TraceFileTest, SymbolicLinkStaysAndItsFileIsReplaced) {
  std::ofstream(dir_.Path("file")) << "";
  fs::create_symlink("file", dir_.Path("link"));
  TraceFile trace = At(dir_.Path("link"));
  EXPECT_THAT(trace.Open(), IsOk());
  EXPECT_TRUE(fs::is_symlink(dir_.Path("link")));
  EXPECT_TRUE(IsTrace(Read(dir_.Path("file"))));
}

// In a directory that others may write in, such a link could lead anywhere.
TEST_F(TraceFileTest, LinkInPlaceOfTheTemporaryFileIsNotFollowed) {
  std::ofstream(dir_.Path("other")) << "other";
  fs::create_symlink("other", dir_.Path("t.part"));
  EXPECT_THAT(At(dir_.Path("t")).Open(), IsOk());
  EXPECT_EQ(Read(dir_.Path("other")), "other");
  EXPECT_TRUE(IsTrace(Read(dir_.Path("t"))));
}

TEST_F(TraceFileTest, PipeIsWrittenAndStaysAPipe) {
  ASSERT_EQ(mkfifo(dir_.Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(At(dir_.Path("pipe")).Open(),
              StatusIs(absl::StatusCode::kUnavailable,
                       "pipe: a pipe that nobody reads"));
  const int opened =
      open(dir_.Path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(opened, 0);
  std::string text;
  std::thread reader;
  {
    TraceFile trace = At(dir_.Path("pipe"));
    ASSERT_THAT(trace.Open(), IsOk());
    reader = std::thread([&] { text = Read(dir_.Path("pipe")); });
    // More than a pipe holds, so that the write waits for the reader.
    for (int i = 0; i < 2000; ++i) {
      telemetry_.spans().Start("a span with a name of some length");
    }
    EXPECT_THAT(trace.Write(), IsOk());
  }
  reader.join();
  close(opened);
  EXPECT_TRUE(IsTrace(text)) << text.substr(0, 200);
  EXPECT_GT(text.size(), 100'000u);
  EXPECT_TRUE(fs::is_fifo(dir_.Path("pipe")));
  EXPECT_EQ(CountFiles(), 1);
}

TEST_F(TraceFileTest, PipeWhoseReaderLeftIsAnError) {
  ASSERT_EQ(mkfifo(dir_.Path("pipe").c_str(), 0600), 0);
  const int reader =
      open(dir_.Path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  TraceFile trace = At(dir_.Path("pipe"));
  ASSERT_THAT(trace.Open(), IsOk());
  close(reader);
  EXPECT_THAT(trace.Write(),
              StatusIs(absl::StatusCode::kUnavailable, "pipe: Broken pipe"));
}

// A rename would remove the device, given the right to write in /dev.
TEST_F(TraceFileTest, DeviceStaysADevice) {
  TraceFile null = At("/dev/null");
  EXPECT_THAT(null.Open(), IsOk());
  EXPECT_THAT(null.Write(), IsOk());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  fs::create_symlink("/dev/full", dir_.Path("full"));
  TraceFile full = At(dir_.Path("full"));
  EXPECT_THAT(full.Open(), IsOk());
  const absl::Status written = full.Write();
  EXPECT_THAT(written,
              StatusIs(absl::StatusCode::kUnavailable, "No space left"));
  EXPECT_EQ(ExitCodeFor(written), ExitCode::kResource);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_TRUE(fs::is_symlink(dir_.Path("full")));
}

}  // namespace
}  // namespace weft::worker
