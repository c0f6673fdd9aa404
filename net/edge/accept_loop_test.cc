#include "weft/net/edge/accept_loop.h"

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
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "weft/base/fake_clock.h"
#include "weft/net/edge/client_hello_check.h"
#include "weft/net/refusal_log.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::net {
namespace {

using ::weft::testing::StatusIs;

constexpr absl::Duration kSoon =
    absl::Seconds(30);  // longer than any wait that ends well
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

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
  bool HasEnded() const {
    pollfd now = {fd_, POLLIN, 0};
    return poll(&now, 1, 0) != 0;
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
    ASSERT_THAT(loop_->Add(*std::move(listener), AcceptLoop::Speaks::kHttp2,
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
  // Connects from 127.0.0.2 rather than 127.0.0.1.
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
    socket.Say(kPreface);
    return socket;
  }
  // As gRPC calls it.
  static std::string NameOf(const Socket& socket) {
    sockaddr_in name = {};
    socklen_t length = sizeof name;
    EXPECT_EQ(
        getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&name), &length),
        0);
    return "127.0.0.1:" + std::to_string(ntohs(name.sin_port));
  }
  // Returns once the loop has read all bytes that came before. A silent peer is
  // closed in the same round; the first round may have begun too early.
  void AwaitHeard() {
    for (int i = 0; i < 2; ++i) {
      Socket mute = Connect();
      shutdown(mute.fd(), SHUT_WR);
      EXPECT_TRUE(mute.AwaitEnd());
      (void)loop_->connections();  // once the round is over
    }
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
  FakeClock clock_;
  Address address_;
  std::unique_ptr<AcceptLoop> loop_;
  Mutex mu_;
  CondVar changed_;
  std::vector<int> delivered_ ABSL_GUARDED_BY(mu_);
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_F(AcceptLoopTest, HandsOverConnectionsThatSendBytes) {
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

TEST_F(AcceptLoopTest, HandsOverOnlyConnectionsWithAWholeHello) {
  AcceptLoopOptions options;
  options.clock = &clock_;
  Open(options, /*tcp=*/true);
  Socket half = Connect();
  const std::string preface = kPreface;
  half.Say(preface.substr(0, preface.size() - 1).c_str());
  Socket speaker = Speaker();
  ASSERT_TRUE(AwaitDelivered(1));  // the loop has seen all of it
  EXPECT_EQ(delivered(), 1);
  half.Say(preface.substr(preface.size() - 1).c_str());
  EXPECT_TRUE(AwaitDelivered(2));
}

// A byte now and then wins no time.
TEST_F(AcceptLoopTest, ConnectionThatSendsSingleBytesIsClosedInTime) {
  AcceptLoopOptions options;
  options.clock = &clock_;
  Open(options, /*tcp=*/true);
  Socket dripping = Connect();
  std::vector<Socket> others;  // the loop has looked once they are delivered
  for (int i = 0; i < 4; ++i) {
    others.push_back(Speaker());
    ASSERT_TRUE(AwaitDelivered(i + 1));
    ASSERT_FALSE(dripping.HasEnded()) << i;
    const char byte[] = {kPreface[i], '\0'};
    dripping.Say(byte);
    clock_.Advance(options.handshake_timeout / 4);
  }
  others.push_back(Speaker());
  EXPECT_TRUE(dripping.AwaitEnd());
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
  other.Say(kPreface);
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
  AwaitHeard();
  EXPECT_EQ(delivered(), 1);
  loop_->MarkServed(NameOf(first));
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

// Both have waited for as long as they may, in one look of a loop that stood
// still.
TEST_F(AcceptLoopTest, ConnectionAtTheHeadOfTheQueueIsNotRefusedAsLate) {
  AcceptLoopOptions options;
  options.max_handshakes = 1;
  options.clock = &clock_;
  Open(options, /*tcp=*/true);
  Socket first = Speaker();
  ASSERT_TRUE(AwaitDelivered(1));
  Socket second = Speaker();
  AwaitHeard();
  clock_.Advance(options.handshake_timeout);
  EXPECT_TRUE(AwaitDelivered(2));
}

// gRPC has it, and waits for a peer that says no more.
TEST_F(AcceptLoopTest, AHandshakeWithoutEndMakesRoomForOthers) {
  AcceptLoopOptions options;
  options.max_handshakes = 1;
  options.clock = &clock_;
  Open(options, /*tcp=*/true);
  Socket first = Speaker();
  ASSERT_TRUE(AwaitDelivered(1));
  Socket second = Speaker();
  clock_.Advance(options.handshake_timeout / 5);
  EXPECT_TRUE(AwaitDelivered(2));
  EXPECT_TRUE(first.AwaitEnd()) << "while gRPC still has its descriptor";
}

TEST_F(AcceptLoopTest, ConnectionWithACallIsNeverCut) {
  AcceptLoopOptions options;
  options.max_connections = 2;
  options.max_connections_per_address = 2;
  options.max_handshakes = 1;
  options.clock = &clock_;
  Open(options, /*tcp=*/true);
  Socket served = Speaker();
  ASSERT_TRUE(AwaitDelivered(1));
  loop_->MarkServed(NameOf(served));
  for (int i = 2; i < 6; ++i) {
    Socket next = Speaker();
    ASSERT_TRUE(AwaitDelivered(i));
    clock_.Advance(options.handshake_timeout / 2);
  }
  EXPECT_FALSE(served.HasEnded());
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
    constexpr ssize_t kSize = sizeof kPreface - 1;
    bool fine = last >= 0 && write(last, kPreface, kSize) == kSize;
    char byte;
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

// A ClientHello of `size` bytes, that of its record's header not among them.
std::string HelloRecord(size_t size) {
  std::string record = {22,
                        3,
                        1,
                        static_cast<char>(size >> 8),
                        static_cast<char>(size),
                        1,
                        0,
                        static_cast<char>((size - 4) >> 8),
                        static_cast<char>(size - 4),
                        3,
                        3};
  record.resize(size + 5, 'x');
  return record;
}

TEST(ClientHelloCheck, IsWholeWithTheLastByte) {
  for (const size_t size : {size_t{512}, size_t{1} << 14}) {
    const std::string record = HelloRecord(size);
    for (size_t there = 1; there <= record.size() + 1; ++there) {
      const ClientHelloCheck seen = CheckTlsHello(
          record.substr(0, std::min(there, kClientHelloCheckBytes)), there);
      EXPECT_EQ(seen.unfit, nullptr) << there;
      EXPECT_EQ(seen.is_whole, there >= record.size()) << there;
    }
  }
  const std::string preface = kPreface;
  for (size_t there = 1; there <= preface.size(); ++there) {
    const ClientHelloCheck seen = CheckHttp2Preface(preface.substr(0, there));
    EXPECT_EQ(seen.unfit, nullptr) << there;
    EXPECT_EQ(seen.is_whole, there == preface.size()) << there;
  }
}

TEST(ClientHelloCheck, SaysWhyItIsUnfit) {
  const auto why = [](std::string changed, size_t at, char byte) {
    changed[at] = byte;
    const char* const unfit =
        CheckTlsHello(changed.substr(0, kClientHelloCheckBytes), changed.size())
            .unfit;
    return std::string(unfit != nullptr ? unfit : "");
  };
  const std::string record = HelloRecord(512);
  EXPECT_EQ(why(record, 0, 22), "");
  EXPECT_EQ(why(record, 0, 'P'), "plain text; TLS is wanted here");
  EXPECT_EQ(why(record, 3, 0x40 + 1),
            "a TLS record of a size that no ClientHello has");
  EXPECT_EQ(why(HelloRecord(6), 4, 5),
            "a TLS record of a size that no ClientHello has");
  EXPECT_EQ(why(record, 5, 2), "TLS without a ClientHello");
  EXPECT_EQ(why(record, 10, 2), "TLS 1.1 or older; TLS 1.2 is wanted");
  EXPECT_TRUE(CheckHttp2Preface(record.substr(0, 1)).is_whole);  // gRPC says it
}

class RefusalLogTest : public ::testing::Test {
 protected:
  RefusalLog::Options Options() {
    RefusalLog::Options options;
    options.telemetry = &telemetry_;
    options.clock = &clock_;
    return options;
  }
  int64_t CountLines() const {
    const std::string text = lines_.str();
    return std::count(text.begin(), text.end(), '\n');
  }

  FakeClock clock_;
  std::ostringstream lines_;
  telemetry::Telemetry telemetry_{[this] {
    telemetry::Telemetry::Options log;
    log.log_output = &lines_;
    return log;
  }()};
};

TEST_F(RefusalLogTest, AFloodIsCountedAndItsLinesAreFew) {
  RefusalLog::Options options = Options();
  options.lines_per_minute = 3;
  RefusalLog refusal_log(options);
  for (int i = 0; i < 1000; ++i) {
    refusal_log.Refused("function", "trainer1\nforged", std::to_string(i),
                        "no");
  }
  EXPECT_EQ(telemetry_.metrics()
                .CounterFor("weft_net_refused_total", {{"kind", "function"}})
                .Value(),
            1000);
  EXPECT_EQ(CountLines(), 3);
  clock_.Advance(absl::Minutes(1));
  refusal_log.Refused("function", "trainer1", "ps::Push", "no");
  EXPECT_EQ(CountLines(), 4);
  EXPECT_NE(lines_.str().find("not_logged=997"), std::string::npos)
      << lines_.str();
}

TEST_F(RefusalLogTest, RepeatedRefusalIsLoggedAtPowersOfTwo) {
  RefusalLog refusal_log(Options());
  const auto lines_of = [&](const char* who, int times) {
    lines_.str("");
    for (int i = 0; i < times; ++i) {
      clock_.Advance(absl::Seconds(1));
      refusal_log.Refused("certificate", who, "to connect", "revoked");
    }
    return CountLines();
  };
  EXPECT_EQ(lines_of("trainer1", 1), 1);
  EXPECT_EQ(lines_of("trainer1", 999), 9);  // 2, 4, ... 512
  EXPECT_EQ(lines_of("trainer2", 1), 1);    // another's is news
  EXPECT_NE(lines_.str().find("not_logged=488"), std::string::npos)
      << lines_.str();
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(lines_of("trainer1", 1), 1);
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

TEST(Listener, KeepsAFileThatIsNoSocket) {
  testing::TempDir dir;
  const std::string path = dir.Path("thesis.tex");
  std::ofstream(path) << "thesis";
  EXPECT_THAT(Listener::Open(*ParseAddress("unix:" + path)),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       "a regular file of 6 bytes is there"));
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
}

TEST(Listener, EndKeepsAFileThatAnotherPutInItsPlace) {
  testing::TempDir dir;
  const std::string path = dir.Path("s");
  {
    auto listener = Listener::Open(*ParseAddress("unix:" + path));
    WEFT_ASSERT_OK(listener);
    // Made before the other is removed, so that its inode is another.
    std::ofstream(dir.Path("thesis.tex")) << "thesis";
    ASSERT_EQ(rename(dir.Path("thesis.tex").c_str(), path.c_str()), 0);
  }
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
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
