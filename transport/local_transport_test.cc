// What LocalNetwork has besides the conformance suite
// (rpc/connection/transport_test): networks that break, and transports that
// come and go.

#include "weft/transport/local_transport.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/testing/observers.h"

namespace weft::transport {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Written = Connection::Written;

constexpr absl::Duration kPatience = absl::Seconds(60);

Purpose TestPurpose() { return {"test", "/test.Test/Connect"}; }

class LocalNetworkTest : public ::testing::Test {
 protected:
  // One that echoes what comes.
  std::unique_ptr<Transport> Echoing(const std::string& address) {
    auto made = network_.MakeTransport(address);
    EXPECT_THAT(made, IsOk());
    (*made)->Register(TestPurpose());
    (*made)->Accept(TestPurpose(), [driver = &(*made)->driver()](
                                       std::unique_ptr<Connection> connection) {
      auto observer = std::make_shared<HearingObserver>(*driver);
      observer->echo = std::move(connection);
      return observer;
    });
    return *std::move(made);
  }
  struct End {
    std::shared_ptr<HearingObserver> heard;
    std::shared_ptr<Connection> connection;
  };
  static End Connect(Transport& from, const std::string& address) {
    End end;
    end.heard = std::make_shared<HearingObserver>(from.driver());
    end.connection = from.Connect(TestPurpose(), {address, address}, end.heard);
    return end;
  }
  // Whether what is said comes back.
  static void ExpectServes(Transport& from, const std::string& address) {
    const End end = Connect(from, address);
    EXPECT_EQ(end.connection->Write({Bytes::Copy("hello")}),
              Written::kUnderWay);
    EXPECT_THAT(end.heard->got().Wait(kPatience), IsOk());
    EXPECT_THAT(end.heard->texts(), ElementsAre("hello"));
  }

  LocalNetwork network_;
};

TEST_F(LocalNetworkTest, BreakEndsTheConnectionsOfThatAddressAlone) {
  const auto a = Echoing("a"), b = Echoing("b"), c = Echoing("c");
  const End to_b = Connect(*a, "b"), from_b = Connect(*b, "a");
  const End to_c = Connect(*a, "c");
  EXPECT_EQ(to_c.connection->Write({Bytes::Copy("x")}), Written::kUnderWay);
  ASSERT_THAT(to_c.heard->got().Wait(kPatience), IsOk());
  network_.Break("b");
  for (const End* end : {&to_b, &from_b}) {
    EXPECT_THAT(end->heard->closed().Wait(kPatience),
                StatusIs(absl::StatusCode::kUnavailable,
                         "the connection with b broke"));
    EXPECT_EQ(end->connection->Write({Bytes::Copy("x")}), Written::kRefused);
  }
  EXPECT_EQ(to_c.heard->closings(), 0);
  network_.Break("nobody");
  // Others may be opened at once.
  ExpectServes(*a, "b");
  ExpectServes(*b, "a");
}

TEST_F(LocalNetworkTest, EndOfATransportEndsItsConnectionsAndFreesItsAddress) {
  const auto a = Echoing("a");
  auto b = Echoing("b");
  const End to_b = Connect(*a, "b");
  EXPECT_EQ(to_b.connection->Write({Bytes::Copy("x")}), Written::kUnderWay);
  ASSERT_THAT(to_b.heard->got().Wait(kPatience), IsOk());
  b = nullptr;
  EXPECT_THAT(to_b.heard->closed().Wait(kPatience),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Connect(*a, "b").heard->closed().Wait(kPatience),
              StatusIs(absl::StatusCode::kUnavailable, "at b"));
  b = Echoing("b");
  ExpectServes(*a, "b");
}

TEST_F(LocalNetworkTest, ConnectionMayOutliveItsTransportsAndTheNetwork) {
  End to_b;
  {
    LocalNetwork network;
    auto a = network.MakeTransport("a");
    ASSERT_THAT(a, IsOk());
    auto b = network.MakeTransport("b");
    ASSERT_THAT(b, IsOk());
    (*b)->Register(TestPurpose());
    (*b)->Accept(TestPurpose(),
                 [](std::shared_ptr<Connection>)
                     -> absl::StatusOr<std::shared_ptr<ConnectionObserver>> {
                   return absl::PermissionDeniedError("not you");
                 });
    to_b = Connect(**a, "b");
    EXPECT_THAT(to_b.heard->closed().Wait(kPatience),
                StatusIs(absl::StatusCode::kPermissionDenied));
  }
  EXPECT_EQ(to_b.connection->Write({Bytes::Copy("x")}), Written::kRefused);
  to_b.connection->Close(absl::CancelledError("long closed"));
  EXPECT_EQ(to_b.heard->closings(), 1);
}

TEST_F(LocalNetworkTest, ReachesItself) {
  const auto a = Echoing("a");
  ExpectServes(*a, "a");
}

}  // namespace
}  // namespace weft::transport
