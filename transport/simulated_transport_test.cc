// Each kind of fault, by what its two ends hear and when. What the transports
// have in common is in the conformance suite (rpc/connection/transport_test).

#include "weft/transport/simulated_transport.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/simulator.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/testing/observers.h"

namespace weft::transport {
namespace {

using sim::Fault;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Written = Connection::Written;

// Far longer than anything takes here, of the simulated time.
constexpr absl::Duration kLong = absl::Minutes(10);
// How long a dead connection goes unnoticed; all else is faster.
constexpr absl::Duration kSilence = absl::Seconds(5);
constexpr absl::Duration kSoon = absl::Seconds(1);

Purpose TestPurpose() { return {"test", "/test.Test/Connect"}; }

// Once, of the first message.
sim::FaultPlan::Options First(Fault fault, absl::Duration delay = {}) {
  sim::FaultPlan::Rule rule;
  rule.fault = fault;
  rule.first = 1;
  rule.delay = delay;
  sim::FaultPlan::Options options;
  options.rules = {rule};
  return options;
}

// A connection from `a` to `b`.
class SimulatedNetworkTest : public ::testing::Test {
 protected:
  void Make(sim::FaultPlan::Options faults = {},
            SimulatedNetwork::Options options = {}) {
    plan_.emplace(1, std::move(faults));
    options.silence = kSilence;
    options.faults = &*plan_;
    options.classify = [](const Slices&) {
      sim::FaultPlan::Message message;
      message.kind = "message";
      return std::vector<sim::FaultPlan::Message>{message};
    };
    network_.emplace(simulator_, std::move(options));
    a_ = MakeTransport("a");
    b_ = MakeTransport("b");
    Accept(*b_);
  }
  void TearDown() override {
    // What is under way uses the network, and holds the observers.
    here_ = there_ = nullptr;
    from_here_ = from_there_ = nullptr;
    simulator_.RunUntilIdle();
    a_ = nullptr;
    b_ = nullptr;
  }

  std::unique_ptr<Transport> MakeTransport(const std::string& address) {
    auto made = network_->MakeTransport(address);
    made->Register(TestPurpose());
    return made;
  }
  void Accept(Transport& transport) {
    there_ = std::make_shared<HearingObserver>(transport.driver());
    transport.Accept(TestPurpose(),
                     [this](std::shared_ptr<Connection> connection) {
                       from_there_ = std::move(connection);
                       return there_;
                     });
  }
  void Connect() {
    here_ = std::make_shared<HearingObserver>(a_->driver());
    from_here_ = a_->Connect(TestPurpose(), {"b", "b"}, here_);
    Pass(kSoon);
  }
  static Written Write(Connection& connection, const std::string& text) {
    return connection.Write({Bytes::Copy(text)});
  }
  void Pass(absl::Duration time) {
    simulator_.RunUntil(simulator_.Now() + time);
  }
  // Both ends learn of it, and no earlier than `least`.
  void ExpectBothLearn(absl::Duration least, absl::StatusCode code) {
    const Instant began = simulator_.Now();
    EXPECT_THAT(here_->closed().Wait(kLong), StatusIs(code));
    EXPECT_THAT(there_->closed().Wait(kLong), StatusIs(code));
    EXPECT_GE(simulator_.Now() - began, least);
    EXPECT_EQ(here_->closings() + there_->closings(), 2);
    EXPECT_EQ(Write(*from_here_, "too late"), Written::kRefused);
  }

  sim::Simulator simulator_{7};
  std::optional<sim::FaultPlan> plan_;
  std::optional<SimulatedNetwork> network_;
  std::unique_ptr<Transport> a_;
  std::unique_ptr<Transport> b_;
  std::shared_ptr<HearingObserver> here_;
  std::shared_ptr<HearingObserver> there_;
  std::shared_ptr<Connection> from_here_;
  std::shared_ptr<Connection> from_there_;
};

TEST_F(SimulatedNetworkTest, ResetLosesTheMessageAndBothEndsKnow) {
  Make(First(Fault::kReset));
  Connect();
  EXPECT_EQ(Write(*from_here_, "lost"), Written::kUnderWay);
  Pass(kSoon);
  EXPECT_EQ(here_->closings(), 1);
  ExpectBothLearn(absl::ZeroDuration(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(there_->texts(), IsEmpty());
  EXPECT_EQ(network_->broken(), 1);
}

TEST_F(SimulatedNetworkTest, LossIsNoticedByNobodyBeforeTheSilenceIsOver) {
  Make(First(Fault::kLoss));
  Connect();
  ASSERT_NE(from_there_, nullptr);
  EXPECT_EQ(Write(*from_here_, "lost"), Written::kUnderWay);
  // Nothing passes the other way either.
  EXPECT_EQ(Write(*from_there_, "lost too"), Written::kUnderWay);
  Pass(kSilence - absl::Milliseconds(1));
  EXPECT_EQ(here_->closings() + there_->closings(), 0);
  ExpectBothLearn(absl::ZeroDuration(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(there_->texts(), IsEmpty());
  EXPECT_THAT(here_->texts(), IsEmpty());
}

TEST_F(SimulatedNetworkTest, LostReplyStrikesWhoAcceptedAlone) {
  Make(sim::FaultPlan::Options::Of({Fault::kLostReply}, 1));
  Connect();
  EXPECT_EQ(Write(*from_here_, "request"), Written::kUnderWay);
  ASSERT_THAT(there_->got().Wait(kLong), IsOk());
  EXPECT_THAT(there_->texts(), ElementsAre("request"));
  EXPECT_EQ(Write(*from_there_, "reply"), Written::kUnderWay);
  ExpectBothLearn(kSilence - kSoon, absl::StatusCode::kUnavailable);
  EXPECT_THAT(here_->texts(), IsEmpty());
  EXPECT_EQ(plan_->hits(Fault::kLostReply), 1);
}

TEST_F(SimulatedNetworkTest, HalfOpenIsKnownToTheSenderAtOnce) {
  Make(First(Fault::kHalfOpen));
  Connect();
  EXPECT_EQ(Write(*from_here_, "lost"), Written::kUnderWay);
  Pass(kSoon);
  EXPECT_EQ(here_->closings(), 1);
  EXPECT_EQ(there_->closings(), 0);
  ExpectBothLearn(kSilence - 2 * kSoon, absl::StatusCode::kUnavailable);
  EXPECT_THAT(there_->texts(), IsEmpty());
}

TEST_F(SimulatedNetworkTest, DuplicationDeliversAndThenBreaks) {
  Make(First(Fault::kDuplication));
  Connect();
  EXPECT_EQ(Write(*from_here_, "once here"), Written::kUnderWay);
  ExpectBothLearn(absl::ZeroDuration(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(there_->texts(), ElementsAre("once here"));
  // Its sender never knew that it had left.
  EXPECT_FALSE(here_->written().IsReady());
}

TEST_F(SimulatedNetworkTest, ReorderedMessageComesOnceItsSenderTakesItForLost) {
  SimulatedNetwork::Options options;
  options.max_delay = kSoon;
  Make(First(Fault::kReordering), options);
  Connect();
  EXPECT_EQ(Write(*from_here_, "late"), Written::kUnderWay);
  ASSERT_FALSE(here_->closed().Wait(kLong).ok());
  const auto first_there = there_;
  EXPECT_EQ(first_there->closings(), 0);
  // The next connection may be faster, or not; each delivers what it has.
  Accept(*b_);
  Connect();
  EXPECT_EQ(Write(*from_here_, "next"), Written::kUnderWay);
  ASSERT_THAT(there_->got().Wait(kLong), IsOk());
  EXPECT_FALSE(first_there->closed().Wait(kLong).ok());
  EXPECT_EQ(first_there->closings(), 1);
  EXPECT_THAT(first_there->texts(), ElementsAre("late"));
  EXPECT_THAT(there_->texts(), ElementsAre("next"));
  EXPECT_EQ(there_->closings(), 0);
}

TEST_F(SimulatedNetworkTest, CorruptionIsFoundByWhoReceives) {
  Make(First(Fault::kCorruption));
  Connect();
  EXPECT_EQ(Write(*from_here_, "flipped"), Written::kUnderWay);
  ExpectBothLearn(absl::ZeroDuration(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(there_->texts(), IsEmpty());
}

TEST_F(SimulatedNetworkTest, DelayByARuleKeepsTheOrderBehindIt) {
  Make(First(Fault::kDelay, kSoon));
  Connect();
  there_->Expect(2);
  const Instant began = simulator_.Now();
  EXPECT_EQ(Write(*from_here_, "late"), Written::kUnderWay);
  ASSERT_THAT(here_->written().Wait(kLong), IsOk());
  EXPECT_LT(simulator_.Now() - began, kSoon);
  EXPECT_EQ(Write(*from_here_, "behind it"), Written::kUnderWay);
  ASSERT_THAT(there_->got().Wait(kLong), IsOk());
  EXPECT_GE(simulator_.Now() - began, kSoon);
  EXPECT_THAT(there_->texts(), ElementsAre("late", "behind it"));
}

TEST_F(SimulatedNetworkTest, RateKeepsADirectionBusyAsLongAsItTakes) {
  SimulatedNetwork::Options options;
  options.bytes_per_second = 1000;
  Make({}, options);
  Connect();
  const Instant began = simulator_.Now();
  EXPECT_EQ(Write(*from_here_, std::string(3000, 'x')), Written::kUnderWay);
  Pass(absl::Seconds(2.9));
  EXPECT_EQ(Write(*from_here_, "one is under way"), Written::kRefused);
  EXPECT_THAT(there_->texts(), IsEmpty());
  // The other direction is free.
  EXPECT_EQ(Write(*from_there_, "x"), Written::kUnderWay);
  ASSERT_THAT(here_->got().Wait(kLong), IsOk());
  ASSERT_THAT(there_->got().Wait(kLong), IsOk());
  EXPECT_GE(simulator_.Now() - began, absl::Seconds(3));
  EXPECT_LT(simulator_.Now() - began, absl::Seconds(4));
}

TEST_F(SimulatedNetworkTest, BreaksStrikeSoOften) {
  SimulatedNetwork::Options options;
  options.breaks = 1;
  Make({}, options);
  for (int i = 1; i <= 3; ++i) {
    Accept(*b_);
    Connect();
    EXPECT_EQ(Write(*from_here_, "lost"), Written::kUnderWay);
    EXPECT_THAT(here_->closed().Wait(kLong),
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(there_->texts(), IsEmpty());
    EXPECT_EQ(network_->broken(), i);
  }
}

// --- Partitions. -------------------------------------------------------------

TEST_F(SimulatedNetworkTest, CutIsSilentAndHealsForNewConnections) {
  Make();
  Connect();
  network_->Cut("a", "b");
  Pass(kLong);  // which says nothing, so long as nobody writes
  EXPECT_EQ(here_->closings() + there_->closings(), 0);
  EXPECT_EQ(Write(*from_here_, "lost"), Written::kUnderWay);
  ExpectBothLearn(kSilence, absl::StatusCode::kUnavailable);
  EXPECT_THAT(there_->texts(), IsEmpty());

  Accept(*b_);
  Connect();
  EXPECT_THAT(here_->closed().Wait(kLong),
              StatusIs(absl::StatusCode::kUnavailable, "nothing was heard"));
  network_->Heal("b", "a");
  Connect();
  EXPECT_EQ(Write(*from_here_, "heard"), Written::kUnderWay);
  EXPECT_THAT(there_->got().Wait(kLong), IsOk());
}

TEST_F(SimulatedNetworkTest, CutOfOneWayLetsTheOtherPassUntilItIsUsed) {
  Make();
  Connect();
  network_->CutOneWay("a", "b");
  EXPECT_EQ(Write(*from_there_, "heard"), Written::kUnderWay);
  ASSERT_THAT(here_->got().Wait(kLong), IsOk());
  EXPECT_THAT(here_->texts(), ElementsAre("heard"));
  EXPECT_EQ(Write(*from_here_, "lost"), Written::kUnderWay);
  ExpectBothLearn(kSilence, absl::StatusCode::kUnavailable);
  EXPECT_THAT(there_->texts(), IsEmpty());
}

TEST_F(SimulatedNetworkTest, SeverEndsWhatIsThereAndNotWhatComesInItsPlace) {
  Make();
  Connect();
  network_->Sever("b");
  EXPECT_EQ(Write(*from_here_, "lost"), Written::kUnderWay);
  ExpectBothLearn(kSilence - kSoon, absl::StatusCode::kUnavailable);
  EXPECT_THAT(there_->texts(), IsEmpty());
  // Nobody is there, until the next one is.
  Connect();
  EXPECT_THAT(here_->closed().Wait(kLong),
              StatusIs(absl::StatusCode::kUnavailable, "nobody accepts"));
  b_ = nullptr;
  b_ = MakeTransport("b");
  Accept(*b_);
  Connect();
  EXPECT_EQ(Write(*from_here_, "heard"), Written::kUnderWay);
  EXPECT_THAT(there_->got().Wait(kLong), IsOk());
}

// --- Time. -------------------------------------------------------------------

TEST_F(SimulatedNetworkTest, TimersRunByTheClockOfTheirTransport) {
  Make();
  std::vector<std::string> ran;
  const Instant now = a_->clock().Now();
  a_->RunAt(now + absl::Seconds(2), [&] { ran.push_back("second"); });
  b_->RunAt(now + absl::Seconds(1), [&] { ran.push_back("first"); });
  const auto never =
      a_->RunAt(now + absl::Seconds(1), [&] { ran.push_back("never"); });
  EXPECT_TRUE(a_->CancelTimer(never));
  EXPECT_FALSE(a_->CancelTimer(never));
  Pass(absl::Seconds(1.5));
  EXPECT_THAT(ran, ElementsAre("first"));
  Pass(absl::Seconds(1));
  EXPECT_THAT(ran, ElementsAre("first", "second"));
}

TEST(SimulatedNetwork, SeedDecidesWhatHappens) {
  const auto run = [](uint64_t seed) {
    sim::Simulator simulator(seed);
    SimulatedNetwork::Options options;
    options.breaks = 0.1;
    SimulatedNetwork network(simulator, options);
    const auto a = network.MakeTransport("a"), b = network.MakeTransport("b");
    b->Register(TestPurpose());
    for (int i = 0; i < 20; ++i) {
      const auto there = std::make_shared<HearingObserver>(b->driver());
      b->Accept(TestPurpose(), [there](std::unique_ptr<Connection> connection) {
        there->echo = std::move(connection);
        return there;
      });
      const auto here = std::make_shared<HearingObserver>(a->driver());
      const auto connection = a->Connect(TestPurpose(), {"b", "b"}, here);
      (void)connection->Write({Bytes::Copy("hello")});
      simulator.RunUntil(simulator.Now() + kSoon);
      connection->Close(absl::CancelledError("enough"));
      simulator.RunUntilIdle();
    }
    return simulator.trace_hash();
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

}  // namespace
}  // namespace weft::transport
