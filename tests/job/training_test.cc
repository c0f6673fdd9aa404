// The main job as users run it: programs by hand, checkpoints, certificates.

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kTimeout = 11;

// The accuracy that the model reaches on these data.
constexpr double kHigh = 0.9;

constexpr char kModel[] = "/shard-99999.safetensors";

// One bit of the file is another afterwards.
void Damage(const std::string& path) {
  std::string bytes = ReadBytes(path);
  ASSERT_GT(bytes.size(), 1000u) << path;
  bytes[bytes.size() - 100] ^= 1;
  WriteBytes(path, bytes);
}

TEST(MainJob, ProgramsMayStartInAnyOrder) {
  const Job job;
  const Flags flags = {"--epochs=3", "--checkpoint-dir=" + job.Path("saved")};
  const auto trainer1 = job.StartTrainer(1, flags);
  const auto trainer0 = job.StartTrainer(0, flags);
  for (const auto* trainer : {&trainer0, &trainer1}) {
    EXPECT_THAT((*trainer)->WaitForOutput("is ps0 running", kLong), IsOk());
  }
  const auto ps1 = job.StartServer(1);
  const auto ps0 = job.StartServer(0);
  for (const auto* p : {&trainer0, &trainer1, &ps0, &ps1}) {
    EXPECT_THAT((*p)->Wait(kLong), IsOkAndHolds(0)) << (*p)->output();
  }
  const TrainerResult result = ResultOf(*trainer0);
  EXPECT_GT(result.test_accuracy, kHigh);
  EXPECT_GT(result.samples_per_s, 0);
  // 8 steps of 2 x 16 images an epoch.
  EXPECT_EQ(result.checkpoint, job.Path("saved/ckpt-000003-step-24"));
  EXPECT_THAT(Checkpoints(job.Path("saved")),
              ElementsAre("ckpt-000001-step-8", "ckpt-000002-step-16",
                          "ckpt-000003-step-24"));
  EXPECT_THAT(trainer1->output(), Not(HasSubstr("test_accuracy")));
}

// "args" of the spans in the file `path` whose names have `name` in them.
std::vector<nlohmann::json> SpansOf(const std::string& path,
                                    const std::string& name) {
  std::vector<nlohmann::json> spans;
  const auto trace = nlohmann::json::parse(ReadBytes(path));
  for (const auto& event : trace["traceEvents"]) {
    const std::string found = event["name"];
    // The first of two events for one span has them.
    if (!event.contains("args") || !absl::StrContains(found, name)) continue;
    spans.push_back(event["args"]);
  }
  return spans;
}

TEST(MainJob, WritesATraceOfEachProgramWhenItEnds) {
  Job job;
  job.servers = 1;
  job.trainers = 1;
  job.flags = {"--trace=" + job.Path("{name}.json")};
  job.Train({"--epochs=1"});
  const std::string exchanges = "weft::ps::Exchange(trainer0 -> ps0)";
  const auto calls =
      SpansOf(job.Path("trainer0.json"), "rpc_call#" + exchanges);
  const auto served = SpansOf(job.Path("ps0.json"), "rpc_serve#" + exchanges);
  ASSERT_GT(calls.size(), 0u);
  ASSERT_EQ(served.size(), calls.size());
  std::set<std::pair<std::string, std::string>> made, parents;
  for (const auto& span : calls) made.emplace(span["trace"], span["span"]);
  for (const auto& span : served) {
    parents.emplace(span["trace"], span.value("parent", ""));
  }
  EXPECT_EQ(made, parents);
  for (const char* phase : {"data", "forward", "backward", "push", "pull"}) {
    EXPECT_FALSE(
        SpansOf(job.Path("trainer0.json"), absl::StrCat("training.", phase))
            .empty())
        << phase;
  }
  EXPECT_THAT(ReadBytes(job.Path("trainer0.json")),
              HasSubstr("trainer0 of job"));
}

TEST(MainJob, JsonHasTheLossOfEachStepThatWasAskedFor) {
  Job job;
  job.servers = 1;
  job.trainers = 1;
  const auto losses = [&](const Flags& flags) {
    const auto server = job.StartServer(0);
    const auto trainer = job.StartTrainer(0, flags);
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
    EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(0));
    std::vector<std::pair<int, double>> found;
    for (const absl::string_view line :
         absl::StrSplit(trainer->output(), '\n')) {
      if (!absl::StartsWith(line, "{\"step\"")) continue;
      const auto object = nlohmann::json::parse(line);
      found.emplace_back(object["step"], object["loss"]);
    }
    return found;
  };
  const auto each = losses({"--epochs=2", "--loss-every=1"});
  ASSERT_EQ(each.size(), 32u);  // 16 steps of 16 images an epoch
  EXPECT_EQ(each.front().first, 1);
  EXPECT_EQ(each.back().first, 32);
  EXPECT_LT(each.back().second, each.front().second);
  EXPECT_EQ(losses({"--epochs=2", "--loss-every=10"}).size(), 3u);
  EXPECT_TRUE(losses({"--epochs=1", "--loss-every=0"}).empty());
}

TEST(MainJob, AServersStatusPageIsShownByTheTool) {
  Job job;
  job.servers = 1;
  job.trainers = 1;
  const auto server = job.StartServer(0);
  const auto trainer = job.StartTrainer(0, {kForLong});
  const auto ask = [&](Flags flags) {
    flags.insert(flags.begin(), {Program("weft"), "status", "--job=" + job.name,
                                 "--coordinator=" + job.coordinator});
    auto asked = StartProcess(std::move(flags));
    (void)asked->Wait(kLong);
    return asked;
  };
  // Once the trainer has made its tables.
  EXPECT_TRUE(Becomes([&] {
    return absl::StrContains(ask({"--page=ps0"})->output(), "  table ");
  })) << ask({"--page=ps0"})->output();
  const auto page =
      nlohmann::json::parse(ask({"--page=ps0", "--json"})->output());
  std::vector<std::string> names;
  for (const auto& section : page["sections"]) {
    names.push_back(section["name"]);
  }
  EXPECT_THAT(names, ElementsAre("flight recorder", "membership", "net",
                                 "passes", "ps", "references", "rpc"));
  EXPECT_THAT(ask({"--tables"})->output(),
              ContainsRegex("tables\n  model: dense, sync, [0-9]+ partitions, "
                            "[0-9]+ rows, [0-9]+ bytes, version "));
  const auto nobody = ask({"--page=ps7"});
  EXPECT_THAT(nobody->Wait(kLong), IsOkAndHolds(3));
  EXPECT_THAT(nobody->output(), HasSubstr("there are: ps0, trainer0"));
}

// Asks for the recordings until ps0 and trainer0 answered in time.
void ExpectDumpWithoutTrainer1(
    std::string out,
    const std::function<std::unique_ptr<Process>(const std::string&)>& dumped) {
  std::unique_ptr<Process> dump;
  EXPECT_TRUE(Becomes([&] {
    out += "_";
    dump = dumped(out);
    return absl::StrContains(dump->output(), "\nps0, ") &&
           absl::StrContains(dump->output(), "\ntrainer0, ");
  })) << dump->output();
  EXPECT_THAT(dump->Wait(kLong), IsOkAndHolds(kTimeout)) << dump->output();
  EXPECT_THAT(
      dump->output(),
      AllOf(HasSubstr("no answer: trainer1: "),
            ContainsRegex("\nps0, [0-9]+ of [0-9]+ entries, .*newest first:\n"),
            ContainsRegex("\ntrainer0, [0-9]+ of [0-9]+ entries")));
  EXPECT_THAT(dump->output(), Not(ContainsRegex("\ntrainer1, [0-9]+ of ")));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out)) {
    EXPECT_THAT(ReadBytes(entry.path()), HasSubstr("weft::ps::Exchange"));
    ++files;
  }
  EXPECT_EQ(files, 2);
}

// One that is stopped is not taken for dead meanwhile. Asynchronously the other
// goes on, so that the first is behind once it is back.
TEST(MainJob, ATrainerThatStandsStillIsNamedByStatusAndDump) {
  Job job;
  job.servers = 1;
  job.flags = {"--limits=dead_after=10m,give_up_after=10m"};
  const auto server = job.StartServer(0);
  const Processes trainers = job.StartTrainers({"--async", "--epochs=100000"});
  const auto weft = [&](const std::string& command, const Flags& more) {
    Flags flags = {Program("weft"), command, "--job=" + job.name,
                   "--coordinator=" + job.coordinator};
    flags.insert(flags.end(), more.begin(), more.end());
    auto asked = StartProcess(std::move(flags));
    (void)asked->Wait(kLong);
    return asked;
  };
  const auto training = [&](const Flags& more = {}) {
    Flags flags = {"--json"};
    flags.insert(flags.end(), more.begin(), more.end());
    const auto status =
        nlohmann::json::parse(weft("status", flags)->output(), nullptr, false);
    return status.is_object() ? status["training"] : nlohmann::json();
  };
  const auto step_of = [](const nlohmann::json& said, const char* trainer) {
    return said.is_object() && said["workers"].contains(trainer)
               ? said["workers"][trainer].value("step", int64_t{-1})
               : -1;
  };
  EXPECT_TRUE(Becomes([&] {
    const auto said = training();
    return step_of(said, "trainer0") > 0 && step_of(said, "trainer1") > 0;
  })) << trainers[0]->output();

  trainers[1]->Signal(SIGSTOP);
  // Asked again where another gets no core for as long.
  const std::string once = "--timeout=2s";
  nlohmann::json said;
  EXPECT_TRUE(Becomes([&] {
    said = training({once});
    return step_of(said, "trainer0") > 0;
  })) << said;
  const int64_t before = step_of(said, "trainer0");
  EXPECT_TRUE(Becomes([&] {
    said = training({once});
    // More than trainer1 takes in seconds in which trainer0 gets no core.
    return step_of(said, "trainer0") > before + 500 &&
           said["no_answer"] == nlohmann::json::array({"trainer1"});
  })) << said;
  std::unique_ptr<Process> status;
  EXPECT_TRUE(Becomes([&] {
    status = weft("status", {once});
    return absl::StrContains(status->output(), "\n  trainer0: step ");
  })) << status->output();
  EXPECT_THAT(status->Wait(kLong), IsOkAndHolds(0));
  EXPECT_THAT(status->output(),
              AllOf(ContainsRegex("\n  trainer0: step [0-9]+, "),
                    HasSubstr("\n  trainer1: no answer: "),
                    HasSubstr("\n  behind: trainer1 (no answer)\n")));

  ExpectDumpWithoutTrainer1(job.Path("recordings"),
                            [&](const std::string& out) {
                              return weft("dump", {once, "--out=" + out});
                            });

  trainers[1]->Signal(SIGCONT);
  EXPECT_TRUE(Becomes([&] {
    said = training();
    return step_of(said, "trainer1") > 0 && step_of(said, "trainer0") > 0;
  })) << said;
  EXPECT_GT(said["workers"]["trainer1"]["steps_behind"], 10) << said;
  EXPECT_EQ(said["workers"]["trainer0"]["steps_behind"], 0) << said;
  EXPECT_THAT(weft("dump", {"--events=1"})->Wait(kLong), IsOkAndHolds(0));
}

// The page that Prometheus would read of a worker of this host.
std::string MetricsAt(int port) {
  const auto asked = StartProcess(
      {"/bin/bash", "-c",
       absl::StrCat("exec 3<>/dev/tcp/127.0.0.1/", port,
                    " && printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3 && cat "
                    "<&3")});
  (void)asked->Wait(kLong);
  return asked->output();
}

// What the bucket of all values has, of the histogram with that line
// "x_count{labels} n".
double CountOfAll(const std::string& page, absl::string_view count) {
  std::string bucket(count.substr(0, count.rfind('}')));
  const size_t at = bucket.find("_count{");
  bucket.replace(at, 7, "_bucket{");
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (!absl::StartsWith(line, bucket) ||
        !absl::StrContains(line, "le=\"+Inf\"")) {
      continue;
    }
    double value = -1;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value));
    return value;
  }
  return -1;
}

// Each histogram's buckets never decrease, and the last, of all values, has as
// many as its count says.
void ExpectHistogramsAddUp(const std::string& page) {
  double last = 0;       // of the buckets of one histogram, in their order
  bool is_over = false;  // the bucket of all values has come
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    double value = 0;
    if (absl::StartsWith(line, "#") ||
        !absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      continue;
    }
    if (absl::StrContains(line, "_bucket{")) {
      if (is_over) last = 0;
      EXPECT_GE(value, last) << line;
      is_over = absl::StrContains(line, "le=\"+Inf\"");
      last = value;
    }
    if (absl::StrContains(line, "_count{")) {
      EXPECT_EQ(value, CountOfAll(page, line)) << line;
    }
  }
}

TEST(MainJob, EveryMetricHasHelpAndTypeAndTrainingIsAmongThem) {
  Job job;
  job.servers = 1;
  job.trainers = 1;
  const int of_server = FreePort();
  const auto server =
      job.StartServer(0, {absl::StrCat("--metrics-port=", of_server)});
  const int of_trainer = FreePort();
  const auto trainer = job.StartTrainer(
      0, {kForLong, absl::StrCat("--metrics-port=", of_trainer)});
  ASSERT_THAT(trainer->WaitForOutput("{\"step\"", kLong), IsOk());
  EXPECT_TRUE(Becomes([&] {
    return absl::StrContains(MetricsAt(of_server), "weft_ps_table_rows{");
  }));
  for (const int port : {of_server, of_trainer}) {
    const std::string page = MetricsAt(port);
    EXPECT_THAT(page, HasSubstr("weft_process_resident_memory_bytes{"));
    EXPECT_THAT(page, HasSubstr("weft_process_cpu_seconds_total{"));
    std::set<std::string> helped;
    for (const absl::string_view line : absl::StrSplit(page, '\n')) {
      const std::vector<std::string> words =
          absl::StrSplit(line, absl::MaxSplits(' ', 3));
      if (words.size() == 4 && words[1] == "HELP") helped.insert(words[2]);
      if (words.size() == 4 && words[1] == "TYPE") {
        EXPECT_EQ(helped.count(words[2]), 1u) << words[2] << " has no help";
      }
    }
    EXPECT_GT(helped.size(), 8u) << page;
    ExpectHistogramsAddUp(page);
  }
  const std::string page = MetricsAt(of_trainer);
  for (const char* series :
       {"weft_training_last_loss{", "weft_training_samples_total{",
        "weft_training_step_seconds_bucket{",
        "weft_training_phase_seconds_count{", "weft_rpc_client_seconds_count{",
        "weft_rpc_request_bytes_bucket{"}) {
    EXPECT_THAT(page, HasSubstr(series));
  }
}

TEST(MainJob, LearnsAsynchronouslyToo) {
  const Job job;
  // Enough for the first trainer alone, if the other comes late.
  const TrainerResult result = job.Train({"--async", "--epochs=12"});
  EXPECT_GT(result.test_accuracy, kHigh);
  EXPECT_EQ(result.checkpoint, "");
}

TEST(MainJob, LearnsWithGradientsOfAByteAndParametersOfTwo) {
  const Job job;
  const Flags flags = {"--push-dtype=int8", "--pull-dtype=bf16", "--epochs=3"};
  EXPECT_GT(job.Train(flags).test_accuracy, kHigh);
}

// Not only the parameters go on where they were: the rule's slots and the
// place in the data do, else the bits would differ.
TEST(MainJob, TheSameSeedGivesTheSameBitsAlsoAcrossAResumeOnOtherServers) {
  Job job;
  const std::string whole = job.Path("whole");
  const std::string parts = job.Path("parts");
  const std::string model =
      job.Train({"--epochs=3", "--checkpoint-dir=" + whole}).checkpoint +
      kModel;
  job.Train({"--epochs=1", "--checkpoint-dir=" + parts});
  EXPECT_EQ(ReadBytes(whole + "/ckpt-000001-step-8" + kModel),
            ReadBytes(parts + "/ckpt-000001-step-8" + kModel));

  job.servers = 3;
  const TrainerResult resumed =
      job.Train({"--epochs=3", "--resume", "--checkpoint-dir=" + parts});
  EXPECT_THAT(resumed.checkpoint, EndsWith("ckpt-000003-step-24"));
  EXPECT_EQ(ReadBytes(model), ReadBytes(resumed.checkpoint + kModel));
  EXPECT_GT(resumed.test_accuracy, kHigh);

  const std::string other = job.Path("other");
  job.Train({"--epochs=1", "--seed=2", "--checkpoint-dir=" + other});
  EXPECT_NE(ReadBytes(other + "/ckpt-000001-step-8" + kModel),
            ReadBytes(parts + "/ckpt-000001-step-8" + kModel));
}

// Each checkpoint is of one round, whichever it is, though rounds go on while
// it is written.
TEST(MainJob, CheckpointsWhileTrainingGoesOnChangeNoBitAndAnyOfThemResumes) {
  Job job;
  const std::string model =
      job.Train({"--epochs=3", "--checkpoint-dir=" + job.Path("whole")})
          .checkpoint +
      kModel;
  // 4: as chains, where servers have what is no more than what has changed.
  for (const int full_every : {1, 4}) {
    SCOPED_TRACE(full_every);
    job.servers = 2;
    const std::string saved = job.Path(absl::StrCat("saved", full_every));
    const TrainerResult often =
        job.Train({"--epochs=3", "--snapshot-every=1us", "--keep=100",
                   absl::StrCat("--full-snapshot-every=", full_every),
                   "--checkpoint-dir=" + saved});
    EXPECT_EQ(ReadBytes(model), ReadBytes(often.checkpoint + kModel));
    std::vector<std::string> names = Checkpoints(saved);
    ASSERT_GT(names.size(), 3);  // those between two epochs
    // One in the middle of an epoch becomes the newest.
    const auto is_of_an_epoch = [](const std::string& name) {
      return StepOf(name) % 8 == 0;
    };
    const auto last =
        std::find_if_not(names.rbegin(), names.rend(), is_of_an_epoch);
    ASSERT_TRUE(last != names.rend());
    for (auto newer = names.rbegin(); newer != last; ++newer) {
      std::filesystem::remove_all(saved + "/" + *newer);
    }
    job.servers = 3;
    const TrainerResult resumed =
        job.Train({"--epochs=3", "--resume", "--checkpoint-dir=" + saved});
    EXPECT_EQ(ReadBytes(model), ReadBytes(resumed.checkpoint + kModel));
  }
}

TEST(MainJob, ResumesFromTheNewestCheckpointThatIsWhole) {
  Job job;
  job.servers = 1;
  job.trainers = 1;
  const std::string saved = job.Path("saved");
  const Flags resume = {"--epochs=2", "--resume", "--checkpoint-dir=" + saved};
  job.Train({"--epochs=2", "--checkpoint-dir=" + saved});
  Damage(saved + "/ckpt-000002-step-32/shard-00000.safetensors");
  {
    const auto server = job.StartServer(0);
    const auto trainer = job.StartTrainer(0, resume);
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
    EXPECT_THAT(trainer->output(),
                HasSubstr("passing over a damaged checkpoint"));
    EXPECT_THAT(trainer->output(), HasSubstr("ckpt-000002-step-32"));
    EXPECT_THAT(trainer->output(),
                HasSubstr("resuming checkpoint=ckpt-000001-step-16"));
    EXPECT_THAT(ResultOf(*trainer).checkpoint, EndsWith("ckpt-000003-step-32"));
  }
  for (const std::string& name : Checkpoints(saved)) {
    if (name == "ckpt-000002-step-32") continue;
    Damage(saved + "/" + name + kModel);
  }
  job.trainers = 2;
  const auto server = job.StartServer(0);
  const auto trainer = job.StartTrainer(0, resume);
  const auto other = job.StartTrainer(1, resume);
  const std::string why =
      absl::StrCat("every checkpoint in ", saved, " is damaged; the newest: ");
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(20)) << trainer->output();
  EXPECT_THAT(trainer->output(), HasSubstr(why));
  // Each rank that ends by it reports the cause, also one that saw it later.
  EXPECT_THAT(other->Wait(kLong), IsOkAndHolds(20)) << other->output();
  EXPECT_THAT(other->output(), HasSubstr("error: trainer0: " + why));
  EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(20)) << server->output();
  EXPECT_THAT(server->output(), HasSubstr("error: trainer0: " + why));
}

TEST(MainJob, RateAndNumberOfTrainersMayChangeOnResumeSeedAndDataMayNot) {
  Job job;
  const std::string saved = job.Path("saved");
  job.Train({"--epochs=1", "--checkpoint-dir=" + saved});
  const Flags resume = {"--epochs=2", "--resume", "--checkpoint-dir=" + saved};
  const auto with = [&](const std::string& flag) {
    Flags flags = resume;
    flags.push_back(flag);
    return flags;
  };
  const auto refuses = [&](const Flags& flags, const std::string& why) {
    const Processes servers = job.StartServers();
    const Processes trainers = job.StartTrainers(flags);
    for (const Processes* all : {&trainers, &servers}) {
      for (const auto& p : *all) {
        EXPECT_THAT(p->Wait(kLong), IsOkAndHolds(3)) << p->output();
        EXPECT_THAT(p->output(), HasSubstr(why));
      }
    }
    EXPECT_THAT(
        trainers[0]->output(),
        HasSubstr("--epochs, --keep, --keep-as, --keep-best, --late, --lr, "));
  };
  refuses(with("--seed=7"), "--seed is 1 there and 7 now");
  refuses(with("--async"), "--sync or --async is --sync there and --async now");
  const std::string labels = job.data + "/train-labels-idx1-ubyte";
  std::string bytes = ReadBytes(labels);
  const std::string before = bytes;
  std::swap(bytes[bytes.size() - 1], bytes[bytes.size() - 2]);
  WriteBytes(labels, bytes);
  refuses(resume, "checksum of --data is ");
  WriteBytes(labels, before);
  job.trainers = 3;
  const TrainerResult result = job.Train(with("--lr=0.005"));
  EXPECT_GT(result.test_accuracy, 0.5);
}

TEST(MainJob, TrainersOfUnequalDataAreRefused) {
  Job job;
  const auto server0 = job.StartServer(0);
  const auto server1 = job.StartServer(1);
  const auto trainer0 = job.StartTrainer(0);
  const std::string other = job.Path("other");
  std::filesystem::copy(job.data, other);
  const std::string labels = other + "/train-labels-idx1-ubyte";
  std::string bytes = ReadBytes(labels);
  std::swap(bytes[bytes.size() - 1], bytes[bytes.size() - 2]);
  WriteBytes(labels, bytes);
  const auto trainer1 = job.StartTrainer(1, {"--data=" + other});
  for (const auto* p : {&trainer0, &trainer1, &server0, &server1}) {
    EXPECT_THAT((*p)->Wait(kLong), IsOkAndHolds(3)) << (*p)->output();
  }
  EXPECT_THAT(trainer1->output(), HasSubstr("checksum of --data is "));
}

// Progress, errors, warnings on the environment, gRPC's own: all in one form.
TEST(MainJob, WithLogJsonEachLineOfStandardErrorIsOneObject) {
  Job job;
  job.servers = 1;
  job.trainers = 1;
  const auto in_json = [](const Flags& command, const std::string& out) {
    Flags all = {"/usr/bin/env", "WEFT_NO_SUCH=1",
                 "GRPC_TRACE=",  "/bin/sh",
                 "-c",           "exec \"$0\" \"$@\" > " + out};
    all.insert(all.end(), command.begin(), command.end());
    all.push_back("--log=json");
    return StartProcess(all);
  };
  const auto server = in_json(job.ServerCommand(0), "/dev/null");
  const auto trainer =
      in_json(job.TrainerCommand(0, {"--epochs=1"}), "/dev/full");
  const auto refused =
      in_json(job.TrainerCommand(0, {"--epochs=many"}), "/dev/null");
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(13)) << trainer->output();
  EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(0)) << server->output();
  EXPECT_THAT(refused->Wait(kLong), IsOkAndHolds(2)) << refused->output();
  for (const auto* process : {&server, &trainer, &refused}) {
    const std::string output = (*process)->output();
    EXPECT_THAT(output, HasSubstr("sets nothing and is ignored"));
    for (const absl::string_view line :
         absl::StrSplit(output, '\n', absl::SkipEmpty())) {
      EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    }
  }
  EXPECT_THAT(trainer->output(), HasSubstr("\"progress\":\"training\""));
  EXPECT_THAT(trainer->output(), HasSubstr("\"exit_code\":13"));
}

// Trainers prove their role by certificates; the servers have a rule for it.
TEST(MainJob, TrainerThatMayNotChangeTheTablesIsToldTheRule) {
  for (const int replicas : {1, 2}) {
    SCOPED_TRACE(replicas);
    Job job;
    job.trainers = 1;
    const auto init = StartProcess({Program("weft"), "certs", "init",
                                    "--dir=" + job.Path("certs"), "--job=job",
                                    "--servers=2", "--trainers=1"});
    ASSERT_THAT(init->Wait(kLong), IsOkAndHolds(0)) << init->output();
    job.coordinator = absl::StrCat("127.0.0.1:", FreePort());
    job.flags = {"--certs=" + job.Path("certs"),
                 absl::StrCat("--replicas=", replicas)};
    const Processes servers =
        job.StartServers({"--table-access=*=trainer:r,admin:rw"});
    ASSERT_THAT(servers[0]->WaitForOutput("coordinator serves", kLong), IsOk());
    const auto trainer = job.StartTrainer(0);
    const auto code = trainer->Wait(kLong);
    ASSERT_THAT(code, IsOk()) << trainer->output();
    EXPECT_NE(*code, 0);
    EXPECT_THAT(trainer->output(),
                HasSubstr("trainer0 (role trainer) may not change table"));
    EXPECT_THAT(trainer->output(),
                HasSubstr("--table-access says '*=trainer:r,admin:rw'"));
  }
}

TEST(MainJob, TrainsOverTcpWithTheCertificatesOfItsJobOnly) {
  Job job;
  job.trainers = 1;
  for (const std::string name : {"job", "stranger"}) {
    const auto init = StartProcess({Program("weft"), "certs", "init",
                                    "--dir=" + job.Path(name), "--job=" + name,
                                    "--servers=2", "--trainers=1"});
    ASSERT_THAT(init->Wait(kLong), IsOkAndHolds(0)) << init->output();
  }
  // Others cannot be given port 0, so use a port that was free a moment ago.
  job.coordinator = absl::StrCat("127.0.0.1:", FreePort());
  job.flags = {"--certs=" + job.Path("job")};
  const Processes servers = job.StartServers({"--table-access=*=trainer:rw"});
  ASSERT_THAT(servers[0]->WaitForOutput("coordinator serves", kLong), IsOk());

  Job stranger;
  stranger.trainers = 1;
  stranger.coordinator = job.coordinator;
  stranger.name = "stranger";
  stranger.flags = {"--certs=" + job.Path("stranger")};
  const auto intruder = stranger.StartTrainer(0, {"--join-timeout=20s"});
  EXPECT_THAT(intruder->Wait(kLong), IsOkAndHolds(12)) << intruder->output();
  EXPECT_THAT(intruder->output(), HasSubstr("weft certs init"));

  const auto trainer = job.StartTrainer(0, {"--epochs=3"});
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
  EXPECT_GT(ResultOf(*trainer).test_accuracy, kHigh);
  for (const auto& p : servers) {
    EXPECT_THAT(p->Wait(kLong), IsOkAndHolds(0)) << p->output();
  }
}

}  // namespace
}  // namespace weft::testing
