// CoordinatorCore: the store.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/core/coordinator_core.h"
#include "weft/rendezvous/core/coordinator_fixture.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using Fixture = CoordinatorFixture;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(CoordinatorCore, TheStoreSetsAddsComparesWaitsAndDeletes) {
  Fixture f;
  using Request = v1::StoreRequest;
  EXPECT_FALSE(
      f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::GET))).found());
  Request wait = f.Store(Request::WAIT);
  wait.set_wait_ms(5000);
  const uint64_t waiter = f.Call(wait);
  EXPECT_TRUE(f.IsHeld(waiter));
  const auto set =
      f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::SET, "5")));
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(waiter).value(), "5");
  Request add = f.Store(Request::ADD);
  add.set_delta(-7);
  const auto sum = f.ReplyTo<v1::StoreReply>(f.Call(add));
  EXPECT_EQ(sum.value(), "-2");
  EXPECT_GT(sum.version(), set.version());
  Request swap = f.Store(Request::COMPARE_SET, "new");
  swap.set_version(set.version());
  EXPECT_FALSE(f.ReplyTo<v1::StoreReply>(f.Call(swap)).applied());
  swap.set_version(sum.version());
  EXPECT_TRUE(f.ReplyTo<v1::StoreReply>(f.Call(swap)).applied());
  EXPECT_THAT(f.StatusOf(f.Call(add)),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"new\""));
  EXPECT_TRUE(
      f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::DELETE))).applied());
  EXPECT_FALSE(
      f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::DELETE))).applied());
}

TEST(CoordinatorCore, TheStoreKeepsItsLimits) {
  CoordinatorCore::Options options;
  options.store.max_key_bytes = 3;
  options.store.max_value_bytes = 8;
  options.store.max_total_bytes = 2 * VersionedMap::kEntryBytes + 11;
  Fixture f({}, 1, options);
  using Request = v1::StoreRequest;
  EXPECT_THAT(f.StatusOf(f.Call(f.Store(Request::SET, "123456789"))),
              StatusIs(absl::StatusCode::kInvalidArgument, "9 bytes"));
  EXPECT_THAT(f.StatusOf(f.Call(f.Store(Request::SET, "12345678"))), IsOk());
  Request other = f.Store(Request::SET, "1");
  other.set_key("k2");
  EXPECT_THAT(f.StatusOf(f.Call(other)),
              StatusIs(absl::StatusCode::kResourceExhausted, "no room"));
  other.set_key("toolong");
  EXPECT_THAT(f.StatusOf(f.Call(other)),
              StatusIs(absl::StatusCode::kInvalidArgument, "7 bytes"));
  EXPECT_THAT(f.StatusOf(f.Call(f.Store(Request::SET, "1"))), IsOk());
  Request unknown = f.Store(static_cast<Request::Operation>(77));
  EXPECT_THAT(f.StatusOf(f.Call(unknown)),
              StatusIs(absl::StatusCode::kInvalidArgument, "77"));
}

// ATT-M2: keys that are small count what they take.
TEST(CoordinatorCore, OneCallersManySmallKeysTakeItsShareOfTheStoreAlone) {
  CoordinatorCore::Options options;
  options.store.max_owner_bytes = 100 * (VersionedMap::kEntryBytes + 10);
  Fixture f({}, 1, options);
  const auto set = [](Fixture& at, const std::string& owner, int key) {
    v1::StoreRequest request = at.Store(v1::StoreRequest::SET);
    request.set_key(absl::StrCat(1'000'000'000 + key));
    request.set_owner(owner);
    return at.StatusOf(at.Call(request));
  };
  for (int i = 0; i < 100; ++i) EXPECT_THAT(set(f, "trainer0", i), IsOk());
  const auto full = StatusIs(absl::StatusCode::kResourceExhausted,
                             "what trainer0 wrote takes 26600 of 26600 bytes");
  EXPECT_THAT(set(f, "trainer0", 100), full);
  EXPECT_THAT(set(f, "trainer0", 7), IsOk());  // in place of its own
  EXPECT_THAT(set(f, "ps0", 100), IsOk());
  EXPECT_THAT(set(f, "", 101), IsOk());
  // The same holds after a replay of the log, and of the snapshot that shortens
  // it.
  f.Restart();
  EXPECT_THAT(set(f, "trainer0", 102), full);
  Fixture shortened(f.core().Snapshot(), 5, options);
  EXPECT_THAT(set(shortened, "trainer0", 102), full);
  // With less room than is taken, what takes no more than before goes on.
  options.store.max_total_bytes = options.store.max_owner_bytes = 1000;
  Fixture lessened(f.core().Snapshot(), 6, options);
  EXPECT_THAT(set(lessened, "trainer0", 7), IsOk());
  EXPECT_THAT(set(lessened, "ps0", 7), IsOk());
  EXPECT_THAT(set(lessened, "ps0", 500),
              StatusIs(absl::StatusCode::kResourceExhausted, "are in use"));
  // An entry counts for who wrote it last, until it is deleted.
  EXPECT_THAT(set(f, "ps0", 7), IsOk());
  EXPECT_THAT(set(f, "trainer0", 102), IsOk());
  EXPECT_THAT(set(f, "trainer0", 103), full);
  v1::StoreRequest gone = f.Store(v1::StoreRequest::DELETE);
  gone.set_key("1000000000");
  EXPECT_THAT(f.StatusOf(f.Call(gone)), IsOk());
  EXPECT_THAT(set(f, "trainer0", 103), IsOk());
}

TEST(CoordinatorCore, AChangeIsOfTheMemberThatMakesIt) {
  CoordinatorCore::Options options;
  options.store.max_owner_bytes = VersionedMap::kEntryBytes + 9;
  Fixture f({}, 1, options);
  f.Join("ps", 0, 10);
  f.Join("trainer", 0, 11);
  uint64_t sequence = 0;
  const auto set = [&](const std::string& owner, uint64_t client,
                       const std::string& key) {
    v1::StoreRequest request = f.Store(v1::StoreRequest::SET, "12345678");
    request.set_key(key);
    request.set_owner(owner);
    request.set_client(client);
    request.set_sequence(++sequence);
    return f.StatusOf(f.Call(request));
  };
  EXPECT_THAT(set("", 11, "a"), IsOk());
  EXPECT_THAT(set("", 11, "b"),
              StatusIs(absl::StatusCode::kResourceExhausted, "trainer0"));
  EXPECT_THAT(set("trainer0", 0, "b"),
              StatusIs(absl::StatusCode::kResourceExhausted, "trainer0"));
  EXPECT_THAT(set("trainer0", 10, "b"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "has the certificate of trainer0 and speaks as ps0"));
  sequence = 0;  // which ps0 begins with: nothing of it was taken
  EXPECT_THAT(set("ps0", 10, "b"), IsOk());
}

TEST(CoordinatorCore, ARepeatedChangeIsMadeOnceAlsoAcrossARestart) {
  Fixture f;
  f.Join("ps", 0, 10);
  v1::StoreRequest add = f.Store(v1::StoreRequest::ADD);
  add.set_delta(1);
  add.set_client(10);
  add.set_sequence(1);
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(f.Call(add)).value(), "1");
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(f.Call(add)).value(), "1");
  f.Restart();
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(f.Call(add)).value(), "1");
  add.set_sequence(2);
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(f.Call(add)).value(), "2");
  add.set_sequence(1);
  EXPECT_THAT(f.StatusOf(f.Call(add)), StatusIs(absl::StatusCode::kCancelled));
  add.set_client(77);
  EXPECT_THAT(f.StatusOf(f.Call(add)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(CoordinatorCore, ALateCopyOfAChangeThatWasRefusedChangesNothing) {
  Fixture f;
  f.Join("ps", 0, 10);
  using Request = v1::StoreRequest;
  const auto change = [&](Request request, uint64_t sequence) {
    request.set_client(10);
    request.set_sequence(sequence);
    return f.Call(std::move(request));
  };
  Request swap = f.Store(Request::COMPARE_SET, "new");
  swap.set_version(1);
  EXPECT_FALSE(f.ReplyTo<v1::StoreReply>(change(swap, 1)).applied());
  const auto set =
      f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::SET, "x")));
  EXPECT_EQ(set.version(), 1u);  // which the copy would change
  EXPECT_FALSE(f.ReplyTo<v1::StoreReply>(change(swap, 1)).applied());
  EXPECT_THAT(f.StatusOf(change(f.Store(Request::ADD), 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"x\""));
  f.Call(f.Store(Request::SET, "5"));
  EXPECT_THAT(f.StatusOf(change(f.Store(Request::ADD), 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"x\""));
  EXPECT_EQ(f.ReplyTo<v1::StoreReply>(f.Call(f.Store(Request::GET))).value(),
            "5");
  Fixture shortened(f.core().Snapshot(), 2);
  Request copy = swap;
  copy.set_client(10);
  copy.set_sequence(1);
  copy.set_version(2);
  shortened.Call(copy);
  EXPECT_EQ(shortened
                .ReplyTo<v1::StoreReply>(
                    shortened.Call(shortened.Store(Request::GET)))
                .value(),
            "5");
}

}  // namespace
}  // namespace weft::rendezvous
