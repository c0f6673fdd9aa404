// Processes that end in the middle of the main job, and what the others do.

#include <signal.h>

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/client.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace weft::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kConfig = 3;
constexpr int kPeerLost = 10;
constexpr int kTerminated = 128 + SIGTERM;
// Silence is death after 10 s.
constexpr absl::Duration kSeconds = absl::Seconds(40);
// 256 images, 2 trainers with 16 a step.
constexpr int64_t kSteps = 8;

void AwaitTraining(Process& trainer0) {
  ASSERT_THAT(trainer0.WaitForOutput("training ", kLong), IsOk());
}

std::string ModelIn(const std::string& checkpoint) {
  return ReadBytes(checkpoint + "/shard-99999.safetensors");
}

// The training in `saved`, which was stopped, has the bits of one that nobody
// touched.
void ExpectUndisturbed(const Job& job, const std::string& saved) {
  const Epochs trained = WholeEpochs(saved, kSteps);
  ASSERT_GT(trained.count, 0);
  const TrainerResult whole = job.Train(
      {trained.flag(), "--checkpoint-dir=" + job.Path("undisturbed")});
  EXPECT_EQ(ModelIn(trained.checkpoint) == ModelIn(whole.checkpoint), true)
      << trained.checkpoint;
}

// Asks all trainers to stop. The servers end as their trainers did.
void StopAll(const Processes& trainers, const Processes& servers) {
  for (const auto& trainer : trainers) trainer->Signal(SIGTERM);
  for (const auto& trainer : trainers) {
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kTerminated))
        << trainer->output();
  }
  for (const auto& server : servers) {
    EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(kTerminated))
        << server->output();
  }
}

// A command whose process goes by these failpoints (base/failpoint.h).
Flags WithFailpoints(const std::string& list, const Flags& command) {
  Flags all = {"/usr/bin/env", "WEFT_FAILPOINTS=" + list};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

TEST(Death, OfATrainerLetsAnotherTakeOverItsPartOfTheData) {
  const Job job;
  const std::string saved = job.Path("saved");
  const Processes servers = job.StartServers();
  const Processes trainers =
      job.StartTrainers({kForLong, "--checkpoint-dir=" + saved});
  AwaitTraining(*trainers[0]);
  trainers[1]->Signal(SIGKILL);
  EXPECT_THAT(
      trainers[0]->WaitForOutput("a trainer died; the others take over its "
                                 "part of the data trainer=trainer1 why=",
                                 kLong),
      IsOk());
  for (int epoch = 0; epoch < 4; ++epoch) {  // enough to learn by
    const auto before = Checkpoints(saved);
    ASSERT_TRUE(Becomes([&] { return Checkpoints(saved) != before; }));
  }
  Stop(*trainers[0]);
  EXPECT_GT(ResultOf(*trainers[0]).test_accuracy, 0.9);
  for (const auto& server : servers) {
    EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(kPeerLost));
    EXPECT_THAT(server->output(), HasSubstr("trainers died: trainer1"));
  }
}

// It stands still at its second checkpoint, so that it dies before the end.
TEST(Death, OfTheFirstTrainerHandsItsDutiesToTheNext) {
  const Job job;
  const std::string saved = job.Path("saved");
  const Flags flags = {"--epochs=6", "--checkpoint-dir=" + saved};
  const Processes servers = job.StartServers();
  const auto first = StartProcess(WithFailpoints(
      "checkpoint/before_rename=1*off->block", job.TrainerCommand(0, flags)));
  const auto next = job.StartTrainer(1, flags);
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }));
  first->Signal(SIGKILL);
  ASSERT_THAT(next->WaitForOutput("a trainer died; ", kLong), IsOk());
  EXPECT_THAT(next->Wait(kLong), IsOkAndHolds(0)) << next->output();
  const TrainerResult result = ResultOf(*next);
  EXPECT_GT(result.test_accuracy, 0.9);
  EXPECT_EQ(result.checkpoint, saved + "/" + Checkpoints(saved).back());
  EXPECT_THAT(result.checkpoint, EndsWith("-step-48"));
  for (const auto& server : servers) {
    EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(0)) << server->output();
    EXPECT_THAT(server->output(), HasSubstr("others have completed"));
  }
}

// A trainer that comes back joins where the others are: the result has the same
// bits as without its death, also for --resume, which restores nothing then.
void KillAndStartAgain(int rank) {
  const Job job;
  const std::string saved = job.Path("killed");
  const Flags flags = {kForLong, kKeepSome, "--checkpoint-dir=" + saved};
  const Processes servers = job.StartServers();
  Processes trainers = job.StartTrainers(flags);
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }));
  trainers[rank]->Signal(SIGKILL);
  Flags again = flags;
  again.push_back("--resume");
  trainers[rank] = job.StartTrainer(rank, again);
  EXPECT_THAT(trainers[rank]->WaitForOutput("joining the running job", kLong),
              IsOk());
  AwaitWholeEpoch(*trainers[0], saved, kSteps);
  // It is back: nobody is missing in the end.
  StopAll(trainers, servers);
  EXPECT_THAT(trainers[rank]->output(), Not(HasSubstr("resuming")));
  ExpectUndisturbed(job, saved);
}

TEST(Death, FirstTrainerThatComesBackJoinsTheRunningJobAndItsDuties) {
  KillAndStartAgain(0);
}

TEST(Death, OtherTrainerThatComesBackJoinsTheRunningJob) {
  KillAndStartAgain(1);
}

TEST(Death, OthersServeTheDataOfATrainerThatIsBackUntilItTrains) {
  const Job job;
  const std::string saved = job.Path("saved");
  const Flags flags = {kForLong, "--checkpoint-dir=" + saved, "--resume"};
  const Processes servers = job.StartServers();
  const Processes trainers = job.StartTrainers(flags);
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }));
  trainers[1]->Signal(SIGKILL);
  // As one that waits for a round which its predecessor gave to one server.
  const auto returned = StartProcess(
      WithFailpoints("launch/open_table=block", job.TrainerCommand(1, flags)));
  ASSERT_THAT(returned->WaitForOutput("joining the running job", kLong),
              IsOk());
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto before = Checkpoints(saved);
    ASSERT_TRUE(Becomes([&] { return Checkpoints(saved) != before; }));
  }
}

TEST(Death, TrainerThatComesBackToAnAsynchronousJobJoinsIt) {
  const Job job;
  const Processes servers = job.StartServers();
  const Flags flags = {"--async", kForLong};
  Processes trainers = job.StartTrainers(flags);
  AwaitTraining(*trainers[0]);
  trainers[0]->Signal(SIGKILL);
  trainers[0] = job.StartTrainer(0, flags);
  EXPECT_THAT(trainers[0]->WaitForOutput("joining the running job", kLong),
              IsOk());
  // Its steps are told from then on, each hundredth.
  EXPECT_THAT(trainers[0]->WaitForOutput("{\"step\":", kLong), IsOk());
  StopAll(trainers, servers);
  EXPECT_GT(ResultOf(*trainers[0]).test_accuracy, 0.9);
}

// Wherever it dies: each step still has each shard of the data once, and the
// mean is over as many as before.
TEST(Death, OfATrainerMidJobChangesNoBitOfTheResult) {
  const Job job;
  const std::string saved = job.Path("killed");
  const Processes servers = job.StartServers();
  const Processes trainers =
      job.StartTrainers({kForLong, kKeepSome, "--checkpoint-dir=" + saved});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }));
  trainers[1]->Signal(SIGKILL);
  EXPECT_THAT(trainers[0]->WaitForOutput("a trainer died", kLong), IsOk());
  AwaitWholeEpoch(*trainers[0], saved, kSteps);
  Stop(*trainers[0]);
  for (const auto& server : servers) {
    EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(kPeerLost));
  }
  ExpectUndisturbed(job, saved);
}

// The first line of the output that ends in the path of a dump.
std::string DumpOf(const Process& process) {
  for (absl::string_view line : absl::StrSplit(process.output(), '\n')) {
    const size_t at = line.find("flight recorder written to ");
    if (at == line.npos) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line.substr(at), ' ');
    return ReadBytes(std::string(words[4]));
  }
  return "";
}

TEST(Death, SignalDumpsTheFlightRecorderAndTheServerGoesOn) {
  const Job job;
  const Processes servers = job.StartServers();
  const Processes trainers = job.StartTrainers({kForLong});
  AwaitTraining(*trainers[0]);
  servers[1]->Signal(SIGUSR2);
  ASSERT_THAT(servers[1]->WaitForOutput("-0.flight", kLong), IsOk());
  servers[1]->Signal(SIGUSR2);
  ASSERT_THAT(servers[1]->WaitForOutput("-1.flight", kLong), IsOk());
  const std::string dump = DumpOf(*servers[1]);
  for (const char* what : {"rpc.serve", "rpc.reply", "ps.push", "ps.answer",
                           "trainer0", "Exchange"}) {
    EXPECT_THAT(dump, HasSubstr(what));
  }
  StopAll(trainers, servers);
}

TEST(Death, DeathOfAServerEndsTheTrainersWithItsName) {
  const Job job;
  const std::string saved = job.Path("saved");
  const Processes servers = job.StartServers();
  const Processes trainers =
      job.StartTrainers({kForLong, "--checkpoint-dir=" + saved});
  AwaitTraining(*trainers[0]);
  servers[1]->Signal(SIGKILL);
  for (const auto& trainer : trainers) {
    EXPECT_THAT(trainer->Wait(kSeconds), IsOkAndHolds(kPeerLost));
    EXPECT_THAT(trainer->output(), HasSubstr("error: ps1: "));
    EXPECT_THAT(trainer->output(),
                HasSubstr("with --resume to go on from " + saved));
    EXPECT_THAT(DumpOf(*trainer), ContainsRegex("rpc.(lost|gone) [^\n]* ps1"));
  }
  // Its trainers have left, and have not completed the training.
  EXPECT_THAT(servers[0]->Wait(kLong), IsOkAndHolds(kPeerLost))
      << servers[0]->output();
}

// A program of one's own whose server a supervisor starts again: a table of
// initial values must not pass for the one that was lost.
TEST(Death, OfAServerIsToldForGoodAlsoAfterItsRestart) {
  const Job job;
  Processes servers = job.StartServers();
  std::unique_ptr<worker::Worker> trainers[2];
  std::vector<std::thread> starts;
  for (int rank : {0, 1}) {
    starts.emplace_back([&, rank] {
      worker::Options options;
      options.job = job.name;
      options.rank = rank;
      options.servers = 2;
      options.trainers = 2;
      options.coordinator = job.coordinator;
      options.dump_dir = job.Path("");
      auto started = worker::Worker::Start(options);
      ASSERT_THAT(started, IsOk());
      trainers[rank] = *std::move(started);
    });
  }
  for (std::thread& start : starts) start.join();
  ASSERT_TRUE(trainers[0] != nullptr && trainers[1] != nullptr);
  const auto client_of = [&](int rank) {
    ps::ClientOptions options;
    options.agent = &trainers[rank]->agent();
    options.servers = {"ps0", "ps1"};
    options.rank = rank;
    return std::make_unique<ps::Client>(options);
  };
  ps::v1::TableSpec spec;
  spec.set_name("t");
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_dim(1);
  spec.set_mode(ps::v1::TableSpec::ASYNC);
  spec.set_partitions(16);
  spec.mutable_rule()->mutable_sgd()->set_lr(1.0);

  const auto client = client_of(0);
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(64, DType::kI64);  // of both servers
  ASSERT_THAT((*table)->Push(keys, Tensor::Ones({64, 1})).Wait(kLong), IsOk());

  servers[1]->Signal(SIGKILL);
  const auto is_lost = StatusIs(absl::StatusCode::kUnavailable,
                                "is gone, and with it all changes of its "
                                "tables since the last checkpoint");
  EXPECT_THAT((*table)->Pull(keys).Wait(kLong), is_lost);
  EXPECT_THAT(servers[1]->Wait(kLong), IsOk());
  servers[1] = job.StartServer(1);
  const auto other = client_of(1);
  EXPECT_TRUE(Becomes([&] {
    const auto anew = other->Sparse(spec);
    return anew.ok() && (*anew)->Pull(keys).Wait(kLong).ok();
  })) << servers[1]->output();
  EXPECT_THAT((*table)->Pull(keys).Wait(kLong), is_lost);
  EXPECT_THAT(client->Sparse(spec), is_lost);
}

// Any process of its host sees it end, without waiting for its silence.
TEST(Death, DeathOfTheCoordinatorsServerEndsAllOthersWithItsName) {
  const Job job;
  const Processes servers = job.StartServers();
  const std::string saved = job.Path("saved");
  const Processes trainers =
      job.StartTrainers({kForLong, "--checkpoint-dir=" + saved});
  AwaitTraining(*trainers[0]);
  servers[0]->Signal(SIGKILL);
  for (const auto& trainer : trainers) {
    EXPECT_THAT(trainer->Wait(kSeconds), IsOkAndHolds(kPeerLost));
    EXPECT_THAT(trainer->output(),
                HasSubstr("with --resume to go on from " + saved));
  }
  EXPECT_THAT(servers[1]->Wait(kSeconds), IsOkAndHolds(kPeerLost));
  EXPECT_THAT(servers[1]->output(), HasSubstr("go on from a checkpoint by "
                                              "--resume"));
  for (const auto* p :
       {servers[1].get(), trainers[0].get(), trainers[1].get()}) {
    EXPECT_THAT(p->output(),
                HasSubstr("the process of ps0, which hosted the coordinator, "
                          "has ended"));
    EXPECT_THAT(p->output(), Not(HasSubstr("the coordinator has been silent")));
  }
}

// Its log brings back the members, and not the tables.
TEST(Death, OfAServerThatIsStartedAgainFromTheCoordinatorsLogFailsTheJob) {
  Job job;
  job.flags = {"--coordinator-log=" + job.Path("log")};
  Processes servers = job.StartServers();
  const Processes trainers = job.StartTrainers({kForLong});
  AwaitTraining(*trainers[0]);
  servers[0]->Signal(SIGKILL);
  EXPECT_THAT(servers[0]->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  EXPECT_THAT(servers[1]->WaitForOutput("waiting for it to start again", kLong),
              IsOk());
  servers[0] = job.StartServer(0);
  for (const Processes* all :
       {&trainers, static_cast<const Processes*>(&servers)}) {
    for (const auto& p : *all) {
      EXPECT_THAT(p->Wait(kLong), IsOkAndHolds(kPeerLost)) << p->output();
    }
  }
}

TEST(Death, ByATermSignalSavesFirst) {
  const Job job;
  const std::string saved = job.Path("saved");
  const Processes servers = job.StartServers();
  const Processes trainers =
      job.StartTrainers({kForLong, "--checkpoint-dir=" + saved});
  AwaitTraining(*trainers[0]);
  for (const Processes* all : {&servers, &trainers}) {
    for (const auto& p : *all) p->Signal(SIGTERM);
  }
  for (const Processes* all : {&servers, &trainers}) {
    for (const auto& p : *all) {
      EXPECT_THAT(p->Wait(kSeconds), IsOkAndHolds(kTerminated)) << p->output();
    }
  }
  const TrainerResult result = ResultOf(*trainers[0]);
  EXPECT_TRUE(result.is_interrupted);
  EXPECT_THAT(trainers[0]->output(),
              HasSubstr("with --resume to go on from " + saved));
  ASSERT_FALSE(result.checkpoint.empty());
  EXPECT_TRUE(std::filesystem::exists(result.checkpoint + "/manifest.json"));
}

TEST(Death, ByASecondInterruptIsAtOnce) {
  Job job;
  job.servers = 1;
  job.trainers = 1;
  const auto server = job.StartServer(0);
  const auto trainer = job.StartTrainer(0, {kForLong});
  AwaitTraining(*trainer);
  server->Signal(SIGINT);
  ASSERT_THAT(server->WaitForOutput("serving until the trainers have left, for "
                                    "20s (--grace) at most; Ctrl-C again ends "
                                    "it at once",
                                    kLong),
              IsOk());
  server->Signal(SIGINT);
  EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(128 + SIGINT));
}

std::string MarkOf(const Job& job) { return "WEFT_TEST_JOB=" + job.data; }

// `weft run` of the job.
std::unique_ptr<Process> RunJob(const Job& job, const std::string& flags,
                                const Flags& run_flags = {},
                                const std::string& server_flags = "") {
  Flags command = {"/usr/bin/env", MarkOf(job), Program("weft"), "run"};
  command.insert(command.end(), run_flags.begin(), run_flags.end());
  command.push_back(
      absl::StrCat("--role=ps=", job.servers, ":", Program("parameter_server"),
                   " --checkpoint-dir=", job.Path(""), " ", server_flags));
  command.push_back(absl::StrCat("--role=trainer=", job.trainers, ":",
                                 Program("trainer"), " --data=", job.data,
                                 " --batch-size=16 --lr=0.01 --json ", flags));
  return StartProcess(std::move(command));
}

// Empty for what has ended, or is another user's.
std::string ReadProc(const std::string& id, const std::string& file) {
  std::ifstream in("/proc/" + id + "/" + file);
  // Its iterators would throw where the process ends while it is read.
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The ids of the processes of `job`: what `weft run` starts inherits the mark.
std::vector<std::string> RunningFor(const Job& job) {
  std::vector<std::string> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string id = entry.path().filename();
    if (absl::StrContains(ReadProc(id, "environ"), MarkOf(job))) {
      ids.push_back(id);
    }
  }
  return ids;
}

TEST(WeftRun, TrainsAndEndsWithTheResult) {
  const Job job;
  const auto run = RunJob(job, "--epochs=3");
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("[trainer0] {\"test_accuracy\":"));
  EXPECT_THAT(run->output(), Not(HasSubstr("[trainer1] {")));
}

TEST(WeftRun, SetsTheEnvironmentOfAnyProgram) {
  const auto run = StartProcess(
      {Program("weft"), "run", "--nproc-per-node=2", "/bin/sh", "-c",
       "echo $WEFT_ROLE $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
       "at $MASTER_ADDR, $WEFT_COORDINATOR"});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(run->output(), HasSubstr(absl::StrCat(
                                   "[trainer", rank, "] trainer ", rank, "/2 ",
                                   rank, "/2 at 127.0.0.1, unix:/")));
  }
}

TEST(WeftRun, PassesATermSignalOnAndAllIsSaved) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run =
      RunJob(job, absl::StrCat(kForLong, " --checkpoint-dir=", saved));
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  Stop(*run);
  EXPECT_THAT(run->output(), Not(HasSubstr("error: ")));
  const std::string output = run->output();
  const auto names = Checkpoints(saved);  // of the epochs before, too
  ASSERT_FALSE(names.empty());
  EXPECT_THAT(output, HasSubstr(absl::StrCat("\"checkpoint\":\"", saved, "/",
                                             names.back(),
                                             "\",\"interrupted\":true}")));
  // The last line of progress says how many images it has come to.
  const size_t last = output.rfind("[trainer0] training ");
  int64_t images = 0;
  ASSERT_EQ(sscanf(output.c_str() + last, "[trainer0] training %*d%% %" SCNd64,
                   &images),
            1);
  // A later one if trainer1 made a step after trainer0 had left: it saves then.
  const size_t number = names.back().rfind('-') + 1;
  int64_t step = 0;
  ASSERT_TRUE(absl::SimpleAtoi(names.back().substr(number), &step));
  EXPECT_GE(step, images / (2 * Job::kBatch)) << output;
}

TEST(WeftRun, NamesTheRankThatFailed) {
  Job job;
  job.data = job.Path("nowhere");
  const auto run = RunJob(job, "");
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(3)) << run->output();
  EXPECT_THAT(run->output(), ContainsRegex("trainer[01] failed first"));
  EXPECT_THAT(run->output(), HasSubstr("wanted --data=DIR"));
}

TEST(WeftRun, ReportsAnExitThatItHasSeenWithoutWaitingForSilence) {
  const Job job;
  const auto run = RunJob(job, kForLong);
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  pid_t victim = 0;
  for (const std::string& id : RunningFor(job)) {
    const std::string environment = ReadProc(id, "environ");
    if (absl::StrContains(environment, "WEFT_ROLE=trainer") &&
        absl::StrContains(environment, "WEFT_RANK=1")) {
      ASSERT_TRUE(absl::SimpleAtoi(id, &victim));
    }
  }
  ASSERT_NE(victim, 0);
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  // The coordinator looks itself, too: "killed by SIGKILL" may come too late.
  EXPECT_THAT(run->output(),
              HasSubstr("trainer1 is gone: its process has ended"));
}

// The process of `job` that has this role and rank.
pid_t RankOf(const Job& job, const std::string& role, int rank) {
  pid_t found = 0;
  for (const std::string& id : RunningFor(job)) {
    const std::string environment = ReadProc(id, "environ");
    if (absl::StrContains(environment, "WEFT_ROLE=" + role) &&
        absl::StrContains(environment, absl::StrCat("WEFT_RANK=", rank))) {
      EXPECT_TRUE(absl::SimpleAtoi(id, &found));
    }
  }
  EXPECT_NE(found, 0) << role << rank;
  return found;
}

// Its servers know the parts of the others' data, and the job is whole.
TEST(WeftRun, AJobOfTablesGoesOnWithoutATrainerThatDied) {
  Job job;
  job.trainers = 3;
  const auto run = RunJob(job, kForLong, {"--allow-trainer-exits=1"});
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  ASSERT_EQ(kill(RankOf(job, "trainer", 1), SIGKILL), 0);
  for (const char* text :
       {"trainer1 failed: killed by SIGKILL; the others go on without it",
        "the others take over its part", "[trainer0] {\"step\":"}) {
    EXPECT_THAT(run->WaitForOutput(text, kLong), IsOk());
  }
  Stop(*run);
  EXPECT_THAT(run->output(), HasSubstr("[trainer0] {\"test_accuracy\":"));
}

// Where nobody is told that ps0 is gone, for its coordinator went with it, its
// processes are seen to end.
TEST(WeftRun, DeathOfTheCoordinatorsServerDelaysNoRestartThoughThereIsALog) {
  const Job job;
  const auto run =
      RunJob(job, kForLong,
             {"--max-restarts=1", "--job=logged",
              "--coordinator=" + job.coordinator, "--no-own-coordinator"},
             "--grace=5m --coordinator-log=" + job.Path("log"));
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  ASSERT_EQ(kill(RankOf(job, "ps", 0), SIGKILL), 0);
  ASSERT_THAT(run->WaitForOutput("restart 1 of 1", kLong), IsOk());
  // A server waited --grace for trainers that had ended.
  EXPECT_THAT(run->output(), Not(HasSubstr("killed, as it did not end")));
  Stop(*run);
}

// Of the process that hosts the coordinator of `job`; 0: there is none now.
pid_t CoordinatorOf(const Job& job) {
  for (const std::string& id : RunningFor(job)) {
    const std::string command = ReadProc(id, "cmdline");
    pid_t found = 0;
    if (absl::StrContains(command, std::string("\0coordinator\0", 13)) &&
        absl::SimpleAtoi(id, &found)) {
      return found;
    }
  }
  return 0;
}

TEST(WeftRun, CoordinatorThatIsKilledIsStartedAgainAndChangesNoBit) {
  const Job job;
  const std::string saved = job.Path("killed");
  const auto run = RunJob(
      job, absl::StrCat(kForLong, " ", kKeepSome, " --checkpoint-dir=", saved));
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  // A third end soon after its start would be taken for one that cannot run.
  for (int kills = 0; kills < 2; ++kills) {
    pid_t coordinator = 0;
    ASSERT_TRUE(Becomes([&] {
      coordinator = CoordinatorOf(job);
      return coordinator != 0;
    })) << run->output();
    ASSERT_EQ(kill(coordinator, SIGKILL), 0);
    ASSERT_TRUE(Becomes([&] {
      const pid_t next = CoordinatorOf(job);
      return next != 0 && next != coordinator;
    })) << run->output();
  }
  AwaitWholeEpoch(*run, saved, kSteps);
  Stop(*run);
  EXPECT_THAT(run->output(),
              HasSubstr("coordinator0 has ended: killed by SIGKILL; starting "
                        "it again"));
  ExpectUndisturbed(job, saved);
}

// The others learn which server it was, and who that server's death makes end
// says so: the coordinator is still there.
TEST(WeftRun, DeathOfServerZeroTakesNoCoordinatorAlong) {
  const Job job;
  const auto run = RunJob(job, kForLong);
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  ASSERT_EQ(kill(RankOf(job, "ps", 0), SIGKILL), 0);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  EXPECT_THAT(run->output(), HasSubstr("ps0 failed first"));
  EXPECT_THAT(run->output(), HasSubstr("ps0 is gone"));
  EXPECT_THAT(run->output(), Not(HasSubstr("coordinator is lost")));
  EXPECT_THAT(run->output(), Not(HasSubstr("coordinator0 has ended")));
}

// Without weft run: its workers name it by --coordinator-host.
TEST(WeftCoordinator, WorkersOutliveItAndMeetInItAgain) {
  const Job job;
  const auto start = [&] {
    return StartProcess({Program("weft"), "coordinator", "--job=alone",
                         "--coordinator=" + job.coordinator,
                         "--coordinator-log=" + job.Path("log")});
  };
  auto coordinator = start();
  ASSERT_THAT(coordinator->WaitForOutput("job alone meets at unix:", kLong),
              IsOk());
  std::vector<std::unique_ptr<worker::Worker>> workers(2);
  const auto each = [&](const auto& run) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) threads.emplace_back(run, rank);
    for (std::thread& thread : threads) thread.join();
  };
  each([&](int rank) {
    worker::Options options;
    options.job = "alone";
    options.rank = rank;
    options.trainers = 2;
    options.coordinator = job.coordinator;
    options.coordinator_host = worker::kCoordinatorName;
    auto started = worker::Worker::Start(options);
    ASSERT_THAT(started, IsOk());
    workers[rank] = *std::move(started);
  });
  ASSERT_FALSE(HasFailure());
  for (int kills = 0; kills < 3; ++kills) {
    coordinator->Signal(SIGKILL);
    ASSERT_THAT(coordinator->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
    coordinator = start();
    each([&](int rank) {
      EXPECT_THAT(workers[rank]->AwaitAll(absl::StrCat("after ", kills), kLong),
                  IsOk());
    });
  }
  each([&](int rank) {
    EXPECT_THAT(workers[rank]->Shutdown().status(), IsOk());
  });
  coordinator->Signal(SIGTERM);
  EXPECT_THAT(coordinator->Wait(kLong), IsOkAndHolds(0));
}

TEST(WeftCoordinator, AddressInUseAndBadFlagsAreSaid) {
  const Job job;
  const auto start = [&](const Flags& more) {
    Flags command = {Program("weft"), "coordinator",
                     "--coordinator=" + job.coordinator};
    command.insert(command.end(), more.begin(), more.end());
    return StartProcess(std::move(command));
  };
  const auto first = start({"--job=a"});
  ASSERT_THAT(first->WaitForOutput("job a meets at", kLong), IsOk());
  const auto second = start({"--job=b"});
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(kConfig));
  EXPECT_THAT(second->output(), HasSubstr("in use"));
  EXPECT_THAT(second->output(), HasSubstr("--coordinator"));
  const auto unknown = start({"--job=b", "--epochs=3"});
  EXPECT_THAT(unknown->Wait(kLong), IsOkAndHolds(2));
  EXPECT_THAT(unknown->output(), HasSubstr("--epochs"));
  first->Signal(SIGTERM);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(0));
}

TEST(WeftRun, ASecondOneOfTheJobHarmsNothing) {
  const Job job;
  const auto run = [&](const std::string& flags) {
    return StartProcess(
        {Program("weft"), "run", "--job=twice",
         "--coordinator=" + job.coordinator,
         absl::StrCat("--role=ps=1:", Program("parameter_server")),
         absl::StrCat("--role=trainer=1:", Program("trainer"),
                      " --data=", job.data, " --batch-size=16 ", flags)});
  };
  const auto first = run(kForLong);
  ASSERT_THAT(first->WaitForOutput("[trainer0] training ", kLong), IsOk());
  const auto second = run("--epochs=1");
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(3)) << second->output();
  EXPECT_THAT(second->output(), HasSubstr("already"));
  // Its coordinator has received the reports of those ends by now.
  EXPECT_THAT(first->Wait(absl::Seconds(3)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(first->output(), Not(HasSubstr("gone")));
  first->Signal(SIGTERM);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(128 + SIGTERM));
}

TEST(WeftRun, KilledLeavesNoOrphan) {
  const Job job;
  const auto run = RunJob(job, kForLong);
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  EXPECT_THAT(RunningFor(job), SizeIs(::testing::Ge(5)));
  run->Signal(SIGKILL);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  const absl::Time deadline = absl::Now() + kSeconds;
  while (!RunningFor(job).empty() && absl::Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_THAT(RunningFor(job), SizeIs(0));
}

}  // namespace
}  // namespace weft::testing
