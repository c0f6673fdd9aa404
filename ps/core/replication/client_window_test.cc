#include "weft/ps/core/replication/client_window.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = ClientWindow::Action::Kind;

const WorkerKey kFirst = {1, 1};
const WorkerKey kSecond = {2, 1};

PartitionMap MapOfTwo() {
  return *PartitionMap::Assign(1, {{kFirst, 0, {}}, {kSecond, 1, {}}}, 2);
}

Instant At(int64_t ms) { return Instant() + absl::Milliseconds(ms); }

class ClientWindowTest : public ::testing::Test {
 protected:
  ClientWindow Make(ClientWindowOptions options = {}) {
    options.client = 7;
    return ClientWindow(options, 1, map_);
  }
  // What it wants, as "send 3 to 1", "answered 3".
  static std::vector<std::string> Take(ClientWindow& window) {
    std::vector<std::string> out;
    for (const ClientWindow::Action& action : window.TakeActions()) {
      const uint64_t n = action.request.mark.sequence;
      switch (action.kind) {
        case Kind::kSend:
          out.push_back(
              n == 0 ? "ask"
                     : absl::StrCat("send ", n, " to ", action.request.to.id));
          break;
        case Kind::kAnswered:
          out.push_back(absl::StrCat("answered ", n));
          break;
        case Kind::kStable:
          out.push_back(absl::StrCat("stable ", n));
          break;
        case Kind::kLearnMap:
          out.push_back("learn");
          break;
        case Kind::kBroken:
          out.push_back("broken");
          break;
      }
    }
    return out;
  }
  Answer Reply(Code code, uint64_t sequence, uint64_t stable = 0) const {
    Answer answer;
    answer.code = code;
    answer.epoch = map_.entry(0).epoch;
    answer.sequence = sequence;
    answer.stable_through = stable;
    answer.map_epoch = map_.epoch();
    return answer;
  }

  PartitionMap map_ = MapOfTwo();
};

TEST_F(ClientWindowTest, KeepsPushesUntilTheyAreStable) {
  ClientWindow window = Make();
  window.Push(0, Bytes::Copy("aa"), At(0));
  window.Push(0, Bytes::Copy("b"), At(0));
  EXPECT_THAT(Take(window), ElementsAre("send 1 to 1", "send 2 to 1"));
  window.OnAnswer(0, Reply(Code::kOk, 1), At(1));
  window.OnAnswer(0, Reply(Code::kOk, 2, 1), At(1));
  EXPECT_THAT(Take(window),
              ElementsAre("answered 1", "answered 2", "stable 1"));
  EXPECT_EQ(window.outstanding_bytes(), 1);
  EXPECT_FALSE(window.IsStable());
  window.OnTick(At(10));
  EXPECT_THAT(Take(window), IsEmpty());
  window.OnTick(At(60));
  EXPECT_THAT(Take(window), ElementsAre("ask"));
  window.OnAnswer(0, Reply(Code::kOk, 0, 2), At(61));
  EXPECT_THAT(Take(window), ElementsAre("stable 2"));
  EXPECT_TRUE(window.IsStable());
}

TEST_F(ClientWindowTest, SendsAllThatAreNotStableAgainInOrderToAnother) {
  ClientWindow window = Make();
  for (int i = 0; i < 4; ++i) window.Push(0, Bytes::Copy("x"), At(0));
  window.OnAnswer(0, Reply(Code::kOk, 1, 1), At(1));
  window.OnAnswer(0, Reply(Code::kOk, 3, 1), At(1));
  window.OnAnswer(0, Reply(Code::kOk, 2, 1), At(1));
  Take(window);
  const Answer late = Reply(Code::kOk, 4, 1);
  map_.FailServer(kFirst, PartitionMap::State::kExited);
  window.OnMap(map_, At(2));
  EXPECT_THAT(Take(window),
              ElementsAre("send 2 to 2", "send 3 to 2", "send 4 to 2"));
  // The former primary had it: its caller hears so, once, and it stays.
  window.OnAnswer(0, late, At(3));
  EXPECT_THAT(Take(window), ElementsAre("answered 4"));
  for (uint64_t n : {2, 3, 4}) {
    window.OnAnswer(0, Reply(Code::kOk, n, n), At(4));
  }
  EXPECT_THAT(Take(window), ElementsAre("stable 2", "stable 3", "stable 4"));
}

TEST_F(ClientWindowTest, NeverHasMoreOutstandingThanItMay) {
  ClientWindowOptions options;
  options.most_bytes = 100;
  ClientWindow window = Make(options);
  for (uint64_t i = 0; i < SequenceWindow::kWidth; ++i) {
    ASSERT_TRUE(window.HasRoom(0, 1));
    window.Push(0, Bytes::Copy("x"), At(0));
  }
  EXPECT_FALSE(window.HasRoom(0, 1));
  // The second is not the first: what counts is how far apart they are.
  window.OnAnswer(0, Reply(Code::kOk, 2, 0), At(1));
  EXPECT_FALSE(window.HasRoom(0, 1));
  window.OnAnswer(0, Reply(Code::kOk, 1, 2), At(1));
  EXPECT_TRUE(window.HasRoom(0, 38));
  EXPECT_FALSE(window.HasRoom(0, 39)) << "62 bytes are outstanding";
  window.OnAnswer(0, Reply(Code::kOk, 64, 64), At(1));
  EXPECT_TRUE(window.HasRoom(0, 1000)) << "one alone may be of any size";
}

TEST_F(ClientWindowTest, RefusedPushesWaitAndKeepTheirOrder) {
  ClientWindow window = Make();
  window.Push(0, Bytes::Copy("x"), At(0));
  Take(window);
  window.OnAnswer(0, Reply(Code::kFenced, 1), At(1));
  window.Push(0, Bytes::Copy("x"), At(2));
  window.OnTick(At(10));
  EXPECT_THAT(Take(window), IsEmpty());
  window.OnTick(At(21));
  EXPECT_THAT(Take(window), ElementsAre("learn", "send 1 to 1", "send 2 to 1"));
}

TEST_F(ClientWindowTest, LearnsOfANewerMapFromARefusal) {
  ClientWindow window = Make();
  window.Push(0, Bytes::Copy("x"), At(0));
  Take(window);
  Answer stale = Reply(Code::kStale, 1);
  stale.map_epoch = map_.epoch() + 2;
  window.OnAnswer(0, stale, At(1));
  EXPECT_THAT(Take(window), ElementsAre("learn"));
}

TEST_F(ClientWindowTest, SendsAgainWhatGetsNoAnswer) {
  ClientWindow window = Make();
  window.Push(0, Bytes::Copy("x"), At(0));
  window.Push(0, Bytes::Copy("x"), At(0));
  Take(window);
  window.OnAnswer(0, Reply(Code::kOk, 1), At(1));
  Take(window);
  window.OnTick(At(500));
  EXPECT_THAT(Take(window), IsEmpty());
  window.OnTick(At(1001));
  EXPECT_THAT(Take(window), ElementsAre("send 2 to 1"));
}

TEST_F(ClientWindowTest, ForgetsWhatIsAnsweredAtD0) {
  ClientWindowOptions options;
  options.level = Durability::kD0;
  ClientWindow window = Make(options);
  window.Push(0, Bytes::Copy("x"), At(0));
  window.Push(0, Bytes::Copy("x"), At(0));
  window.OnAnswer(0, Reply(Code::kOk, 2), At(1));
  Take(window);
  map_.FailServer(kFirst, PartitionMap::State::kExited);
  window.OnMap(map_, At(2));
  EXPECT_THAT(Take(window), ElementsAre("send 1 to 2"));
}

TEST_F(ClientWindowTest, SaysWhatAWaitIsFor) {
  ClientWindow window = Make();
  window.Push(0, Bytes::Copy("x"), At(0));
  EXPECT_THAT(window.DescribeWait(0),
              HasSubstr("pushes 1 to 1 wait for server 1@0.1, epoch 1"));
  map_.FailServer(kSecond, PartitionMap::State::kExited);
  map_.FailServer(kFirst, PartitionMap::State::kExited);
  window.OnMap(map_, At(1));
  EXPECT_TRUE(window.IsLost(0));
  EXPECT_THAT(window.DescribeWait(0), HasSubstr("wait for nobody"));
}

TEST_F(ClientWindowTest, ReadsBehindItsOwnAnsweredPushes) {
  ClientWindow window = Make();
  for (int i = 0; i < 3; ++i) window.Push(0, Bytes::Copy("x"), At(0));
  EXPECT_EQ(window.Read(0).through, 0u);
  window.OnAnswer(0, Reply(Code::kOk, 1), At(1));
  window.OnAnswer(0, Reply(Code::kOk, 3), At(1));
  EXPECT_EQ(window.Read(0).through, 1u);
  EXPECT_EQ(window.Read(0).to, kFirst);
}

}  // namespace
}  // namespace weft::ps
