// Processes of a job, for tests of the edge: a Node is one with an endpoint
// that echoes, a Job has the authority and gives certificates.

#ifndef WEFT_NET_ENDPOINT_FIXTURE_H_
#define WEFT_NET_ENDPOINT_FIXTURE_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/net/channel.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/certificates.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {

inline constexpr absl::Duration kSoon =
    absl::Seconds(30);  // longer than any wait that ends well
inline constexpr char kEcho[] = "/test.Service/Echo";
inline constexpr char kHold[] = "/test.Service/Hold";
inline constexpr char kPump[] = "/test.Service/Pump";
inline constexpr char kForClients[] = "/test.Service/ForClients";
inline constexpr char kFlood[] = "/test.Service/Flood";

inline Slices Text(std::string text) { return {Bytes::Own(std::move(text))}; }
inline std::string ToText(const Slices& slices) {
  return std::string(Flatten(slices).view());
}

// What came out of one end of a stream, for the test to wait on.
class Recorder final : public StreamObserver {
 public:
  Recorder() : closed_(MakePromise<void>()) {}

  void OnMessage(Slices message) override {
    {
      MutexLock lock(mu_);
      messages_.push_back(ToText(message));
      changed_.NotifyAll();
    }
    if (on_message) on_message();
  }
  void OnWritten() override {
    MutexLock lock(mu_);
    ++written_;
    changed_.NotifyAll();
  }
  void OnClosed(absl::Status status) override {
    closed_.first.Set(std::move(status));
  }

  Future<void> closed() const { return closed_.second; }
  std::vector<std::string> AwaitMessages(size_t count) {
    Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return messages_.size() >= count;
    });
    MutexLock lock(mu_);
    return messages_;
  }
  bool AwaitWritten(int count) {
    return Await(
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return written_ >= count; });
  }

  std::function<void()> on_message;

 private:
  // Looks at `condition` with the lock held.
  template <typename Condition>
  bool Await(const Condition& condition) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto deadline =
        std::chrono::steady_clock::now() + absl::ToChronoSeconds(kSoon);
    MutexLock lock(mu_);
    while (!condition()) {
      if (!changed_.WaitUntil(mu_, deadline)) return condition();
    }
    return true;
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> messages_ ABSL_GUARDED_BY(mu_);
  int written_ ABSL_GUARDED_BY(mu_) = 0;
  std::pair<Promise<void>, Future<void>> closed_;
};

// Sends back what comes, one message at a time.
class EchoObserver final : public StreamObserver {
 public:
  explicit EchoObserver(std::unique_ptr<Stream> stream)
      : stream_(std::move(stream)) {}
  void OnMessage(Slices message) override {
    waiting_.push_back(std::move(message));
    WriteNext();
  }
  void OnWritten() override {
    writing_ = false;
    WriteNext();
  }
  void OnClosed(absl::Status) override { stream_ = nullptr; }

 private:
  void WriteNext() {
    if (writing_ || waiting_.empty()) return;
    Slices next = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    writing_ = stream_->Write(std::move(next));
  }
  std::unique_ptr<Stream> stream_;
  std::vector<Slices> waiting_;
  bool writing_ = false;
};

// Writes as much as it may, without end.
class FloodObserver final : public StreamObserver {
 public:
  explicit FloodObserver(std::unique_ptr<Stream> stream)
      : stream_(std::move(stream)) {
    OnWritten();
  }
  void OnMessage(Slices) override {}
  void OnWritten() override {
    if (stream_ != nullptr) stream_->Write(Text(std::string(64 << 10, 'x')));
  }
  void OnHalfClosed(Stream&) override {}
  void OnClosed(absl::Status) override { stream_ = nullptr; }

 private:
  std::unique_ptr<Stream> stream_;
};

// One process: a loop and an endpoint on it that echoes, and keeps calls of
// kHold.
class Node {
 public:
  static std::unique_ptr<Node> Make(const std::string& name,
                                    const std::string& listen,
                                    LoopOptions options = {},
                                    AdmissionLimits limits = {}) {
    auto loop = Loop::Create(std::move(options));
    EXPECT_THAT(loop, testing::IsOk());
    if (!loop.ok()) return nullptr;
    auto node = std::make_unique<Node>(*std::move(loop));
    node->AddEndpoint(name, listen, limits);
    return node;
  }

  explicit Node(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
  ~Node() {
    held_.clear();
    endpoints_.clear();
  }

  void AddEndpoint(const std::string& name, const std::string& listen,
                   AdmissionLimits limits = {}) {
    auto endpoint = Endpoint::Open(*loop_, {name, listen, "", limits});
    ASSERT_THAT(endpoint, testing::IsOk());
    (*endpoint)->RegisterUnary(kEcho, [this, name](IncomingCall call) {
      {
        MutexLock lock(mu_);
        peer_ = call.peer();
      }
      Slices reply = call.TakeRequest();
      if (ToText(reply) == "who?") reply = Text(name);
      call.Reply(std::move(reply));
    });
    (*endpoint)->RegisterUnary(kHold, [this](IncomingCall call) {
      MutexLock lock(mu_);
      held_.push_back(std::move(call));
      most_held_ = std::max(most_held_, static_cast<int>(held_.size()));
      changed_.NotifyAll();
    });
    (*endpoint)->RegisterStream(kPump, [](std::unique_ptr<Stream> stream) {
      return std::make_shared<EchoObserver>(std::move(stream));
    });
    (*endpoint)->RegisterStream(kFlood, [](std::unique_ptr<Stream> stream) {
      return std::make_shared<FloodObserver>(std::move(stream));
    });
    (*endpoint)->RegisterUnary(
        kForClients, [](IncomingCall call) { call.Reply(Slices()); },
        Roles::Only({"client"}));
    ASSERT_THAT((*endpoint)->Start(), testing::IsOk());
    endpoints_.push_back(*std::move(endpoint));
  }

  Loop& loop() { return *loop_; }
  Endpoint& endpoint(int i = 0) { return *endpoints_[i]; }
  const std::string& address(int i = 0) { return endpoints_[i]->address(); }
  void Drop() { endpoints_.clear(); }

  std::vector<IncomingCall> AwaitHeld(size_t count) {
    const auto deadline =
        std::chrono::steady_clock::now() + absl::ToChronoSeconds(kSoon);
    MutexLock lock(mu_);
    while (held_.size() < count && changed_.WaitUntil(mu_, deadline)) {
    }
    return std::exchange(held_, {});
  }
  int most_held() {
    MutexLock lock(mu_);
    return most_held_;
  }
  Peer peer() {
    MutexLock lock(mu_);
    return peer_;
  }

 private:
  std::unique_ptr<Loop> loop_;
  Mutex mu_;
  CondVar changed_;
  std::vector<IncomingCall> held_ ABSL_GUARDED_BY(mu_);
  int most_held_ ABSL_GUARDED_BY(mu_) = 0;
  Peer peer_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

inline LoopOptions With(Credentials credentials) {
  LoopOptions options;
  options.credentials = std::move(credentials);
  return options;
}

// A job's authority and what it gives to its members.
struct Job {
  explicit Job(const std::string& name = "job") : name(name) {
    authority = *MakeAuthority(
        name, {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(1)});
  }
  Credentials For(const std::string& role, int rank,
                  absl::Duration validity = absl::Hours(1)) const {
    const MemberCertificate made = *MakeMemberCertificate(
        authority, {name, role, rank}, {"127.0.0.1"},
        {absl::Now() - absl::Hours(2), absl::Now() + validity});
    return *Credentials::FromPem(authority.certificate, made.certificate,
                                 made.key);
  }
  std::string name;
  Authority authority;
};

inline std::unique_ptr<Channel> Connect(Loop& loop, const std::string& address,
                                        const std::string& name = "ps0") {
  auto channel = Channel::Create(loop, address, {name});
  EXPECT_THAT(channel, testing::IsOk());
  return channel.ok() ? *std::move(channel) : nullptr;
}

}  // namespace weft::net

#endif  // WEFT_NET_ENDPOINT_FIXTURE_H_
