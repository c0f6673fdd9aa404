// Trainers of `weft run` that are processes on one simulated device.

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/aftermath.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

// The simulated device adds in the order of the CPU.
constexpr double kTolerance = 0;

Flags CommandOf(const Job& job, int ranks, const std::string& saved,
                const Flags& run, const Flags& trainer) {
  Flags command = {Program("weft"), "run",
                   absl::StrCat("--nproc-per-node=", ranks)};
  command.insert(command.end(), run.begin(), run.end());
  for (const std::string& word :
       {Program("trainer"), std::string("--strategy=ddp"), "--data=" + job.data,
        std::string("--batch-size=16"), std::string("--lr=0.001"),
        std::string("--json"), "--checkpoint-dir=" + saved,
        "--dump-dir=" + job.Path("")}) {
    command.push_back(word);
  }
  command.insert(command.end(), trainer.begin(), trainer.end());
  return command;
}

checkpoint::NamedTensors Train(const Job& job, int ranks,
                               const std::string& saved, const Flags& trainer,
                               std::string* output) {
  Flags flags = {"--epochs=1"};
  flags.insert(flags.end(), trainer.begin(), trainer.end());
  const auto run =
      StartProcess(CommandOf(job, ranks, job.Path(saved), {}, flags));
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  *output = run->output();
  const auto loaded = LoadNewest(job.Path(saved));
  EXPECT_THAT(loaded, IsOk()) << run->output();
  return loaded.ok() ? loaded->tensors : checkpoint::NamedTensors();
}

TEST(TrainersOnOneDevice, GiveWhatTheCpuGives) {
  const Job job;
  for (const int ranks : {2, 3}) {
    std::string output;
    const auto wanted = Train(job, ranks, absl::StrCat("cpu", ranks),
                              {"--device=cpu"}, &output);
    for (const std::string backend : {"auto", "same_device"}) {
      SCOPED_TRACE(absl::StrCat(ranks, " trainers, ", backend));
      const auto found =
          Train(job, ranks, absl::StrCat(backend, ranks),
                {"--device=simulated", "--backend=" + backend}, &output);
      EXPECT_THAT(output, HasSubstr(absl::StrCat("backend same_device: ", ranks,
                                                 " ranks share one device")));
      ExpectNear(wanted, found, kTolerance);
    }
  }
}

// One of them is killed: the others, whose streams may wait for it, end or are
// ended, and all begin again.
TEST(TrainersOnOneDevice, GoOnAfterOneIsKilled) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run = StartProcess(
      CommandOf(job, 2, saved, {"--max-restarts=2", "--shutdown-timeout=20s"},
                {kForLong, "--device=simulated", "--backend=same_device"}));
  for (const int rank : {0, 1}) {
    AwaitWholeEpoch(*run, saved, 8);
    KillWorker(*run, "trainer", rank);
  }
  AwaitWholeEpoch(*run, saved, 8);
  Stop(*run);
  EXPECT_THAT(run->output(), HasSubstr("trainer0 failed: killed by SIGKILL"));
  EXPECT_THAT(run->output(), HasSubstr("trainer1 failed: killed by SIGKILL"));
}

}  // namespace
}  // namespace weft::testing
