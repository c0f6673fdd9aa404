// Clients that are not workers, as users run them.

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "examples/cpp_client/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/rpc/function.h"
#include "weft/rpc/handle.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/test_functions.h"
#include "weft/worker/worker.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(100);
constexpr int kUsage = 2;
constexpr int kConfig = 3;
constexpr int kPeerLost = 10;
constexpr int kTimeout = 11;
constexpr int kAuth = 12;

std::unique_ptr<Process> Start(std::vector<std::string> argv) {
  auto process = Process::Start({std::move(argv), {"OMP_NUM_THREADS=1"}});
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

struct Ended {
  int code = -1;
  std::string output;
};

Ended RunToEnd(std::vector<std::string> argv) {
  const auto process = Start(std::move(argv));
  const auto code = process->Wait(kLong);
  EXPECT_THAT(code, IsOk());
  return {code.ok() ? *code : -1, process->output()};
}

Ended Weft(std::vector<std::string> words) {
  words.insert(words.begin(), RunfilePath("launch/weft"));
  return RunToEnd(std::move(words));
}

class Clients : public ::testing::Test {
 protected:
  // The example's worker, in a job of its own.
  void StartWorker(std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(),
                 {RunfilePath("examples/cpp_client/worker"), "--job=demo"});
    if (flags.size() == 2) flags.push_back("--coordinator=" + address_);
    worker_ = Start(std::move(flags));
    ASSERT_THAT(worker_->WaitForOutput("serving at ", kLong), IsOk());
    // The line may come in parts.
    EXPECT_TRUE(Becomes([&] {
      const std::string output = worker_->output();
      const size_t begin = output.find("serving at ") + 11;
      const size_t end = output.find('\n', begin);
      if (end == output.npos) return false;
      address_ = output.substr(begin, end - begin);
      return true;
    }));
  }

  // `weft certs init` of job demo, with a client0.
  Ended MakeCertificates(const std::string& certs, int trainers) {
    return Weft({"certs", "init", "--dir=" + certs, "--job=demo", "--servers=0",
                 absl::StrCat("--trainers=", trainers), "--clients=1"});
  }

  // `weft call` of the worker.
  Ended Call(std::vector<std::string> words) {
    words.insert(words.begin(), {"call", address_});
    return Weft(std::move(words));
  }

  TempDir dir_;
  std::string address_ = "unix:" + dir_.Path("worker.sock");
  std::unique_ptr<Process> worker_;
};

TEST_F(Clients, TheCppClientCallsAWorkerThatItDoesNotJoin) {
  StartWorker();
  const Ended client =
      RunToEnd({RunfilePath("examples/cpp_client/client"), address_});
  EXPECT_EQ(client.code, 0);
  EXPECT_EQ(client.output, "0.5 1 1.5 \nto: 2\n");
}

// Its program names neither: they come with the agent.
TEST_F(Clients, AnyWorkerKeepsAndReleasesResults) {
  StartWorker();
  const auto client = rpc::Client::Connect(address_);
  ASSERT_THAT(client.status(), IsOk());
  const auto root = rpc::Remote((*client)->To(kLong), example::SquareRoot, 4.0);
  ASSERT_THAT(root.status(), IsOk());
  EXPECT_THAT(rpc::Fetch(*root), IsOkAndHolds(2.0));
  EXPECT_THAT(rpc::Release(*root), IsOk());
}

TEST_F(Clients, OverTcpTheCppClientShowsItsCertificate) {
  const std::string certs = dir_.Path("certs");
  ASSERT_EQ(MakeCertificates(certs, 1).code, 0);
  // One more; those that are there stay.
  const Ended more = MakeCertificates(certs, 2);
  EXPECT_EQ(more.code, 0) << more.output;
  EXPECT_THAT(more.output, HasSubstr("for 1 members"));
  const Ended none_more = MakeCertificates(certs, 2);
  EXPECT_EQ(none_more.code, 0) << none_more.output;
  EXPECT_THAT(none_more.output,
              HasSubstr("all 5 members of job demo were there"));
  StartWorker({"--coordinator=127.0.0.1:0", "--certs=" + certs});
  const Ended client =
      RunToEnd({RunfilePath("examples/cpp_client/client"), address_,
                "--certs=" + certs, "--as=client0", "--worker=trainer0"});
  EXPECT_EQ(client.code, 0) << client.output;
  const Ended shell =
      Call({"SquareRoot", "[9]", "--name=trainer0", "--certs=" + certs});
  EXPECT_EQ(shell.code, 0) << shell.output;
  EXPECT_EQ(shell.output, "3.0\n");
  const Ended health = Weft(
      {"health", address_, "--name=trainer0", "--json", "--certs=" + certs});
  EXPECT_EQ(health.code, 0) << health.output;
  EXPECT_EQ(nlohmann::json::parse(health.output)["status"], "SERVING");
  const Ended none = Call({"SquareRoot", "[9]"});
  EXPECT_EQ(none.code, kAuth);
  EXPECT_THAT(none.output, HasSubstr("weft certs init"));
}

TEST_F(Clients, MismatchOverTcpSaysWhichFlagToGive) {
  const std::string certs = dir_.Path("certs");
  ASSERT_EQ(MakeCertificates(certs, 1).code, 0);
  StartWorker({"--coordinator=127.0.0.1:0", "--certs=" + certs});
  const std::string here = "--coordinator=" + address_;
  const std::string shown = "--certs=" + certs;
  const std::string cpp = RunfilePath("examples/cpp_client/client");
  const struct {
    Ended ended;
    int code;
    const char* says;
  } kMisfits[] = {
      {Weft({"status", "--job=demo", here, shown}), kAuth,
       "--name says who it is: coordinator0 hosts the coordinator of a job "
       "that "
       "weft run started, otherwise ps0, or trainer0 of a job without servers"},
      {Weft({"status", here, shown}), kAuth,
       "is for admin0 of job \"demo\", wanted job \"weft\"; give --job=demo"},
      {RunToEnd({RunfilePath("examples/cpp_client/worker"), shown, here}),
       kAuth, "is for trainer0 of job \"demo\", wanted job \"weft\""},
      {Weft({"health", address_, shown, "--insecure"}), kUsage,
       "mean opposite things"},
      {Weft({"run", "--nproc-per-node=1", shown, "--insecure", "/bin/true"}),
       kUsage, "mean opposite things"},
      {Weft({"run", "--nproc-per-node=1", shown, "/bin/true"}), kUsage,
       "is of one job: give its name by --job"},
      {Weft({"run", "--nproc-per-node=1", "--job=No_Such", "/bin/true"}),
       kUsage, "wanted 1 to 63 of [a-z0-9-]"},
      {Weft({"certs", "init", "--dir=" + certs, "--job=No_Such"}), kUsage,
       "wanted 1 to 63 of [a-z0-9-]"},
      {RunToEnd({cpp, address_}), kAuth, "TCP needs certificates"},
      {RunToEnd({cpp, address_, "--certs=" + dir_.Path("none")}), kAuth,
       "weft certs init"},
      {RunToEnd({cpp}), kUsage, "wanted ADDRESS"},
  };
  for (const auto& misfit : kMisfits) {
    EXPECT_EQ(misfit.ended.code, misfit.code) << misfit.ended.output;
    EXPECT_THAT(misfit.ended.output, HasSubstr(misfit.says));
    EXPECT_THAT(misfit.ended.output, Not(HasSubstr("gRPC:")));
  }
}

TEST_F(Clients, AnUnknownFlagOfTheExamplesIsRefused) {
  for (const char* program : {"client", "worker"}) {
    const Ended ended =
        RunToEnd({RunfilePath(absl::StrCat("examples/cpp_client/", program)),
                  "--cert=none"});
    EXPECT_EQ(ended.code, kUsage);
    EXPECT_THAT(ended.output, HasSubstr("did you mean --certs?"));
  }
}

TEST_F(Clients, StatusFindsAJobAsItsWorkersDo) {
  const std::string meeting = "--init=file://" + dir_.Path("meeting");
  StartWorker({meeting, "--listen=" + address_});
  const Ended by_file = Weft({"status", "--job=demo", meeting});
  EXPECT_EQ(by_file.code, 0) << by_file.output;
  EXPECT_THAT(by_file.output, HasSubstr("1/1 joined"));
  const Ended both =
      Weft({"status", "--job=demo", meeting, "--coordinator=" + address_});
  EXPECT_EQ(both.code, kUsage) << both.output;
  EXPECT_THAT(both.output, HasSubstr("both say where the job meets"));
  const auto by_environment =
      Process::Start({{RunfilePath("launch/weft"), "status", "--job=demo"},
                      {"MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}});
  ASSERT_THAT(by_environment, IsOk());
  EXPECT_THAT((*by_environment)->Wait(kLong), IsOkAndHolds(kAuth));
  EXPECT_THAT((*by_environment)->output(), HasSubstr("127.0.0.1:1"));
}

TEST_F(Clients, TrainerHostsTheCoordinatorOfAJobWithoutServers) {
  const Ended ended =
      RunToEnd({RunfilePath("examples/cpp_client/worker"), "--trainers=2",
                "--rank=1", "--coordinator=" + address_, "--join-timeout=1s"});
  EXPECT_EQ(ended.code, kTimeout);
  EXPECT_THAT(ended.output, HasSubstr("is trainer0 running, with this"));
}

TEST_F(Clients, UnknownJobIsNamed) {
  const Ended ended = Weft({"status", "--job=no-such-job"});
  EXPECT_EQ(ended.code, kPeerLost);
  EXPECT_THAT(ended.output, HasSubstr("It follows from --job=no-such-job"));
  const Ended name = Weft({"status", "--job=No_Such"});
  EXPECT_EQ(name.code, kUsage);
  EXPECT_THAT(name.output, HasSubstr("job name \"No_Such\": wanted 1 to 63"));
}

TEST_F(Clients, CertificateWithoutRightsIsPermissionDenied) {
  const std::string certs = dir_.Path("certs");
  ASSERT_EQ(MakeCertificates(certs, 1).code, 0);
  ASSERT_EQ(Weft({"certs", "revoke", "--dir=" + certs, "--name=client0"}).code,
            0);
  StartWorker({"--coordinator=127.0.0.1:0", "--certs=" + certs});
  for (const std::string& how :
       {std::string("--insecure"), "--certs=" + certs + "/client0"}) {
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"health", address_},
          {"call", address_, "SquareRoot", "[4]"},
          {"status", "--job=demo", "--coordinator=" + address_}}) {
      std::vector<std::string> all = words;
      all.insert(all.end(), {"--name=trainer0", how});
      const Ended ended = Weft(all);
      EXPECT_EQ(ended.code, kAuth) << ended.output;
      EXPECT_THAT(ended.output, HasSubstr("it wants a certificate of its job"));
    }
  }
}

TEST_F(Clients, TheShellListsAndCallsFunctions) {
  StartWorker();
  const Ended list = Call({});
  EXPECT_EQ(list.code, 0);
  EXPECT_THAT(list.output, HasSubstr("example::Scale  tensor(tensor, f64)\n"));
  const Ended json_list = Call({"--json"});
  EXPECT_EQ(nlohmann::json::parse(json_list.output)["worker"], "trainer0");

  EXPECT_EQ(
      Call({"Scale", "[[[1, 2], [3, 4]], 0.5]"}).output,
      "{\"dtype\":\"f32\",\"shape\":[2,2],\"values\":[0.5,1.0,1.5,2.0]}\n");
  EXPECT_EQ(
      Call({"Scale", "[{\"dtype\": \"f64\", \"values\": [3]}, 2]"}).output,
      "{\"dtype\":\"f64\",\"shape\":[1],\"values\":[6.0]}\n");
  EXPECT_EQ(Call({"example::CountWords", "[[\"a\", \"b\", \"a\"]]"}).output,
            "{\"a\":2,\"b\":1}\n");
}

TEST_F(Clients, TheShellReadsArgumentsFromAFileOrStandardInput) {
  StartWorker();
  const std::string file = dir_.Path("arguments.json");
  std::ofstream(file) << "[9]\n";
  EXPECT_EQ(Call({"SquareRoot", "@" + file}).output, "3.0\n");
  const Ended piped = RunToEnd({"/bin/sh", "-c",
                                "echo '[16]' | \"$0\" call \"$1\" SquareRoot -",
                                RunfilePath("launch/weft"), address_});
  EXPECT_EQ(piped.output, "4.0\n");
  const Ended missing = Call({"SquareRoot", "@" + dir_.Path("nowhere")});
  EXPECT_EQ(missing.code, kUsage);
  EXPECT_THAT(missing.output, HasSubstr("No such file"));
}

TEST_F(Clients, AWorkerIsFoundByItsName) {
  StartWorker();
  const std::string coordinator = "--coordinator=" + address_;
  const Ended found = Weft({"call", "trainer0", "SquareRoot", "[4]",
                            "--job=demo", coordinator, "--name=trainer0"});
  EXPECT_EQ(found.code, 0) << found.output;
  EXPECT_EQ(found.output, "2.0\n");
  const Ended unknown =
      Weft({"call", "ps7", "SquareRoot", "[4]", "--job=demo", coordinator});
  EXPECT_EQ(unknown.code, kConfig);
  EXPECT_THAT(unknown.output,
              HasSubstr("has no worker \"ps7\"; there are: trainer0"));
}

TEST_F(Clients, ASlipOfTheShellGetsOneClearMessage) {
  StartWorker();
  const struct {
    std::vector<std::string> words;
    int code;
    const char* says;
  } kSlips[] = {
      {{"SquareRot", "[4]"}, kConfig, "did you mean SquareRoot?"},
      {{"SquareRoot", "[4"}, kUsage, "found no JSON: [4"},
      {{"SquareRoot", "4"}, kUsage, "wanted a JSON array of 1 arguments"},
      {{"SquareRoot"}, kUsage, "found one of 0"},
      {{"SquareRoot", "[\"four\"]"}, kUsage, "argument 1: wanted f64"},
      {{"Scale", "[[[1], [2, 3]], 1]"}, kUsage, "wanted an array of 1"},
      {{"SquareRoot", "[-4]"},
       kConfig,
       "trainer0: example::SquareRoot: wanted x >= 0, found -4"},
      {{"SquareRoot", "[4]", "more"}, kUsage, "wanted ADDRESS"}};
  for (const auto& slip : kSlips) {
    const Ended ended = Call(slip.words);
    EXPECT_EQ(ended.code, slip.code) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("error: "));
    EXPECT_THAT(ended.output, HasSubstr(slip.says));
    const std::vector<std::string> lines =
        absl::StrSplit(absl::StripSuffix(ended.output, "\n"), '\n');
    EXPECT_EQ(lines.size(), 1) << ended.output;
  }
}

TEST_F(Clients, AddressWithoutAListenerIsNamed) {
  const std::string nobody = "unix:" + dir_.Path("nobody.sock");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"call", nobody, "F"},
        {"call", "ps0", "--coordinator=" + nobody},
        {"health", nobody},
        {"status", "--coordinator=" + nobody}}) {
    const Ended ended = Weft(words);
    EXPECT_TRUE(ended.code == kPeerLost || ended.code == kTimeout)
        << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("nobody.sock"));
  }
  EXPECT_EQ(Weft({"call", "no:address:at:all"}).code, kUsage);
  EXPECT_EQ(Weft({"call"}).code, kUsage);
  EXPECT_EQ(Weft({"health"}).code, kUsage);
}

TEST_F(Clients, StatusShowsTheJob) {
  StartWorker();
  const Ended status = Weft({"status", "--json", "--job=demo",
                             "--coordinator=" + address_, "--name=trainer0"});
  EXPECT_EQ(status.code, 0) << status.output;
  const auto json = nlohmann::json::parse(status.output);
  EXPECT_TRUE(json["complete"].get<bool>());
  EXPECT_EQ(json["members"][0]["name"], "trainer0");
  const Ended text =
      Weft({"status", "--job=demo", "--coordinator=" + address_});
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_THAT(text.output, HasSubstr("job demo"));
  const Ended other =
      Weft({"status", "--job=other", "--coordinator=" + address_});
  EXPECT_EQ(other.code, kConfig);
  EXPECT_THAT(other.output, HasSubstr("demo"));
}

absl::StatusOr<int64_t> AskOther(rpc::CallContext& context,
                                 const std::string& other) {
  return rpc::Call(context.To(other), worker::PassGate);
}
WEFT_RPC(AskOther);

worker::Options OptionsOf(const std::string& role, int rank, int servers,
                          int trainers, const std::string& coordinator) {
  worker::Options options;
  options.job = "demo";
  options.role = role;
  options.rank = rank;
  options.servers = servers;
  options.trainers = trainers;
  options.coordinator = coordinator;
  options.log_level = telemetry::Level::kWarning;
  return options;
}

using Workers = std::vector<std::unique_ptr<worker::Worker>>;

// All at once, as each waits for the others.
Workers StartAll(const std::vector<worker::Options>& ranks) {
  Workers workers(ranks.size());
  const auto started = RunRanks(ranks.size(), [&](int rank) {
    auto worker = worker::Worker::Start(ranks[rank]);
    if (worker.ok()) workers[rank] = *std::move(worker);
    return worker.status();
  });
  EXPECT_THAT(started, ::testing::Each(IsOk()));
  return workers;
}

TEST(Status, ShowsTheWaitsForGraph) {
  TempDir dir;
  const std::string address = "unix:" + dir.Path("c.sock");
  Workers workers = StartAll({OptionsOf("trainer", 0, 0, 2, address),
                              OptionsOf("trainer", 1, 0, 2, address)});
  ASSERT_NE(workers[0], nullptr);
  ASSERT_NE(workers[1], nullptr);
  const std::vector<std::string> ask = {"status", "--calls", "--job=demo",
                                        "--coordinator=" + address,
                                        "--name=trainer0"};
  EXPECT_THAT(Weft(ask).output, HasSubstr("nothing is pending"));
  worker::Gate gate;
  workers[0]->agent().SetLocal(&gate);
  // trainer0 waits for trainer1, which waits for trainer0: for the gate.
  const Future<int64_t> call = rpc::CallAsync(
      workers[0]->agent().To("trainer1", kLong), AskOther, "trainer0");
  EXPECT_TRUE(IsWoken(gate.entered));
  // The workers end only after it, whatever fails here.
  const absl::Cleanup let_go = [&gate] { gate.may_leave.Unpark(); };
  const Ended text = Weft(ask);
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.output, ::testing::ContainsRegex(
                               "\ntrainer0 waits for trainer1:[^\n]*AskOther  "
                               "handler, [^\n]*\n"
                               "  trainer1 waits for trainer0:[^\n]*PassGate  "
                               "handler, [^\n]*\n"
                               "cycle: trainer0 > trainer1:"));
  std::vector<std::string> as_json = ask;
  as_json.push_back("--json");
  const auto waiting = nlohmann::json::parse(Weft(as_json).output)["waiting"];
  ASSERT_EQ(waiting["calls"].size(), 2u) << waiting;
  EXPECT_EQ(waiting["calls"][1]["caller"], "trainer1");
  EXPECT_EQ(waiting["calls"][1]["within"]["caller"], "trainer0");
  EXPECT_EQ(waiting["calls"][1]["within"]["id"], waiting["calls"][0]["id"]);
  EXPECT_GE(waiting["calls"][0]["age_seconds"].get<double>(), 0);
  EXPECT_TRUE(waiting["no_answer"].empty());
  gate.may_leave.Unpark();
  EXPECT_THAT(call.Wait(kLong), IsOkAndHolds(1));
  // The output names a worker that does not answer.
  workers[1].reset();
  EXPECT_THAT(Weft(ask).output, HasSubstr("no answer: trainer1"));
}

// At the address where the job's trainer0 is said to be another's answers.
TEST(Call, SaysWhyTheWorkerIsGone) {
  TempDir dir;
  const std::string address = "unix:" + dir.Path("c.sock");
  Workers workers = StartAll({OptionsOf("trainer", 0, 0, 2, address),
                              OptionsOf("trainer", 1, 0, 2, address)});
  ASSERT_NE(workers[0], nullptr);
  ASSERT_NE(workers[1], nullptr);
  worker::ShutdownOptions at_once;
  at_once.graceful = false;
  EXPECT_THAT(workers[1]->Shutdown(at_once).status(), IsOk());
  const Ended ended = Weft({"call", "trainer1", "PassGate", "--job=demo",
                            "--coordinator=" + address, "--name=trainer0"});
  EXPECT_EQ(ended.code, kPeerLost) << ended.output;
  EXPECT_THAT(ended.output,
              ::testing::ContainsRegex("trainer1, in the incarnation [^ ]*, is "
                                       "gone: left; start it again"));
}

TEST(Status, ShowsNoCallsOfAnotherJob) {
  TempDir dir;
  const std::string others = "unix:" + dir.Path("other.sock");
  worker::Options other = OptionsOf("trainer", 0, 0, 1, others);
  other.job = "other";
  const Workers alone = StartAll({other});
  const std::string address = "unix:" + dir.Path("c.sock");
  worker::Options elsewhere = OptionsOf("trainer", 0, 1, 1, address);
  elsewhere.advertise = others;
  const Workers workers =
      StartAll({OptionsOf("ps", 0, 1, 1, address), elsewhere});
  EXPECT_THAT(
      Weft({"status", "--calls", "--job=demo", "--coordinator=" + address})
          .output,
      HasSubstr("no answer: trainer0"));
}

}  // namespace
}  // namespace weft::testing
