// The programs in clumsy hands, as docs/cli.md promises them: stopped before
// they have begun, told to write over what is there, given names that are
// paths, sent to a socket of somebody else, fed with JSON that is no tensor.

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/idx_images.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;

constexpr absl::Duration kLong = absl::Seconds(60);

class Clumsy : public ::testing::Test {
 protected:
  Clumsy() {
    for (const char* own : {"job", "tmp"}) {
      EXPECT_EQ(mkdir(Path(own).c_str(), 0700), 0);
    }
  }
  std::string Path(const std::string& name) const { return dir_.Path(name); }

  std::unique_ptr<Process> Start(const Words& words) {
    Command command;
    command.argv = words;
    command.argv[0] = RunfilePath("launch/" + words[0]);
    command.env = {"TMPDIR=" + Path("tmp"), "XDG_RUNTIME_DIR=" + Path("tmp")};
    auto started = Process::Start(std::move(command));
    EXPECT_THAT(started, IsOk());
    return *std::move(started);
  }
  struct Ended {
    int code = -1;
    std::string output;
  };
  Ended Run(const Words& words) {
    const auto process = Start(words);
    const auto code = process->Wait(kLong);
    EXPECT_THAT(code, IsOk()) << process->output();
    return {code.ok() ? *code : -1, process->output()};
  }

  Words Worker(const std::string& program, int rank, Words more = {}) {
    Words words = {program, absl::StrCat("--rank=", rank),
                   "--coordinator=unix:" + Path("job/ps0.sock"),
                   "--dump-dir=" + Path("")};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void WriteImages() {
    std::filesystem::create_directory(Path("images"));
    WriteIdxImages(Path("images/train"), 64);
    WriteIdxImages(Path("images/t10k"), 20);
  }
  std::set<std::string> Files() const {
    std::set<std::string> all;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(dir_.path())) {
      all.insert(entry.path());
    }
    return all;
  }
  std::vector<std::string> Sockets() const {
    std::vector<std::string> all;
    for (const std::string& path : Files()) {
      if (std::filesystem::is_socket(std::filesystem::symlink_status(path))) {
        all.push_back(path);
      }
    }
    return all;
  }
  static std::string Bytes(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempDir dir_;
};

// ---- Stopped before they have begun.

TEST_F(Clumsy, SignalWhileJoiningLeavesNoSocketInAnyWayOfMeeting) {
  WriteImages();
  const std::string data = "--data=" + Path("images");
  const Words two_and_two = {"--servers=2", "--trainers=2"};
  struct Case {
    Words words;
    bool has_socket;
  };
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Words by_file = {"--init=file://" + Path("job/meet")};
  const std::vector<Case> cases = {
      {with(Worker("parameter_server", 0), two_and_two), true},
      {with(Worker("parameter_server", 1), two_and_two), false},
      {with(Worker("trainer", 1, {data}), two_and_two), false},
      {with(Worker("trainer", 0, {data, "--strategy=ddp"}), {"--trainers=2"}),
       true},
      {with({"parameter_server", "--rank=0", "--dump-dir=" + Path("")},
            with(two_and_two, by_file)),
       false},
      {with({"trainer", "--rank=1", "--dump-dir=" + Path(""), data},
            with(two_and_two, by_file)),
       false},
  };
  for (const int signal : {SIGTERM, SIGINT}) {
    for (const Case& one : cases) {
      const auto process = Start(one.words);
      EXPECT_TRUE(Becomes([&] {
        return !Sockets().empty() ||
               (!one.has_socket && !process->output().empty());
      })) << ::testing::PrintToString(one.words);
      process->Signal(signal);
      const auto code = process->Wait(kLong);
      ASSERT_THAT(code, IsOk()) << process->output();
      EXPECT_EQ(*code, 128 + signal) << process->output();
      EXPECT_THAT(Sockets(), IsEmpty())
          << ::testing::PrintToString(one.words) << process->output();
    }
  }
}

// All but one have joined.
TEST_F(Clumsy, SignalToWorkersThatWaitForTheLastLeavesNoSocket) {
  WriteImages();
  const Words world = {"--servers=1", "--trainers=2"};
  std::vector<std::unique_ptr<Process>> workers;
  workers.push_back(Start(Worker("parameter_server", 0, world)));
  workers.push_back(Start(
      Worker("trainer", 0,
             {"--servers=1", "--trainers=2", "--data=" + Path("images")})));
  EXPECT_TRUE(Becomes([&] { return Sockets().size() >= 2; }));
  for (const auto& worker : workers) worker->Signal(SIGTERM);
  for (const auto& worker : workers) {
    EXPECT_THAT(worker->Wait(kLong), IsOkAndHolds(128 + SIGTERM))
        << worker->output();
  }
  EXPECT_THAT(Sockets(), IsEmpty());
}

// ---- Told to write over what is there.

TEST_F(Clumsy, TraceOverAnyOtherFileIsRefusedBeforeTheWork) {
  WriteImages();
  std::ofstream(Path("thesis.txt")) << "three years of work";
  std::ofstream(Path("list.json")) << "[1, 2, 3]";
  std::filesystem::create_symlink("thesis.txt", Path("link"));
  std::filesystem::create_directory(Path("folder"));
  const std::string images = Path("images/train-images-idx3-ubyte");
  const std::string pixels = Bytes(images);
  const auto there = Files();
  for (const std::string& path :
       {Path("thesis.txt"), Path("list.json"), Path("link"), Path("folder"),
        Path("folder/"), images, Path("no/such/folder/trace.json"),
        Path("thesis.txt/trace.json")}) {
    for (const char* program : {"parameter_server", "trainer"}) {
      const Ended ended =
          Run(Worker(program, 0,
                     {"--servers=1", "--trainers=1", "--join-timeout=20s",
                      "--trace=" + path, "--data=" + Path("images")}));
      EXPECT_EQ(ended.code, 3) << path << " " << ended.output;
      EXPECT_THAT(ended.output, HasSubstr(path));
    }
  }
  EXPECT_EQ(Bytes(Path("thesis.txt")), "three years of work");
  EXPECT_EQ(Bytes(Path("list.json")), "[1, 2, 3]");
  EXPECT_EQ(Bytes(images), pixels);
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  EXPECT_EQ(Files(), there);
}

// ---- Names that are paths.

TEST_F(Clumsy, NamesThatArePathsAreRefusedAndMakeNothing) {
  WriteImages();
  std::filesystem::create_directory(Path("job/in"));
  std::filesystem::create_directory(Path("logs"));
  ASSERT_EQ(Run({"weft", "certs", "init", "--dir=" + Path("certs"), "--job=j",
                 "--servers=1", "--trainers=1"})
                .code,
            0);
  const auto there = Files();
  const std::string data = "--data=" + Path("images");
  const std::string yes = ":/bin/true";
  for (const std::string& bad :
       {std::string("../x"), std::string("a/b"), std::string("/x"),
        std::string(".."), std::string("."), std::string("a\nb"),
        std::string(200, 'a')}) {
    const std::vector<Words> all = {
        Worker("trainer", 0, {"--job=" + bad, data, "--join-timeout=2s"}),
        Worker("parameter_server", 0, {"--job=" + bad, "--join-timeout=2s"}),
        Worker("trainer", 0,
               {"--strategy=ddp", "--trainers=1", data, "--epochs=0",
                "--checkpoint-dir=" + Path("job/in"), "--keep-as=" + bad}),
        {"weft", "run", "--log-dir=" + Path("logs"),
         "--role=" + bad + "=1" + yes},
        {"weft", "run", "--log-dir=" + Path("logs"), "--job=" + bad,
         "--role=ps=1" + yes},
        {"weft", "certs", "init", "--dir=" + Path("certs"), "--job=" + bad,
         "--servers=1"},
        {"weft", "certs", "revoke", "--dir=" + Path("certs"), "--name=" + bad},
        {"weft", "status", "--job=" + bad, "--timeout=2s",
         "--coordinator=unix:" + Path("job/ps0.sock")},
        {"weft", "call", bad, "--timeout=2s",
         "--coordinator=unix:" + Path("job/ps0.sock")},
    };
    for (const Words& words : all) {
      const Ended ended = Run(words);
      EXPECT_THAT(ended.code, AnyOf(2, 3, 10, 11))
          << ::testing::PrintToString(words) << ended.output;
      EXPECT_THAT(ended.output, ::testing::Not(IsEmpty()));
    }
    EXPECT_EQ(Files(), there) << bad;
  }
  EXPECT_EQ(Run({"weft", "run", "--role=ps=1" + yes, "--role=ps=1" + yes}).code,
            2);
}

// ---- Sockets of somebody else.

// A listener that is not of Weft.
class Stranger {
 public:
  Stranger(const std::string& path, std::string says)
      : says_(std::move(says)), fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
              0);
    EXPECT_EQ(listen(fd_, 16), 0);
    chmod(path.c_str(), 0600);
    thread_ = std::thread([this] { Serve(); });
  }
  ~Stranger() {
    ends_ = true;
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
    for (const int fd : open_) close(fd);
  }

 private:
  void Serve() {
    while (!ends_) {
      const int fd = accept(fd_, nullptr, nullptr);
      if (fd < 0) continue;
      if (says_ == "bye") {
        close(fd);
        continue;
      }
      if (!says_.empty()) {
        (void)!send(fd, says_.data(), says_.size(), MSG_NOSIGNAL);
      }
      open_.push_back(fd);
    }
  }

  const std::string says_;
  const int fd_;
  std::atomic<bool> ends_{false};
  std::vector<int> open_;
  std::thread thread_;
};

TEST_F(Clumsy, SocketOfSomebodyElseIsNamedAndKept) {
  WriteImages();
  const std::string path = Path("job/ps0.sock");
  for (const std::string& says :
       {std::string(), std::string("bye"),
        std::string("HTTP/1.1 400 Bad Request\r\n\r\n"),
        std::string("220 mail.example.org ESMTP\r\n"),
        std::string(100000, '\xff')}) {
    {
      const Stranger stranger(path, says);
      const std::string at = "--coordinator=unix:" + path;
      const Words ask[] = {
          {"weft", "status", at, "--timeout=2s"},
          {"weft", "status", at, "--timeout=2s", "--calls", "--refs", "--json"},
          {"weft", "health", "unix:" + path, "--timeout=2s"},
          {"weft", "call", "unix:" + path, "--timeout=2s"},
          {"weft", "call", "unix:" + path, "F", "[]", "--timeout=2s"},
          {"weft", "call", "ps0", at, "--timeout=2s"},
      };
      for (const Words& words : ask) {
        const Ended ended = Run(words);
        EXPECT_THAT(ended.code, AnyOf(3, 10, 11))
            << ::testing::PrintToString(words) << ended.output;
        EXPECT_THAT(ended.output, HasSubstr(path));
      }
      // The worker that should host the coordinator there does not take the
      // place.
      const Ended host =
          Run(Worker("parameter_server", 0,
                     {"--servers=1", "--trainers=1", "--join-timeout=3s"}));
      EXPECT_EQ(host.code, 3) << host.output;
      EXPECT_THAT(host.output, HasSubstr(path));
      EXPECT_THAT(Sockets(), ElementsAre(path));
    }
    std::filesystem::remove(path);
  }
}

TEST_F(Clumsy, WorkerSentToASocketOfSomebodyElseEndsByItsJoinTimeout) {
  WriteImages();
  const std::string path = Path("job/ps0.sock");
  const Stranger stranger(path, "");
  const Ended ended =
      Run(Worker("trainer", 0,
                 {"--servers=1", "--trainers=1", "--join-timeout=3s",
                  "--data=" + Path("images")}));
  EXPECT_THAT(ended.code, AnyOf(3, 10, 11)) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr(path));
  EXPECT_THAT(Sockets(), ElementsAre(path));
}

// ---- JSON that is no tensor, files that are no files.

constexpr const char* kNoTensors[] = {
    R"({"dtype": "f32", "shape": [-1], "values": [1]})",
    R"({"dtype": "f32", "shape": [-1, -1], "values": [1]})",
    R"({"dtype": "f32", "shape": [4611686018427387904, 4], "values": []})",
    R"({"dtype": "f32", "shape": [4294967296, 4294967296], "values": []})",
    R"({"dtype": "f32", "shape": [9223372036854775807], "values": [1]})",
    R"({"dtype": "f32", "shape": [1e30], "values": [1]})",
    R"({"dtype": "f32", "shape": [1.5], "values": [1]})",
    R"({"dtype": "f32", "shape": ["2"], "values": [1, 2]})",
    R"({"dtype": "f32", "shape": [null], "values": [1]})",
    R"({"dtype": "f32", "shape": {}, "values": [1]})",
    R"({"dtype": "f32", "shape": [2], "values": [1]})",
    R"({"dtype": "f32", "shape": [2], "values": [1, 2, 3]})",
    R"({"dtype": "f32", "shape": [1], "values": ["x"]})",
    R"({"dtype": "f31", "shape": [1], "values": [1]})",
    R"({"dtype": 7, "shape": [1], "values": [1]})",
    R"({"dtype": "i64", "shape": [1], "values": [1.5]})",
    R"({"dtype": "i64", "shape": [1], "values": [1e300]})",
    R"({"dtype": "i64", "shape": [1], "values": ["nan"]})",
    R"({"dtype": "u8", "shape": [1], "values": [-1]})",
    R"({"dtype": "u8", "shape": [1], "values": [300]})",
    R"({"shape": [1]})",
    R"([[1, 2], [3]])",
    R"([[1, 2], 3])",
    R"("text")",
};

// The number 1 in so many arrays.
std::string Nested(int depth) {
  return absl::StrCat(std::string(depth, '['), "1", std::string(depth, ']'));
}

TEST_F(Clumsy, JsonThatIsNoTensorIsRefusedAndTheServerGoesOn) {
  WriteImages();
  const Words world = {"--servers=1", "--trainers=1"};
  const auto server = Start(Worker("parameter_server", 0, world));
  const auto trainer =
      Start(Worker("trainer", 0,
                   {"--servers=1", "--trainers=1", "--data=" + Path("images"),
                    "--epochs=1000000", "--json", "--loss-every=1"}));
  ASSERT_THAT(trainer->WaitForOutput("\"loss\"", kLong), IsOk());
  const std::string at = "--coordinator=unix:" + Path("job/ps0.sock");
  const Ended listed = Run({"weft", "call", "ps0", at});
  ASSERT_EQ(listed.code, 0) << listed.output;
  ASSERT_THAT(listed.output, HasSubstr("Initialize"));
  const auto call = [&](const std::string& tensor) {
    return Run({"weft", "call", "ps0", "weft::ps::Initialize",
                absl::StrCat("[\"none\", 1, ", tensor, "]"), at});
  };
  for (const char* bad : kNoTensors) {
    const Ended ended = call(bad);
    EXPECT_EQ(ended.code, 2) << bad << "\n" << ended.output;
  }
  EXPECT_EQ(call(Nested(40)).code, 2);
  // Longer than a command line may be.
  std::ofstream(Path("deep.json")) << "[\"none\", 1, " << Nested(100000) << "]";
  const Ended deep = Run({"weft", "call", "ps0", "weft::ps::Initialize",
                          "@" + Path("deep.json"), at});
  EXPECT_THAT(deep.code, AnyOf(2, 3)) << deep.output;
  // What is a tensor is sent, and refused by the function.
  EXPECT_EQ(call("[1, 2]").code, 3);
  EXPECT_EQ(call(R"({"dtype": "f32", "shape": [0], "values": []})").code, 3);
  for (const char* timeout : {"-1s", "nan", "5 parsecs", ""}) {
    EXPECT_EQ(
        Run({"weft", "call", "ps0", at, absl::StrCat("--timeout=", timeout)})
            .code,
        2)
        << timeout;
  }
  // Arguments from where there is no end, or nothing comes.
  for (const char* path : {"@/dev/zero", "@/no/such/file", "@/", "@"}) {
    EXPECT_THAT(
        Run({"weft", "call", "ps0", "weft::ps::Initialize", path, at}).code,
        AnyOf(2, 3, 13))
        << path;
  }
  EXPECT_EQ(Run({"weft", "status", at, "--page=../ps0"}).code, 3);
  EXPECT_EQ(Run({"weft", "status", at, "--page="}).code, 2);
  EXPECT_EQ(Run({"weft", "status", at}).code, 0);
  trainer->Signal(SIGTERM);
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(128 + SIGTERM))
      << trainer->output();
  EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(128 + SIGTERM))
      << server->output();
  EXPECT_THAT(Sockets(), IsEmpty());
}

TEST_F(Clumsy, DumpOfWhatIsNoRecordingEndsAndNamesIt) {
  std::ofstream(Path("text.flight")) << "not a recording\n";
  std::ofstream(Path("empty.flight"));
  std::filesystem::create_symlink(Path("loop"), Path("loop"));
  for (const std::string& path :
       {std::string("/dev/zero"), std::string("/proc/self/mem"),
        Path("text.flight"), Path("empty.flight"), Path("loop"), Path("none"),
        Path("tmp"), std::string("/dev/null"), std::string()}) {
    const Ended ended = Run({"weft", "dump", path});
    EXPECT_THAT(ended.code, AnyOf(2, 3)) << path << "\n" << ended.output;
    if (!path.empty()) {
      EXPECT_THAT(ended.output, HasSubstr(path));
    }
  }
}

}  // namespace
}  // namespace weft::testing
