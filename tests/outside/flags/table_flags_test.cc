// Flags that say how tables are kept, in clumsy hands: values that cannot be,
// flags that contradict each other, rules of who may use which table. What is
// promised is quoted from docs/cli.md ("Exit codes", "Flags of parameter_server
// and trainer") and docs/parameter_server.md.

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/table_access.h"
#include "weft/tests/support/idx_images.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

using ps::TableAccess;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int kUsage = 2, kConfig = 3, kTimeout = 11;

class TableFlags : public ::testing::Test {
 protected:
  TableFlags() {
    EXPECT_EQ(mkdir(Path("job").c_str(), 0700), 0);
    std::filesystem::create_directory(Path("images"));
    WriteIdxImages(Path("images/train"), 64);
    WriteIdxImages(Path("images/t10k"), 20);
  }
  std::string Path(const std::string& name) const { return dir_.Path(name); }
  struct Ended {
    int code = -1;
    std::string output;
  };
  Ended Run(Words words, Words env = {}) {
    Command command;
    words[0] = RunfilePath(words[0]);
    command.argv = std::move(words);
    command.env = std::move(env);
    command.env.push_back("XDG_RUNTIME_DIR=" + Path("job"));
    auto process = Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    const auto code = (*process)->Wait(kLong);
    EXPECT_THAT(code, IsOk()) << (*process)->output();
    return {code.ok() ? *code : -1, (*process)->output()};
  }
  // A worker that nobody else joins: what is wrong is said before it waits.
  Ended RunAlone(const std::string& program, Words more, Words env = {}) {
    Words words = {program,
                   "--coordinator=unix:" + Path("job/s"),
                   "--dump-dir=" + Path(""),
                   "--join-timeout=1s",
                   "--servers=1",
                   "--trainers=2"};
    words.insert(words.end(), more.begin(), more.end());
    return Run(std::move(words), std::move(env));
  }
  Ended RunTrainer(Words more) {
    more.insert(more.begin(), "--data=" + Path("images"));
    return RunAlone("launch/trainer", std::move(more));
  }
  void ExpectRefused(const Ended& ended, const std::string& named) {
    EXPECT_EQ(ended.code, kUsage) << named << ": " << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(named));
    EXPECT_THAT(ended.output, Not(HasSubstr("internal error")));
  }

  TempDir dir_;
};

// "usage: [...] a value that it cannot have, two flags that contradict each
// other".
TEST_F(TableFlags, StalenessAndQuorumThatCannotBeAreUsageErrors) {
  for (const std::string value :
       {"-1", "abc", "", "1.5", "99999999999999999999"}) {
    ExpectRefused(RunTrainer({"--async", "--staleness=" + value}), "staleness");
  }
  ExpectRefused(RunTrainer({"--staleness=1"}), "staleness");
  ExpectRefused(RunTrainer({"--sync", "--staleness=0"}), "staleness");
  for (const std::string value : {"-1", "3", "abc", "99999999999"}) {
    ExpectRefused(RunTrainer({"--quorum=" + value}), "quorum");
  }
  ExpectRefused(RunTrainer({"--async", "--quorum=1"}), "quorum");
  ExpectRefused(RunTrainer({"--quorum=1", "--late=maybe"}), "late");
  ExpectRefused(RunTrainer({"--quorum=1", "--late="}), "late");
  ExpectRefused(RunTrainer({"--late=fold"}), "late");
  // What is right waits for the others.
  for (const Words& right :
       {Words{"--async", "--staleness=0"}, Words{"--quorum=2", "--late=fold"},
        Words{"--quorum=0"}, Words{"--quorum=1", "--late=drop"}}) {
    const Ended ended = RunTrainer(right);
    EXPECT_THAT(ended.code, AnyOf(10, kTimeout)) << ended.output;
  }
}

// A quorum is not had with --replicas=2, and says why; and neither is of a
// training without servers.
TEST_F(TableFlags, StalenessAndQuorumWithReplicasOrWithoutServersSayWhy) {
  const Ended ended = RunTrainer({"--servers=2", "--replicas=2", "--quorum=1"});
  EXPECT_EQ(ended.code, kUsage) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("replicas"));
  for (const Words& flags :
       {Words{"--async", "--staleness=1"}, Words{"--quorum=1"}}) {
    Words ddp = {"--strategy=ddp", "--servers=0"};
    ddp.insert(ddp.end(), flags.begin(), flags.end());
    const Ended without = RunTrainer(ddp);
    EXPECT_EQ(without.code, kUsage) << without.output;
  }
}

TEST_F(TableFlags, SnapshotFlagsThatCannotBeAreUsageErrors) {
  for (const std::string value : {"0", "-1", "x", "", "1.5"}) {
    ExpectRefused(
        RunTrainer({"--snapshot-every=1s", "--checkpoint-dir=" + Path("c"),
                    "--full-snapshot-every=" + value}),
        "full-snapshot-every");
  }
  for (const std::string value : {"-1s", "x", ""}) {
    ExpectRefused(RunTrainer({"--checkpoint-dir=" + Path("c"),
                              "--snapshot-every=" + value}),
                  "snapshot-every");
  }
  for (const std::string value : {"-1", "x", ""}) {
    ExpectRefused(
        RunAlone("launch/parameter_server", {"--snapshot-memory=" + value}),
        "snapshot-memory");
    ExpectRefused(
        RunAlone("launch/parameter_server", {"--table-memory=" + value}),
        "table-memory");
  }
  EXPECT_FALSE(std::filesystem::exists(Path("c")));
}

// --- Who may use which table -------------------------------------------------

// table_access.h: "kInvalidArgument says what is wrong where."
TEST(TableAccessRules, RulesThatAreNoneAreRefusedAndSaidWhere) {
  const std::string good = "users*=trainer:rw";
  for (const std::string bad : {"a",
                                "=trainer:r",
                                "a=",
                                "a=trainer",
                                "a=trainer:x",
                                "a=trainer:R",
                                "a=:r",
                                "a=trainer:rw,",
                                "a=,trainer:r",
                                "a*b=trainer:r",
                                "*a=trainer:r",
                                "**=trainer:r",
                                "a b=trainer:r",
                                "a=trai ner:r",
                                "a=trainer:r,trainer:w",
                                "a=trainer=r",
                                "a:trainer=r",
                                "a\n=trainer:r",
                                "\xff=trainer:r",
                                "a=\xff:r"}) {
    EXPECT_THAT(TableAccess::Parse(bad),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << bad;
    const auto second = TableAccess::Parse(good + ";" + bad);
    EXPECT_THAT(second, StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
  EXPECT_THAT(TableAccess::Parse(std::string(300, 'a') + "=trainer:r"),
              StatusIs(absl::StatusCode::kInvalidArgument))
      << "no table's name is so long";
  EXPECT_THAT(TableAccess::Parse(";"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(TableAccess::Parse(good + ";;" + good),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// "The first rule that a table's name fits says all: a role that it does not
// name may nothing, and so may every role where no rule fits."
TEST(TableAccessRules, FirstRuleThatFitsSaysAll) {
  const auto access = TableAccess::Parse(
      "users=admin:r;users*=trainer:rw,client:r;log=ps:w;*=client:r");
  ASSERT_THAT(access, IsOk());
  const auto may = [&](const std::string& role, const std::string& table) {
    std::string rights;
    for (const auto right :
         {TableAccess::Right::kRead, TableAccess::Right::kWrite}) {
      const absl::Status status = access->Check("someone", role, table, right);
      if (status.ok()) {
        rights += right == TableAccess::Right::kRead ? "r" : "w";
        continue;
      }
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kPermissionDenied, table));
      EXPECT_THAT(status.ToString(), HasSubstr("someone"));
      EXPECT_THAT(status.ToString(), HasSubstr(role));
    }
    return rights;
  };
  EXPECT_EQ(may("admin", "users"), "r");
  EXPECT_EQ(may("trainer", "users"), "");
  EXPECT_EQ(may("client", "users"), "");
  EXPECT_EQ(may("trainer", "users2"), "rw");
  EXPECT_EQ(may("client", "users2"), "r");
  EXPECT_EQ(may("admin", "users2"), "");
  EXPECT_EQ(may("ps", "log"), "w");
  EXPECT_EQ(may("client", "log"), "");
  EXPECT_EQ(may("client", "log2"), "r");
  EXPECT_EQ(may("trainer", "user"), "");
  EXPECT_EQ(may("nobody", "anything"), "");
  // Either right opens what is there; only `w` makes it.
  EXPECT_THAT(access->CheckOpen("x", "ps", "log", true), IsOk());
  EXPECT_THAT(access->CheckOpen("x", "ps", "log", false), IsOk());
  EXPECT_THAT(access->CheckOpen("x", "client", "log2", true), IsOk());
  EXPECT_THAT(access->CheckOpen("x", "client", "log2", false),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(access->CheckOpen("x", "trainer", "log", true),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_TRUE(TableAccess::Parse("")->is_open());
}

// "Without --certs no role is proven, and the flag is refused."
TEST_F(TableFlags, TableAccessWithoutCertificatesOrWithWrongRulesIsRefused) {
  const std::string server = "launch/parameter_server";
  ExpectRefused(RunAlone(server, {"--table-access=*=trainer:rw"}),
                "table-access");
  EXPECT_THAT(RunAlone(server, {"--table-access=*=trainer:rw"}).output,
              HasSubstr("certs"));
  ASSERT_EQ(Run({"launch/weft", "certs", "init", "--dir=" + Path("certs"),
                 "--job=weft", "--servers=1", "--trainers=2"})
                .code,
            0);
  const Words tcp = {"--certs=" + Path("certs"), "--coordinator=127.0.0.1:0",
                     "--listen=127.0.0.1:0"};
  const auto with = [&](Words words) {
    words.insert(words.begin(), tcp.begin(), tcp.end());
    return words;
  };
  for (const std::string rules : {"a", "*=trainer:x", "*=trainer:rw;b=", ";"}) {
    ExpectRefused(RunAlone(server, with({"--table-access=" + rules})),
                  "table-access");
    // "kInvalidArgument [...] with exit code 3: the same in the environment or
    // the file."
    const Ended env =
        RunAlone(server, with({}), {"WEFT_TABLE_ACCESS=" + rules});
    EXPECT_THAT(env.code, AnyOf(kUsage, kConfig)) << env.output;
    EXPECT_THAT(env.output, HasSubstr("TABLE_ACCESS")) << rules;
    std::ofstream(Path("config"))
        << "# rules\ntable_access = " << rules << "\n";
    const Ended file = RunAlone(server, with({"--config=" + Path("config")}));
    EXPECT_THAT(file.code, AnyOf(kUsage, kConfig)) << file.output;
    EXPECT_THAT(file.output, HasSubstr("table")) << rules;
  }
  // The other programs have no such flag.
  EXPECT_EQ(RunTrainer({"--table-access=*=trainer:rw"}).code, kUsage);
}

// --- The recommender ---------------------------------------------------------

// Each flag that --help names, with values that it cannot have: said by name,
// at once, and not after all have joined.
TEST_F(TableFlags, RecommenderSaysWhichFlagIsWrong) {
  const std::string program = "examples/ctr/recommender";
  const auto run = [&](Words more) { return RunAlone(program, more); };
  for (const std::string flag :
       {"--rows=-1", "--rows=x", "--test-rows=0", "--test-rows=-5",
        "--tables=0", "--tables=27", "--tables=x", "--epochs=-1", "--epochs=x",
        "--keep=0", "--keep=-1", "--snapshot-every=-1s", "--factors=maybe",
        "--skip-bad-lines=2", "--batch-size=-1"}) {
    const Ended ended = run({flag});
    const std::string name = flag.substr(2, flag.find('=') - 2);
    EXPECT_EQ(ended.code, kUsage) << flag << ": " << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(name)) << flag;
  }
  EXPECT_EQ(run({"--rows=0"}).code, kUsage);
  EXPECT_EQ(run({"--nonsense"}).code, kUsage);
}

}  // namespace
}  // namespace weft::testing
