// Two transports of different methods at one endpoint, one for calls, one for
// process groups: each conforms beside the other, and independently of it.

#include "weft/transport/grpc_transport.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/base/mutex.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/testing/transport_conformance.h"

namespace weft::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr char kCalls[] = "/test.Calls/Connect";
constexpr char kGroups[] = "/test.Groups/Connect";

// One process's part: a loop, an endpoint, a transport for each method.
class TwoPurposeNode {
 public:
  TwoPurposeNode(const TempDir& directory, const std::string& name,
                 int memories, const std::vector<std::string>& methods)
      : name_(name), loop_(*net::Loop::Create(net::LoopOptions())) {
    net::EndpointOptions options;
    options.name = name;
    options.listen = absl::StrCat("unix:", directory.path(), "/", name);
    options.probe_every = absl::ZeroDuration();
    endpoint_ = *net::Endpoint::Open(*loop_, options);
    for (const std::string& method : methods) {
      GrpcTransportOptions transport;
      transport.method = method;
      // One transport of an endpoint has the socket beside the endpoint's.
      transport.max_shared_memories = transports_.empty() ? memories : 0;
      transports_.push_back(MakeGrpcTransport(*loop_, *endpoint_, transport));
    }
    const absl::Status started = endpoint_->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
  }

  Transport& calls() { return *transports_.at(0); }
  Transport& groups() { return *transports_.at(1); }
  Destination destination() const { return {name_, endpoint_->address()}; }

 private:
  const std::string name_;
  const std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

// Two nodes, and of each the transport of one method.
class OneOfTwoPair final : public TransportPair {
 public:
  explicit OneOfTwoPair(bool groups) : groups_(groups) {}
  Transport& a() override { return groups_ ? a_.groups() : a_.calls(); }
  Transport& b() override { return groups_ ? b_.groups() : b_.calls(); }
  Destination b_destination() const override { return b_.destination(); }

 private:
  const bool groups_;
  TempDir directory_;
  TwoPurposeNode a_{directory_, "a", 64, {kCalls, kGroups}};
  TwoPurposeNode b_{directory_, "b", 64, {kCalls, kGroups}};
};

INSTANTIATE_TEST_SUITE_P(CallsBesideGroups, TransportConformance,
                         ::testing::Values([] {
                           return std::make_unique<OneOfTwoPair>(false);
                         }));
INSTANTIATE_TEST_SUITE_P(GroupsBesideCalls, TransportConformance,
                         ::testing::Values([] {
                           return std::make_unique<OneOfTwoPair>(true);
                         }));

// Writes texts, one after the other, and notes how the connection ends.
class SendingObserver final : public ConnectionObserver {
 public:
  SendingObserver(Driver& driver, std::deque<std::string> texts)
      : closed_(driver), texts_(std::move(texts)) {}

  void Start(std::shared_ptr<Connection> connection) {
    {
      MutexLock lock(mu_);
      if (!is_closed_) connection_ = std::move(connection);
    }
    SendNext();
  }
  void Close() {
    std::shared_ptr<Connection> connection;
    {
      MutexLock lock(mu_);
      connection = std::move(connection_);
    }
    if (connection != nullptr) connection->Close(absl::AbortedError("enough"));
  }
  Future<void> closed() { return closed_.future(); }

  void OnMessage(Slices) override {}
  void OnWritten() override { SendNext(); }
  void OnClosed(absl::Status status) override {
    {
      MutexLock lock(mu_);
      is_closed_ = true;
      connection_ = nullptr;
    }
    closed_.Set(std::move(status));
  }

 private:
  void SendNext() ABSL_LOCKS_EXCLUDED(mu_) {
    for (;;) {
      std::shared_ptr<Connection> connection;
      std::string text;
      {
        MutexLock lock(mu_);
        if (connection_ == nullptr || texts_.empty()) return;
        connection = connection_;
        text = std::move(texts_.front());
        texts_.pop_front();
      }
      const Connection::Written written = connection->Write(TextMessage(text));
      EXPECT_NE(written, Connection::Written::kRefused);
      if (written != Connection::Written::kDone) return;
    }
  }

  Promise<void> closed_;
  Mutex mu_;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> texts_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

class TwoPurposes : public ::testing::TestWithParam<int> {
 protected:
  ~TwoPurposes() override {
    b_.calls().Accept(nullptr);
    b_.groups().Accept(nullptr);
  }

  // Lets peers in, keeps what they send, and sends it back.
  static std::shared_ptr<HearingObserver> AcceptAt(Transport& transport,
                                                   size_t messages) {
    auto observer = std::make_shared<HearingObserver>(transport.driver());
    observer->Expect(messages);
    transport.Accept([observer](std::shared_ptr<Connection> connection) {
      observer->echo = std::move(connection);
      return observer;
    });
    return observer;
  }
  static std::deque<std::string> Numbered(const std::string& prefix, int n) {
    std::deque<std::string> texts;
    for (int i = 0; i < n; ++i) texts.push_back(absl::StrCat(prefix, i));
    return texts;
  }
  static std::vector<std::string> ToVector(const std::deque<std::string>& d) {
    return {d.begin(), d.end()};
  }
  std::shared_ptr<SendingObserver> Send(Transport& from,
                                        std::deque<std::string> texts) {
    auto observer =
        std::make_shared<SendingObserver>(from.driver(), std::move(texts));
    observer->Start(from.Connect(b_.destination(), observer));
    return observer;
  }

  TempDir directory_;
  TwoPurposeNode a_{directory_, "a", GetParam(), {kCalls, kGroups}};
  TwoPurposeNode b_{directory_, "b", GetParam(), {kCalls, kGroups}};
};

INSTANTIATE_TEST_SUITE_P(Rings, TwoPurposes, ::testing::Values(64));
INSTANTIATE_TEST_SUITE_P(StreamsOnly, TwoPurposes, ::testing::Values(0));

TEST_P(TwoPurposes, MessagesOfEachArriveInOrderAtItsOwnAcceptor) {
  constexpr int kMessages = 200;
  const auto calls = Numbered("call ", kMessages);
  const auto groups = Numbered("group ", kMessages);
  const auto calls_there = AcceptAt(b_.calls(), kMessages);
  const auto groups_there = AcceptAt(b_.groups(), kMessages);
  const auto calls_here = Send(a_.calls(), calls);
  const auto groups_here = Send(a_.groups(), groups);
  EXPECT_THAT(calls_there->got().Wait(kPatience), IsOk());
  EXPECT_THAT(groups_there->got().Wait(kPatience), IsOk());
  EXPECT_EQ(calls_there->texts(), ToVector(calls));
  EXPECT_EQ(groups_there->texts(), ToVector(groups));
  calls_here->Close();
  groups_here->Close();
  EXPECT_FALSE(calls_there->closed().Wait(kPatience).ok());
  EXPECT_FALSE(groups_there->closed().Wait(kPatience).ok());
}

TEST_P(TwoPurposes, ClosedConnectionOfOneLeavesTheOtherOpen) {
  const auto calls_there = AcceptAt(b_.calls(), 1);
  const auto groups_there = AcceptAt(b_.groups(), 2);
  const auto calls_here = Send(a_.calls(), {"call"});
  const auto groups_here =
      std::make_shared<HearingObserver>(a_.groups().driver());
  groups_here->Expect(2);
  const auto group = a_.groups().Connect(b_.destination(), groups_here);
  ASSERT_NE(group->Write(TextMessage("before")), Connection::Written::kRefused);
  ASSERT_THAT(calls_there->got().Wait(kPatience), IsOk());
  ASSERT_THAT(groups_here->written().Wait(kPatience), IsOk());
  calls_here->Close();
  EXPECT_FALSE(calls_there->closed().Wait(kPatience).ok());
  EXPECT_FALSE(calls_here->closed().Wait(kPatience).ok());
  ASSERT_NE(group->Write(TextMessage("after")), Connection::Written::kRefused);
  EXPECT_THAT(groups_there->got().Wait(kPatience), IsOk());
  EXPECT_EQ(groups_there->closings(), 0);
  EXPECT_EQ(groups_here->closings(), 0);
  group->Close(absl::AbortedError("enough"));
  EXPECT_FALSE(groups_there->closed().Wait(kPatience).ok());
}

TEST_P(TwoPurposes, MissingAcceptorOfOneIsUnavailableWhileTheOtherServes) {
  const auto calls_there = AcceptAt(b_.calls(), 1);
  const auto groups_here = Send(a_.groups(), {});
  EXPECT_THAT(groups_here->closed().Wait(kPatience),
              StatusIs(absl::StatusCode::kUnavailable));
  const auto calls_here = Send(a_.calls(), {"call"});
  EXPECT_THAT(calls_there->got().Wait(kPatience), IsOk());
  calls_here->Close();
  EXPECT_FALSE(calls_there->closed().Wait(kPatience).ok());
}

TEST_P(TwoPurposes, MethodThatThePeerDoesNotServeIsUnimplementedAndNamed) {
  TwoPurposeNode old(directory_, "old", GetParam(), {kCalls});
  const auto calls_there = AcceptAt(old.calls(), 1);
  const auto refused = std::make_shared<HearingObserver>(a_.groups().driver());
  const auto group = a_.groups().Connect(old.destination(), refused);
  const absl::Status why = refused->closed().Wait(kPatience);
  EXPECT_THAT(why, StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("worker old at unix:"), HasSubstr(kGroups),
                    HasSubstr("check that")));
  // Its calls are served all the same.
  const auto calls_here = std::make_shared<SendingObserver>(
      a_.calls().driver(), std::deque<std::string>{"call"});
  calls_here->Start(a_.calls().Connect(old.destination(), calls_here));
  EXPECT_THAT(calls_there->got().Wait(kPatience), IsOk());
  calls_here->Close();
  EXPECT_FALSE(calls_there->closed().Wait(kPatience).ok());
  old.calls().Accept(nullptr);
}

}  // namespace
}  // namespace weft::transport
