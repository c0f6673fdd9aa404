// The recommender of examples/ctr as processes: servers are killed while it is
// saved, exported, read and resumed, and its state has the bits of a training
// that nobody touched. How many rounds that takes is for the machine to say:
// the training lasts until the test stops it, and the undisturbed one has as
// many.

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/base/clock.h"
#include "weft/tests/job/aftermath.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

using ::testing::ContainsRegex;

constexpr int64_t kBatch = 1024;
constexpr int64_t kIdle = 128;  // as examples/ctr/ledger.h

std::string Example(const std::string& name) {
  return RunfilePath("examples/ctr/" + name);
}

class Recommender : public ::testing::Test {
 protected:
  // `weft run` of 2 servers and 2 trainers that save in `saved`.
  std::unique_ptr<Process> Train(const std::string& saved, const Flags& flags) {
    std::filesystem::create_directories(saved);
    std::string trainer = absl::StrCat(
        Example("recommender"), " --tables=2 --test-rows=4096 --keep=1000",
        " --checkpoint-dir=", saved);
    for (const std::string& flag : flags) absl::StrAppend(&trainer, " ", flag);
    return StartProcess({Program("weft"), "run", "--replicas=2",
                         "--job=" + kJob, "--coordinator=" + coordinator_,
                         "--role",
                         absl::StrCat("ps=2:", Program("parameter_server"),
                                      " --checkpoint-dir=", saved),
                         "--role", "trainer=2:" + trainer});
  }

  // Each row is on two servers.
  bool IsReplicated() {
    const auto list =
        StartProcess({Program("weft"), "servers", "list", "--json",
                      "--job=" + kJob, "--coordinator=" + coordinator_});
    EXPECT_THAT(list->Wait(kLong), IsOk());
    return absl::StrContains(list->output(), "\"lost\":0") &&
           absl::StrContains(list->output(), "\"single\":0");
  }

  // A new copy of the larger partitions takes its time while pushes go on: it
  // leaves most of the machine to them. Each look starts a process, which takes
  // from that, too.
  ::testing::AssertionResult BecomesReplicated() {
    const Instant deadline = SteadyClock().Now() + kLongest;
    while (!IsReplicated()) {
      if (SteadyClock().Now() > deadline) {
        return ::testing::AssertionFailure()
               << "not within " << absl::FormatDuration(kLongest);
      }
      absl::SleepFor(absl::Milliseconds(500));
    }
    return ::testing::AssertionSuccess();
  }

  std::string Ckpt(Flags words) {
    words.insert(words.begin(), {Program("weft"), "ckpt"});
    const auto process = StartProcess(words);
    EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(0)) << process->output();
    return process->output();
  }

  void Export(const std::string& saved, const std::string& checkpoint) {
    Ckpt({"export", saved, checkpoint, "--table=embedding1",
          "--out=" + export_});
  }

  // Whether a checkpoint has of the ledger only the rows that had changed, and
  // the keys of some that had gone.
  bool HasDeltaWithEvictedRows(const std::string& saved) {
    const auto list = nlohmann::json::parse(Ckpt({"list", "--json", saved}));
    for (const auto& one : list.at("checkpoints")) {
      for (const auto& table : one.at("tables")) {
        if (table.at("name") == "ledger" &&
            table.value("removed_rows", 0) > 0) {
          return true;
        }
      }
    }
    return false;
  }

  // The bytes of all tables of the newest checkpoint: rows, slots, life.
  std::string StateIn(const std::string& saved) {
    const std::string merged = saved + "-merged";
    Ckpt({"merge", saved, "latest", "--out=" + merged});
    std::string state;
    std::set<std::filesystem::path> files;
    for (const auto& file : std::filesystem::recursive_directory_iterator(
             merged + "/" + NewestName(merged))) {
      if (file.path().extension() == ".safetensors") files.insert(file.path());
    }
    EXPECT_EQ(files.size(), 4u);  // 2 embeddings, the MLPs, ledger
    for (const auto& path : files) state += ReadBytes(path);
    return state;
  }

  static double AucOf(const Process& run) {
    for (absl::string_view line : absl::StrSplit(run.output(), '\n')) {
      if (absl::ConsumePrefix(&line, "[trainer0] ") &&
          absl::StartsWith(line, "{\"auc\"")) {
        return nlohmann::json::parse(line).at("auc");
      }
    }
    ADD_FAILURE() << run.output();
    return -1;
  }

  static std::string Rows(int64_t rounds) {
    return absl::StrCat("--rows=", rounds * kBatch);
  }

  // For new copies, a restore or a repetition of all that was trained until
  // then, on a busy machine.
  static constexpr absl::Duration kLongest = absl::Minutes(4);
  const std::string kJob = "recommender";
  const TempDir dir_;
  const std::string coordinator_ = "unix:" + dir_.Path("socket");
  const std::string export_ = dir_.Path("embedding1.safetensors");
};

TEST_F(Recommender, KillsSnapshotsAndAResumeLeaveTheBitsOfAnUndisturbedRun) {
  const std::string saved = dir_.Path("saved");
  auto run = Train(
      saved, {Rows(1000000), "--snapshot-every=1s", "--full-snapshot-every=8"});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << run->output();
  Export(saved, "latest");
  const std::string exports = "unix:" + dir_.Path("exports");
  const auto server = StartProcess(
      {Program("weft"), "ckpt", "serve", "--follow=" + saved,
       "--tables=ledger,embedding0", export_, "--listen=" + exports});
  ASSERT_THAT(server->WaitForOutput("serving at ", kLong), IsOk());
  // Reads all the time; ends with what it finds wrong, or once the test ends.
  const auto reader =
      StartProcess({Example("reader"), exports, "--until=1000000",
                    "--timeout=10m", "--embeddings=embedding0,embedding1"});
  for (int victim : {0, 1, 0}) {
    ASSERT_TRUE(BecomesReplicated()) << run->output();
    KillWorker(*run, "ps", victim);
    if (HasFatalFailure()) return;
    const std::string before = NewestName(saved);
    ASSERT_TRUE(Becomes([&] { return NewestName(saved) != before; }))
        << run->output();
    Export(saved, "latest");
  }
  ASSERT_TRUE(BecomesReplicated()) << run->output();
  // So that rows go, and a checkpoint says so.
  ASSERT_TRUE(Becomes([&] {
    return StepOf(NewestName(saved)) > kIdle + 20 &&
           HasDeltaWithEvictedRows(saved);
  })) << run->output();
  Stop(*run);

  // 20 rounds more, from the newest snapshot.
  const int64_t rounds = StepOf(NewestName(saved)) + 20;
  run = Train(saved, {Rows(rounds), "--resume", "--snapshot-every=0"});
  ASSERT_THAT(run->WaitForOutput("resuming from ", kLong), IsOk());
  EXPECT_THAT(run->Wait(kLongest), IsOkAndHolds(0)) << run->output();
  Export(saved, "latest");
  EXPECT_EQ(StepOf(NewestName(saved)), rounds);

  const auto last = StartProcess(
      {Example("reader"), exports, absl::StrCat("--until=", rounds)});
  EXPECT_THAT(last->Wait(kLong), IsOkAndHolds(0)) << last->output();
  EXPECT_THAT(last->output(), ContainsRegex(R"("gone_rows":[1-9])"));
  EXPECT_THAT(reader->Wait(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded))
      << reader->output();

  const std::string untouched = dir_.Path("untouched");
  const auto whole = Train(untouched, {Rows(rounds), "--snapshot-every=0"});
  EXPECT_THAT(whole->Wait(kLongest), IsOkAndHolds(0)) << whole->output();
  EXPECT_EQ(AucOf(*run), AucOf(*whole));
  EXPECT_TRUE(StateIn(saved) == StateIn(untouched));
}

// The trainers have the MLPs: what they have alike is saved and resumed too.
TEST_F(Recommender, WithTheMlpsAveragedByDdpAKillAndAResumeLeaveTheBits) {
  const std::string saved = dir_.Path("saved");
  auto run =
      Train(saved, {Rows(1000000), "--dense=ddp", "--snapshot-every=1s"});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << run->output();
  ASSERT_TRUE(BecomesReplicated()) << run->output();
  KillWorker(*run, "ps", 1);
  if (HasFatalFailure()) return;
  const std::string before = NewestName(saved);
  ASSERT_TRUE(Becomes([&] { return NewestName(saved) != before; }))
      << run->output();
  ASSERT_TRUE(BecomesReplicated()) << run->output();
  Stop(*run);

  const int64_t rounds = StepOf(NewestName(saved)) + 10;
  const Flags rest = {Rows(rounds), "--dense=ddp", "--snapshot-every=0"};
  Flags resumed = rest;
  resumed.push_back("--resume");
  run = Train(saved, resumed);
  ASSERT_THAT(run->WaitForOutput("resuming from ", kLong), IsOk());
  EXPECT_THAT(run->Wait(kLongest), IsOkAndHolds(0)) << run->output();

  const std::string untouched = dir_.Path("untouched");
  const auto whole = Train(untouched, rest);
  EXPECT_THAT(whole->Wait(kLongest), IsOkAndHolds(0)) << whole->output();
  EXPECT_EQ(AucOf(*run), AucOf(*whole));
  EXPECT_TRUE(StateIn(saved) == StateIn(untouched));
}

}  // namespace
}  // namespace weft::testing
