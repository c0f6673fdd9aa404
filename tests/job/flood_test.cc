// Floods of HTTP/2 frames by a peer with a valid certificate, against the
// coordinator of a job that trains: the connection is cut, the server's memory
// stays, and its other peers are served meanwhile (docs/security.md).

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/channel.h"
#include "weft/net/edge/raw_peer.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/credentials.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kElsewhere[] = "127.0.0.2";  // not the other peers' address
constexpr int64_t kMiB = 1 << 20;

std::string Repeat(const std::string& frame) {
  std::string frames;
  while (frames.size() + frame.size() <= 64 << 10) frames += frame;
  return frames;
}

// A flood: the bytes sent once, and the bytes sent repeatedly.
struct Attack {
  std::string name;
  std::string first;
  std::string flood;  // empty: of TLS, not of HTTP/2
};

std::vector<Attack> Attacks() {
  using net::Frame;
  const std::string call = Frame(net::kHeadersFrame, net::kEndHeaders, 1,
                                 net::HeaderBlock(kHealthCheck));
  // The length of a message of 64 MiB.
  const std::string length("\0\4\0\0\0", 5);
  // A literal header whose value has 2^27 bytes: RFC 7541, 6.2.2.
  const std::string endless("\0\1x\x7f\x81\xff\xff\x3f", 8);
  const std::string window("\0\0\0\1", 4);
  const std::string priority("\0\0\0\0\1", 5);
  return {
      {"EmptyData", call, Repeat(Frame(net::kDataFrame, 0, 1, ""))},
      {"DataOfOneByte", call + Frame(net::kDataFrame, 0, 1, length),
       Repeat(Frame(net::kDataFrame, 0, 1, "x"))},
      // The call is answered after its one message, or at once.
      {"MessagesAfterTheirCall",
       call + Frame(net::kDataFrame, 0, 1, std::string(5, 0)),
       Repeat(Frame(net::kDataFrame, 0, 1, std::string(5, 0)))},
      {"MessagesOfARefusedCall",
       Frame(net::kHeadersFrame, net::kEndHeaders, 1,
             net::HeaderBlock("/no.Such/Method")),
       Repeat(Frame(net::kDataFrame, 0, 1, std::string(5, 0)))},
      {"Settings", "", Repeat(Frame(net::kSettingsFrame, 0, 0, ""))},
      {"KeyUpdate", "", ""},
      {"Ping", "", Repeat(Frame(net::kPingFrame, 0, 0, "01234567"))},
      {"WindowUpdate", call, Repeat(Frame(8, 0, 0, window))},
      {"Priority", "", Repeat(Frame(2, 0, 3, priority))},
      {"UnknownType", "", Repeat(Frame(0x77, 0, 0, ""))},
      {"Continuation",
       Frame(net::kHeadersFrame, 0, 1,
             net::HeaderBlock(kHealthCheck) + endless),
       Repeat(Frame(net::kContinuationFrame, 0, 1, std::string(16384, 'x')))},
      {"EmptyContinuation",
       Frame(net::kHeadersFrame, 0, 1, net::HeaderBlock(kHealthCheck)),
       Repeat(Frame(net::kContinuationFrame, 0, 1, ""))},
  };
}

// Floods on a thread of its own, and comes again whenever it is cut.
class Attacker {
 public:
  Attacker(std::string address, Attack attack,
           const net::Credentials& credentials, std::string from = kElsewhere)
      : address_(std::move(address)),
        attack_(std::move(attack)),
        from_(std::move(from)) {
    hello_.certificate = credentials.certificate();
    hello_.key = credentials.key();
    thread_ = std::thread([this] { Run(); });
  }
  ~Attacker() {
    done_.store(true);
    thread_.join();
  }

  bool AwaitCut(absl::Duration patience) const {
    const absl::Time deadline = absl::Now() + patience;
    while (cuts_.load() == 0 && absl::Now() < deadline)
      absl::SleepFor(absl::Milliseconds(1));
    return cuts_.load() > 0;
  }
  int cuts() const { return cuts_.load(); }
  // From the first byte of a flood until the peer notices that it is cut.
  int64_t longest_ms() const { return longest_ms_.load(); }
  int64_t sent_bytes() const { return sent_bytes_.load(); }

 private:
  void Run() {
    while (!done_.load()) {
      net::RawPeer peer(address_, from_);
      if (!peer.ShakeHands(hello_) || !peer.Write(net::Preface()) ||
          !peer.AwaitFrame(net::kSettingsFrame)) {
        absl::SleepFor(absl::Milliseconds(10));
        continue;
      }
      const absl::Time start = absl::Now();
      bool open = peer.Write(attack_.first);
      while (open && !done_.load()) {
        open = attack_.flood.empty() ? peer.UpdateKeys(1'000)
                                     : peer.Write(attack_.flood);
        peer.Discard();  // answers, which would stop it when nobody reads them
        if (open) sent_bytes_ += static_cast<int64_t>(attack_.flood.size());
      }
      if (open) return;
      const int64_t ms = absl::ToInt64Milliseconds(absl::Now() - start);
      longest_ms_ = std::max(longest_ms_.load(), ms);
      ++cuts_;
    }
  }

  const std::string address_;
  const Attack attack_;
  const std::string from_;
  net::RawPeer::Hello hello_;
  std::atomic<bool> done_{false};
  std::atomic<int> cuts_{0};
  std::atomic<int64_t> longest_ms_{0};
  std::atomic<int64_t> sent_bytes_{0};
  std::thread thread_;
};

// Calls one after the other, each of which must be answered.
class Neighbour {
 public:
  Neighbour(const std::string& address, const net::Credentials& credentials) {
    net::LoopOptions options;
    options.credentials = credentials;
    loop_ = *net::Loop::Create(std::move(options));
    net::ChannelOptions channel;
    channel.name = "ps0";
    channel_ = *net::Channel::Create(*loop_, address, channel);
    thread_ = std::thread([this] {
      while (!done_.load()) {
        const absl::Status called =
            channel_->UnaryCall(kHealthCheck, {}, kLong).Wait(kLong).status();
        EXPECT_THAT(called, IsOk());
        if (!called.ok()) return;
        ++calls_;
      }
    });
  }
  ~Neighbour() {
    done_.store(true);
    thread_.join();
  }

  // Calls per second, meanwhile.
  double RateIn(absl::Duration time) const {
    const absl::Time start = absl::Now();
    const int64_t before = calls_.load();
    absl::SleepFor(time);
    return static_cast<double>(calls_.load() - before) /
           absl::ToDoubleSeconds(absl::Now() - start);
  }

 private:
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Channel> channel_;
  std::atomic<bool> done_{false};
  std::atomic<int64_t> calls_{0};
  std::thread thread_;
};

// The line `name` of /proc/PID/status, in bytes.
int64_t MemoryOf(const Process& process, const std::string& name) {
  std::ifstream status(absl::StrCat("/proc/", process.pid(), "/status"));
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == name && status >> kib) return kib * 1024;
  }
  return 0;
}

class FloodedJob : public ::testing::Test {
 protected:
  FloodedJob() {
    job_.servers = 1;
    job_.trainers = 1;
    job_.coordinator = absl::StrCat("127.0.0.1:", FreePort());
    job_.flags = {"--certs=" + job_.Path("certs")};
    const auto init = StartProcess({Program("weft"), "certs", "init",
                                    "--dir=" + job_.Path("certs"), "--job=job",
                                    "--servers=1", "--trainers=3"});
    EXPECT_THAT(init->Wait(kLong), IsOkAndHolds(0)) << init->output();
  }
  net::Credentials Of(const std::string& member) const {
    return *net::Credentials::ForMember(job_.Path("certs"), member);
  }

  Job job_;
};

class Flood : public FloodedJob,
              public ::testing::WithParamInterface<Attack> {};

INSTANTIATE_TEST_SUITE_P(OfFrames, Flood, ::testing::ValuesIn(Attacks()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Flood, OfAPeerWithACertificateIsCutAndOthersAreServed) {
  constexpr absl::Duration kWindow = absl::Seconds(2);
  const auto server = job_.StartServer(0);
  ASSERT_THAT(server->WaitForOutput("coordinator serves", kLong), IsOk());
  const auto trainer = job_.StartTrainer(0, {kForLong});
  ASSERT_THAT(trainer->WaitForOutput("training ", kLong), IsOk());
  Neighbour neighbour(job_.coordinator, Of("trainer1"));
  neighbour.RateIn(kWindow / 4);  // warms up
  const double alone = neighbour.RateIn(kWindow);
  const int64_t before = MemoryOf(*server, "VmHWM:");
  auto attacker =
      std::make_unique<Attacker>(job_.coordinator, GetParam(), Of("trainer2"));
  const double during = neighbour.RateIn(kWindow);
  EXPECT_TRUE(attacker->AwaitCut(kLong));
  // Its address may come again after 4 s.
  const double again = neighbour.RateIn(absl::Seconds(6));
  RecordProperty("cuts", attacker->cuts());
  RecordProperty("cut_after_ms", static_cast<int>(attacker->longest_ms()));
  RecordProperty("sent_mib", static_cast<int>(attacker->sent_bytes() / kMiB));
  attacker = nullptr;
  const int64_t grown = MemoryOf(*server, "VmHWM:") - before;
  const double after = neighbour.RateIn(kWindow);
  RecordProperty("calls_per_s_alone", static_cast<int>(alone));
  RecordProperty("kept_percent_in_2s", static_cast<int>(100 * during / alone));
  RecordProperty("kept_percent_then", static_cast<int>(100 * again / alone));
  RecordProperty("kept_percent_after", static_cast<int>(100 * after / alone));
  RecordProperty("grown_mib", static_cast<int>(grown / kMiB));
  EXPECT_LT(grown, 64 * kMiB);
  EXPECT_THAT(trainer->Wait(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded))
      << "it trains on: " << trainer->output();
  EXPECT_THAT(server->output(), HasSubstr("refused kind=http2_frames "
                                          "who=\"trainer2 (127.0.0.2:"));
}

// Each kind of flood at once, by one certificate from as many addresses.
TEST_F(FloodedJob, IsServedBesideFloodsFromManyAddresses) {
  constexpr absl::Duration kWindow = absl::Seconds(2);
  const auto server = job_.StartServer(0);
  ASSERT_THAT(server->WaitForOutput("coordinator serves", kLong), IsOk());
  const auto trainer = job_.StartTrainer(0, {kForLong});
  ASSERT_THAT(trainer->WaitForOutput("training ", kLong), IsOk());
  Neighbour neighbour(job_.coordinator, Of("trainer1"));
  neighbour.RateIn(kWindow / 4);  // warms up
  const double alone = neighbour.RateIn(kWindow);
  const int64_t before = MemoryOf(*server, "VmHWM:");
  std::vector<std::unique_ptr<Attacker>> attackers;
  for (const Attack& attack : Attacks()) {
    attackers.push_back(std::make_unique<Attacker>(
        job_.coordinator, attack, Of("trainer2"),
        absl::StrCat("127.0.1.", attackers.size() + 1)));
  }
  const double during = neighbour.RateIn(3 * kWindow);
  for (const auto& attacker : attackers) EXPECT_TRUE(attacker->AwaitCut(kLong));
  attackers.clear();
  const int64_t grown = MemoryOf(*server, "VmHWM:") - before;
  const double after = neighbour.RateIn(kWindow);
  RecordProperty("calls_per_s_alone", static_cast<int>(alone));
  RecordProperty("kept_percent_in_2s", static_cast<int>(100 * during / alone));
  RecordProperty("kept_percent_after", static_cast<int>(100 * after / alone));
  RecordProperty("grown_mib", static_cast<int>(grown / kMiB));
  EXPECT_LT(grown, 128 * kMiB);
  EXPECT_THAT(trainer->Wait(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded))
      << "it trains on: " << trainer->output();
}

}  // namespace
}  // namespace weft::testing
