// A worker's unix socket in hostile and clumsy hands: bytes that are no
// protocol, connections that say nothing or half of something, by the hundred,
// and files of all kinds where the socket is to be. What is promised is quoted
// from docs/security.md, docs/decisions/0024 and docs/cli.md.

#include <signal.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/local/local_frames.h"
#include "weft/tests/outside/local/at_socket.h"

namespace weft::outside {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;

// docs/cli.md, "Exit codes".
constexpr int kConfig = 3, kAuth = 12;
// Descriptors of a worker that asks whether it can be reached.
constexpr int kOwnProbes = 6;
constexpr char kConnect[] = "/weft.rpc.v1.Worker/Connect";

std::string FrameOf(int kind, const std::string& body) {
  const net::FrameHeader header =
      net::HeaderOf(static_cast<net::FrameKind>(kind), body.size());
  return std::string(header.begin(), header.end()) + body;
}

// What opens a stream of calls.
std::string Beginning(const std::string& method = kConnect,
                      const net::Metadata& metadata = {}) {
  return std::string(net::kLocalPreface) +
         FrameOf(1, *net::ToBody({"", method, metadata}, 1 << 20));
}

class HostileSocket : public AtSocket {
 protected:
  std::unique_ptr<RawSocket> Say(const std::string& bytes) const {
    auto peer = std::make_unique<RawSocket>(socket_path());
    // Its backlog may be full for a moment.
    EXPECT_TRUE(Becomes([&] {
      if (!peer->is_connected()) {
        peer = std::make_unique<RawSocket>(socket_path());
      }
      return peer->is_connected();
    }));
    peer->Send(bytes);
    return peer;
  }
};

// security.md: "an outsider who reaches a port may not make the process take
// memory"; "a length that is only declared: nothing is taken for it".
TEST_F(HostileSocket, BytesThatAreNoProtocolEndTheirConnectionsAlone) {
  Serve({"--limits=max_connections=400"});
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_THAT(rpc::Call(client->To(kLong), Turned, "abc"), IsOk());
  const int descriptors = Descriptors() + kOwnProbes;
  const int64_t before = MiB();
  std::vector<std::string> all = {
      "GET / HTTP/1.1\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01", 6),
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(100, '\xff'),
      "weft-local/2\n",
      "weft-local/",
      "weft-remote/1\n",
      std::string(1 << 20, '\0')};
  // Frames of any kind and declared length, before the opening and after it.
  for (const int kind : {0, 1, 2, 3, 4, 5, 6, 7, 128, 255}) {
    for (const uint32_t size :
         {0u, 1u, 9u << 10, 256u << 20, 0x7fffffffu, 0xffffffffu}) {
      net::FrameHeader header =
          net::HeaderOf(static_cast<net::FrameKind>(kind), size);
      const std::string frame(header.begin(), header.end());
      all.push_back(std::string(net::kLocalPreface) + frame + "abc");
      all.push_back(Beginning() + frame + "abc");
      all.push_back(Beginning() + FrameOf(3, "") + frame);
    }
  }
  std::mt19937 random(7);
  std::vector<std::unique_ptr<RawSocket>> peers;
  for (const std::string& bytes : all) {
    peers.push_back(Say(bytes));
    peers.push_back(Say(bytes.substr(0, random() % bytes.size())));
    if (peers.size() > 40) peers.erase(peers.begin(), peers.begin() + 20);
  }
  ExpectServes();
  peers.clear();
  EXPECT_TRUE(Becomes([&] { return Descriptors() <= descriptors; }));
  EXPECT_LT(MiB(), before + 64);
  EXPECT_THAT(rpc::Call(client->To(kLong), Turned, "abc"), IsOkAndHolds("cba"));
}

// "what opens it: 9 KiB"; metadata of any kind, and methods that there are not.
TEST_F(HostileSocket, OpeningsOfAnyMetadataAreAnsweredOrEnded) {
  Serve();
  const std::string binary("\0\xff\x80\n", 4);
  const std::vector<std::string> all = {
      Beginning("/weft.rpc.v1.Worker/Connect", {{"weft-memory", ""}}),
      Beginning("/weft.rpc.v1.Worker/Connect", {{"weft-memory", "zz"}}),
      Beginning("/weft.rpc.v1.Worker/Connect",
                {{"weft-memory", "18446744073709551616"}}),
      Beginning("/weft.rpc.v1.Worker/Connect",
                {{"weft-memory", std::string(8000, '9')}}),
      Beginning("/weft.rpc.v1.Worker/Connect",
                {{"weft-memory", "1"}, {"weft-memory", "2"}}),
      Beginning("/weft.rpc.v1.Worker/Connect", {{"any-bin", binary}}),
      Beginning("/weft.rpc.v1.Worker/Connect",
                {{"long-bin", std::string(20 << 10, '\0')}}),
      Beginning("/weft.rpc.v1.Worker/Call"),
      Beginning("/weft.rpc.v1.Worker/Describe"),
      Beginning("/weft.collectives.v1.Group/Connect"),
      Beginning("/weft.rendezvous.v1.Coordinator/Join"),
      Beginning("/grpc.health.v1.Health/Watch"),
      Beginning("/" + std::string(4000, 'x')),
  };
  for (const std::string& beginning : all) {
    for (const std::string& next :
         {std::string(), FrameOf(2, ""), FrameOf(2, binary),
          FrameOf(2, std::string(100'000, '\x7a')), FrameOf(3, ""),
          FrameOf(2, binary) + FrameOf(3, "")}) {
      const auto peer = Say(beginning + next);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  ExpectServes();
}

// "A stream over a unix socket: ... how long until then; 5 s (up to half
// more)"; "silent connections ... expire, and make room".
TEST_F(HostileSocket, CrowdOfSilentAndHalfOpenedOnesLetsOthersIn) {
  Serve();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_THAT(rpc::Call(client->To(kLong), Turned, "abc"), IsOk());
  const std::string beginning = Beginning();
  std::vector<std::unique_ptr<RawSocket>> peers;
  for (int i = 0; i < 200; ++i) {
    // Nothing; or, of some, half an opening, or a whole one and no more: those
    // keep their places.
    peers.push_back(Say(beginning.substr(0, i % 10 == 9   ? 1000
                                            : i % 10 == 4 ? beginning.size() / 2
                                                          : 0)));
    if (i == 64) ExpectServes();
  }
  const absl::Time began = absl::Now();
  ExpectServes();
  EXPECT_THAT(rpc::Call(client->To(kLong), Turned, "abc"), IsOkAndHolds("cba"));
  EXPECT_LT(absl::Now() - began, absl::Seconds(10));
  // Those without a whole opening are closed.
  for (int i = 0; i < 200; ++i) {
    if (i % 10 == 9) continue;
    EXPECT_TRUE(Becomes([&] { return peers[i]->HasEnded(); })) << i;
  }
  ExpectServes();
}

// What a process that was killed has left is taken over; what is no socket, or
// is another's, is left alone. "3: a missing file, a port in use".
TEST_F(HostileSocket, WhatLiesInItsPlaceIsTakenOverOnlyIfItIsAStaleSocket) {
  Serve();
  worker_->Signal(SIGKILL);
  EXPECT_THAT(worker_->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  ASSERT_TRUE(fs::is_socket(socket_path()));
  Serve();
  ExpectServes();
  const auto second = Start({"--job=other", "--listen=" + address()});
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(kConfig)) << second->output();
  EXPECT_THAT(second->output(), HasSubstr("serves job \"weft\""));
  ExpectServes();
  worker_ = nullptr;

  const auto expect_refused = [&](const std::string& what, int code = kConfig) {
    const auto refused = Start({"--listen=" + address()});
    EXPECT_THAT(refused->Wait(kLong), IsOkAndHolds(code))
        << what << ": " << refused->output();
    EXPECT_THAT(refused->output(), HasSubstr(Path("at"))) << what;
  };
  fs::remove(socket_path());
  Touch("at/s");
  expect_refused("a file");
  EXPECT_TRUE(fs::is_regular_file(socket_path()));
  fs::remove(socket_path());
  fs::create_directory(socket_path());
  expect_refused("a directory");
  EXPECT_TRUE(fs::is_directory(socket_path()));
  fs::remove(socket_path());
  fs::create_symlink(Path("at/none"), socket_path());
  expect_refused("a link to nothing");
  EXPECT_TRUE(fs::is_symlink(socket_path()));
  fs::remove(socket_path());
  fs::permissions(Path("at"), fs::perms::all);
  expect_refused("a directory that others may enter", kAuth);
}

}  // namespace
}  // namespace weft::outside
