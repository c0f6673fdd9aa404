// The trainer with --device, as docs/cli.md and docs/devices.md say.

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::HasSubstr;
using weft::testing::Command;
using weft::testing::Flags;
using weft::testing::IsOk;
using weft::testing::IsOkAndHolds;
using weft::testing::Job;
using weft::testing::kLong;
using weft::testing::Process;
using weft::testing::Program;

class DevicePrograms : public ::testing::Test {
 protected:
  DevicePrograms() { std::filesystem::create_directory(job_.Path("run")); }

  // `weft run` of `ranks` trainers without servers.
  std::unique_ptr<Process> Start(int ranks, const Flags& more,
                                 const Flags& environment = {}) const {
    Command command;
    command.env = {"XDG_RUNTIME_DIR=" + job_.Path("run")};
    command.env.insert(command.env.end(), environment.begin(),
                       environment.end());
    command.argv = {
        Program("weft"),    "run",
        "--job=devices",    absl::StrCat("--nproc-per-node=", ranks),
        Program("trainer"), "--data=" + job_.data,
        "--batch-size=16",  "--epochs=1"};
    command.argv.insert(command.argv.end(), more.begin(), more.end());
    auto process = Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }

  std::string Model(const std::string& folder) const {
    const auto names = weft::testing::Checkpoints(job_.Path(folder));
    if (names.empty()) return "";
    std::filesystem::path newest(names.back());
    if (newest.is_relative()) newest = job_.Path(folder) / newest;
    return weft::testing::ReadBytes(newest / "shard-00000.safetensors");
  }

  const Job job_;
};

TEST_F(DevicePrograms, TrainToTheSameModelOnSimulatedDevices) {
  for (const std::string device : {"cpu", "simulated", "simulated:1"}) {
    const auto run =
        Start(2, {"--strategy=ddp", "--device=" + device,
                  "--checkpoint-dir=" + job_.Path("saved-" + device)});
    ASSERT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
    EXPECT_FALSE(Model("saved-" + device).empty());
    EXPECT_TRUE(Model("saved-" + device) == Model("saved-cpu")) << device;
  }
}

TEST_F(DevicePrograms, TakeTheDeviceFromTheEnvironment) {
  const auto run = Start(1, {"--strategy=ddp"}, {"WEFT_DEVICE=nonsense"});
  const auto code = run->Wait(kLong);
  ASSERT_THAT(code, IsOk());
  EXPECT_NE(*code, 0);
  EXPECT_THAT(run->output(), HasSubstr("nonsense"));
}

TEST_F(DevicePrograms, RefuseWhatIsNoDevice) {
  for (const std::string device :
       {"", "gpu", "cuda:-1", "simulated:x", "cpu:0", "CUDA"}) {
    const auto run = Start(1, {"--strategy=ddp", "--device=" + device});
    const auto code = run->Wait(kLong);
    ASSERT_THAT(code, IsOk());
    EXPECT_EQ(*code, 2) << "--device=" << device << run->output();
    EXPECT_THAT(run->output(), HasSubstr("device"));
  }
}

}  // namespace
}  // namespace weft::outside
