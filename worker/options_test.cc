// Tests of flags, options and exit codes: what a command line means.

#include "weft/worker/options.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/tls/credentials.h"
#include "weft/ps/lost_partition.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/limits.h"

namespace weft::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    setenv(name, value, 1);
  }
  ~Environment() { unsetenv(name_); }

 private:
  const char* const name_;
};

absl::Status Parse(Flags& flags, std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "prog");
  return flags.Parse(static_cast<int>(arguments.size()), arguments.data());
}

struct Case {
  int epochs = 1;
  bool sync = true;
  std::string data = "none";
  absl::Duration grace = absl::Seconds(1);
  Flags flags{"prog", "Tests."};
  Case() {
    flags.Add("epochs", &epochs, "passes", {"WEFT_T_EPOCHS", "T_EPOCHS"});
    flags.Add("sync", &sync, "together");
    flags.Add("data-dir", &data, "where");
    flags.Add("grace", &grace, "time");
  }
};

TEST(Flags, ReadValuesInEitherSpelling) {
  Case c;
  ASSERT_THAT(Parse(c.flags, {"--epochs=3", "--no-sync", "--data_dir", "d_1",
                              "--grace=2m"}),
              IsOk());
  EXPECT_EQ(c.epochs, 3);
  EXPECT_FALSE(c.sync);
  EXPECT_EQ(c.data, "d_1");
  EXPECT_EQ(c.grace, absl::Minutes(2));
}

TEST(Flags, AFlagGoesBeforeEnvironmentBeforeFileBeforeDefault) {
  testing::TempDir dir;
  std::ofstream(dir.Path("f")) << "# all\nepochs = 7\ndata-dir = file\n\n";
  const std::string config = "--config=" + dir.Path("f");
  {
    Case c;
    ASSERT_THAT(Parse(c.flags, {config.c_str()}), IsOk());
    EXPECT_EQ(c.epochs, 7);
    EXPECT_EQ(c.data, "file");
    EXPECT_THAT(c.flags.Origin("epochs"), HasSubstr(":2"));
    EXPECT_EQ(c.flags.Origin("grace"), "default");
  }
  const Environment second("T_EPOCHS", "8");
  {
    Case c;
    ASSERT_THAT(Parse(c.flags, {config.c_str()}), IsOk());
    EXPECT_EQ(c.epochs, 8);
  }
  const Environment first("WEFT_T_EPOCHS", "9");
  {
    Case c;
    ASSERT_THAT(Parse(c.flags, {config.c_str()}), IsOk());
    EXPECT_EQ(c.epochs, 9);
    EXPECT_EQ(c.flags.Origin("epochs"), "environment WEFT_T_EPOCHS");
  }
  Case c;
  ASSERT_THAT(Parse(c.flags, {config.c_str(), "--epochs=10"}), IsOk());
  EXPECT_EQ(c.epochs, 10);
  EXPECT_EQ(c.flags.Origin("epochs"), "flag");
}

TEST(Flags, AnUnknownFlagIsUsageAndNamesTheNearest) {
  Case c;
  const absl::Status status = Parse(c.flags, {"--epoch=3"});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               "did you mean --epochs?"));
  EXPECT_EQ(ExitCodeFor(status), ExitCode::kUsage);
  Case far;
  EXPECT_THAT(Parse(far.flags, {"--zzzzzzz"}),
              StatusIs(absl::StatusCode::kInvalidArgument, "see --help"));
}

TEST(Flags, EmptyValueBeforeACommandIsRefusedAndTheCommandIsLeftAlone) {
  std::string log, count;
  const auto flags = [&] {
    Flags made("prog", "Tests.");
    made.Add("log-dir", &log, "where");
    made.Add("count", &count, "how many");
    made.AllowPositional("PROGRAM");
    return made;
  };
  Flags refused = flags();
  EXPECT_THAT(Parse(refused, {"--count", "3", "--log-dir=", "--count=2", "P"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--log-dir=: wanted a value"));
  Flags taken = flags();
  EXPECT_THAT(Parse(taken, {"--count", "2", "P", "--log-dir="}), IsOk());
  EXPECT_EQ(count, "2");
  EXPECT_THAT(taken.positional(), ::testing::ElementsAre("P", "--log-dir="));
}

TEST(Flags, MalformedValueErrorNamesTheWantedForm) {
  for (const auto& [argument, wanted] :
       std::vector<std::pair<const char*, const char*>>{
           {"--epochs=many", "an integer"},
           {"--epochs=99999999999", "an integer from -"},
           {"--grace=soon", "a duration"},
           {"--epochs", "--epochs: wanted a value"},
           {"--data_dir=", "--data-dir=: wanted a value"},
           {"--grace=-3s", "no negative"},
           {"--grace=nan", "a duration"},
           {"--sync=perhaps", "true or false"}}) {
    Case c;
    const absl::Status status = Parse(c.flags, {argument});
    EXPECT_EQ(ExitCodeFor(status), ExitCode::kUsage) << argument;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wanted));
  }
  const Environment bad("T_EPOCHS", "many");
  Case c;
  const absl::Status status = Parse(c.flags, {});
  EXPECT_THAT(std::string(status.message()), HasSubstr("T_EPOCHS"));
  EXPECT_EQ(ExitCodeFor(status), ExitCode::kConfig);
}

TEST(Flags, AFileWithAMistakeNamesItsLine) {
  testing::TempDir dir;
  std::ofstream(dir.Path("f")) << "epochs = 7\nepoch = 8\n";
  const std::string config = "--config=" + dir.Path("f");
  Case c;
  const absl::Status status = Parse(c.flags, {config.c_str()});
  EXPECT_THAT(std::string(status.message()), HasSubstr("f:2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--epochs"));
  EXPECT_EQ(ExitCodeFor(status), ExitCode::kConfig);
  Case absent;
  EXPECT_THAT(
      Parse(absent.flags, {"--config=/nowhere/f"}),
      StatusIs(absl::StatusCode::kNotFound, "/nowhere/f: No such file"));
}

TEST(Flags, AFileWithoutEndIsRefused) {
  Case c;
  const absl::Status status = Parse(c.flags, {"--config=/dev/zero"});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               "/dev/zero has more than 1048576 bytes"));
  EXPECT_EQ(ExitCodeFor(status), ExitCode::kConfig);
}

TEST(Flags, PositionalWordEndsTheFlagsOfACommand) {
  Case c;
  c.flags.AllowPositional("PROGRAM ARGS");
  ASSERT_THAT(
      Parse(c.flags, {"--epochs=3", "prog", "--epochs=4", "--x_y", "word"}),
      IsOk());
  EXPECT_EQ(c.epochs, 3);
  EXPECT_THAT(c.flags.positional(),
              ElementsAre("prog", "--epochs=4", "--x_y", "word"));
  Case none;
  EXPECT_THAT(Parse(none.flags, {"word"}),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"word\""));
}

TEST(Flags, KnownOnesAreTakenAndTheRestIsLeft) {
  Case c;
  std::vector<std::string> words = {"prog", "--mine=1", "--epochs=3", "word"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int argc = 4;
  ASSERT_THAT(c.flags.ParseKnown(&argc, argv.data()), IsOk());
  EXPECT_EQ(c.epochs, 3);
  ASSERT_EQ(argc, 3);
  EXPECT_STREQ(argv[1], "--mine=1");
  EXPECT_STREQ(argv[2], "word");
}

TEST(Flags, RepeatedOnesRunForEachValue) {
  Case c;
  std::vector<std::string> roles;
  c.flags.AddRepeated(
      "role",
      [&](const std::string& text) {
        roles.push_back(text);
        return absl::OkStatus();
      },
      "roles");
  ASSERT_THAT(Parse(c.flags, {"--role", "ps=2:a b", "--role=trainer=2:c"}),
              IsOk());
  EXPECT_THAT(roles, ElementsAre("ps=2:a b", "trainer=2:c"));
}

absl::Status Resolve(Options& options, std::vector<const char*> arguments) {
  Flags flags("prog", "");
  options.AddTo(flags);
  const absl::Status status = Parse(flags, std::move(arguments));
  return status.ok() ? options.Resolve() : status;
}

TEST(Options, CoordinatorIsHostedByRankZeroUnlessAHostIsNamed) {
  const auto host = [](std::vector<const char*> arguments) {
    Options options;
    EXPECT_THAT(Resolve(options, std::move(arguments)), IsOk());
    return std::pair(options.host_of_coordinator(),
                     options.hosts_coordinator());
  };
  EXPECT_EQ(host({"--trainers=2"}), std::pair(std::string("trainer0"), true));
  EXPECT_EQ(host({"--trainers=2", "--servers=1"}),
            std::pair(std::string("ps0"), false));
  EXPECT_EQ(host({"--trainers=2", "--coordinator-host=coordinator0"}),
            std::pair(std::string("coordinator0"), false));
  EXPECT_EQ(host({"--trainers=2", "--rank=1", "--coordinator-host=trainer1"}),
            std::pair(std::string("trainer1"), true));
}

TEST(Options, WorkerThatDoesNotHostLeavesTheMeetingPlaceFree) {
  for (const auto& [host, listen] :
       std::vector<std::pair<const char*, const char*>>{
           {"--coordinator-host=trainer0", "unix:/a/trainer0.sock"},
           {"--coordinator-host=coordinator0",
            "unix:/a/trainer0-worker.sock"}}) {
    Options options;
    ASSERT_THAT(Resolve(options, {"--trainers=2", host,
                                  "--coordinator=unix:/a/trainer0.sock"}),
                IsOk());
    EXPECT_EQ(options.listen, listen);
  }
}

TEST(Options, HostInTheEnvironmentIsOfTheAddressThere) {
  const Environment address("WEFT_COORDINATOR", "unix:/a/b.sock");
  const Environment name("WEFT_COORDINATOR_HOST", "coordinator0");
  Options as_there;
  ASSERT_THAT(Resolve(as_there, {"--trainers=2"}), IsOk());
  EXPECT_EQ(as_there.host_of_coordinator(), "coordinator0");
  Options elsewhere;
  ASSERT_THAT(
      Resolve(elsewhere, {"--trainers=2", "--coordinator=unix:/c/d.sock"}),
      IsOk());
  EXPECT_EQ(elsewhere.host_of_coordinator(), "trainer0");
}

TEST(Options, LimitsAreSetByTheirNames) {
  Options options;
  ASSERT_THAT(
      Resolve(options,
              {"--limits=max_message_bytes=1,max_buffered_bytes=2,"
               "max_metadata_bytes=3,keepalive_interval=4,keepalive_timeout=5s,"
               "max_connections=6,max_connections_per_address=7,"
               "max_handshakes=8,handshake_timeout=9s,max_calls=10,"
               "max_calls_per_peer=11,max_bytes=12,max_bytes_per_peer=13,"
               "max_calls_per_connection=21,max_wasted_calls_per_peer=22,"
               "rpc_calls=14,rpc_bytes=15,rpc_nested_calls=16,rpc_objects=17,"
               "rpc_sessions=23,rpc_timeout=18s,give_up_after=19s,suspect_"
               "after=20s,"
               "dead_after=1m"}),
      IsOk());
  const Limits& limits = options.limits;
  EXPECT_EQ(limits.loop.max_message_bytes, 1);
  EXPECT_EQ(limits.loop.max_buffered_bytes, 2);
  EXPECT_EQ(limits.loop.max_metadata_bytes, 3);
  EXPECT_EQ(limits.loop.keepalive_interval, absl::Seconds(4));
  EXPECT_EQ(limits.loop.keepalive_timeout, absl::Seconds(5));
  EXPECT_EQ(limits.loop.max_connections, 6);
  EXPECT_EQ(limits.loop.max_connections_per_address, 7);
  EXPECT_EQ(limits.loop.max_handshakes, 8);
  EXPECT_EQ(limits.loop.handshake_timeout, absl::Seconds(9));
  EXPECT_EQ(limits.admission.max_calls, 10);
  EXPECT_EQ(limits.admission.max_calls_per_peer, 11);
  EXPECT_EQ(limits.admission.max_bytes, 12);
  EXPECT_EQ(limits.admission.max_bytes_per_peer, 13);
  EXPECT_EQ(limits.loop.max_calls_per_connection, 21);
  EXPECT_EQ(limits.loop.max_wasted_calls_per_peer, 22);
  EXPECT_EQ(limits.rpc.calls, 14);
  EXPECT_EQ(limits.rpc.bytes, 15);
  EXPECT_EQ(limits.rpc.nested_calls, 16);
  EXPECT_EQ(limits.rpc.objects, 17);
  EXPECT_EQ(limits.rpc.sessions, 23);
  EXPECT_EQ(limits.rpc.timeout, absl::Seconds(18));
  EXPECT_EQ(limits.give_up_after, absl::Seconds(19));
  EXPECT_EQ(limits.suspect_after, absl::Seconds(20));
  EXPECT_EQ(limits.dead_after, absl::Minutes(1));
}

TEST(Options, ALimitThatIsNoneIsNamed) {
  for (const auto& [text, said] :
       std::vector<std::pair<const char*, const char*>>{
           {"max_conections=3", "did you mean max_connections?; there are: "},
           {"max_calls", "max_calls: wanted an integer"},
           {"max_calls=0", "found \"0\""},
           {"max_calls=many", "found \"many\""},
           {"max_connections=4294967297", "max_connections: wanted"},
           {"rpc_calls=9,dead_after=-3s", "dead_after: wanted"},
           {"dead_after=nan", "dead_after: wanted"},
           {"", "no limit \"\""}}) {
    Limits limits;
    EXPECT_THAT(SetLimits(text, &limits),
                StatusIs(absl::StatusCode::kInvalidArgument, said))
        << text;
    EXPECT_EQ(limits.rpc.calls, rpc::Limits().calls);  // all or nothing
  }
  Options options;
  const absl::Status status = Resolve(options, {"--limits=dead_after=2s"});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               "dead_after=2s and suspect_after=3s"));
  EXPECT_EQ(ExitCodeFor(status), ExitCode::kConfig);
}

TEST(Options, TimesOfSilenceFollowFromOneFlag) {
  Options options;
  ASSERT_THAT(Resolve(options, {"--limits=suspect_after=1s", "--silence=4s"}),
              IsOk());
  EXPECT_EQ(options.limits.dead_after, absl::Seconds(4));
  EXPECT_EQ(options.limits.suspect_after, absl::Seconds(1));
  EXPECT_EQ(options.limits.heartbeat_interval, absl::Milliseconds(200));
  Options tight;
  const absl::Status refused =
      Resolve(tight, {"--silence=30s", "--rpc-timeout=20s"});
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument,
                                "--rpc-timeout=20s and --silence=30s"));
  EXPECT_EQ(ExitCodeFor(refused), ExitCode::kConfig);
  Options none;
  const absl::Status odd = Resolve(none, {"--silence=soon"});
  EXPECT_THAT(odd, StatusIs(absl::StatusCode::kInvalidArgument,
                            "wanted a duration from 1s to 1h"));
  EXPECT_EQ(ExitCodeFor(odd), ExitCode::kUsage);
}

TEST(Options, ValuesOfAnotherFormAreUsage) {
  for (const char* flag :
       {"--workers=2", "--workers=3:2", "--workers=0:2", "--workers=1:99999999",
        "--labels=zone", "--labels=role=ps", "--labels=rank=1",
        "--labels=name=a", "--labels=a=", "--labels=a==b"}) {
    Options options;
    const absl::Status status = Resolve(options, {flag});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, "wanted "))
        << flag;
    EXPECT_EQ(ExitCodeFor(status), ExitCode::kUsage) << flag;
  }
}

TEST(Options, TheBoundsOfAnElasticJobAreNamed) {
  Options options;
  EXPECT_THAT(Resolve(options, {"--workers=1:99999999"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--workers=1:99999999: wanted MIN:MAX, as in 2:8, MIN "
                       "at least 1 and MAX from MIN to 65536"));
}

TEST(Options, ReplicasAreOneUnlessTheFlagOrTheEnvironmentSaysTwo) {
  Options by_default;
  ASSERT_THAT(Resolve(by_default, {"--servers=2", "--trainers=1"}), IsOk());
  EXPECT_EQ(by_default.replicas, 1);
  EXPECT_FALSE(by_default.rejoins);
  const Environment environment("WEFT_REPLICAS", "2");
  const Environment rejoin("WEFT_REJOIN", "true");
  Options two;
  ASSERT_THAT(Resolve(two, {"--servers=2", "--trainers=1"}), IsOk());
  EXPECT_EQ(two.replicas, 2);
  EXPECT_TRUE(two.rejoins);
  Options one;
  ASSERT_THAT(Resolve(one, {"--servers=1", "--trainers=1", "--replicas=1"}),
              IsOk());
  EXPECT_EQ(one.replicas, 1);
  // Data-parallel training has no tables.
  EXPECT_THAT(Resolve(two, {"--servers=0", "--trainers=2"}), IsOk());
}

TEST(Options, ServerZeroHostsTheCoordinatorAndListensThere) {
  Options server;
  server.role = "ps";
  ASSERT_THAT(Resolve(server, {"--servers=2", "--trainers=2",
                               "--coordinator=unix:/d/c.sock"}),
              IsOk());
  EXPECT_TRUE(server.hosts_coordinator());
  EXPECT_EQ(server.listen, "unix:/d/c.sock");
  Options trainer;
  ASSERT_THAT(Resolve(trainer, {"--servers=2", "--trainers=2",
                                "--coordinator=unix:/d/c.sock", "--rank=1"}),
              IsOk());
  EXPECT_FALSE(trainer.hosts_coordinator());
  EXPECT_EQ(trainer.listen, "unix:/d/trainer1.sock");
  EXPECT_EQ(trainer.name(), "trainer1");
  EXPECT_EQ(trainer.world().size(), 4);
}

TEST(Options, TorchrunsVariablesAreUnderstood) {
  const Environment rank("RANK", "1");
  const Environment world("WORLD_SIZE", "3");
  const Environment address("MASTER_ADDR", "node7");
  const Environment port("MASTER_PORT", "29500");
  Options options;
  ASSERT_THAT(Resolve(options, {}), IsOk());
  EXPECT_EQ(options.name(), "trainer1");
  EXPECT_EQ(options.trainers, 3);
  EXPECT_EQ(options.coordinator, "node7:29500");
  EXPECT_EQ(options.listen, "0.0.0.0:0");
  EXPECT_FALSE(options.advertise.empty());
  const Environment weft("WEFT_COORDINATOR", "unix:/d/c.sock");
  Options by_weft;
  ASSERT_THAT(Resolve(by_weft, {}), IsOk());
  EXPECT_EQ(by_weft.coordinator, "unix:/d/c.sock");
}

TEST(Options, AnInitUrlSaysHowTheWorkersMeet) {
  testing::TempDir dir;
  const Environment sockets("XDG_RUNTIME_DIR", dir.path().c_str());
  const auto resolve = [](const char* init) {
    Options options;
    EXPECT_THAT(Resolve(options, {"--servers=1", "--trainers=1", init}),
                IsOk());
    EXPECT_THAT(options.Resolve(), IsOk());  // twice is once
    return options;
  };
  EXPECT_EQ(resolve("--init=tcp://node1:7000").coordinator, "node1:7000");
  EXPECT_EQ(resolve("--init=tcp://node1:7000").listen, "0.0.0.0:0");
  const Options by_file = resolve("--init=file:///tmp/meet");
  EXPECT_EQ(by_file.init_url.path, "/tmp/meet");
  EXPECT_EQ(by_file.coordinator, "");
  EXPECT_EQ(by_file.listen, "unix:" + dir.Path("weft/weft/trainer0.sock"));
  const Options by_etcd = resolve("--init=etcd://node1:2379/jobs");
  EXPECT_EQ(by_etcd.init_url.prefix, "jobs");
  EXPECT_EQ(by_etcd.listen, "0.0.0.0:0");
  EXPECT_FALSE(by_etcd.advertise.empty());
  Options by_env;
  EXPECT_THAT(Resolve(by_env, {"--init=env://"}),
              StatusIs(absl::StatusCode::kInvalidArgument, "MASTER_ADDR"));
  const Environment address("MASTER_ADDR", "node7");
  const Environment port("MASTER_PORT", "29500");
  EXPECT_EQ(resolve("--init=env://").coordinator, "node7:29500");
}

TEST(Options, AVariableThatIsMisspeltIsIgnoredWithAWarning) {
  const Environment misspelt("WEFT_TRAINER", "7");
  const Environment known("WEFT_TRAINERS", "3");
  const Environment of_others("WEF_TRAINERS", "5");
  const Environment of_base("WEFT_FAILPOINTS", "none=off");
  Options options;
  ::testing::internal::CaptureStderr();
  const absl::Status status = Resolve(options, {});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(status, IsOk());
  EXPECT_EQ(options.trainers, 3);
  EXPECT_EQ(said,
            "prog: warning: environment WEFT_TRAINER sets nothing and is "
            "ignored; did you mean WEFT_TRAINERS?\n");
}

TEST(Options, AnElasticJobHasBoundsAndAWorkerLabels) {
  Options options;
  ASSERT_THAT(Resolve(options, {"--workers=2:8", "--labels=zone=a,disk=fast",
                                "--rank=11", "--coordinator=unix:/d/c.sock"}),
              IsOk());
  EXPECT_EQ(options.world(), rendezvous::World::Elastic(2, 8));
  EXPECT_EQ(options.labels.at("zone"), "a");
  EXPECT_EQ(options.labels.at("disk"), "fast");
  EXPECT_FALSE(options.hosts_coordinator());
}

// `weft run` counts the ranks that it starts.
TEST(Options, NumbersOfALauncherAreNoneOfAnElasticJob) {
  const Environment trainers("WEFT_TRAINERS", "3");
  const Environment world("WORLD_SIZE", "3");
  Options options;
  ASSERT_THAT(Resolve(options, {"--workers=2:8", "--rank=5"}), IsOk());
  EXPECT_EQ(options.world(), rendezvous::World::Elastic(2, 8));
  Options both;
  EXPECT_THAT(Resolve(both, {"--workers=2:8", "--trainers=4"}),
              StatusIs(absl::StatusCode::kInvalidArgument, "give either"));
}

// `weft run --elastic` with servers: their number is fixed.
TEST(Options, AnElasticJobMayHaveAFixedNumberOfServers) {
  const Environment servers("WEFT_SERVERS", "3");
  const Environment trainers("WEFT_TRAINERS", "2");
  const Environment workers("WEFT_WORKERS", "1:4");
  Options trainer;
  ASSERT_THAT(Resolve(trainer, {"--rank=7", "--replicas=2"}), IsOk());
  EXPECT_TRUE(trainer.is_elastic());
  EXPECT_EQ(trainer.servers, 3);
  EXPECT_EQ(trainer.trainers, 0);
  EXPECT_EQ(trainer.world(), rendezvous::World::Elastic(4, 7));
  Options server;
  ASSERT_THAT(Resolve(server, {"--role=ps", "--rank=2"}), IsOk());
  EXPECT_EQ(server.world(), trainer.world());
  Options beyond;
  EXPECT_THAT(Resolve(beyond, {"--role=ps", "--rank=3"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "there is no ps3 in a job of 3 servers"));
}

TEST(Options, ConflictingOptionsFailBeforeTheStart) {
  // Room for the coordinator's own socket, none for trainer0.sock.
  const std::string long_socket =
      absl::StrCat("--coordinator=unix:/", std::string(98, 'd'), "/c.sock");
  using Cases = std::vector<std::pair<std::vector<const char*>, const char*>>;
  const auto expect = [](ExitCode code, const Cases& cases) {
    for (const auto& [arguments, part] : cases) {
      Options options;
      const absl::Status status = Resolve(options, arguments);
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, part));
      EXPECT_EQ(ExitCodeFor(status), code) << part;
    }
  };
  expect(ExitCode::kConfig,
         {
             {{"--rank=2", "--trainers=2"},
              "(or WEFT_RANK, RANK): there is no trainer2"},
             {{"--servers=1"},
              "0 trainers; say how many there are by --trainers=N"},
             {{"--trainers=1", "--role=ps"}, "by --servers=N"},
             {{long_socket.c_str(), "--trainers=2", "--rank=1"},
              "shorten them, or say --listen="},
         });
  // Invalid values, and contradictions.
  expect(ExitCode::kUsage,
         {
             {{"--servers=-1"},
              "--servers=-1, --trainers=0: wanted numbers from 0"},
             {{"--replicas=0"}, "--replicas=0: wanted 1 or 2"},
             {{"--replicas=3", "--servers=3", "--trainers=1"},
              "--replicas=3: wanted 1 or 2"},
             {{"--replicas=2", "--servers=1", "--trainers=1"},
              "--replicas=2 wants at least 2 servers, found --servers=1"},
             {{"--workers=1:2", "--trainers=1"}, "--workers=1:2"},
             {{"--init=tcp://a:1", "--coordinator=b:1"}, "both say"},
             {{"--init=etcd://a:1", "--coordinator-log=f"}, "one too many"},
             {{"--role=boss"}, "--role=boss: wanted ps, trainer or admin"},
             {{"--ranks-on-host=0"}, "--ranks-on-host=0"},
             {{"--shared-memories=-1"}, "--shared-memories=-1"},
             {{"--handler-threads=-1"}, "--handler-threads=-1: wanted"},
             {{"--max-handler-threads=0"}, "--max-handler-threads=0: wanted"},
             {{"--handler-threads=32", "--max-handler-threads=31"},
              "wanted no fewer than --handler-threads, 32"},
             {{"--device=tpu"}, "device \"tpu\": wanted cpu, cuda"},
             {{"--local-rank=-1"}, "--local-rank=-1"},
             {{"--coordinator=nowhere"}, "--coordinator: address \"nowhere\""},
             {{"--listen=nowhere"}, "--listen: address \"nowhere\""},
             {{"--advertise=nowhere"}, "--advertise: address \"nowhere\""},
             {{"--advertise=node7:x"}, "--advertise: address \"node7:x\""},
             {{"--job=My Job"}, "job name \"My Job\": wanted 1 to 63"},
             {{"--metrics-port=65536"}, "wanted a port from 1 to 65535, or 0"},
             {{"--metrics-port=-1"}, "--metrics-port"},
             {{"--metrics-port=9100", "--metrics-listen=127.0.0.1:9101"},
              "wanted one of them"},
             {{"--init=http://a:1"}, "wanted env://"},
             {{"--certs=d", "--insecure"}, "--certs=d (or WEFT_CERTS) and "},
         });
}

TEST(ExitCode, FollowsTheStatusUnlessItCarriesAnother) {
  EXPECT_EQ(ExitCodeFor(net::CertificatesError("")), ExitCode::kAuth);
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), ExitCode::kOk);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), ExitCode::kPeerLost);
  EXPECT_EQ(ExitCodeFor(absl::DeadlineExceededError("")), ExitCode::kTimeout);
  EXPECT_EQ(ExitCodeFor(absl::PermissionDeniedError("")), ExitCode::kAuth);
  EXPECT_EQ(ExitCodeFor(absl::ResourceExhaustedError("")), ExitCode::kResource);
  EXPECT_EQ(ExitCodeFor(absl::DataLossError("")), ExitCode::kBadCheckpoint);
  const absl::Status lost = OfPart("rows", ps::LostPartition("gone"));
  EXPECT_TRUE(absl::IsDataLoss(lost));
  EXPECT_EQ(ExitCodeFor(lost), ExitCode::kPeerLost);
  EXPECT_FALSE(IsFinal(lost));
  EXPECT_EQ(ExitCodeFor(absl::NotFoundError("")), ExitCode::kConfig);
  EXPECT_EQ(ExitCodeFor(absl::InternalError("")), ExitCode::kInternal);
  EXPECT_EQ(ExitCodeFor(WithExitCode(absl::UnavailableError("port in use"),
                                     ExitCode::kConfig)),
            ExitCode::kConfig);
}

TEST(ExitCodeDeathTest, ExitIfErrorSaysWhyAndEndsWithTheCode) {
  ExitIfError(absl::OkStatus());
  EXPECT_EXIT(ExitIfError(absl::DeadlineExceededError("ps0 is missing")),
              ::testing::ExitedWithCode(11), "error: ps0 is missing");
}

}  // namespace
}  // namespace weft::worker
