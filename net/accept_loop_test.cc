#include "weft/net/accept_loop.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "weft/base/fake_clock.h"
#include "weft/net/audit.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::net {
namespace {

using ::weft::testing::StatusIs;

constexpr absl::Duration kSoon =
    absl::Seconds(30);  // longer than any wait that ends well

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }
  void Say(const char* text) const {
    EXPECT_EQ(write(fd_, text, strlen(text)),
              static_cast<ssize_t>(strlen(text)));
  }
  // The other end has closed it.
  bool AwaitEnd() const {
    pollfd waited = {fd_, POLLIN, 0};
    char byte;
    return poll(&waited, 1,
                static_cast<int>(absl::ToInt64Milliseconds(kSoon))) == 1 &&
           read(fd_, &byte, 1) <= 0;
  }

 private:
  int fd_;
};

// Async-signal-safe, so that a forked child may use it.
int ConnectTo(const sockaddr* name, socklen_t length) {
  const int fd = socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, name, length) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

class AcceptLoopTest : public ::testing::Test {
 protected:
  ~AcceptLoopTest() override {
    loop_ = nullptr;
    for (int fd : delivered_) close(fd);
  }

  void Open(AcceptLoopOptions options, bool tcp = false) {
    auto listener = Listener::Open(
        *ParseAddress(tcp ? "127.0.0.1:0" : "unix:" + dir_.Path("s")));
    ASSERT_THAT(listener, testing::IsOk());
    address_ = listener->address();
    loop_ = *AcceptLoop::Create(options);
    ASSERT_THAT(loop_->Add(*std::move(listener), AcceptLoop::Speaks::kAnything,
                           [this](int fd) {
                             MutexLock lock(mu_);
                             delivered_.push_back(fd);
                             ++count_;
                             changed_.NotifyAll();
                           }),
                testing::IsOk());
  }

  sockaddr_storage Name(socklen_t* length) const {
    sockaddr_storage storage = {};
    if (address_.kind == Address::Kind::kUnix) {
      auto* name = reinterpret_cast<sockaddr_un*>(&storage);
      name->sun_family = AF_UNIX;
      strncpy(name->sun_path, address_.path.c_str(), sizeof name->sun_path - 1);
      *length = sizeof *name;
    } else {
      auto* name = reinterpret_cast<sockaddr_in*>(&storage);
      name->sin_family = AF_INET;
      name->sin_port = htons(address_.port);
      name->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      *length = sizeof *name;
    }
    return storage;
  }
  Socket Connect() const {
    socklen_t length;
    const sockaddr_storage name = Name(&length);
    Socket socket(ConnectTo(reinterpret_cast<const sockaddr*>(&name), length));
    EXPECT_GE(socket.fd(), 0) << strerror(errno);
    return socket;
  }
  // Of 127.0.0.2 rather than 127.0.0.1.
  Socket ConnectFromAnotherAddress() const {
    sockaddr_in own = {};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(
        bind(socket.fd(), reinterpret_cast<const sockaddr*>(&own), sizeof own),
        0);
    socklen_t length;
    const sockaddr_storage name = Name(&length);
    EXPECT_EQ(
        connect(socket.fd(), reinterpret_cast<const sockaddr*>(&name), length),
        0);
    return socket;
  }
  Socket Speaker() const {
    Socket socket = Connect();
    socket.Say("x");
    return socket;
  }
  bool AwaitDelivered(int count) {
    const auto deadline =
        std::chrono::steady_clock::now() + absl::ToChronoSeconds(kSoon);
    MutexLock lock(mu_);
    while (count_ < count && changed_.WaitUntil(mu_, deadline)) {
    }
    return count_ >= count;
  }
  int delivered() {
    MutexLock lock(mu_);
    return count_;
  }
  // As gRPC does when a connection ends.
  void CloseDelivered() {
    MutexLock lock(mu_);
    for (int fd : delivered_) close(fd);
    delivered_.clear();
  }

  testing::TempDir dir_;
  Address address_;
  std::unique_ptr<AcceptLoop> loop_;
  Mutex mu_;
  CondVar changed_;
  std::vector<int> delivered_ ABSL_GUARDED_BY(mu_);
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_F(AcceptLoopTest, HandsOverWhatSpeaks) {
  Open({});
  Socket silent = Connect();
  Socket speaker = Speaker();
  EXPECT_TRUE(AwaitDelivered(1));
  EXPECT_EQ(delivered(), 1);
}

// gRPC sets these on what it accepts itself. Without the first, a message that
// does not fill a segment waits for an acknowledgement, which may take 40 ms.
TEST_F(AcceptLoopTest, AcceptedTcpSocketsSendAtOnceAndUnpaced) {
  Open({}, /*tcp=*/true);
  Socket speaker = Speaker();
  ASSERT_TRUE(AwaitDelivered(1));
  MutexLock lock(mu_);
  const int fd = delivered_.front();
  const auto is_on = [fd](int level, int option) {
    int value = 0;
    socklen_t length = sizeof value;
    return getsockopt(fd, level, option, &value, &length) == 0 && value != 0;
  };
  EXPECT_TRUE(is_on(IPPROTO_TCP, TCP_NODELAY));
  EXPECT_TRUE(is_on(SOL_SOCKET, SO_KEEPALIVE));
  char congestion[16] = "";
  socklen_t length = sizeof congestion;
  ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, &length),
            0);
  const std::string found(congestion);
  EXPECT_TRUE(found == "cubic" || found == "reno") << found;
}

TEST_F(AcceptLoopTest, SilentOnesAreClosedInTime) {
  AcceptLoopOptions options;
  options.handshake_timeout = absl::Milliseconds(50);
  Open(options);
  EXPECT_TRUE(Connect().AwaitEnd());
  EXPECT_EQ(delivered(), 0);
}

TEST_F(AcceptLoopTest, TheOldestSilentOneMakesRoom) {
  AcceptLoopOptions options;
  options.max_connections = 3;
  options.max_connections_per_address = 3;
  options.handshake_timeout = kSoon * 2;
  Open(options);
  Socket oldest = Connect();
  std::vector<Socket> others;
  for (int i = 0; i < 2; ++i) others.push_back(Connect());
  Socket speaker = Speaker();
  EXPECT_TRUE(oldest.AwaitEnd());
  EXPECT_TRUE(AwaitDelivered(1));
}

TEST_F(AcceptLoopTest, ConnectionsAreCappedAndPlacesComeBack) {
  AcceptLoopOptions options;
  options.max_connections = 4;
  options.max_connections_per_address = 2;
  Open(options);
  Socket first = Speaker();
  Socket second = Speaker();
  ASSERT_TRUE(AwaitDelivered(2));
  EXPECT_TRUE(Connect().AwaitEnd());
  CloseDelivered();
  Socket third = Speaker();
  EXPECT_TRUE(AwaitDelivered(3));
}

TEST_F(AcceptLoopTest, ACrowdAtOneAddressTakesNoPlaceFromOthers) {
  AcceptLoopOptions options;
  options.max_connections = 10;
  options.max_connections_per_address = 2;
  options.handshake_timeout = kSoon * 2;
  Open(options, /*tcp=*/true);
  Socket other = ConnectFromAnotherAddress();
  Socket first = Speaker();
  Socket second = Speaker();
  ASSERT_TRUE(AwaitDelivered(2));
  EXPECT_TRUE(Connect().AwaitEnd()) << "one too many";
  other.Say("x");
  EXPECT_TRUE(AwaitDelivered(3));
}

TEST_F(AcceptLoopTest, HandshakesAreBoundedUntilTheyMakeACall) {
  AcceptLoopOptions options;
  options.max_handshakes = 1;
  options.handshake_timeout = kSoon * 2;
  Open(options, /*tcp=*/true);
  Socket first = Speaker();
  ASSERT_TRUE(AwaitDelivered(1));
  Socket second = Speaker();
  Socket third = Connect();  // has been seen once it is closed below
  EXPECT_EQ(delivered(), 1);
  sockaddr_in name = {};
  socklen_t length = sizeof name;
  ASSERT_EQ(
      getsockname(first.fd(), reinterpret_cast<sockaddr*>(&name), &length), 0);
  loop_->MarkServed("127.0.0.1:" + std::to_string(ntohs(name.sin_port)));
  EXPECT_TRUE(AwaitDelivered(2));
}

TEST_F(AcceptLoopTest, AHandshakeThatFailsLeavesItsPlace) {
  AcceptLoopOptions options;
  options.max_handshakes = 1;
  options.handshake_timeout = kSoon * 2;
  Open(options, /*tcp=*/true);
  Socket first = Speaker();
  ASSERT_TRUE(AwaitDelivered(1));
  CloseDelivered();
  Socket second = Speaker();
  EXPECT_TRUE(AwaitDelivered(2));
}

TEST_F(AcceptLoopTest, RemoveStopsListening) {
  Open({});
  Socket silent = Connect();
  loop_->Remove(address_);
  EXPECT_TRUE(silent.AwaitEnd());
  EXPECT_NE(access(address_.path.c_str(), F_OK), 0);
}

// A flood of silent connections, and then a good one, from another process,
// while descriptors run out here.
TEST_F(AcceptLoopTest, RunningOutOfDescriptorsIsSurvived) {
  Open({.max_connections = 1000,
        .max_connections_per_address = 1000,
        .handshake_timeout = kSoon * 2});
  socklen_t length;
  const sockaddr_storage name = Name(&length);
  int hold[2];
  ASSERT_EQ(pipe2(hold, O_CLOEXEC), 0);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const pid_t flood = fork();
  if (flood == 0) {
    close(hold[1]);
    int last = -1;
    for (int i = 0; i < 121; ++i)
      last = ConnectTo(reinterpret_cast<const sockaddr*>(&name), length);
    char byte = 'x';
    bool fine = last >= 0 && write(last, &byte, 1) == 1;
    fine = read(hold[0], &byte, 1) == 0 && fine;  // until the test ends
    _exit(fine ? 0 : 1);
  }
  const rlimit tight = {static_cast<rlim_t>(hold[1]) + 12, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  EXPECT_TRUE(AwaitDelivered(1));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  close(hold[1]);
  int status = 0;
  EXPECT_EQ(waitpid(flood, &status, 0), flood);
  EXPECT_EQ(status, 0);
  close(hold[0]);
}

TEST(Audit, AFloodIsCountedAndItsLinesAreFew) {
  FakeClock clock;
  std::ostringstream lines;
  telemetry::Telemetry::Options log;
  log.log_output = &lines;
  telemetry::Telemetry telemetry(log);
  Audit::Options options;
  options.telemetry = &telemetry;
  options.clock = &clock;
  options.lines_per_minute = 3;
  Audit audit(options);
  for (int i = 0; i < 1000; ++i)
    audit.Refused("function", "trainer1\nforged", "ps::Push", "no");
  EXPECT_EQ(telemetry.metrics()
                .CounterFor("weft_net_refused_total", {{"kind", "function"}})
                .Value(),
            1000);
  const auto count = [&] {
    const std::string text = lines.str();
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(count(), 3);
  clock.Advance(absl::Minutes(1));
  audit.Refused("function", "trainer1", "ps::Push", "no");
  EXPECT_EQ(count(), 4);
  EXPECT_NE(lines.str().find("not_logged=997"), std::string::npos)
      << lines.str();
}

TEST(Listener, RefusesADirectoryOpenToOthers) {
  EXPECT_THAT(
      Listener::Open(*ParseAddress("unix:/tmp/weft-test-socket")),
      StatusIs(absl::StatusCode::kFailedPrecondition, "wanted mode 0700"));
}

// The file that a process leaves which ended without removing it.
void LeaveAbandoned(const Address& address) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  strncpy(name.sun_path, address.path.c_str(), sizeof name.sun_path - 1);
  const Socket dead(socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(bind(dead.fd(), reinterpret_cast<sockaddr*>(&name), sizeof name),
            0);
}

TEST(Listener, TakesOverFromADeadProcess) {
  testing::TempDir dir;
  const Address address = *ParseAddress("unix:" + dir.Path("s"));
  LeaveAbandoned(address);
  auto listener = Listener::Open(address);
  WEFT_EXPECT_OK(listener);
  EXPECT_THAT(Listener::Open(address), StatusIs(absl::StatusCode::kUnavailable,
                                                "in use by another process"));
}

TEST(Listener, OneOfManyTakesOver) {
  testing::TempDir dir;
  const Address address = *ParseAddress("unix:" + dir.Path("s"));
  for (int round = 0; round < 100; ++round) {
    LeaveAbandoned(address);
    std::array<std::optional<Listener>, 4> took;
    std::vector<std::thread> threads;
    for (std::optional<Listener>& mine : took) {
      threads.emplace_back([&address, &mine] {
        auto listener = Listener::Open(address);
        if (listener.ok()) mine.emplace(*std::move(listener));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::count_if(took.begin(), took.end(),
                            [](const auto& l) { return l.has_value(); }),
              1)
        << "round " << round;
  }
}

TEST(Listener, WaitsForALockOnlySoLong) {
  testing::TempDir dir;
  const int holder = open(dir.path().c_str(), O_RDONLY | O_CLOEXEC);
  const Socket closes(holder);
  ASSERT_EQ(flock(holder, LOCK_EX), 0);
  EXPECT_THAT(Listener::Open(*ParseAddress("unix:" + dir.Path("s"))),
              StatusIs(absl::StatusCode::kUnavailable, "held the lock of"));
}

}  // namespace
}  // namespace weft::net
