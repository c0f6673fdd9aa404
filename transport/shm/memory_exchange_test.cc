#include "weft/transport/shm/memory_exchange.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/edge/local_socket.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/shm/memory_budget.h"
#include "weft/transport/shm/ring_connection.h"

namespace weft::transport {
namespace {

using ::testing::EndsWith;
using ::testing::Eq;
using ::testing::Optional;
using ::testing::StartsWith;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class MemoryExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override { chmod(dir_.path().c_str(), 0700); }

  std::shared_ptr<MemoryExchange> Make(
      int max_memories = 4, std::shared_ptr<MemoryBudget> budget = nullptr) {
    return std::make_shared<MemoryExchange>(telemetry::Silent(), max_memories,
                                            dir_.path(), std::move(budget));
  }
  // One that is open at a TCP address, so that its socket is in the directory.
  std::shared_ptr<MemoryExchange> Open(const std::string& name,
                                       int max_memories = 4) {
    auto made = Make(max_memories);
    made->Open("127.0.0.1:7000", name);
    EXPECT_TRUE(made->is_open());
    return made;
  }
  static Destination At(const std::string& address,
                        const std::string& memory_socket = "") {
    Destination peer;
    peer.name = "ps0";
    peer.address = address;
    peer.memory_socket = memory_socket;
    return peer;
  }

  testing::TempDir dir_;
};

// --- Where memory is sent to. ------------------------------------------------

TEST_F(MemoryExchangeTest, SocketOfAUnixAddressIsBesideIt) {
  const auto exchange = Make();
  exchange->Open(absl::StrCat("unix:", dir_.Path("ps0")), "ps0");
  EXPECT_TRUE(exchange->is_open());
  EXPECT_EQ(exchange->path(), dir_.Path("ps0.mem"));
  // Others find it by the address alone.
  EXPECT_THAT(Make()->PathTo(At(absl::StrCat("unix:", dir_.Path("ps0")))),
              Optional(exchange->path()));
}

TEST_F(MemoryExchangeTest, SocketOfATcpAddressIsInTheDirectory) {
  const auto exchange = Open("ps0");
  EXPECT_EQ(exchange->path(), dir_.Path("ps0.mem"));
  const auto other = Make();
  EXPECT_THAT(other->PathTo(At("10.0.0.1:7000", exchange->path())),
              Optional(exchange->path()));
  EXPECT_THAT(other->PathTo(At("10.0.0.1:7000")), Eq(std::nullopt));
}

TEST_F(MemoryExchangeTest, SecondOfANameGetsAPathOfItsOwn) {
  const auto first = Open("ps0");
  const auto second = Open("ps0");
  EXPECT_NE(first->path(), second->path());
  EXPECT_THAT(second->path(), StartsWith(dir_.Path("ps0.")));
  EXPECT_THAT(second->path(), EndsWith(".mem"));
  EXPECT_THAT(Make()->PathTo(At("10.0.0.1:7000", second->path())),
              Optional(second->path()));
}

TEST_F(MemoryExchangeTest, EndRemovesTheSocketAndThenNobodyIsThere) {
  auto exchange = Open("ps0");
  const std::string path = exchange->path();
  exchange = nullptr;
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  const auto other = Make();
  EXPECT_THAT(other->PathTo(At("10.0.0.1:7000", path)), Eq(std::nullopt));
  EXPECT_FALSE(other->OfferRings(path).ok());
}

TEST_F(MemoryExchangeTest, PathsThatNoExchangeOfTheJobMakesAreNotUsed) {
  const auto exchange = Open("ps0");
  const auto other = Make();
  ASSERT_EQ(mkdir(dir_.Path("below").c_str(), 0700), 0);
  testing::TempDir elsewhere;
  chmod(elsewhere.path().c_str(), 0700);
  std::vector<std::unique_ptr<net::LocalSocket>> sockets;
  for (const std::string& path : {dir_.Path("ps0"), dir_.Path("below/ps0.mem"),
                                  elsewhere.Path("ps0.mem")}) {
    auto bound = net::LocalSocket::Bind(path);
    ASSERT_THAT(bound, IsOk());
    sockets.push_back(*std::move(bound));
    EXPECT_THAT(other->PathTo(At("10.0.0.1:7000", path)), Eq(std::nullopt))
        << path;
  }
  const std::string inside = dir_.path();
  for (const std::string& path :
       {std::string(), std::string("ps0.mem"),
        absl::StrCat(inside, "/../", "ps0.mem"),
        absl::StrCat(inside, "/below/../ps0.mem"),
        absl::StrCat(inside, "//ps0.mem"), absl::StrCat(inside, "/.mem"),
        absl::StrCat(inside, "/", std::string(200, 'x'), ".mem")}) {
    EXPECT_THAT(other->PathTo(At("10.0.0.1:7000", path)), Eq(std::nullopt))
        << path;
  }
}

TEST_F(MemoryExchangeTest, OneOfNoMemoriesOpensNothingAndSendsNothing) {
  const auto open = Open("ps0");
  const auto none = Make(0);
  none->Open("127.0.0.1:7000", "trainer0");
  EXPECT_FALSE(none->is_open());
  EXPECT_EQ(none->path(), "");
  EXPECT_THAT(none->PathTo(At("127.0.0.1:7000", open->path())),
              Eq(std::nullopt));
  EXPECT_THAT(
      none->OfferRings(open->path()).status(),
      StatusIs(absl::StatusCode::kResourceExhausted, "--shared-memories"));
  EXPECT_THAT(none->TakeRings(1).status(),
              StatusIs(absl::StatusCode::kUnimplemented, "shares no memory"));
}

TEST_F(MemoryExchangeTest, DirectoryThatIsOpenToOthersIsNotUsed) {
  chmod(dir_.path().c_str(), 0755);
  const auto exchange = Make();
  exchange->Open("127.0.0.1:7000", "ps0");
  EXPECT_FALSE(exchange->is_open());
  EXPECT_EQ(exchange->path(), "");
}

// --- What is handed over. ----------------------------------------------------

TEST_F(MemoryExchangeTest, RingsAreOneMemoryAtBothEnds) {
  const auto here = Open("trainer0"), there = Open("ps0");
  auto offered = here->OfferRings(there->path());
  ASSERT_THAT(offered, IsOk());
  auto taken = there->TakeRings(offered->token);
  ASSERT_THAT(taken, IsOk());
  EXPECT_TRUE(offered->rings.is_offerer);
  EXPECT_FALSE(taken->is_offerer);
  MessageWriter writer = offered->rings.MakeWriter();
  MessageReader reader = taken->MakeReader();
  writer.Begin({Bytes::Copy("from here")});
  ASSERT_THAT(writer.Go(), IsOk());
  auto read = reader.Read();
  ASSERT_THAT(read, IsOk());
  ASSERT_TRUE(read->has_value());
  EXPECT_EQ((*read)->view(), "from here");
  MessageWriter back = taken->MakeWriter();
  MessageReader reader_here = offered->rings.MakeReader();
  back.Begin({Bytes::Copy("and back")});
  ASSERT_THAT(back.Go(), IsOk());
  auto answer = reader_here.Read();
  ASSERT_THAT(answer, IsOk());
  ASSERT_TRUE(answer->has_value());
  EXPECT_EQ((*answer)->view(), "and back");
}

TEST_F(MemoryExchangeTest, RingsAreTakenOnceAndByTheirTokenAlone) {
  const auto here = Open("trainer0"), there = Open("ps0");
  const auto offered = here->OfferRings(there->path());
  ASSERT_THAT(offered, IsOk());
  for (const uint64_t token : {uint64_t{0}, offered->token + 1, ~uint64_t{0}}) {
    EXPECT_THAT(there->TakeRings(token).status(),
                StatusIs(absl::StatusCode::kNotFound));
  }
  EXPECT_THAT(there->TakeRings(offered->token).status(), IsOk());
  EXPECT_THAT(there->TakeRings(offered->token).status(),
              StatusIs(absl::StatusCode::kNotFound));
}

// A process that is broken, or hostile, may send it.
TEST_F(MemoryExchangeTest, WhatIsNoMemoryWithTwoEventsIsRefused) {
  const auto there = Open("ps0");
  const int file = open(dir_.Path("file").c_str(), O_CREAT | O_RDWR, 0600);
  ASSERT_GE(file, 0);
  ASSERT_THAT(net::LocalSocket::Send(there->path(), 1, {file}), IsOk());
  EXPECT_THAT(there->TakeRings(1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "wanted 3 descriptors, 1 were handed over"));
  ASSERT_THAT(net::LocalSocket::Send(there->path(), 2, {file, file, file}),
              IsOk());
  EXPECT_FALSE(there->TakeRings(2).ok());  // a file that can be cut short
  // A memory, and files in the place of events.
  auto memory = SharedRings::CreateMemory();
  ASSERT_THAT(memory, IsOk());
  ASSERT_THAT(
      net::LocalSocket::Send(there->path(), 3, {memory->fd(), file, file}),
      IsOk());
  EXPECT_FALSE(there->TakeRings(3).ok());
  close(file);
  // None of these has taken a place.
  const auto here = Open("trainer0");
  for (int i = 0; i < 4; ++i) {
    const auto offered = here->OfferRings(there->path());
    ASSERT_THAT(offered, IsOk());
    EXPECT_THAT(there->TakeRings(offered->token).status(), IsOk());
  }
}

// --- How much. ---------------------------------------------------------------

TEST_F(MemoryExchangeTest, SoManyConnectionsShareMemoryAndNoMoreUntilOneEnds) {
  const auto here = Open("trainer0", 2), there = Open("ps0", 1);
  auto first = here->OfferRings(there->path());
  auto second = here->OfferRings(there->path());
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(here->OfferRings(there->path()).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "2 connections have shared memory already"));
  auto taken = there->TakeRings(first->token);
  ASSERT_THAT(taken, IsOk());
  EXPECT_THAT(there->TakeRings(second->token).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "1 connections have shared memory already"));
  taken = absl::CancelledError("ended");
  first = absl::CancelledError("ended");
  const auto third = here->OfferRings(there->path());
  ASSERT_THAT(third, IsOk());
  EXPECT_THAT(there->TakeRings(third->token).status(), IsOk());
}

TEST_F(MemoryExchangeTest, OfferThatReachesNobodyTakesNoPlace) {
  const auto here = Open("trainer0", 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(here->OfferRings(dir_.Path("nobody.mem")).ok());
  }
  const auto there = Open("ps0");
  EXPECT_THAT(here->OfferRings(there->path()).status(), IsOk());
}

TEST_F(MemoryExchangeTest, OfferThatIsTakenBackLeavesNothing) {
  const auto here = Open("trainer0"), there = Open("ps0");
  uint64_t token = 0;
  {
    const auto offered = here->OfferRings(there->path());
    ASSERT_THAT(offered, IsOk());
    there->DropAbandoned();  // not while it stands
    const auto taken = there->TakeRings(offered->token);
    EXPECT_THAT(taken.status(), IsOk());
  }
  {
    const auto offered = here->OfferRings(there->path());
    ASSERT_THAT(offered, IsOk());
    token = offered->token;
  }
  there->DropAbandoned();
  EXPECT_THAT(there->TakeRings(token).status(),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(MemoryExchangeTest, WhoOffersCountsItAgainstTheBudgetUntilItEnds) {
  const int64_t room = SharedRings::kRingBytes + 2 * BodyMemory::kBytes;
  auto budget =
      MemoryBudget::Open(dir_.path(), room + MemoryBudget::kUnitBytes);
  ASSERT_THAT(budget, IsOk());
  const auto there = Open("ps0");
  const auto here = Make(8, *budget);
  auto offered = here->OfferRings(there->path());
  ASSERT_THAT(offered, IsOk());
  EXPECT_GE((*budget)->used_bytes(), SharedRings::kRingBytes);
  {
    // The pages for bodies are counted when they are asked for.
    auto bodies = offered->rings.reserve_bodies();
    ASSERT_THAT(bodies, IsOk());
    EXPECT_THAT(offered->rings.reserve_bodies().status(),
                StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(here->OfferRings(there->path()).status(),
                StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_THAT(offered->rings.reserve_bodies().status(), IsOk());
  offered = absl::CancelledError("ended");
  EXPECT_EQ((*budget)->used_bytes(), 0);
}

}  // namespace
}  // namespace weft::transport
