// Test of a program's own service at the port of a Worker: a ring all-reduce
// over streams, independent of calls.

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/net/channel.h"
#include "weft/rpc/call.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/test_functions.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr char kPass[] = "/test.Ring/Pass";

// The messages of a stream, until they are taken.
class Inbox final : public net::StreamObserver {
 public:
  void OnMessage(Slices message) override {
    MutexLock lock(mu_);
    messages_.push_back(Flatten(message));
    changed_.NotifyAll();
  }
  void OnWritten() override {
    MutexLock lock(mu_);
    ++written_;
    changed_.NotifyAll();
  }
  void OnClosed(absl::Status) override {}

  absl::StatusOr<int64_t> Take() {
    MutexLock lock(mu_);
    if (!Await([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return !messages_.empty();
        })) {
      return absl::DeadlineExceededError("nothing came round the ring");
    }
    int64_t value = 0;
    std::memcpy(&value, messages_.front().data(), sizeof(value));
    messages_.pop_front();
    return value;
  }
  // Waits until that many writes are done.
  bool AwaitWritten(int64_t count) {
    MutexLock lock(mu_);
    return Await([this, count]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return written_ >= count;
    });
  }

 private:
  template <typename Condition>
  bool Await(const Condition& is_met) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto deadline =
        std::chrono::steady_clock::now() + absl::ToChronoSeconds(kLong);
    while (!is_met()) {
      if (!changed_.WaitUntil(mu_, deadline)) return is_met();
    }
    return true;
  }

  Mutex mu_;
  CondVar changed_;
  std::deque<Bytes> messages_ ABSL_GUARDED_BY(mu_);
  int64_t written_ ABSL_GUARDED_BY(mu_) = 0;
};

// One rank of a ring: each sends to the next and receives from the last.
class Ring {
 public:
  Ring(int rank, int size) : rank_(rank), size_(size) {}

  void Register(net::Endpoint& endpoint) {
    endpoint.RegisterStream(
        kPass,
        [this](std::shared_ptr<net::Stream> stream)
            -> absl::StatusOr<std::shared_ptr<net::StreamObserver>> {
          from_ = std::move(stream);
          return inbox_;
        });
  }
  absl::Status Connect(net::Loop& loop, const rendezvous::Member& next) {
    WEFT_ASSIGN_OR_RETURN(
        channel_, net::Channel::Create(loop, next.address, {next.name}));
    to_ = channel_->OpenStream(kPass, outbox_);
    return absl::OkStatus();
  }
  // To be called before the Loop ends.
  void Disconnect() {
    to_ = nullptr;
    channel_ = nullptr;
  }

  // The sums of all ranks' values, of which each has one for each rank. Source:
  // Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters
  // of workstations", 2009: size - 1 steps that add, as many that copy.
  absl::StatusOr<std::vector<int64_t>> AllReduce(std::vector<int64_t> values) {
    for (int step = 0; step < 2 * (size_ - 1); ++step) {
      const int out = (rank_ - step + 2 * size_) % size_;
      const int in = (out - 1 + size_) % size_;
      to_->Write({Bytes::Own(std::vector<int64_t>{values[out]})});
      if (!outbox_->AwaitWritten(++sent_)) {
        return absl::DeadlineExceededError("the next of the ring takes none");
      }
      WEFT_ASSIGN_OR_RETURN(const int64_t came, inbox_->Take());
      values[in] = step < size_ - 1 ? values[in] + came : came;
    }
    return values;
  }

 private:
  const int rank_;
  const int size_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  const std::shared_ptr<Inbox> outbox_ = std::make_shared<Inbox>();
  std::shared_ptr<net::Stream> from_;  // of the Loop's callbacks
  std::unique_ptr<net::Channel> channel_;
  std::shared_ptr<net::Stream> to_;
  int64_t sent_ = 0;
};

constexpr int kRanks = 2;

// Each rank of the ring by a thread of its own.
void ExpectSums(std::vector<Ring>& rings) {
  std::vector<std::vector<int64_t>> sums(kRanks);
  const auto ended = testing::RunRanks(kRanks, [&](int rank) {
    WEFT_ASSIGN_OR_RETURN(sums[rank],
                          rings[rank].AllReduce({10 + rank, 200 + 5 * rank}));
    return absl::OkStatus();
  });
  EXPECT_THAT(ended, Each(IsOk()));
  EXPECT_THAT(sums, Each(ElementsAre(21, 405)));
}

// F13.
TEST(OwnServices, AnAllReduceRunsBeforeBesideAndAfterCalls) {
  testing::TempDir dir;
  chmod(dir.path().c_str(), 0700);
  Gate gate;  // the handler at it ends with its worker
  std::vector<Ring> rings;
  for (int rank = 0; rank < kRanks; ++rank) rings.emplace_back(rank, kRanks);
  std::unique_ptr<Worker> workers[kRanks];
  const auto started = testing::RunRanks(kRanks, [&](int rank) {
    Options options;
    options.rank = rank;
    options.trainers = kRanks;
    options.coordinator = absl::StrCat("unix:", dir.Path("c.sock"));
    options.join_timeout = kLong;
    options.log_level = telemetry::Level::kError;
    options.register_services = [&rings, rank](net::Endpoint& endpoint) {
      rings[rank].Register(endpoint);
    };
    WEFT_ASSIGN_OR_RETURN(workers[rank], Worker::Start(std::move(options)));
    const auto view = workers[rank]->membership().view();
    return rings[rank].Connect(
        workers[rank]->loop(),
        *view->Find(absl::StrCat("trainer", (rank + 1) % kRanks)));
  });
  ASSERT_THAT(started, Each(IsOk()));

  ExpectSums(rings);  // before there was a call

  rpc::Agent& caller = workers[0]->agent();
  workers[1]->agent().SetLocal(&gate);
  const Future<int64_t> held =
      rpc::CallAsync(caller.To("trainer1", kLong), PassGate);
  EXPECT_TRUE(IsWoken(gate.entered));
  for (int i = 0; i < 20; ++i) {
    const Future<int64_t> beside =
        rpc::CallAsync(caller.To("trainer1", kLong), Twice, i);
    ExpectSums(rings);
    EXPECT_THAT(beside.Wait(kLong), IsOkAndHolds(2 * i));
  }
  EXPECT_FALSE(held.IsReady());
  gate.may_leave.Unpark();
  EXPECT_THAT(held.Wait(kLong), IsOkAndHolds(1));

  for (auto& worker : workers) {
    EXPECT_THAT(worker->agent().Shutdown(kLong), IsOk());
  }
  EXPECT_THAT(rpc::Call(caller.To("trainer1", kLong), Twice, 1), Not(IsOk()));
  ExpectSums(rings);
  for (Ring& ring : rings) ring.Disconnect();
}

}  // namespace
}  // namespace weft::worker
