// A library above rpc in hostile hands: attached twice and in parts, used after
// its agent, calling peers that die or never answer, ending in odd orders. Each
// expectation is a sentence of a header of rpc/extension, quoted above it.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/class.h"
#include "weft/rpc/extension/calls.h"
#include "weft/rpc/extension/library.h"
#include "weft/rpc/extension/objects.h"
#include "weft/rpc/extension/tasks.h"
#include "weft/rpc/extension/weak_agent.h"
#include "weft/rpc/session/directory.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/local_transport.h"

namespace hostile {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::Bytes;
using ::weft::Future;
using ::weft::Mutex;
using ::weft::MutexLock;
using ::weft::Promise;
using ::weft::rpc::AttachmentOutcome;
using ::weft::rpc::WorkerKey;
using ::weft::rpc::extension::Library;
using ::weft::rpc::extension::Tasks;
using ::weft::rpc::extension::WeakAgent;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Strings = std::vector<std::string>;
namespace rpc = ::weft::rpc;
namespace extension = ::weft::rpc::extension;

// What has happened, in order.
class Diary {
 public:
  void Write(const std::string& line) {
    MutexLock lock(mu_);
    lines_.push_back(line);
  }
  Strings lines() const {
    MutexLock lock(mu_);
    return lines_;
  }
  int64_t Count(const std::string& line) const {
    const Strings all = lines();
    return std::count(all.begin(), all.end(), line);
  }

 private:
  mutable Mutex mu_;
  Strings lines_ ABSL_GUARDED_BY(mu_);
};

class Ledger final : public Library {
 public:
  Ledger(rpc::Agent& agent, std::string label, std::shared_ptr<Diary> diary)
      : Library(agent), label_(std::move(label)), diary_(std::move(diary)) {}
  ~Ledger() override { diary_->Write(label_ + " destroyed"); }

  std::shared_ptr<WeakAgent> weak() const { return weak_agent(); }

  // Run in its hooks, if set. Set before it is attached.
  std::function<void(Ledger&)> on_agent_end;
  std::function<void(Ledger&, const rpc::Agent::GonePeer&)> on_peer_gone;
  std::function<absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>>()>
      take;

  Diary& diary() const { return *diary_; }

 private:
  absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> Take(
      absl::string_view kind, const rpc::CodecContext& message,
      const Bytes& bytes) override {
    diary_->Write(absl::StrCat(label_, " takes ", kind));
    if (take) return take();
    return absl::UnimplementedError(absl::StrCat(
        "nothing of ", message.peer.ToString(), " is taken: ", bytes.view()));
  }
  void OnPeerGone(const rpc::Agent::GonePeer& peer) override {
    diary_->Write(absl::StrCat(label_, " hears of ", peer.key.ToString()));
    if (on_peer_gone) on_peer_gone(*this, peer);
  }
  void OnAgentEnd() override {
    diary_->Write(label_ + " ends");
    if (on_agent_end) on_agent_end(*this);
  }

  const std::string label_;
  const std::shared_ptr<Diary> diary_;
};

// Sends none, and so takes none.
class Silent final : public Library {
 public:
  explicit Silent(rpc::Agent& agent) : Library(agent) {}
};

// Tells the diary its outcome.
class Told final : public rpc::Attachment {
 public:
  explicit Told(std::shared_ptr<Diary> diary) : diary_(std::move(diary)) {}
  absl::StatusOr<Bytes> Freeze() override { return Bytes::Own("told"); }
  void OnOutcome(uint64_t, AttachmentOutcome outcome) override {
    diary_->Write(absl::StrCat("outcome ", rpc::NameOf(outcome)));
  }

 private:
  const std::shared_ptr<Diary> diary_;
};

int64_t Double(int64_t x) { return 2 * x; }
WEFT_RPC(Double);
int64_t NotRegistered(int64_t x) { return x; }

// The promise of each call that is still to be answered.
Mutex unanswered_mu;
std::vector<Promise<int64_t>>& Unanswered() {
  static auto* const all = new std::vector<Promise<int64_t>>();
  return *all;
}
std::atomic<int> asked{0};
Future<int64_t> AnswerLate(int64_t) {
  ++asked;
  MutexLock lock(unanswered_mu);
  Unanswered().emplace_back();
  return Unanswered().back().future();
}
WEFT_RPC_INLINE_IDEMPOTENT(AnswerLate);
void AnswerAll(int64_t value) {
  std::vector<Promise<int64_t>> all;
  {
    MutexLock lock(unanswered_mu);
    all.swap(Unanswered());
  }
  for (Promise<int64_t>& promise : all) promise.Set(value);
}

absl::Status Refuse() { return absl::DataLossError("refused"); }
WEFT_RPC_INLINE_IDEMPOTENT(Refuse);

absl::StatusOr<int64_t> WaitInline(rpc::CallContext& context) {
  bool started = false;
  const auto result = extension::WaitFor(context.To("w1"), [&] {
    started = true;
    return rpc::CallAsync(context.To("w1"), Double, 1);
  });
  if (started) return absl::InternalError("start() ran");
  return result;
}
WEFT_RPC_INLINE_IDEMPOTENT(WaitInline);

struct Box {
  explicit Box(int64_t value) : value(value) {
    if (value < 0) throw std::runtime_error("no box of this value");
  }
  int64_t value;
};
WEFT_RPC_CLASS(Box, int64_t);
struct Other {};

namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

// w0, w1 and w2, of which each can end.
class HostileLibrary : public ::testing::Test {
 protected:
  HostileLibrary() {
    for (int i = 0; i < 3; ++i) {
      const std::string name = absl::StrCat("w", i);
      directory_.Put(rpc::Worker{name, Key(i), name});
      transports_.push_back(network_.MakeTransport(name).value());
      rpc::AgentOptions options;
      options.job = "job";
      options.name = name;
      options.key = Key(i);
      options.transport = transports_.back().get();
      options.directory = &directory_;
      options.threads = 2;
      agents_.push_back(rpc::Agent::Create(std::move(options)).value());
    }
    asked = 0;
  }
  ~HostileLibrary() override { AnswerAll(0); }

  // w0 as a new incarnation has it.
  void SetUpAgain() {
    agents_[0] = nullptr;
    transports_[0] = nullptr;
    ++epoch_;
    directory_.Put(rpc::Worker{"w0", {0, epoch_}, "w0"});
    transports_[0] = network_.MakeTransport("w0").value();
    rpc::AgentOptions options;
    options.job = "job";
    options.name = "w0";
    options.key = {0, epoch_};
    options.transport = transports_[0].get();
    options.directory = &directory_;
    options.threads = 2;
    agents_[0] = rpc::Agent::Create(std::move(options)).value();
  }
  static WorkerKey Key(int i) { return {static_cast<uint32_t>(i), 1}; }
  std::shared_ptr<Ledger> Make(int worker, const std::string& label) {
    return std::make_shared<Ledger>(*agents_[worker], label, diary_);
  }
  std::shared_ptr<Ledger> Attach(int worker, const std::string& label) {
    auto ledger = Make(worker, label);
    EXPECT_THAT(Library::Attach(ledger, {"ledger"}), IsOk());
    return ledger;
  }
  rpc::Target WithTold(int from, int to, const std::string& kind = "ledger") {
    return agents_[from]
        ->To(Key(to), kLong)
        .WithAttachment(kind, [diary = diary_](const rpc::CodecContext&) {
          return std::make_unique<Told>(diary);
        });
  }
  // What CallUntilAnswered says in the end, each time that it does.
  struct Answers {
    std::atomic<int> times{0};
    Mutex mu;
    absl::Status last ABSL_GUARDED_BY(mu);
    absl::Status Last() {
      MutexLock lock(mu);
      return last;
    }
  };
  static auto Into(const std::shared_ptr<Answers>& answers) {
    return [answers](const auto& answer) {
      {
        MutexLock lock(answers->mu);
        answers->last = weft::testing::GetStatus(answer);
      }
      ++answers->times;
    };
  }

  uint64_t epoch_ = 1;  // of w0
  const std::shared_ptr<Diary> diary_ = std::make_shared<Diary>();
  weft::transport::LocalNetwork network_;
  rpc::FixedDirectory directory_;
  std::vector<std::unique_ptr<weft::transport::Transport>> transports_;
  std::vector<std::unique_ptr<rpc::Agent>> agents_;
};

// ---- Attached twice, in parts, badly.

// "kAlreadyExists if one of these kinds has a receiver at the agent: `library`
// has ended then, as if the agent had."
TEST_F(HostileLibrary, TheSecondHasEndedAndTheFirstIsFound) {
  const auto first = Attach(0, "first");
  auto second = Make(0, "second");
  EXPECT_THAT(Library::Attach(second, {"ledger"}),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(Library::Of<Ledger>(*agents_[0]), first);
  EXPECT_TRUE(second->weak()->has_ended());
  EXPECT_FALSE(WeakAgent::Use(*second->weak()));
  EXPECT_THAT(second->weak()->CallOnce(Key(1), kLong, Double, 1).Wait(kLong),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(first->weak()->CallOnce(Key(1), kLong, Double, 1).Wait(kLong),
              weft::testing::IsOkAndHolds(2));
  // "Runs once": who waits of it is answered now, and not again later.
  EXPECT_EQ(diary_->Count("second ends"), 1);
  second = nullptr;
  EXPECT_EQ(diary_->Count("second destroyed"), 1);
  agents_[0]->PeerGone(Key(2), "killed");
  EXPECT_EQ(diary_->Count(absl::StrCat("second hears of ", Key(2).ToString())),
            0);
  agents_[0] = nullptr;
  EXPECT_EQ(diary_->Count("second ends"), 1);
  EXPECT_EQ(diary_->Count("first ends"), 1);
}

// The same, of one that shares only its second kind: what comes of its first
// has nobody to take it, though it lives no longer.
TEST_F(HostileLibrary, OneThatSharesAKindTakesNoneOfItsOthers) {
  const auto first = Attach(1, "first");
  auto second = Make(1, "second");
  EXPECT_THAT(Library::Attach(second, {"own", "ledger"}),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_TRUE(second->weak()->has_ended());
  EXPECT_EQ(diary_->Count("second ends"), 1);
  second = nullptr;
  EXPECT_FALSE(rpc::Call(WithTold(0, 1, "own"), Double, 1).ok());
  EXPECT_TRUE(Becomes([&] { return diary_->Count("outcome refused") == 1; }))
      << ::testing::PrintToString(diary_->lines());
  EXPECT_EQ(diary_->Count("second takes own"), 0);
  agents_[1] = nullptr;
  EXPECT_EQ(diary_->Count("second ends"), 1);
  EXPECT_EQ(diary_->Count("second destroyed"), 1);
}

// "kInvalidArgument for a bad kind" (Agent::SetAttachmentReceiver).
TEST_F(HostileLibrary, KindsThatAreNoneAreRefused) {
  const auto empty = Make(0, "empty");
  EXPECT_THAT(Library::Attach(empty, {""}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const auto lengthy = Make(0, "lengthy");
  EXPECT_THAT(Library::Attach(lengthy, {std::string(65, 'k')}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(Library::Of<Ledger>(*agents_[0]), nullptr);
}

// "Refuses it, if the library sends none"; "what a receiver throws is its
// error" (AttachmentReceivers::Take).
TEST_F(HostileLibrary, WhatTakeRefusesOrThrowsEndsTheCallUnrun) {
  ASSERT_THAT(
      Library::Attach(std::make_shared<Silent>(*agents_[1]), {"silent"}),
      IsOk());
  EXPECT_FALSE(rpc::Call(WithTold(0, 1, "silent"), Double, 1).ok());
  EXPECT_TRUE(Becomes([&] { return diary_->Count("outcome refused") == 1; }));
  const auto throwing = Make(2, "throwing");
  throwing->take =
      []() -> absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> {
    throw std::runtime_error("thrown by Take");
  };
  ASSERT_THAT(Library::Attach(throwing, {"ledger"}), IsOk());
  EXPECT_FALSE(rpc::Call(WithTold(0, 2), Double, 1).ok());
  EXPECT_TRUE(Becomes([&] { return diary_->Count("outcome refused") == 2; }));
  EXPECT_EQ(*rpc::Call(agents_[0]->To("w2"), Double, 4), 8);
}

// ---- The end of the agent.

// "what the library handed out may be used and dropped" (E3).
TEST_F(HostileLibrary, IsUsedAndDroppedInAnyOrderAfterItsAgent) {
  auto ledger = Attach(0, "ledger");
  auto weak = ledger->weak();
  const auto one = ledger->OnceFor<Diary>();
  agents_[0] = nullptr;
  transports_[0] = nullptr;
  EXPECT_EQ(ledger->name(), "w0");
  EXPECT_EQ(ledger->key(), Key(0));
  EXPECT_EQ(ledger->OnceFor<Diary>(), one);
  const auto answers = std::make_shared<Answers>();
  // "kCancelled, and nothing is sent, after the agent's end"; "then
  // done(result) runs once".
  weak->CallUntilAnswered(Key(1), kLong, Refuse, Into(answers));
  EXPECT_EQ(answers->times, 1);
  EXPECT_THAT(answers->Last(), StatusIs(absl::StatusCode::kCancelled));
  ledger = nullptr;
  EXPECT_EQ(diary_->Count("ledger destroyed"), 1);
  EXPECT_FALSE(WeakAgent::Use(*weak));
}

// "Attached, it is found": the agent keeps one whose user has dropped it.
TEST_F(HostileLibrary, ThatItsUserHasDroppedIsKeptByTheAgent) {
  Attach(0, "ledger");
  EXPECT_EQ(diary_->Count("ledger destroyed"), 0);
  ASSERT_NE(Library::Of<Ledger>(*agents_[0]), nullptr);
  agents_[0] = nullptr;
  EXPECT_THAT(diary_->lines(), ElementsAre("ledger ends", "ledger destroyed"));
}

// "The agent has ended, and no Use is left ... Runs once, on the thread that
// ends the agent", whatever it does there.
TEST_F(HostileLibrary, CallsInOnAgentEndAreCancelled) {
  const auto answers = std::make_shared<Answers>();
  std::thread::id thread;
  auto ledger = Make(0, "ledger");
  ledger->on_agent_end = [&](Ledger& self) {
    thread = std::this_thread::get_id();
    EXPECT_FALSE(WeakAgent::Use(*self.weak()));
    EXPECT_THAT(self.weak()->CallOnce(Key(1), kLong, Double, 1).Wait(kLong),
                StatusIs(absl::StatusCode::kCancelled));
    self.weak()->CallUntilAnswered(Key(1), kLong, Refuse, Into(answers));
    self.OnceFor<Diary>();
  };
  ASSERT_THAT(Library::Attach(ledger, {"ledger"}), IsOk());
  ledger = nullptr;
  std::thread end([&] {
    agents_[0] = nullptr;
    EXPECT_EQ(thread, std::this_thread::get_id());
  });
  end.join();
  EXPECT_EQ(answers->times, 1);
  EXPECT_THAT(diary_->lines(), ElementsAre("ledger ends", "ledger destroyed"));
}

// "The end of the agent waits for it": E2 and E4, from many threads.
TEST_F(HostileLibrary, IsUsedByManyThreadsWhileItsAgentEnds) {
  for (int round = 0; round < 10; ++round) {
    SetUpAgain();
    auto ledger = Attach(0, absl::StrCat("ledger", round));
    std::atomic<bool> has_ended{false};
    std::atomic<int> after{0};
    std::vector<std::thread> users;
    const auto answers = std::make_shared<Answers>();
    std::atomic<int> begun{0};
    for (int i = 0; i < 6; ++i) {
      users.emplace_back([&, weak = ledger->weak()] {
        while (true) {
          const WeakAgent::Use use(*weak);
          if (!use) break;
          if (has_ended) ++after;
          EXPECT_EQ(use->name(), "w0");
          (void)weak->CallOnce(Key(1), absl::Seconds(1), Double, 1);
          if (++begun < 500) {
            weak->CallUntilAnswered(Key(1), kLong, Refuse, Into(answers));
          } else {
            --begun;
          }
        }
      });
    }
    absl::SleepFor(absl::Milliseconds(5));
    agents_[0] = nullptr;
    has_ended = true;
    for (std::thread& user : users) user.join();
    EXPECT_EQ(after, 0);
    EXPECT_TRUE(Becomes([&] { return answers->times == begun; }))
        << answers->times << " of " << begun;
    EXPECT_EQ(diary_->Count(absl::StrCat("ledger", round, " ends")), 1);
  }
}

// ---- Calls until answered.

// "until it has answered": an error is an answer.
TEST_F(HostileLibrary, AnErrorIsAnAnswer) {
  const auto ledger = Attach(0, "ledger");
  const auto answers = std::make_shared<Answers>();
  ledger->weak()->CallUntilAnswered(Key(1), kLong, Refuse, Into(answers));
  ASSERT_TRUE(Becomes([&] { return answers->times == 1; }));
  EXPECT_THAT(answers->Last(), StatusIs(absl::StatusCode::kDataLoss));
}

// "or that incarnation ... is gone; then done(result) runs once".
TEST_F(HostileLibrary, ACallToAPeerThatDiesEndsOnceHoweverItDies) {
  const auto ledger = Attach(0, "ledger");
  for (const absl::Duration attempt :
       {absl::Duration(absl::Milliseconds(10)), absl::InfiniteDuration()}) {
    const int worker = attempt == absl::InfiniteDuration() ? 2 : 1;
    const auto answers = std::make_shared<Answers>();
    asked = 0;
    ledger->weak()->CallUntilAnswered(Key(worker), attempt, AnswerLate,
                                      Into(answers), int64_t{1});
    ASSERT_TRUE(Becomes([&] { return asked >= 1; }));
    network_.Break(absl::StrCat("w", worker));
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_EQ(answers->times, 0);
    agents_[worker] = nullptr;
    directory_.Remove(absl::StrCat("w", worker));
    agents_[0]->PeerGone(Key(worker), "it was killed");
    ASSERT_TRUE(Becomes([&] { return answers->times == 1; }));
    EXPECT_FALSE(answers->Last().ok());
    AnswerAll(7);  // too late for anybody
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_EQ(answers->times, 1);
  }
}

// The same of one that was gone before the call, or never there.
TEST_F(HostileLibrary, ACallToAPeerThatIsGoneOrNobodyEnds) {
  const auto ledger = Attach(0, "ledger");
  directory_.Remove("w1");
  agents_[0]->PeerGone(Key(1), "it was killed");
  for (const WorkerKey key : {Key(1), Key(9)}) {
    const auto answers = std::make_shared<Answers>();
    ledger->weak()->CallUntilAnswered(key, absl::Milliseconds(20), Refuse,
                                      Into(answers));
    EXPECT_TRUE(Becomes([&] { return answers->times == 1; })) << key.ToString();
    EXPECT_FALSE(answers->Last().ok());
  }
}

// "or ... this agent is gone": while it repeats, and while it is shut down.
TEST_F(HostileLibrary, ACallThatIsRepeatedEndsWithItsAgent) {
  for (const bool by_shutdown : {false, true}) {
    SetUpAgain();
    const auto ledger = Attach(0, absl::StrCat("ledger", by_shutdown));
    const auto answers = std::make_shared<Answers>();
    asked = 0;
    ledger->weak()->CallUntilAnswered(Key(1), absl::Milliseconds(2), AnswerLate,
                                      Into(answers), int64_t{1});
    ASSERT_TRUE(Becomes([&] { return asked >= 3; }));
    if (by_shutdown) {
      (void)agents_[0]->Shutdown(absl::Milliseconds(20));
    } else {
      agents_[0] = nullptr;
    }
    EXPECT_TRUE(Becomes([&] { return answers->times == 1; }));
    EXPECT_FALSE(answers->Last().ok());
  }
}

// "each time for at most `attempt`", also where that is over at once.
TEST_F(HostileLibrary, AnAttemptThatIsOverAtOnceHarmsNoThread) {
  for (const absl::Duration attempt :
       {absl::Nanoseconds(1), absl::ZeroDuration(), absl::Seconds(-1)}) {
    SetUpAgain();
    const auto ledger =
        Attach(0, absl::StrCat("ledger", absl::ToInt64Nanoseconds(attempt)));
    const auto answers = std::make_shared<Answers>();
    std::thread caller([&] {
      ledger->weak()->CallUntilAnswered(Key(1), attempt, Refuse, Into(answers));
    });
    absl::SleepFor(absl::Milliseconds(200));
    EXPECT_EQ(*rpc::Call(agents_[0]->To("w1"), Double, 2), 4);
    agents_[0] = nullptr;
    caller.join();
    EXPECT_TRUE(Becomes([&] { return answers->times == 1; }));
  }
}

// A call of the agent by itself: "Calls to itself are like other calls".
TEST_F(HostileLibrary, ACallToItselfIsAnsweredAndEndsWithItsAgent) {
  const auto ledger = Attach(0, "ledger");
  const auto answered = std::make_shared<Answers>();
  ledger->weak()->CallUntilAnswered(Key(0), kLong, Refuse, Into(answered));
  EXPECT_TRUE(Becomes([&] { return answered->times == 1; }));
  const auto late = std::make_shared<Answers>();
  ledger->weak()->CallUntilAnswered(Key(0), absl::InfiniteDuration(),
                                    AnswerLate, Into(late), int64_t{1});
  ASSERT_TRUE(Becomes([&] { return asked >= 1; }));
  agents_[0] = nullptr;
  EXPECT_TRUE(Becomes([&] { return late->times == 1; }));
  AnswerAll(1);
  EXPECT_EQ(late->times, 1);
}

// done() may drop the library, or call again.
TEST_F(HostileLibrary, DoneMayCallAgainAndDropWhatItHolds) {
  auto ledger = Attach(0, "ledger");
  std::atomic<int> times{0};
  auto weak = ledger->weak();
  std::function<void()> again = [&] {
    weak->CallUntilAnswered(Key(1), kLong, Refuse, [&](const absl::Status&) {
      if (++times < 50) again();
    });
  };
  again();
  ASSERT_TRUE(Becomes([&] { return times == 50; }));
  auto last = std::make_shared<std::shared_ptr<Ledger>>(std::move(ledger));
  std::atomic<bool> dropped{false};
  weak->CallUntilAnswered(Key(1), kLong, Refuse,
                          [last, &dropped](const absl::Status&) {
                            *last = nullptr;
                            dropped = true;
                          });
  EXPECT_TRUE(Becomes([&] { return dropped.load(); }));
  agents_[0] = nullptr;
}

// ---- The end of peers.

// "after its attachments had their outcome" (E5); "Within a Use".
TEST_F(HostileLibrary, HearsOfAPeersEndAfterTheOutcomeOfWhatItSentThere) {
  auto ledger = Make(0, "ledger");
  const auto answers = std::make_shared<Answers>();
  ledger->on_peer_gone = [&](Ledger& self, const rpc::Agent::GonePeer& peer) {
    EXPECT_EQ(peer.why, "it was killed");
    EXPECT_TRUE(WeakAgent::Use(*self.weak()));
    self.weak()->CallUntilAnswered(Key(2), kLong, Refuse, Into(answers));
    self.weak()->CallUntilAnswered(peer.key, kLong, Refuse, Into(answers));
  };
  ASSERT_THAT(Library::Attach(ledger, {"ledger"}), IsOk());
  agents_[1] = nullptr;
  transports_[1] = nullptr;
  const auto call = rpc::CallAsync(WithTold(0, 1), Double, 1);
  agents_[0]->PeerGone(Key(1), "it was killed");
  EXPECT_FALSE(call.Wait(kLong).ok());
  EXPECT_TRUE(Becomes([&] { return answers->times == 2; }));
  const Strings lines = diary_->lines();
  ASSERT_EQ(lines.size(), 2u) << ::testing::PrintToString(lines);
  EXPECT_THAT(lines[0], ::testing::StartsWith("outcome "));
  EXPECT_EQ(lines[1], "ledger hears of " + Key(1).ToString());
}

// ---- Tasks.

// "Its end runs the tasks in the order in which they were added": once the lock
// below it is released, so a task may take it.
TEST(HostileTasks, RunInOrderOnceTheLockIsReleased) {
  Mutex mu;
  std::vector<int> ran;
  auto [promise, future] = weft::MakePromise<int>();
  future.OnReady([&](const absl::StatusOr<int>& value) {
    MutexLock lock(mu);
    ran.push_back(*value);
  });
  {
    Tasks tasks;
    MutexLock lock(mu);
    for (int i = 0; i < 3; ++i) {
      tasks.Add([&mu, &ran, i] {
        Tasks inner;
        MutexLock again(mu);
        inner.Add([&ran, i] { ran.push_back(10 + i); });
        ran.push_back(i);
      });
    }
    tasks.Set<int>(std::move(promise), 3);
    EXPECT_THAT(ran, IsEmpty());
  }
  EXPECT_THAT(ran, ElementsAre(0, 10, 1, 11, 2, 12, 3));
}

// The same, of tasks that tasks add: many, so that they do not fit where the
// first are.
TEST(HostileTasks, AddedByTasksRunAfterThem) {
  std::vector<int> ran;
  {
    auto tasks = std::make_unique<Tasks>();
    Tasks* const all = tasks.get();
    for (int i = 0; i < 3; ++i) {
      tasks->Add([all, &ran, i] {
        ran.push_back(i);
        for (int k = 0; k < 20; ++k) {
          all->Add([&ran, i, k] { ran.push_back(100 * (i + 1) + k); });
        }
      });
    }
  }
  ASSERT_EQ(ran.size(), 63u);
  EXPECT_EQ(ran[62], 319);
}

// ---- Calls and objects.

// "waits as rpc::Call does, so start() does not run, and this is
// kFailedPrecondition, in an inline function"; "'' if it is not registered".
TEST_F(HostileLibrary, WaitForInAnInlineFunctionStartsNothing) {
  EXPECT_THAT(rpc::Call(agents_[0]->To("w2"), WaitInline).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(extension::NameOfFunction(agents_[0]->To("w1"), NotRegistered), "");
  EXPECT_EQ(extension::NameOfFunction(agents_[0]->To("w1"), Double),
            "hostile::Double");
}

// "An error: nothing was sent"; "how the call ends"; "who has taken it releases
// it"; "As ObjectTable::Find".
TEST_F(HostileLibrary, ObjectsOfBadMakersAndOfDeadOwners) {
  const rpc::Target w1 = agents_[0]->To(Key(1), kLong);
  const auto made = extension::BeginMake<Box>(w1, 5);
  ASSERT_THAT(made, IsOk());
  ASSERT_THAT(made->made.Wait(kLong), IsOk());
  EXPECT_THAT(agents_[0]->Leaks(), IsEmpty());
  const auto box =
      extension::FindObject<Box>(*agents_[1], made->object, Key(0));
  ASSERT_THAT(box, IsOk());
  EXPECT_EQ((*box)->value, 5);
  EXPECT_THAT(
      extension::FindObject<Other>(*agents_[1], made->object, Key(0)).status(),
      StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      extension::FindObject<Box>(*agents_[1], made->object, Key(2)).status(),
      StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(agents_[1]->objects().Release(made->object, Key(0)), IsOk());
  EXPECT_THAT(agents_[1]->objects().Release(made->object, Key(0)),
              StatusIs(absl::StatusCode::kNotFound));

  const auto thrown = extension::BeginMake<Box>(w1, -1);
  ASSERT_THAT(thrown, IsOk());
  EXPECT_FALSE(thrown->made.Wait(kLong).ok());
  EXPECT_THAT(
      extension::FindObject<Box>(*agents_[1], thrown->object, Key(0)).status(),
      StatusIs(absl::StatusCode::kNotFound));
  extension::TakeOver(w1, thrown->object);  // which never was

  EXPECT_FALSE(
      extension::BeginMake<Box>(agents_[0]->To(Key(9), kLong), 5).ok());
  EXPECT_FALSE(extension::BeginRemote(w1, NotRegistered, 5).ok());
  EXPECT_FALSE(extension::BeginMake<Box>(w1.Serialized(), 5).ok());
  agents_[0]->PeerGone(Key(1), "it was killed");
  const auto late = extension::BeginMake<Box>(w1, 5);
  EXPECT_FALSE(late.ok() && late->made.Wait(kLong).ok());
}

}  // namespace
}  // namespace hostile
