// TransportConformance: what every Transport must do, as a suite to
// instantiate with the ways to make a pair of them.

#ifndef WEFT_TRANSPORT_TESTING_TRANSPORT_CONFORMANCE_H_
#define WEFT_TRANSPORT_TESTING_TRANSPORT_CONFORMANCE_H_

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/future.h"
#include "weft/base/parker.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/testing/observers.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// The purposes of the suite.
inline Purpose FirstPurpose() {
  return {"first", "/test.First/Connect", net::Roles::Any()};
}
inline Purpose SecondPurpose() {
  return {"second", "/test.Second/Connect", net::Roles::Any()};
}
// One that neither transport serves.
inline Purpose OtherPurpose() {
  return {"other", "/test.Other/Connect", net::Roles::Any()};
}
inline void RegisterTestPurposes(Transport& transport) {
  transport.Register(FirstPurpose());
  transport.Register(SecondPurpose());
}

// Two transports of one kind, at which the first two purposes are registered,
// and how `b` is reached.
class TransportPair {
 public:
  virtual ~TransportPair() = default;
  virtual Transport& a() = 0;
  virtual Transport& b() = 0;
  virtual Destination b_destination() const = 0;
  // Whether what they run goes on while the test waits for another thread.
  virtual bool has_threads() const { return true; }

 protected:
  void RegisterTestPurposes() {
    transport::RegisterTestPurposes(a());
    transport::RegisterTestPurposes(b());
  }
};

using MakeTransportPair = std::function<std::unique_ptr<TransportPair>()>;

class TransportConformance
    : public ::testing::TestWithParam<MakeTransportPair> {
 protected:
  static constexpr absl::Duration kSoon = absl::Seconds(20);

  TransportConformance() : pair_(GetParam()()) {}
  ~TransportConformance() override {
    // The test has released its end: the other is notified, and releases its
    // own.
    for (const auto& accepted : accepted_) {
      (void)accepted->closed().Wait(kSoon);
    }
    pair_->b().Accept(FirstPurpose(), nullptr);
    pair_->b().Accept(SecondPurpose(), nullptr);
  }

  static auto MakeObserver(Transport& transport) {
    return std::make_shared<HearingObserver>(transport.driver());
  }
  // Accepts a connection of `a`; what it says comes back.
  auto AcceptAndEcho(const Purpose& purpose = FirstPurpose(),
                     size_t messages = 1) {
    auto observer = MakeObserver(pair_->b());
    observer->Expect(messages);
    pair_->b().Accept(purpose,
                      [observer](std::unique_ptr<Connection> connection) {
                        observer->echo = std::move(connection);
                        return observer;
                      });
    accepted_.push_back(observer);
    return observer;
  }
  std::unique_ptr<Connection> Connect(
      std::shared_ptr<ConnectionObserver> observer,
      const Purpose& purpose = FirstPurpose()) {
    return pair_->a().Connect(purpose, pair_->b_destination(),
                              std::move(observer));
  }
  auto Send(std::deque<std::string> texts, const Purpose& purpose) {
    auto observer = std::make_shared<SendingObserver>(pair_->a().driver(),
                                                      std::move(texts));
    observer->Start(Connect(observer, purpose));
    return observer;
  }

  const std::unique_ptr<TransportPair> pair_;

 private:
  std::vector<std::shared_ptr<HearingObserver>> accepted_;
};

inline Slices TextMessage(const std::string& text) {
  return {Bytes::Copy(text)};
}

TEST_P(TransportConformance, AMessageOfSeveralSlicesComesWhole) {
  const auto there = AcceptAndEcho();
  const auto here = MakeObserver(pair_->a());
  const auto connection = Connect(here);
  const std::string text(300000, 'x');
  ASSERT_NE(connection->Write({Bytes::Copy(text), Bytes::Copy("!")}),
            Connection::Written::kRefused);
  EXPECT_THAT(here->got().Wait(kSoon), ::weft::testing::IsOk());
  EXPECT_THAT(here->texts(), ::testing::ElementsAre(text + "!"));
}

TEST_P(TransportConformance, OneWriteIsUnderWayAtATime) {
  const auto there = AcceptAndEcho();
  const auto here = MakeObserver(pair_->a());
  here->Expect(2);
  const auto connection = Connect(here);
  // On the transport's own thread, where OnWritten cannot come in between.
  using Written = Connection::Written;
  Written first = Written::kRefused;
  Written second = Written::kRefused;
  Promise<void> tried(pair_->a().driver());
  const Future<void> done = tried.future();
  pair_->a().RunAt(pair_->a().clock().Now(),
                   [&, tried = std::move(tried)]() mutable {
                     first = connection->Write(TextMessage("first"));
                     second = connection->Write(TextMessage("second"));
                     tried.Set(absl::OkStatus());
                   });
  ASSERT_THAT(done.Wait(kSoon), ::weft::testing::IsOk());
  ASSERT_NE(first, Written::kRefused);
  EXPECT_EQ(second == Written::kRefused, first == Written::kUnderWay);
  std::string last = "second";
  if (second == Written::kRefused) {
    EXPECT_THAT(here->written().Wait(kSoon), ::weft::testing::IsOk());
    // The other end, too, has one write under way: its echo of the first.
    EXPECT_THAT(there->written().Wait(kSoon), ::weft::testing::IsOk());
    last = "third";
    EXPECT_NE(connection->Write(TextMessage(last)), Written::kRefused);
  }
  EXPECT_THAT(here->got().Wait(kSoon), ::weft::testing::IsOk());
  EXPECT_THAT(here->texts(), ::testing::ElementsAre("first", last));
}

TEST_P(TransportConformance, AClosedConnectionIsHeardOnceAtBothEnds) {
  const auto there = AcceptAndEcho();
  const auto here = MakeObserver(pair_->a());
  const auto connection = Connect(here);
  ASSERT_NE(connection->Write(TextMessage("hello")),
            Connection::Written::kRefused);
  ASSERT_THAT(here->got().Wait(kSoon), ::weft::testing::IsOk());
  connection->Close(absl::AbortedError("enough"));
  EXPECT_FALSE(here->closed().Wait(kSoon).ok());
  EXPECT_FALSE(there->closed().Wait(kSoon).ok());
  connection->Close(absl::AbortedError("again"));
  EXPECT_EQ(connection->Write(TextMessage("too late")),
            Connection::Written::kRefused);
  EXPECT_EQ(here->closings(), 1);
  EXPECT_EQ(there->closings(), 1);
}

TEST_P(TransportConformance, AddressWithoutAListenerIsUnavailable) {
  const auto here = MakeObserver(pair_->a());
  const auto connection = Connect(here);
  (void)connection->Write(TextMessage("hello?"));
  EXPECT_THAT(here->closed().Wait(kSoon),
              ::weft::testing::StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(TransportConformance, ARefusalClosesTheConnection) {
  pair_->b().Accept(FirstPurpose(), [](std::unique_ptr<Connection>) {
    return absl::PermissionDeniedError("not you");
  });
  const auto here = MakeObserver(pair_->a());
  const auto connection = Connect(here);
  EXPECT_THAT(here->closed().Wait(kSoon),
              ::weft::testing::StatusIs(absl::StatusCode::kPermissionDenied,
                                        "not you"));
}

TEST_P(TransportConformance, ConnectionDestroyedByItsAcceptorIsClosed) {
  const auto there = MakeObserver(pair_->b());
  pair_->b().Accept(FirstPurpose(),
                    [there](std::unique_ptr<Connection>) { return there; });
  const auto here = MakeObserver(pair_->a());
  const auto connection = Connect(here);
  EXPECT_FALSE(here->closed().Wait(kSoon).ok());
  EXPECT_FALSE(there->closed().Wait(kSoon).ok());
  EXPECT_EQ(here->closings(), 1);
  EXPECT_EQ(there->closings(), 1);
}

TEST_P(TransportConformance, DestroyedConnectionIsClosed) {
  const auto there = AcceptAndEcho();
  const auto here = MakeObserver(pair_->a());
  auto connection = Connect(here);
  ASSERT_NE(connection->Write(TextMessage("hello")),
            Connection::Written::kRefused);
  ASSERT_THAT(here->got().Wait(kSoon), ::weft::testing::IsOk());
  connection = nullptr;
  EXPECT_FALSE(there->closed().Wait(kSoon).ok());
  EXPECT_EQ(there->closings(), 1);  // not the end of the wait
}

// ------------------------------------------------------------ two purposes

inline std::deque<std::string> NumberedTexts(const std::string& prefix, int n) {
  std::deque<std::string> texts;
  for (int i = 0; i < n; ++i) texts.push_back(absl::StrCat(prefix, i));
  return texts;
}

TEST_P(TransportConformance, MessagesOfEachPurposeArriveInOrderAtItsAcceptor) {
  constexpr int kMessages = 200;
  const auto first = NumberedTexts("first ", kMessages);
  const auto second = NumberedTexts("second ", kMessages);
  const auto first_there = AcceptAndEcho(FirstPurpose(), kMessages);
  const auto second_there = AcceptAndEcho(SecondPurpose(), kMessages);
  const auto first_here = Send(first, FirstPurpose());
  const auto second_here = Send(second, SecondPurpose());
  EXPECT_THAT(first_there->got().Wait(kSoon), ::weft::testing::IsOk());
  EXPECT_THAT(second_there->got().Wait(kSoon), ::weft::testing::IsOk());
  EXPECT_THAT(first_there->texts(), ::testing::ElementsAreArray(first));
  EXPECT_THAT(second_there->texts(), ::testing::ElementsAreArray(second));
  first_here->Close();
  second_here->Close();
}

TEST_P(TransportConformance, ClosedConnectionOfOnePurposeLeavesTheOtherOpen) {
  const auto first_there = AcceptAndEcho(FirstPurpose());
  const auto second_there = AcceptAndEcho(SecondPurpose(), 2);
  const auto first_here = Send({"first"}, FirstPurpose());
  const auto second_here = MakeObserver(pair_->a());
  const auto second = Connect(second_here, SecondPurpose());
  const auto before = second->Write(TextMessage("before"));
  ASSERT_NE(before, Connection::Written::kRefused);
  ASSERT_THAT(first_there->got().Wait(kSoon), ::weft::testing::IsOk());
  ASSERT_THAT(second_here->got().Wait(kSoon), ::weft::testing::IsOk());
  // Its echo may come before this end hears that it was written.
  if (before == Connection::Written::kUnderWay) {
    ASSERT_THAT(second_here->written().Wait(kSoon), ::weft::testing::IsOk());
  }
  first_here->Close();
  EXPECT_FALSE(first_there->closed().Wait(kSoon).ok());
  EXPECT_FALSE(first_here->closed().Wait(kSoon).ok());
  EXPECT_EQ(first_there->closings(), 1);
  ASSERT_NE(second->Write(TextMessage("after")), Connection::Written::kRefused);
  EXPECT_THAT(second_there->got().Wait(kSoon), ::weft::testing::IsOk());
  EXPECT_EQ(second_there->closings(), 0);
  EXPECT_EQ(second_here->closings(), 0);
  second->Close(absl::AbortedError("enough"));
}

TEST_P(TransportConformance,
       MissingAcceptorOfOnePurposeIsUnavailableWhileTheOtherIsServed) {
  const auto first_there = AcceptAndEcho(FirstPurpose());
  const auto second_here = Send({}, SecondPurpose());
  EXPECT_THAT(second_here->closed().Wait(kSoon),
              ::weft::testing::StatusIs(absl::StatusCode::kUnavailable));
  const auto first_here = Send({"first"}, FirstPurpose());
  EXPECT_THAT(first_there->got().Wait(kSoon), ::weft::testing::IsOk());
  first_here->Close();
}

TEST_P(TransportConformance,
       PurposeThatThePeerDoesNotServeIsUnimplementedAndNamed) {
  const auto first_there = AcceptAndEcho(FirstPurpose());
  const auto refused = MakeObserver(pair_->a());
  const auto other = Connect(refused, OtherPurpose());
  const absl::Status why = refused->closed().Wait(kSoon);
  EXPECT_THAT(why, ::weft::testing::StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(
      std::string(why.message()),
      ::testing::AllOf(
          ::testing::HasSubstr(absl::StrCat(
              "worker ", pair_->b_destination().name, " at ",
              pair_->b_destination().address, " does not serve connections")),
          ::testing::HasSubstr("other (/test.Other/Connect)"),
          ::testing::HasSubstr("check that")));
  // What it serves is not concerned.
  const auto first_here = Send({"first"}, FirstPurpose());
  EXPECT_THAT(first_there->got().Wait(kSoon), ::weft::testing::IsOk());
  first_here->Close();
}

TEST_P(TransportConformance, RegisteringAPurposeAgainKeepsItsAcceptor) {
  const auto there = AcceptAndEcho();
  pair_->b().Register(FirstPurpose());
  const auto here = Send({"still"}, FirstPurpose());
  EXPECT_THAT(there->got().Wait(kSoon), ::weft::testing::IsOk());
  here->Close();
}

TEST_P(TransportConformance, SharedMemoryIsOneMemoryOrNone) {
  std::unique_ptr<Connection> there;
  const auto observer = MakeObserver(pair_->b());
  pair_->b().Accept(FirstPurpose(),
                    [&](std::unique_ptr<Connection> connection) {
                      there = std::move(connection);
                      return observer;
                    });
  const auto here = MakeObserver(pair_->a());
  auto connection = Connect(here);
  ASSERT_NE(connection->Write(TextMessage("hello")),
            Connection::Written::kRefused);
  ASSERT_THAT(observer->got().Wait(kSoon), ::weft::testing::IsOk());
  // Once a message has come both ends know whether they share memory.
  ASSERT_NE(there->Write(TextMessage("welcome")),
            Connection::Written::kRefused);
  ASSERT_THAT(here->got().Wait(kSoon), ::weft::testing::IsOk());
  auto at_b = there->UseBodyMemory();
  auto at_a = connection->UseBodyMemory();
  ASSERT_EQ(at_a.ok(), at_b.ok()) << at_a.status() << at_b.status();
  if (at_a.ok()) {
    const size_t last = BodyMemory::kBytes - 1;
    at_a->out[last] = std::byte{42};
    at_b->out[last] = std::byte{24};
    EXPECT_EQ(at_b->in[last], std::byte{42});
    EXPECT_EQ(at_a->in[last], std::byte{24});
    // Asked again, it is the same.
    EXPECT_EQ(connection->UseBodyMemory()->out, at_a->out);
  }
  there = nullptr;
  (void)here->closed().Wait(kSoon);
}

TEST_P(TransportConformance, TimersRunInTimeUnlessCancelled) {
  Transport& a = pair_->a();
  auto [promise, fired] = MakePromise<void>(a.driver());
  auto shared = std::make_shared<Promise<void>>(std::move(promise));
  Instant when;
  bool cancelled_ran = false;
  // Where timers run, so that none is due before it is cancelled.
  a.RunAt(a.clock().Now(), [&] {
    when = a.clock().Now() + absl::Milliseconds(20);
    const auto id = a.RunAt(when - absl::Milliseconds(5),
                            [&cancelled_ran] { cancelled_ran = true; });
    a.RunAt(when, [shared] { shared->Set(absl::OkStatus()); });
    EXPECT_TRUE(a.CancelTimer(id));
    EXPECT_FALSE(a.CancelTimer(id));
  });
  EXPECT_THAT(fired.Wait(kSoon), ::weft::testing::IsOk());
  EXPECT_GE(a.clock().Now(), when);
  EXPECT_FALSE(cancelled_ran);
}

TEST_P(TransportConformance, TimerCallbackThatRunsIsAwaited) {
  if (!pair_->has_threads()) GTEST_SKIP() << "nothing runs beside the test";
  Transport& a = pair_->a();
  Promise<void> begun;
  Parker may_end;
  std::atomic<bool> has_ended{false};
  a.RunAt(a.clock().Now(), [&] {
    begun.Set(absl::OkStatus());
    EXPECT_TRUE(::weft::testing::IsWoken(may_end));
    has_ended = true;
  });
  ASSERT_THAT(begun.future().Wait(kSoon), ::weft::testing::IsOk());
  Promise<void> awaited;
  std::thread awaiting([&] {
    a.AwaitTimers();
    EXPECT_TRUE(has_ended);
    awaited.Set(absl::OkStatus());
  });
  EXPECT_FALSE(awaited.future().Wait(absl::Milliseconds(100)).ok());
  may_end.Unpark();
  awaiting.join();
}

TEST_P(TransportConformance, ATimerDoesNotAwaitItself) {
  Transport& a = pair_->a();
  Promise<void> promise(a.driver());
  const Future<void> done = promise.future();
  a.RunAt(a.clock().Now(), [&a, promise = std::move(promise)]() mutable {
    a.AwaitTimers();
    promise.Set(absl::OkStatus());
  });
  EXPECT_THAT(done.Wait(kSoon), ::weft::testing::IsOk());
}

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_TESTING_TRANSPORT_CONFORMANCE_H_
