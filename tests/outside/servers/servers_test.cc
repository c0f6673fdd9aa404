// weft servers in clumsy hands: while servers die, on jobs that have nothing to
// move, by names that there are not. What is promised is quoted from
// docs/cli.md.

#include <signal.h>
#include <sys/stat.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// docs/cli.md, "Exit codes".
constexpr int kUsage = 2, kConfig = 3;

struct Ended {
  int code = -1;
  std::string output;
};

class Servers : public ::testing::Test {
 protected:
  Servers() { mkdir(job_.Path("run").c_str(), 0700); }

  std::unique_ptr<Process> Weft(std::vector<std::string> words) const {
    words.insert(words.begin(), Program("weft"));
    auto process = Process::Start(
        {std::move(words), {"XDG_RUNTIME_DIR=" + job_.Path("run")}});
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }
  static Ended Finish(Process& process) {
    const auto code = process.Wait(kLong);
    EXPECT_THAT(code, IsOk()) << process.output();
    return {code.ok() ? *code : -1, process.output()};
  }
  std::unique_ptr<Process> Ask(std::vector<std::string> words) const {
    words.insert(words.begin(), "servers");
    words.push_back("--job=moved");
    return Weft(std::move(words));
  }
  Ended Run(std::vector<std::string> words) const {
    return Finish(*Ask(std::move(words)));
  }

  // A training that goes on until it is stopped.
  void Train(int servers) {
    Start(servers, 2);
    AwaitTwoCopies();
  }
  void Start(int servers, int replicas) {
    run_ = Weft(
        {"run", "--job=moved", absl::StrCat("--replicas=", replicas), "--role",
         absl::StrCat("ps=", servers, ":", Program("parameter_server")),
         "--role",
         absl::StrCat("trainer=1:", Program("trainer"), " --data=", job_.data,
                      " --batch-size=16 ", kForLong)});
  }
  void AwaitTwoCopies() const {
    EXPECT_TRUE(Becomes([&] {
      const Ended list = Run({"list", "--json"});
      if (list.code != 0) return false;
      const json map = json::parse(list.output);
      int live = 0;
      for (const json& server : map["servers"]) {
        live += server["state"] == "live" ? 1 : 0;
      }
      return live == 3 && map["single"] == 0 && map["lost"] == 0;
    })) << run_->output();
  }

  // "A drained server is made a backup only where no other server is left"
  // (docs/replication.md): the drain may end just before another server dies,
  // whose copies the drained one has until that other one is back.
  void AwaitNothingAt(const std::string& name) const {
    std::string last;
    EXPECT_TRUE(Becomes([&] {
      const Ended list = Run({"list", "--json"});
      if (list.code != 0) return false;
      last = list.output;
      const json map = json::parse(list.output);
      for (const json& server : map["servers"]) {
        if (server["name"] != name) continue;
        return server["drained"] == true && server["primary"] == 0 &&
               server["backup"] == 0 && server["filling"] == 0;
      }
      return false;
    })) << last;
  }

  Job job_;
  std::unique_ptr<Process> run_;
};

// "with --wait the command ends once ps1 has nothing and may be stopped, or
// with an error after that time": whatever becomes of the server that it asks.
TEST_F(Servers, DrainGoesOnWhereTheServerThatIsAskedDies) {
  Train(3);
  // Of a third death within 2 s of a start the job might end.
  for (int i = 0; i < 2; ++i) {
    const std::string drained = absl::StrCat("ps", 1 + i);
    SCOPED_TRACE(drained);
    const auto drain = Ask({"drain", drained, "--wait=60s"});
    absl::SleepFor(absl::Milliseconds(100 + 40 * i));
    KillWorker(*run_, "ps", 0);
    const Ended ended = Finish(*drain);
    // It may not have been asked yet: then two others are not there.
    EXPECT_THAT(ended.code, AnyOf(0, kConfig)) << ended.output;
    EXPECT_THAT(ended.output,
                HasSubstr(ended.code == 0 ? "has nothing: it may be stopped"
                                          : "cannot be drained"));
    if (ended.code == 0) AwaitNothingAt(drained);
    EXPECT_EQ(Run({"add", drained}).code, 0);
    AwaitTwoCopies();
  }
  Stop(*run_);
}

// "A server that stops, dies or comes meanwhile holds it up [...] until those
// that are there have two copies of everything; then it goes on with those":
// also where it is the one that was asked.
TEST_F(Servers, BalanceGoesOnWithThoseThatAreLeftWhereAServerStops) {
  Train(3);
  for (const int victim : {2, 0}) {
    SCOPED_TRACE(victim);
    // ps1 has nothing then.
    ASSERT_EQ(Run({"drain", "ps1", "--wait=60s"}).code, 0);
    ASSERT_EQ(Run({"add", "ps1"}).code, 0);
    std::unique_ptr<Process> balance;
    // Once there is a load that can be measured.
    ASSERT_TRUE(Becomes([&] {
      balance = Ask({"balance", "--wait=3m"});
      return balance->WaitForOutput(" to ps1", absl::Seconds(5)).ok();
    })) << balance->output();
    const pid_t stopped = FindWorker(*run_, "ps", victim);
    ASSERT_GT(stopped, 0);
    ASSERT_EQ(kill(stopped, SIGSTOP), 0);
    const Ended ended = Finish(*balance);
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("nothing to move: ")) << ended.output;
    EXPECT_EQ(kill(stopped, SIGCONT), 0);
    AwaitTwoCopies();
  }
  Stop(*run_);
}

// "A job with `--replicas=1` is refused (exit code 3)": it says what can be
// done there.
TEST_F(Servers, OfAJobWithOneReplicaItIsSaidWhatIsPossible) {
  Start(2, 1);
  ASSERT_THAT(run_->WaitForOutput("training ", kLong), IsOk());
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{
           {"list"}, {"drain", "ps1"}, {"add", "ps1"}, {"balance"}}) {
    SCOPED_TRACE(words[0]);
    const Ended ended = Run(words);
    EXPECT_EQ(ended.code, kConfig) << ended.output;
    EXPECT_THAT(ended.output,
                AllOf(HasSubstr("job moved has --replicas=1, as ps"),
                      HasSubstr("start it again from its checkpoint"),
                      HasSubstr("weft status --tables")));
  }
  EXPECT_EQ(Finish(*Weft({"status", "--tables", "--job=moved"})).code, 0);
  Stop(*run_);
}

// "3 for a worker, function or job that is not there", "It is refused unless
// two other servers are there that are not drained".
TEST_F(Servers, WhatCannotBeIsRefusedAndChangesNothing) {
  Train(3);
  for (const char* name : {"ps3", "trainer0", "coordinator0", "ps", "", "PS0",
                           "ps00", "ps-1", "ps99999999999999999999"}) {
    for (const char* verb : {"drain", "add"}) {
      const Ended ended = Run({verb, name});
      EXPECT_EQ(ended.code, kConfig) << name << ended.output;
      EXPECT_THAT(ended.output, HasSubstr("there are: ps0, ps1, ps2"));
    }
  }
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"drain", "ps0", "ps1"},
                                             {"drain", "ps0", "--wait=-1s"},
                                             {"add", "ps0", "--dry-run"}}) {
    EXPECT_EQ(Run(words).code, kUsage) << words.back();
  }
  // All of them at once: one is drained, and the others are refused.
  std::vector<std::unique_ptr<Process>> drains;
  for (const char* name : {"ps0", "ps1", "ps2", "ps0"}) {
    drains.push_back(Ask({"drain", name, "--wait=60s"}));
  }
  int done = 0;
  for (const auto& drain : drains) {
    const Ended ended = Finish(*drain);
    EXPECT_THAT(ended.code, AnyOf(0, kConfig)) << ended.output;
    done += ended.code == 0 ? 1 : 0;
  }
  EXPECT_THAT(done, AnyOf(1, 2));  // ps0 twice
  const json map = json::parse(Run({"list", "--json"}).output);
  int drained = 0;
  for (const json& server : map["servers"]) {
    drained += server["drained"].get<bool>() ? 1 : 0;
  }
  EXPECT_EQ(drained, 1) << map;
  EXPECT_EQ(map["lost"], 0);
  Stop(*run_);
}

}  // namespace
}  // namespace weft::testing
