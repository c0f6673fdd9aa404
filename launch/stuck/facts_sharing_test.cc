#include "weft/launch/stuck/facts_sharing.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/launch/stuck/shared_facts.h"

namespace weft::launch {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using Call = FactsSharing::Call;

// The launchers of some nodes over one store, with a clock that the test moves.
class FactsSharingTest : public ::testing::Test {
 protected:
  struct Launcher {
    explicit Launcher(int node) : node(node), sharing(node) {}
    const int node;
    FactsSharing sharing;
    std::set<int> wanted;
    std::vector<std::pair<Call, Instant>> held;  // calls, and until when
    bool has_ended = false;
  };
  struct Entry {
    uint64_t version = 0;
    std::string value;
  };

  FactsSharingTest() {
    for (int node = 0; node < 3; ++node) launchers_.emplace_back(node);
  }

  void RunFor(absl::Duration time) {
    const Instant until = now_ + time;
    for (; now_ < until; now_ += absl::Milliseconds(200)) {
      for (Launcher& one : launchers_) {
        if (!one.has_ended) Run(one);
      }
    }
  }

  void Run(Launcher& one) {
    for (const Call& call : one.sharing.Due(one.wanted, now_)) {
      one.held.emplace_back(call, now_ + absl::Seconds(10));
    }
    std::vector<std::pair<Call, Instant>> left;
    for (auto& [call, until] : std::exchange(one.held, {})) {
      Entry& entry = store_[call.key()];
      const bool waits = call.kind == Call::Kind::kAwaitQuestion ||
                         call.kind == Call::Kind::kAwaitFacts;
      if (!is_up_) {
        one.sharing.OnFailure(call);
      } else if (waits && entry.version <= call.after && now_ < until) {
        left.emplace_back(call, until);
      } else {
        if (!waits) Set(one, call, entry);
        one.sharing.OnAnswer(call, entry.version, entry.value, now_);
      }
    }
    one.held = std::move(left);
  }

  void Set(const Launcher& one, const Call& call, Entry& entry) {
    entry.version = ++version_;
    ++writes_[call.key()];
    entry.value = "asked";
    if (call.kind != Call::Kind::kPublish) return;
    RankFacts rank;
    rank.name = absl::StrCat("trainer", one.node);
    rank.process = RankFacts::Process::kStopped;
    rank.stopped = now_ - Instant();
    entry.value = FormatFacts({rank}, absl::StrCat("node", one.node));
  }

  std::vector<RankFacts> Known(int node) const {
    return launchers_[node].sharing.Known(now_);
  }

  std::vector<Launcher> launchers_;
  std::map<std::string, Entry> store_;
  std::map<std::string, int> writes_;
  uint64_t version_ = 0;
  bool is_up_ = true;
  Instant now_ = Instant::FromNanoseconds(1'000'000'000);
};

TEST_F(FactsSharingTest, NothingIsWrittenWhereNobodyAsks) {
  RunFor(absl::Minutes(2));
  EXPECT_THAT(writes_, IsEmpty());
  EXPECT_THAT(Known(0), IsEmpty());
}

TEST_F(FactsSharingTest, WhoAsksKnowsWithinASecond) {
  RunFor(absl::Seconds(30));
  launchers_[0].wanted = {1};
  RunFor(absl::Seconds(1));
  ASSERT_THAT(Known(0), SizeIs(1));
  EXPECT_EQ(Known(0)[0].name, "trainer1");
  EXPECT_EQ(Known(0)[0].host, "node1");
  // As of now, though it was said before.
  for (int i = 0; i < 10; ++i) {
    RunFor(absl::Milliseconds(200));
    EXPECT_GE(Known(0)[0].stopped, now_ - Instant() - absl::Milliseconds(400));
  }
  EXPECT_THAT(Known(2), IsEmpty());
}

TEST_F(FactsSharingTest, FactsAreFreshAsLongAsTheyAreWanted) {
  launchers_[0].wanted = {1, 2};
  RunFor(absl::Minutes(1));
  EXPECT_THAT(Known(0), SizeIs(2));
  EXPECT_GE(writes_["weft run/stuck/facts/1"], 50);
  EXPECT_LE(writes_["weft run/stuck/facts/1"], 60);
  EXPECT_LE(writes_["weft run/stuck/asked/1"], 13);
}

TEST_F(FactsSharingTest, WritingEndsSoonAfterTheLastQuestion) {
  launchers_[0].wanted = {1};
  RunFor(absl::Seconds(3));
  launchers_[0].wanted.clear();
  RunFor(absl::Seconds(20));
  const auto written = writes_;
  RunFor(absl::Minutes(1));
  EXPECT_EQ(writes_, written);
  EXPECT_THAT(Known(0), IsEmpty());
}

TEST_F(FactsSharingTest, FactsOfBeforeTheQuestionAreNotTaken) {
  launchers_[0].wanted = {1};
  RunFor(absl::Seconds(3));
  launchers_[0].wanted.clear();
  RunFor(absl::Minutes(1));
  // Its launcher has ended, and what it said is still in the store.
  launchers_[1].has_ended = true;
  launchers_[0].wanted = {1};
  RunFor(absl::Seconds(30));
  EXPECT_THAT(Known(0), IsEmpty());
}

TEST_F(FactsSharingTest, WhoSaysNothingAnyMoreIsForgotten) {
  launchers_[0].wanted = {1};
  RunFor(absl::Seconds(3));
  ASSERT_THAT(Known(0), SizeIs(1));
  launchers_[1].has_ended = true;
  RunFor(absl::Seconds(7));
  EXPECT_THAT(Known(0), IsEmpty());
}

// It knows nothing of the former one's keys, and counts from the beginning.
TEST_F(FactsSharingTest, AnotherCoordinatorIsAskedAnew) {
  version_ = 1000;
  launchers_[0].wanted = {1};
  RunFor(absl::Seconds(3));
  ASSERT_THAT(Known(0), SizeIs(1));
  is_up_ = false;
  RunFor(absl::Seconds(8));
  EXPECT_THAT(Known(0), IsEmpty());
  is_up_ = true;
  store_.clear();
  version_ = 0;
  RunFor(absl::Seconds(25));
  EXPECT_THAT(Known(0), SizeIs(1));
}

TEST_F(FactsSharingTest, OtherTextIsNothing) {
  launchers_[0].wanted = {2};
  RunFor(absl::Seconds(2));
  ASSERT_THAT(Known(0), SizeIs(1));
  launchers_[2].has_ended = true;
  launchers_[1].has_ended = true;
  for (int i = 0; i < 10; ++i) {
    store_["weft run/stuck/facts/2"] = {++version_, "{\"ranks\": 7"};
    RunFor(absl::Seconds(1));
  }
  EXPECT_THAT(Known(0), IsEmpty());
}

}  // namespace
}  // namespace weft::launch
