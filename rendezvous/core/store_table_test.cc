#include "weft/rendezvous/core/store_table.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr uint64_t kClient = 7;

v1::StoreRequest Add(uint64_t sequence, const std::string& key = "n") {
  v1::StoreRequest request;
  request.set_operation(v1::StoreRequest::ADD);
  request.set_key(key);
  request.set_delta(1);
  request.set_client(kClient);
  request.set_sequence(sequence);
  return request;
}

TEST(StoreTable, RepeatedChangeIsMadeOnceAndALateCopyRefused) {
  StoreTable table({});
  EXPECT_TRUE(table.Change(1, Add(1), "a").stored.has_value());
  const StoreTable::Result again = table.Change(2, Add(1), "a");
  EXPECT_FALSE(again.stored.has_value());
  ASSERT_EQ(again.outcomes.size(), 1u);
  ASSERT_THAT(again.outcomes[0].reply, IsOk());
  EXPECT_EQ(again.outcomes[0].reply->value(), "1");
  EXPECT_EQ(table.Change(3, Add(2), "a").outcomes[0].reply->value(), "2");
  EXPECT_THAT(table.Change(4, Add(1), "a").outcomes[0].reply,
              StatusIs(absl::StatusCode::kCancelled));
}

TEST(StoreTable, ChangeWakesWhoWaitsForItsKeyAfterItsOwnAnswer) {
  StoreTable table({});
  const Instant later = Instant() + absl::Seconds(1);
  v1::StoreRequest wait;
  wait.set_key("n");
  table.Hold(1, wait, later);
  wait.set_key("other");
  table.Hold(2, wait, later);
  const StoreTable::Result result = table.Change(3, Add(1), "a");
  ASSERT_EQ(result.outcomes.size(), 2u);
  EXPECT_EQ(result.outcomes[0].ticket, 3u);
  EXPECT_EQ(result.outcomes[1].ticket, 1u);
  EXPECT_EQ(table.held(), 1);
  EXPECT_EQ(table.NextExpiry(), later);
  const std::vector<StoreTable::Outcome> expired = table.Expire(later);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].ticket, 2u);
  EXPECT_EQ(expired[0].reply->version(), 0u);
}

TEST(StoreTable, SnapshotKeepsWhatWasAnswered) {
  StoreTable table({});
  table.Change(1, Add(1), "a");
  std::vector<v1::LogRecord> records;
  table.Snapshot(&records);
  StoreTable copy({});
  for (const v1::LogRecord& record : records) copy.Replay(record.stored());
  EXPECT_EQ(copy.Look("n").value(), "1");
  EXPECT_FALSE(copy.Change(2, Add(1), "a").stored.has_value());
  copy.ClientGone(kClient);
  EXPECT_TRUE(copy.Change(3, Add(1), "a").stored.has_value());
}

}  // namespace
}  // namespace weft::rendezvous
