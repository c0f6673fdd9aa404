// Objects that were not released.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/parker.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/handle_test_objects.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

// ------------------------------------------------------------- what is left

TEST(Leaks, ListObjectsThatWereNotReleased) {
  Ranks ranks(2);
  EXPECT_THAT(LeftAt(ranks[0]), IsEmpty());
  const auto first = Make<Embedding>(ranks[0].To("w1"), 1, 1);
  const auto second = Make<Embedding>(ranks[0].To("w1"), 1, 1);
  const auto own = Make<Embedding>(ranks[0].To("w0"), 1, 1);
  ASSERT_THAT(own, IsOk());
  EXPECT_THAT(LeftAt(ranks[0]),
              ElementsAre(HasSubstr("Embedding::new at w0 (call 1)"),
                          HasSubstr("Embedding::new at w1 (calls 1, 2)")));
  EXPECT_THAT(LeftAt(ranks[1]),
              ElementsAre(HasSubstr("Embedding::new of w0 (calls 1, 2)")));
  EXPECT_THAT(Release(*second), IsOk());
  EXPECT_THAT(Release(*own), IsOk());
  EXPECT_THAT(LeftAt(ranks[0]), ElementsAre(HasSubstr("at w1 (call 1)")));
  EXPECT_THAT(LeftAt(ranks[1]), ElementsAre(HasSubstr("of w0 (call 1)")));
  EXPECT_THAT(Release(*first), IsOk());
  EXPECT_THAT(LeftAt(ranks[0]), IsEmpty());
  EXPECT_THAT(LeftAt(ranks[1]), IsEmpty());
}

TEST(Leaks, OfADeadPeerAreNoneAndOfOneThatLeftThoseThatItLeft) {
  for (const bool left : {false, true}) {
    Ranks ranks(2);
    const auto there = Make<Embedding>(ranks[0].To("w1"), 1, 1);
    ASSERT_THAT(there, IsOk());
    ASSERT_THAT(Make<Embedding>(ranks[1].To("w0"), 1, 1), IsOk());
    ranks[0].PeerGone(ranks[1].key(), "so it is said", left);
    if (!left) {
      EXPECT_THAT(LeftAt(ranks[0]), IsEmpty());
      continue;
    }
    EXPECT_THAT(LeftAt(ranks[0]),
                ElementsAre(HasSubstr("at w1"), HasSubstr("of w1")));
    // It would have been, and the program has done its part.
    EXPECT_THAT(Release(*there), StatusIs(absl::StatusCode::kUnavailable, ""));
    EXPECT_THAT(LeftAt(ranks[0]), ElementsAre(HasSubstr("of w1")));
  }
}

TEST(Leaks, ObjectsOfADepartedIncarnationAreNoLeaks) {
  RanksOptions options;
  options.keys = {{0, 1}, {1, 5}};
  Ranks ranks(2, options);
  const auto there = Make<Embedding>(ranks[0].To("w1"), 1, 1);
  const auto here = Make<Embedding>(ranks[1].To("w0"), 1, 1);
  ASSERT_THAT(there, IsOk());
  ASSERT_THAT(here, IsOk());
  Future<int64_t> made = CallAsync(*there, &Embedding::Later);
  Future<int64_t> served = CallAsync(*here, &Embedding::Later);
  EXPECT_TRUE(Becomes([&] { return ranks[0].OpenCalls().size() == 2; }));
  // The next one came and left meanwhile; only that is reported.
  ranks[0].PeerGone(WorkerKey{1, 6}, "so it is said", /*left=*/true);
  EXPECT_THAT(made.Wait(absl::Seconds(30)),
              StatusIs(absl::StatusCode::kUnavailable,
                       "1@0.5 is gone: so is 1@0.6: so it is said"));
  EXPECT_THAT(ranks[0].Shutdown(absl::Seconds(30)), IsOk());
  EXPECT_THAT(LeftAt(ranks[0]), IsEmpty());
  EXPECT_EQ(Living(), 1);  // there
}

// Looks, as it ends, at what is left behind where it was.
class Witness {
 public:
  Witness() = default;
  ~Witness() {
    for (const Leak& left : (*TheAgent())->Leaks()) {
      Found().push_back(left.ToString());
    }
  }
  static Agent** TheAgent() {
    static Agent* agent = nullptr;
    return &agent;
  }
  static std::vector<std::string>& Found() {
    static auto* const found = new std::vector<std::string>();
    return *found;
  }
};
WEFT_RPC_CLASS(Witness);

TEST(Leaks, AreCountedOnceAlsoWhileTheyEnd) {
  Ranks ranks(2);
  *Witness::TheAgent() = &ranks[1];
  Witness::Found().clear();
  ASSERT_THAT(Make<Witness>(ranks[0].To("w1")), IsOk());
  ranks[1].PeerGone(ranks[0].key(), "so it is said", /*left=*/true);
  EXPECT_THAT(Witness::Found(), ElementsAre(HasSubstr("of w0")));
}

// Its use and its end take until the test lets them.
struct Stays {
  Parker used;
  Parker go_on;
  Parker ending;
  Parker end;
};
class Heavy {
 public:
  Heavy() = default;
  ~Heavy() {
    It().ending.Unpark();
    EXPECT_TRUE(IsWoken(It().end));
  }
  int64_t Use() {
    It().used.Unpark();
    EXPECT_TRUE(IsWoken(It().go_on));
    return 1;
  }
  static Stays& It() {
    static auto* const stays = new Stays();
    return *stays;
  }
};
WEFT_RPC_CLASS(Heavy);
WEFT_RPC_METHOD(Heavy, Use);

TEST(Handle, WorkerIsNotIdleWhileACallDestroysItsObject) {
  Ranks ranks(2);
  const auto heavy = Make<Heavy>(ranks[0].To("w1"));
  ASSERT_THAT(heavy, IsOk());
  const Future<int64_t> call = CallAsync(*heavy, &Heavy::Use);
  EXPECT_TRUE(IsWoken(Heavy::It().used));
  EXPECT_THAT(Release(*heavy), IsOk());  // the call has it now
  Heavy::It().go_on.Unpark();
  EXPECT_THAT(call.Wait(absl::Seconds(30)), IsOkAndHolds(1));
  EXPECT_TRUE(IsWoken(Heavy::It().ending));
  EXPECT_THAT(
      ranks[1].AwaitIdle(absl::Milliseconds(50)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "running functions"));
  Heavy::It().end.Unpark();
  EXPECT_THAT(ranks[1].AwaitIdle(absl::Seconds(30)), IsOk());
}

TEST(Leaks, OfManyKindsAndIdsAreCountedTogether) {
  LeakList list;
  for (uint64_t id = 1; id <= 20; ++id) {
    list.Add({false, false, "w1", "Make"}, id);
  }
  ASSERT_EQ(list.Sorted().size(), 1u);
  EXPECT_EQ(list.Sorted()[0].ToString(),
            "20 Make at w1 (calls 1, 2, 3, 4, 5, 6, 7, 8 and 12 more)");
  for (size_t kind = 0; kind < 2 * LeakList::kMaxKinds; ++kind) {
    list.Add({true, true, absl::StrCat("w", kind), "Tokens"}, 1);
  }
  EXPECT_EQ(list.Sorted().size(), LeakList::kMaxKinds + 1);
  EXPECT_EQ(list.Sorted().back().ToString(), "33 more streams");
  LeakList twice;
  twice.Add(list);
  twice.Add(list);
  EXPECT_EQ(twice.Sorted()[0].count, 40);
  EXPECT_EQ(twice.Sorted().back().ToString(), "66 more streams");
}

}  // namespace
}  // namespace weft::rpc
