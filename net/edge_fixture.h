// Edge: an endpoint that peers attack, and who they are.

#ifndef WEFT_NET_EDGE_FIXTURE_H_
#define WEFT_NET_EDGE_FIXTURE_H_

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "weft/net/edge/raw_peer.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::net {

inline RawPeer::Hello HelloOf(const Credentials& credentials) {
  RawPeer::Hello hello;
  hello.certificate = credentials.certificate();
  hello.key = credentials.key();
  return hello;
}

inline int64_t ResidentBytes() {
  int64_t size = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// A server over TLS, ps0, whose log is kept.
class Edge : public ::testing::Test {
 protected:
  Edge() {
    telemetry::Telemetry::Options options;
    options.log_output = &log_;
    telemetry_ = std::make_unique<telemetry::Telemetry>(options);
  }

  void Serve(LoopOptions options, AdmissionLimits limits = {}) {
    options.telemetry = telemetry_.get();
    server_ = Node::Make("ps0", "127.0.0.1:0", std::move(options), limits);
  }
  void Serve() { Serve(With(job_.For("ps", 0))); }

  // Its HTTP/2 begins: from here on each refusal sends the peer a reason.
  bool IsLetIn(RawPeer& peer, const RawPeer::Hello& hello) {
    peer.ShakeHands(hello);
    peer.Write(Preface());
    return peer.AwaitFrame(kSettingsFrame);
  }
  std::unique_ptr<RawPeer> LetIn(const std::string& role = "trainer",
                                 int rank = 9) {
    auto peer = std::make_unique<RawPeer>(server_->address());
    EXPECT_TRUE(IsLetIn(*peer, HelloOf(job_.For(role, rank))));
    return peer;
  }
  // The result of a member's call meanwhile.
  absl::Status Call(const std::string& role = "trainer",
                    const std::string& method = kEcho) {
    auto loop = *Loop::Create(With(job_.For(role, 0)));
    auto channel = Connect(*loop, server_->address());
    return channel->UnaryCall(method, Text("x"), kSoon).Wait(kSoon).status();
  }
  double Count(const std::string& name, const std::string& kind = "") {
    telemetry::Metrics::Labels labels;
    if (!kind.empty()) labels["kind"] = kind;
    return telemetry_->metrics().CounterFor(name, labels).Value();
  }
  // Counts those who flooded it, for whichever of two reasons was seen first.
  double CountCutOff() {
    return Count("weft_net_refused_total", "max_calls_per_connection") +
           Count("weft_net_refused_total", "max_wasted_calls_per_peer");
  }
  // The whole log, once nobody writes it any more.
  std::string Log() {
    server_ = nullptr;
    return log_.str();
  }

  std::ostringstream log_;
  std::unique_ptr<telemetry::Telemetry> telemetry_;
  Job job_;
  testing::TempDir dir_;
  std::unique_ptr<Node> server_;
};

inline constexpr int64_t kMiB = 1 << 20;

// A request of kHold.
inline std::string HoldRequest(uint32_t stream) {
  return Frame(kHeadersFrame, kEndHeaders, stream, HeaderBlock(kHold)) +
         Frame(kDataFrame, 1, stream, std::string(5, '\0'));
}

// The part of its pace that `channel` keeps between `begin` and `end`, in
// percent: the third best of eleven pairs of rounds, as other load spoils some.
inline int KeptPercent(Channel& channel, const std::function<void()>& begin,
                       const std::function<void()>& end) {
  const auto round = [&] {
    const Instant start = SteadyClock().Now();
    for (int i = 0; i < 100; ++i) {
      WEFT_EXPECT_OK(channel.UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
    }
    return SteadyClock().Now() - start;
  };
  round();  // warms up
  std::vector<double> kept;
  for (int i = 0; i < 11; ++i) {
    const absl::Duration alone = round();
    begin();
    kept.push_back(absl::FDivDuration(alone, round()));
    end();
  }
  std::nth_element(kept.begin(), kept.begin() + 8, kept.end());
  return static_cast<int>(100 * kept[8]);
}

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_FIXTURE_H_
