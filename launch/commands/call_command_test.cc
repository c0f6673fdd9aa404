// weft call over a real worker, in one process.

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/launch/commands/commands.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_workers.h"

namespace weft::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

int64_t SumOf(int64_t a, int64_t b) { return a + b; }
WEFT_RPC(SumOf);

absl::StatusOr<int64_t> NotYet(int64_t) {
  return absl::UnimplementedError("negative numbers come later");
}
WEFT_RPC(NotYet);

class CallCommandTest : public ::testing::Test {
 protected:
  CallCommandTest() {
    worker::TestWorkers::Options options;
    options.servers = 1;
    options.trainers = 0;
    workers_ = worker::TestWorkers::Start(options).value();
  }
  absl::StatusOr<int> RunCall(std::vector<std::string> arguments) {
    const worker::Options& own = workers_->Get("ps0").options();
    arguments.insert(arguments.begin(), "call");
    arguments.push_back(absl::StrCat("--coordinator=", own.coordinator));
    arguments.push_back(absl::StrCat("--job=", own.job));
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    ::testing::internal::CaptureStdout();
    auto code = CallCommand(static_cast<int>(argv.size()), argv.data());
    output_ = ::testing::internal::GetCapturedStdout();
    return code;
  }

  std::unique_ptr<worker::TestWorkers> workers_;
  std::string output_;  // of the last call
};

constexpr char kSumOf[] = "weft::launch::(anonymous namespace)::SumOf";

TEST_F(CallCommandTest, FunctionsOfAWorkerAreListed) {
  EXPECT_THAT(RunCall({"ps0"}), IsOkAndHolds(0));
  EXPECT_THAT(output_, HasSubstr("SumOf"));
}

TEST_F(CallCommandTest, ResultIsPrintedAsJson) {
  ASSERT_THAT(RunCall({"ps0"}), IsOkAndHolds(0));
  // The name as the worker lists it.
  const size_t at = output_.find("SumOf");
  ASSERT_NE(at, output_.npos);
  const size_t begin = output_.rfind('\n', at) + 1;
  std::string name = output_.substr(begin, at + 5 - begin);
  name = name.substr(name.find_first_not_of(' '));
  EXPECT_THAT(RunCall({"ps0", name, "[40, 2]"}), IsOkAndHolds(0)) << kSumOf;
  EXPECT_THAT(output_, HasSubstr("42"));
  testing::TempDir directory;
  std::ofstream(directory.Path("arguments.json")) << "[1, 2]";
  EXPECT_THAT(RunCall({"ps0", name, "@" + directory.Path("arguments.json")}),
              IsOkAndHolds(0));
  EXPECT_THAT(output_, HasSubstr("3"));
  EXPECT_THAT(RunCall({"ps0", name, "[true, 2]"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(CallCommandTest, FunctionThatIsNotImplementedDoesNotBlameTheWorker) {
  const absl::Status status = RunCall({"ps0", "NotYet", "[-1]"}).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented,
                               "negative numbers come later"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("serves gRPC")));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ps0"));
}

TEST_F(CallCommandTest, UnknownWorkerAndFunctionAreNamed) {
  EXPECT_THAT(RunCall({"trainer9"}).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       "no worker \"trainer9\"; there are: ps0"));
  EXPECT_THAT(RunCall({"ps0", "NoSuchFunction", "[]"}).status(),
              StatusIs(absl::StatusCode::kNotFound, "NoSuchFunction"));
}

}  // namespace
}  // namespace weft::launch
