// AtSocket: a test with a worker of its own, a process, at a unix socket.

#ifndef WEFT_TESTS_OUTSIDE_LOCAL_AT_SOCKET_H_
#define WEFT_TESTS_OUTSIDE_LOCAL_AT_SOCKET_H_

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/tests/outside/local/answers.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::outside {

constexpr absl::Duration kLong = absl::Seconds(60);

// A connection to a unix socket that speaks bytes. It is not connected where
// nobody listens, or the backlog is full.
class RawSocket {
 public:
  explicit RawSocket(const std::string& path)
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    memcpy(name.sun_path, path.data(), path.size());
    is_connected_ =
        connect(fd_, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0;
  }
  ~RawSocket() { close(fd_); }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  bool is_connected() const { return is_connected_; }
  // What fits.
  void Send(absl::string_view bytes) {
    send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Whether the other end has closed; what has come is thrown away.
  bool HasEnded() {
    char bytes[4096];
    for (;;) {
      const ssize_t read = recv(fd_, bytes, sizeof bytes, 0);
      if (read > 0) continue;
      return read == 0 || errno != EAGAIN;
    }
  }

 private:
  const int fd_;
  bool is_connected_ = false;
};

class AtSocket : public ::testing::Test {
 protected:
  AtSocket() {
    mkdir(dir_.Path("run").c_str(), 0700);
    mkdir(dir_.Path("at").c_str(), 0700);
  }

  std::string Path(const std::string& name) const { return dir_.Path(name); }
  std::string socket_path() const { return Path("at/s"); }
  std::string address() const { return "unix:" + socket_path(); }

  std::unique_ptr<testing::Process> Start(
      const std::vector<std::string>& flags) const {
    testing::Command command;
    command.argv = {testing::RunfilePath("tests/outside/local/answerer")};
    command.argv.insert(command.argv.end(), flags.begin(), flags.end());
    command.env = {"XDG_RUNTIME_DIR=" + Path("run")};
    auto process = testing::Process::Start(std::move(command));
    EXPECT_THAT(process, testing::IsOk());
    return *std::move(process);
  }
  // The worker.
  void Serve(std::vector<std::string> flags = {}) {
    flags.push_back("--listen=" + address());
    worker_ = Start(flags);
    ASSERT_THAT(worker_->WaitForOutput("serving", kLong), testing::IsOk());
  }

  std::unique_ptr<rpc::Client> Connect() const {
    auto client = rpc::Client::Connect(address());
    EXPECT_THAT(client, testing::IsOk());
    return client.ok() ? *std::move(client) : nullptr;
  }
  // A newcomer is served.
  void ExpectServes() const {
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    EXPECT_THAT(rpc::Call(client->To(kLong), Turned, "abc"),
                testing::IsOkAndHolds("cba"));
  }

  // Each thread of it: a signal takes its time.
  void StopWorker() const {
    worker_->Signal(SIGSTOP);
    const std::string threads = absl::StrCat("/proc/", worker_->pid(), "/task");
    EXPECT_TRUE(testing::Becomes([&] {
      for (const auto& thread : std::filesystem::directory_iterator(threads)) {
        std::ifstream file(thread.path() / "stat");
        std::string stat;
        std::getline(file, stat);
        if (!absl::StrContains(stat, ") T ")) return false;
      }
      return true;
    }));
  }

  bool IsThere(const std::string& name) const {
    return access(Path(name).c_str(), F_OK) == 0;
  }
  void Touch(const std::string& name) const {
    std::ofstream(Path(name)).flush();
  }
  int Descriptors() const {
    const std::filesystem::directory_iterator all(
        absl::StrCat("/proc/", worker_->pid(), "/fd"));
    return static_cast<int>(std::distance(begin(all), end(all)));
  }
  // Of the worker's memory, what is its own.
  int64_t MiB() const {
    std::ifstream file(absl::StrCat("/proc/", worker_->pid(), "/status"));
    for (std::string line; std::getline(file, line);) {
      if (!absl::StartsWith(line, "RssAnon:")) continue;
      int64_t kib = 0;
      const std::vector<std::string> words =
          absl::StrSplit(line, ' ', absl::SkipEmpty());
      EXPECT_TRUE(absl::SimpleAtoi(words[words.size() - 2], &kib)) << line;
      return kib >> 10;
    }
    ADD_FAILURE() << "the worker has ended: " << worker_->output();
    return 0;
  }

  testing::TempDir dir_;
  std::unique_ptr<testing::Process> worker_;
};

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_LOCAL_AT_SOCKET_H_
