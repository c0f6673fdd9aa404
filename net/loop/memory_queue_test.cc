#include "weft/net/loop/memory_queue.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Outcome = EventQueue::Outcome;

constexpr absl::Duration kSoon =
    absl::Seconds(30);  // longer than any wait that ends well

Instant Soon() { return SteadyClock().Now() + kSoon; }

// Memory that holds a number of things to do.
class FakeMemory final : public MemorySource {
 public:
  bool HasWork() override { return todo_.load() > 0; }
  bool BeginSleep() override {
    sleeps_.store(true);
    return HasWork();
  }
  void EndSleep() override { sleeps_.store(false); }
  void Handle() override {
    --todo_;
    ++handled;
    if (then != nullptr) then();
  }
  const EventFd& event_fd() const override { return event_fd_; }

  // As another process does.
  void Put() {
    ++todo_;
    if (sleeps_.exchange(false)) event_fd_.Ring();
  }

  std::atomic<int> handled{0};
  std::function<void()> then;

 private:
  const EventFd event_fd_ = *EventFd::Create();
  std::atomic<int> todo_{0};
  std::atomic<bool> sleeps_{false};
};

TEST(EventFd, IsAnEventfdThatDoesNotBlock) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  EXPECT_THAT(EventFd::FromDescriptor(Descriptor(ends[0])).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "pipe"));
  EXPECT_THAT(EventFd::FromDescriptor(Descriptor(ends[1])).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "pipe"));
  EXPECT_THAT(EventFd::FromDescriptor(Descriptor(eventfd(0, 0))).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "does not block"));
  EXPECT_THAT(
      EventFd::FromDescriptor(Descriptor(open("/dev/null", O_RDWR))).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "/dev/null"));
  EXPECT_THAT(EventFd::FromDescriptor(Descriptor(-1)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      EventFd::FromDescriptor(Descriptor(eventfd(0, EFD_NONBLOCK))).status(),
      IsOk());
}

class MemoryQueueTest : public ::testing::Test {
 protected:
  std::shared_ptr<FakeMemory> AddMemory() {
    auto memory = std::make_shared<FakeMemory>();
    EXPECT_THAT(queue_->Add(memory), IsOk());
    return memory;
  }

  const std::unique_ptr<MemoryQueue> queue_ = *MemoryQueue::Create();
};

TEST_F(MemoryQueueTest, PresentDataIsTakenWithoutSleeping) {
  const auto memory = AddMemory();
  const Instant past = Instant::FromNanoseconds(0);
  EXPECT_EQ(queue_->Next(past), Outcome::kTimeout);
  memory->Put();
  EXPECT_EQ(queue_->Next(past), Outcome::kEvent);
  queue_->Handle();
  EXPECT_EQ(memory->handled, 1);
  EXPECT_EQ(queue_->Next(past), Outcome::kTimeout);
  EXPECT_EQ(queue_->Next(SteadyClock().Now() + absl::Milliseconds(1)),
            Outcome::kTimeout);
}

TEST_F(MemoryQueueTest, ABellWakesTheSleeper) {
  const auto memory = AddMemory();
  for (int i = 0; i < 200; ++i) {
    std::thread other([&] { memory->Put(); });
    EXPECT_TRUE(
        Becomes([&] { return queue_->Next(Soon()) == Outcome::kEvent; }));
    queue_->Handle();
    other.join();
  }
  EXPECT_EQ(memory->handled, 200);
}

TEST_F(MemoryQueueTest, ABusyMemoryHidesNoOther) {
  const auto busy = AddMemory();
  const auto other = AddMemory();
  for (int i = 0; i < 100; ++i) busy->Put();
  other->Put();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(queue_->Next(Soon()), Outcome::kEvent);
    queue_->Handle();
  }
  EXPECT_EQ(other->handled, 1);
}

TEST_F(MemoryQueueTest, AWakeMakesNextReturnAlsoBeforeIt) {
  (void)queue_->Next(SteadyClock().Now() + absl::Milliseconds(1));
  queue_->Wake();
  EXPECT_EQ(queue_->Next(Soon()), Outcome::kTimeout);
  std::thread other([&] { queue_->Wake(); });
  EXPECT_EQ(queue_->Next(Soon()), Outcome::kTimeout);
  other.join();
}

TEST_F(MemoryQueueTest, RemovedSourceIsReleasedAndNotPolled) {
  auto memory = AddMemory();
  const std::weak_ptr<FakeMemory> weak = memory;
  (void)queue_->Next(SteadyClock().Now());
  memory->Put();
  queue_->Remove(memory.get());
  queue_->Remove(memory.get());
  EXPECT_EQ(queue_->Next(Instant::FromNanoseconds(0)), Outcome::kTimeout);
  memory = nullptr;
  EXPECT_TRUE(weak.expired());
}

TEST_F(MemoryQueueTest, RemovedSourceIsReleasedAtTheEndToo) {
  auto memory = AddMemory();
  const std::weak_ptr<FakeMemory> weak = memory;
  (void)queue_->Next(SteadyClock().Now());
  queue_->Remove(memory.get());
  memory = nullptr;
  queue_->End();
  EXPECT_EQ(queue_->Next(Soon()), Outcome::kEnd);
  EXPECT_TRUE(weak.expired());
  EXPECT_THAT(queue_->Add(std::make_shared<FakeMemory>()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

// One end of a pair of sockets, which reads a byte in each turn.
class FakeSocket final : public SocketSource {
 public:
  FakeSocket() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    own_ = Descriptor(ends[0]);
    peer = Descriptor(ends[1]);
  }
  int fd() const override { return own_.get(); }
  bool OnReady(bool ends) override {
    char byte;
    const ssize_t got = read(own_.get(), &byte, 1);
    if (got > 0) ++read_bytes;
    has_ended |= ends && got == 0;
    ++turns;
    return got > 0;
  }
  void OnTick(Instant) override { ++ticks; }
  void Put(int bytes) const {
    const std::string sent(bytes, 'x');
    EXPECT_EQ(write(peer.get(), sent.data(), sent.size()), bytes);
  }

  Descriptor peer;
  std::atomic<int> read_bytes{0};
  int turns = 0;
  int ticks = 0;
  bool has_ended = false;

 private:
  Descriptor own_;
};

class SocketsOfQueue : public MemoryQueueTest {
 protected:
  std::shared_ptr<FakeSocket> AddSocket() {
    auto socket = std::make_shared<FakeSocket>();
    EXPECT_THAT(queue_->AddSocket(socket), IsOk());
    return socket;
  }
  // Without a sleep, as a poller does that spins.
  void LookOften(int times = 1000) {
    const Instant past = Instant::FromNanoseconds(0);
    for (int i = 0; i < times; ++i)
      if (queue_->Next(past) == Outcome::kEvent) queue_->Handle();
  }
};

TEST_F(SocketsOfQueue, AreReadWhetherThePollerSleepsOrSpins) {
  const auto socket = AddSocket();
  socket->Put(3);
  LookOften();
  EXPECT_EQ(socket->read_bytes, 3);
  for (int i = 0; i < 100; ++i) {
    const int before = socket->read_bytes;
    std::thread other([&] { socket->Put(2); });
    while (socket->read_bytes < before + 2) {
      if (queue_->Next(Soon()) == Outcome::kEvent) queue_->Handle();
    }
    other.join();
  }
  EXPECT_EQ(socket->read_bytes, 203);
}

TEST_F(SocketsOfQueue, BytesThatWereThereBeforeAreRead) {
  const auto socket = std::make_shared<FakeSocket>();
  socket->Put(1);
  ASSERT_THAT(queue_->AddSocket(socket), IsOk());
  ASSERT_EQ(queue_->Next(Soon()), Outcome::kEvent);
  queue_->Handle();
  EXPECT_EQ(socket->read_bytes, 1);
}

TEST_F(SocketsOfQueue, NeitherKindNorABusySocketHidesOthers) {
  const auto memory = AddMemory();
  const auto busy = AddSocket();
  const auto other = AddSocket();
  for (int i = 0; i < 1000; ++i) memory->Put();
  busy->Put(1000);
  other->Put(1);
  LookOften(200);
  EXPECT_GT(memory->handled, 50);
  EXPECT_GT(busy->read_bytes, 10);
  EXPECT_EQ(other->read_bytes, 1);
}

TEST_F(SocketsOfQueue, EndOfThePeerIsTold) {
  const auto socket = AddSocket();
  socket->Put(1);
  socket->peer = Descriptor();
  LookOften();
  EXPECT_EQ(socket->read_bytes, 1);
  EXPECT_TRUE(socket->has_ended);
}

TEST_F(SocketsOfQueue, RoomIsToldWhereItIsWatched) {
  const auto socket = AddSocket();
  LookOften();
  EXPECT_EQ(socket->turns, 0);
  queue_->WatchRoom(*socket, true);
  LookOften();
  EXPECT_EQ(socket->turns, 1);
  queue_->WatchRoom(*socket, false);
  LookOften();
  EXPECT_EQ(socket->turns, 1);
}

TEST_F(SocketsOfQueue, RemovedOneIsReleasedThoughItHadEvents) {
  auto socket = AddSocket();
  auto stays = AddSocket();
  const std::weak_ptr<FakeSocket> weak = socket;
  socket->Put(1);
  stays->Put(1);
  (void)queue_->Next(Soon());  // has taken the events of both
  queue_->RemoveSocket(socket.get());
  queue_->RemoveSocket(socket.get());
  queue_->Handle();
  LookOften();
  queue_->TickSockets(SteadyClock().Now());
  EXPECT_EQ(socket->ticks, 0);
  EXPECT_EQ(stays->ticks, 1);
  EXPECT_EQ(stays->read_bytes, 1);
  socket = nullptr;
  EXPECT_TRUE(weak.expired());
  EXPECT_EQ(queue_->sockets(), 1);
}

TEST_F(SocketsOfQueue, AreReleasedAtTheEnd) {
  auto socket = AddSocket();
  const std::weak_ptr<FakeSocket> weak = socket;
  queue_->End();
  EXPECT_THAT(queue_->AddSocket(std::make_shared<FakeSocket>()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  queue_->DropSockets();
  socket = nullptr;
  EXPECT_TRUE(weak.expired());
}

TEST_F(SocketsOfQueue, AWakeIsNotLostBesideThem) {
  const auto socket = AddSocket();
  socket->Put(1);
  LookOften();  // looks for sockets each time from now on
  std::thread other([&] { queue_->Wake(); });
  while (queue_->Next(Soon()) == Outcome::kEvent) queue_->Handle();
  other.join();
}

// ----------------------------------------------------------- with the pollers

class TwoPollers : public ::testing::Test {
 protected:
  explicit TwoPollers(
      absl::Duration retake_pause = PollerOptions().retake_pause)
      : retake_pause_(retake_pause) {
    for (const auto& queue : queues_) {
      memories_.push_back(std::make_shared<FakeMemory>());
      EXPECT_THAT(queue->Add(memories_.back()), IsOk());
    }
    for (Poller* poller : {&first_, &second_})
      EXPECT_TRUE(poller->Start().ok());
  }
  ~TwoPollers() override {
    for (const auto& queue : queues_) queue->End();
    for (Poller* poller : {&first_, &second_}) poller->Join();
  }

  PollerOptions Options() {
    PollerOptions options;
    options.spin = absl::Hours(1);
    options.group = &group_;
    options.retake_pause = retake_pause_;
    return options;
  }
  // Ready when `memory` has been handled.
  Future<void> Echo(FakeMemory& memory) {
    auto promise = std::make_shared<Promise<void>>(first_);
    memory.then = [promise] { promise->Set(absl::OkStatus()); };
    Future<void> future = promise->future();
    memory.Put();
    return future;
  }

  const absl::Duration retake_pause_;
  const std::unique_ptr<MemoryQueue> queues_[2] = {*MemoryQueue::Create(),
                                                   *MemoryQueue::Create()};
  PollerGroup group_;
  std::atomic<bool> stop_{false};  // read by what pollers run, until their end
  std::vector<std::shared_ptr<FakeMemory>> memories_;
  Poller first_{*queues_[0], Options()};
  Poller second_{*queues_[1], Options()};
};

TEST_F(TwoPollers, WaiterIsNotifiedOfEventsHandledByTheOther) {
  for (int i = 0; i < 200; ++i) {
    ASSERT_THAT(Echo(*memories_[i % 2]).Wait(kSoon), IsOk());
    EXPECT_EQ(group_.busy.load(), i % 2 == 0 ? &first_ : &second_);
  }
}

// A poller that leaves a queue hands it to the next one, here without an end.
class LeftQueues : public TwoPollers {
 protected:
  LeftQueues() : TwoPollers(/*retake_pause=*/absl::Hours(1'000'000)) {}
  // Somebody must be there to see the end.
  ~LeftQueues() override {
    for (Poller* poller : {&first_, &second_}) poller->BeginWaitElsewhere();
  }
};

TEST_F(LeftQueues, AreTakenOverWhileAThreadWaitsAtTheOther) {
  Poller* const pollers[] = {&first_, &second_};
  for (int i = 0; i < 100; ++i) {
    // Takes the one, and leaves it.
    Promise<void> never(*pollers[i % 2]);
    ASSERT_FALSE(never.future().Wait(absl::ZeroDuration()).ok());
    pollers[i % 2]->BeginWaitElsewhere();
    Promise<void> handled(*pollers[1 - i % 2]);
    memories_[i % 2]->then = [&] { handled.Set(absl::OkStatus()); };
    memories_[i % 2]->Put();
    ASSERT_THAT(handled.future().Wait(kSoon), IsOk());
    pollers[i % 2]->EndWaitElsewhere();
  }
}

// Each time by this thread, but for those in which the background thread still
// had the queue, or was asleep until the next who leaves it.
TEST_F(LeftQueues, AreTakenOverFromALeavingPollerByTheOther) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(Echo(*memories_[0]).Wait(kSoon), IsOk());
    Promise<void> leave(first_);
    memories_[0]->then = [&] {  // on the thread that has it, and leaves it
      first_.BeginWaitElsewhere();
      leave.Set(absl::OkStatus());
    };
    memories_[0]->Put();
    ASSERT_THAT(leave.future().Wait(kSoon), IsOk());
    Promise<void> handled(second_);
    memories_[0]->then = [&] { handled.Set(absl::OkStatus()); };
    memories_[0]->Put();
    ASSERT_THAT(handled.future().Wait(kSoon), IsOk()) << "round " << i;
    first_.EndWaitElsewhere();
  }
}

// As long as one has work, without a pause.
TEST_F(TwoPollers, BusyPollerDoesNotBlockTheOther) {
  memories_[0]->then = [&] {
    if (!stop_) memories_[0]->Put();
  };
  memories_[0]->Put();
  for (int i = 0; i < 100; ++i) {
    auto promise = std::make_shared<Promise<void>>(second_);
    second_.Post([promise] { promise->Set(absl::OkStatus()); });
    ASSERT_THAT(promise->future().Wait(kSoon), IsOk());
  }
  stop_ = true;
  EXPECT_TRUE(Becomes([&] { return !memories_[0]->HasWork(); }));
}

TEST_F(TwoPollers, RunOneThingAtATime) {
  constexpr int kEach = 2000;
  std::atomic<int> inside{0};
  std::atomic<int> ran{0};
  std::atomic<bool> overlapped{false};
  const auto run = [&] {
    if (inside.fetch_add(1) != 0) overlapped = true;
    std::this_thread::yield();
    inside.fetch_sub(1);
    ran.fetch_add(1);  // the last that it does with what is ours
  };
  for (const auto& memory : memories_) memory->then = run;
  for (int i = 0; i < kEach; ++i) {
    memories_[i % 2]->Put();
    if (i % 10 == 0) first_.Post(run);
  }
  EXPECT_TRUE(Becomes([&] { return ran.load() >= kEach + kEach / 10; }));
  EXPECT_FALSE(overlapped.load());
}

// Both would look for an hour.
TEST_F(TwoPollers, OnlyTheOneThatHadTheLastEventLooks) {
  ASSERT_THAT(Echo(*memories_[0]).Wait(kSoon), IsOk());
  ASSERT_THAT(Echo(*memories_[1]).Wait(kSoon), IsOk());
  timespec used = {};
  std::thread waiter([&] {
    Promise<void> never(first_);
    EXPECT_FALSE(never.future().Wait(absl::Milliseconds(300)).ok());
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  });
  waiter.join();
  EXPECT_LT(used.tv_sec * 1000 + used.tv_nsec / 1'000'000, 100);
}

TEST(MemoryPoller, WithNothingToDoBurnsNoCpu) {
  const std::unique_ptr<MemoryQueue> queue = *MemoryQueue::Create();
  const auto memory = std::make_shared<FakeMemory>();
  ASSERT_THAT(queue->Add(memory), IsOk());
  Poller poller(*queue, {});
  ASSERT_TRUE(poller.Start().ok());
  memory->Put();
  Promise<void> never(poller);
  EXPECT_TRUE(Becomes([&] { return memory->handled > 0; }));
  timespec before;
  timespec after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  EXPECT_FALSE(never.future().Wait(absl::Milliseconds(500)).ok());
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const int64_t used_ms = (after.tv_sec - before.tv_sec) * 1000 +
                          (after.tv_nsec - before.tv_nsec) / 1'000'000;
  EXPECT_LT(used_ms, 100);
  queue->End();
  poller.Join();
}

}  // namespace
}  // namespace weft::net
