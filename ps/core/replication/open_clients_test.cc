#include "weft/ps/core/replication/open_clients.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/openings.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kMost = Openings::kMostOfAWorker;

TEST(OpenClients, OneMoreThanAWorkerMayHaveClosesItsOldest) {
  OpenClients clients;
  for (uint64_t i = 1; i <= kMost; ++i) {
    EXPECT_TRUE(clients.Open({{1, 1}, 100 + i, i}));
  }
  EXPECT_TRUE(clients.Open({{2, 1}, 7, 1})) << "another worker's";
  EXPECT_TRUE(clients.Open({{1, 1}, 101, 1})) << "it is open";
  EXPECT_THAT(clients.TakeClosed(), IsEmpty());
  EXPECT_TRUE(clients.Open({{1, 1}, 999, kMost + 1}));
  EXPECT_THAT(clients.TakeClosed(), ElementsAre(101));
  EXPECT_FALSE(clients.Open({{1, 1}, 101, 1}));
  EXPECT_TRUE(clients.Open({{1, 1}, 102, 2}));
  EXPECT_EQ(clients.size(), kMost + 1);
}

// A server that comes later hears of them in another order.
TEST(OpenClients, ServersCloseTheSameInWhateverOrderTheyHearOfThem) {
  OpenClients one;
  OpenClients other;
  const uint64_t all = kMost + 10;
  for (uint64_t i = 1; i <= all; ++i) one.Open({{1, 1}, 100 + i, i});
  for (uint64_t i = all; i >= 1; --i) other.Open({{1, 1}, 100 + i, i});
  for (uint64_t i = 1; i <= all; ++i) {
    EXPECT_EQ(one.Open({{1, 1}, 100 + i, i}), i > 10) << i;
    EXPECT_EQ(other.Open({{1, 1}, 100 + i, i}), i > 10) << i;
  }
  OpenClients later;
  for (const OpenClients::Opening& opening : one.All()) {
    EXPECT_TRUE(later.Open(opening));
  }
  EXPECT_EQ(later.size(), kMost);
}

TEST(OpenClients, ForgetsWhatEarlierIncarnationsHadOpen) {
  OpenClients clients;
  clients.Open({{1, 1}, 10, 1});
  clients.Open({{1, 2}, 20, 1});
  clients.Open({{1, 3}, 30, 1});
  clients.Open({{2, 1}, 40, 1});
  clients.Forget({1, 2});
  EXPECT_THAT(clients.TakeClosed(), UnorderedElementsAre(10, 20));
  EXPECT_EQ(clients.size(), 2u);
}

}  // namespace
}  // namespace weft::ps
