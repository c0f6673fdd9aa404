// Processes that end in the middle of the main job, and what the others do.

#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/client.h"
#include "weft/tests/job/endings.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/worker.h"

namespace weft::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

void AwaitTraining(Process& trainer0) {
  ASSERT_THAT(trainer0.WaitForOutput("training ", kLong), IsOk());
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
  // It blocks like one that waits for a round whose part its predecessor gave
  // to one server only.
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

}  // namespace
}  // namespace weft::testing
