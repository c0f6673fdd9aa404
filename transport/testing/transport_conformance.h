// TransportConformance: what every Transport must do, as a suite to
// instantiate with the ways to make a pair of them.

#ifndef WEFT_TRANSPORT_TESTING_TRANSPORT_CONFORMANCE_H_
#define WEFT_TRANSPORT_TESTING_TRANSPORT_CONFORMANCE_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/base/parker.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// Two transports of one kind and how `b` is reached.
class TransportPair {
 public:
  virtual ~TransportPair() = default;
  virtual Transport& a() = 0;
  virtual Transport& b() = 0;
  virtual Destination b_destination() const = 0;
  // Whether what they run goes on while the test waits for another thread.
  virtual bool has_threads() const { return true; }
};

// Keeps what it hears; the test waits for it in the transport's own way.
class HearingObserver final : public ConnectionObserver {
 public:
  explicit HearingObserver(Driver& driver)
      : closed_(driver), messages_(driver), written_(driver) {}

  // `messages` must come for got() to be ready.
  void Expect(size_t messages) { expected_ = messages; }
  Future<void> got() { return messages_.future(); }
  Future<void> closed() { return closed_.future(); }
  Future<void> written() { return written_.future(); }

  std::vector<std::string> texts() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return texts_;
  }
  int closings() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return closings_;
  }

  void OnMessage(Slices message) override {
    size_t count;
    {
      MutexLock lock(mu_);
      texts_.emplace_back(Flatten(message).view());
      count = texts_.size();
    }
    if (count == expected_) messages_.Set(absl::OkStatus());
    if (echo != nullptr &&
        echo->Write(std::move(message)) == Connection::Written::kDone) {
      written_.Set(absl::OkStatus());
    }
  }
  void OnWritten() override { written_.Set(absl::OkStatus()); }
  void OnClosed(absl::Status status) override {
    {
      MutexLock lock(mu_);
      ++closings_;
    }
    echo = nullptr;
    closed_.Set(std::move(status));
  }

  std::shared_ptr<Connection> echo;  // what comes goes back there

 private:
  size_t expected_ = 1;
  Promise<void> closed_;
  Promise<void> messages_;
  Promise<void> written_;
  Mutex mu_;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mu_);
  int closings_ ABSL_GUARDED_BY(mu_) = 0;
};

using MakeTransportPair = std::function<std::unique_ptr<TransportPair>()>;

class TransportConformance
    : public ::testing::TestWithParam<MakeTransportPair> {
 protected:
  static constexpr absl::Duration kSoon = absl::Seconds(20);

  TransportConformance() : pair_(GetParam()()) {}
  ~TransportConformance() override {
    // The test has let its end go: the other hears of it, and lets go too.
    if (accepted_ != nullptr) (void)accepted_->closed().Wait(kSoon);
    pair_->b().Accept(nullptr);
  }

  std::shared_ptr<HearingObserver> MakeObserver(Transport& transport) {
    return std::make_shared<HearingObserver>(transport.driver());
  }
  // Lets `a` in; what it says comes back.
  std::shared_ptr<HearingObserver> AcceptAndEcho() {
    auto observer = MakeObserver(pair_->b());
    pair_->b().Accept([observer](std::shared_ptr<Connection> connection) {
      observer->echo = std::move(connection);
      return observer;
    });
    accepted_ = observer;
    return observer;
  }

  const std::unique_ptr<TransportPair> pair_;

 private:
  std::shared_ptr<HearingObserver> accepted_;
};

inline Slices TextMessage(const std::string& text) {
  return {Bytes::Copy(text)};
}

TEST_P(TransportConformance, AMessageOfSeveralSlicesComesWhole) {
  const auto there = AcceptAndEcho();
  const auto here = MakeObserver(pair_->a());
  const auto connection = pair_->a().Connect(pair_->b_destination(), here);
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
  const auto connection = pair_->a().Connect(pair_->b_destination(), here);
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
  const auto connection = pair_->a().Connect(pair_->b_destination(), here);
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

TEST_P(TransportConformance, NobodyThereIsUnavailable) {
  const auto here = MakeObserver(pair_->a());
  const auto connection = pair_->a().Connect(pair_->b_destination(), here);
  (void)connection->Write(TextMessage("hello?"));
  EXPECT_THAT(here->closed().Wait(kSoon),
              ::weft::testing::StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(TransportConformance, ARefusalClosesTheConnection) {
  pair_->b().Accept([](std::shared_ptr<Connection>)
                        -> absl::StatusOr<std::shared_ptr<ConnectionObserver>> {
    return absl::PermissionDeniedError("not you");
  });
  const auto here = MakeObserver(pair_->a());
  const auto connection = pair_->a().Connect(pair_->b_destination(), here);
  EXPECT_THAT(here->closed().Wait(kSoon),
              ::weft::testing::StatusIs(absl::StatusCode::kPermissionDenied,
                                        "not you"));
}

TEST_P(TransportConformance, AConnectionLetGoIsClosed) {
  const auto there = AcceptAndEcho();
  const auto here = MakeObserver(pair_->a());
  auto connection = pair_->a().Connect(pair_->b_destination(), here);
  ASSERT_NE(connection->Write(TextMessage("hello")),
            Connection::Written::kRefused);
  ASSERT_THAT(here->got().Wait(kSoon), ::weft::testing::IsOk());
  connection = nullptr;
  EXPECT_FALSE(there->closed().Wait(kSoon).ok());
}

TEST_P(TransportConformance, SharedMemoryIsOneMemoryOrNone) {
  std::shared_ptr<Connection> there;
  const auto observer = MakeObserver(pair_->b());
  pair_->b().Accept([&](std::shared_ptr<Connection> connection) {
    there = std::move(connection);
    return observer;
  });
  const auto here = MakeObserver(pair_->a());
  auto connection = pair_->a().Connect(pair_->b_destination(), here);
  ASSERT_NE(connection->Write(TextMessage("hello")),
            Connection::Written::kRefused);
  ASSERT_THAT(observer->got().Wait(kSoon), ::weft::testing::IsOk());
  EXPECT_NE(there->memory_role(), Connection::MemoryRole::kOffers);
  if (connection->memory_role() == Connection::MemoryRole::kNone ||
      there->memory_role() == Connection::MemoryRole::kNone) {
    EXPECT_FALSE(there->TakeMemory(1, 4096).ok());
  } else {
    const auto offered = connection->OfferMemory(8192);
    ASSERT_THAT(offered.status(), ::weft::testing::IsOk());
    EXPECT_THAT(there->TakeMemory(offered->token + 1, 8192).status(),
                ::weft::testing::StatusIs(absl::StatusCode::kNotFound));
    const auto taken = there->TakeMemory(offered->token, 8192);
    ASSERT_THAT(taken.status(), ::weft::testing::IsOk());
    offered->segment->data()[8191] = std::byte{42};
    EXPECT_EQ(taken->segment->data()[8191], std::byte{42});
    EXPECT_FALSE(there->TakeMemory(offered->token, 8192).ok());
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

TEST_P(TransportConformance, WhatATimerHasBegunIsAwaited) {
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
