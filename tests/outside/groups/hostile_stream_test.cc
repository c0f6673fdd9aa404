// A member that speaks the protocol of streams (frame.h) and means harm: its
// group may fail, but each call of the others returns, and no process ends.

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/stream/stream_backend.h"
#include "weft/collectives/backends/stream/streams.h"
#include "weft/collectives/core/frame.h"
#include "weft/collectives/process_group.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/local_transport.h"
#include "weft/transport/transport.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::weft::collectives::Frame;
using ::weft::collectives::ProcessGroup;
using ::weft::testing::IsOk;

// One end of a stream that says what the test wants.
class Attacker final : public transport::ConnectionObserver {
 public:
  void Open(transport::Transport& transport, const std::string& to,
            const std::shared_ptr<Attacker>& self) {
    auto connection =
        transport.Connect(collectives::StreamPurpose(), {to, to}, self);
    MutexLock lock(mu_);
    connection_ = std::move(connection);
  }
  void Say(Slices message) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      outbox_.push_back(std::move(message));
    }
    Pump();
  }
  void End() ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<transport::Connection> connection;
    MutexLock lock(mu_);
    connection = std::move(connection_);
  }

  void OnMessage(Slices message) override {
    auto frame = collectives::Decode(message);
    if (!frame.ok()) return;
    MutexLock lock(mu_);
    if (frame->fingerprint != 0) {
      sequence_ = frame->sequence;
      fingerprint_ = frame->fingerprint;
    }
  }
  void OnWritten() override {
    {
      MutexLock lock(mu_);
      is_writing_ = false;
    }
    Pump();
  }
  void OnClosed(absl::Status) override {
    MutexLock lock(mu_);
    is_closed_ = true;
    outbox_.clear();
  }

  bool is_closed() const {
    MutexLock lock(mu_);
    return is_closed_;
  }
  // What the victim called last.
  std::pair<uint64_t, uint64_t> last_call() const {
    MutexLock lock(mu_);
    return {sequence_, fingerprint_};
  }

 private:
  void Pump() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    while (!is_writing_ && !outbox_.empty() && connection_) {
      Slices message = std::move(outbox_.front());
      outbox_.pop_front();
      switch (connection_->Write(std::move(message))) {
        case transport::Connection::Written::kRefused:
          outbox_.clear();
          break;
        case transport::Connection::Written::kUnderWay:
          is_writing_ = true;
          break;
        case transport::Connection::Written::kDone:
          break;
      }
    }
  }

  mutable Mutex mu_;
  std::shared_ptr<transport::Connection> connection_ ABSL_GUARDED_BY(mu_);
  std::deque<Slices> outbox_ ABSL_GUARDED_BY(mu_);
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t fingerprint_ ABSL_GUARDED_BY(mu_) = 0;
};

Frame HelloOf(uint32_t rank, uint64_t size = 2, std::string group = "world") {
  Frame hello;
  hello.kind = Frame::kHello;
  hello.code = rank;
  hello.sequence = size;
  hello.text = std::move(group);
  return hello;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Below(uint64_t n) { return engine_() % n; }
  template <typename T, size_t n>
  T OneOf(const std::array<T, n>& values) {
    return values[Below(n)];
  }
  uint64_t Number() {
    return OneOf<uint64_t, 14>({0, 1, 2, 3, 4, 5, 16, 1000, uint64_t{1} << 20,
                                uint64_t{1} << 32, uint64_t{1} << 62,
                                uint64_t{1} << 63, UINT64_MAX - 1, UINT64_MAX});
  }

 private:
  std::mt19937_64 engine_;
};

// Any kind, with fields that are extreme, likely, or of the victim's last call.
Frame AnyFrame(Random& random, std::pair<uint64_t, uint64_t> last) {
  Frame frame;
  frame.kind = static_cast<Frame::Kind>(1 + random.Below(Frame::kLeaveAck));
  frame.code =
      random.OneOf<uint32_t, 10>({0, 1, 2, 3, 7, 9, 16, 17, 255, UINT32_MAX});
  const bool fits = random.Below(3) > 0;
  frame.sequence = fits ? last.first + random.Below(3) : random.Number();
  frame.fingerprint = fits ? last.second : random.Number();
  frame.tag = random.Below(2) == 0 ? random.Below(3) : random.Number();
  const uint64_t size = random.OneOf<uint64_t, 6>({0, 1, 4, 16, 64, 100'000});
  frame.offset = random.Below(2) == 0 ? 0 : random.Number();
  frame.total = random.Below(2) == 0 ? size : random.Number();
  frame.text = std::string(random.OneOf<size_t, 4>({0, 1, 30, 5000}), 'x');
  if (size > 0) frame.content = {Bytes::Own(std::string(size, '\x7f'))};
  return frame;
}

// Rank 1 of 2, whose other rank is an attacker.
void MeetAnAttacker(uint64_t seed) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  Random random(seed);
  transport::LocalNetwork network;
  auto victims = *network.MakeTransport("rank1");
  auto attackers = *network.MakeTransport("rank0");
  auto streams = std::make_unique<collectives::Streams>(*victims);
  const auto attacker = std::make_shared<Attacker>();

  std::thread victim([&] {
    collectives::StreamOptions options;
    options.streams = streams.get();
    options.rank = 1;
    options.ranks = {{"rank0", "rank0"}, {"rank1", "rank1"}};
    options.connect_timeout = absl::Seconds(1);
    options.max_unasked_bytes = 1 << 20;
    options.diagnosis.report = [](absl::string_view) {};
    auto backend = collectives::StreamBackend::Connect(options);
    if (!backend.ok()) return;
    collectives::GroupOptions group_options;
    group_options.timeout = absl::Milliseconds(100);
    const auto group = ProcessGroup::Create(*std::move(backend), group_options);
    const Tensor four = Tensor::Ones({4});
    // Whatever they end in.
    group->AllReduce(four).IgnoreError();
    group->Receive(four, 0, 1).IgnoreError();
    group->Broadcast(four, 0).IgnoreError();
    group->AllGatherBytes("mine").status().IgnoreError();
    group->BroadcastBytes("", 0).status().IgnoreError();
    group->ReceiveAny(four).status().IgnoreError();
    group->Send(Tensor::Ones({1000}), 0).IgnoreError();
    group->Barrier().IgnoreError();
    group->Split(0).status().IgnoreError();
    collectives::CallOptions soon;
    soon.timeout = absl::Milliseconds(50);
    group->Shrink({0, 1}, soon).IgnoreError();
  });

  attacker->Open(*attackers, "rank1", attacker);
  if (random.Below(8) > 0) attacker->Say(collectives::Encode(HelloOf(0)));
  for (int i = 0; i < 60 && !attacker->is_closed(); ++i) {
    if (random.Below(10) == 0) {  // bytes that are no frame
      attacker->Say({Bytes::Own(std::string(random.Below(200), '\xff'))});
    } else if (random.Below(3) == 0) {
      std::this_thread::yield();
    } else {
      attacker->Say(
          collectives::Encode(AnyFrame(random, attacker->last_call())));
    }
  }
  victim.join();
  attacker->End();
  streams.reset();
}

TEST(HostileStream, AnyFramesEndNoProcessAndNoCallHangs) {
  for (uint64_t batch = 0; batch < 6; ++batch) {
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 10; ++i) {
      threads.emplace_back(MeetAnAttacker, 10 * batch + i);
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// What one of these says of itself is refused, and the group is made of the
// right ranks. (Where nothing is proved, one that comes as rank 0 before the
// right one takes its place.)
TEST(HostileStream, StreamsThatSayWhatCannotBeDoNotSpoilAMeeting) {
  const std::vector<Frame> lies = {
      HelloOf(1),           // the victim itself
      HelloOf(2),           // there is none
      HelloOf(UINT32_MAX),  //
      HelloOf(0, 2, ""),    // of no group
      HelloOf(0, 2, std::string(5000, 'w')),
      HelloOf(7, UINT64_MAX),
  };
  for (size_t number = 0; number < lies.size(); ++number) {
    SCOPED_TRACE(absl::StrCat("lie ", number));
    transport::LocalNetwork network;
    std::vector<std::unique_ptr<transport::Transport>> transports;
    std::vector<std::unique_ptr<collectives::Streams>> streams;
    for (const char* name : {"rank0", "rank1"}) {
      transports.push_back(*network.MakeTransport(name));
      streams.push_back(
          std::make_unique<collectives::Streams>(*transports.back()));
    }
    auto liars = *network.MakeTransport("liar");
    const auto liar = std::make_shared<Attacker>();
    liar->Open(*liars, "rank1", liar);
    liar->Say(collectives::Encode(lies[number]));
    const auto statuses =
        weft::testing::RunRanks(2, [&](int rank) -> absl::Status {
          collectives::StreamOptions options;
          options.streams = streams[rank].get();
          options.rank = rank;
          options.ranks = {{"rank0", "rank0"}, {"rank1", "rank1"}};
          options.connect_timeout = absl::Seconds(20);
          auto backend = collectives::StreamBackend::Connect(options);
          if (!backend.ok()) return backend.status();
          return ProcessGroup::Create(*std::move(backend))->Barrier();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
    liar->End();
    for (auto& one : streams) one.reset();
  }
}

}  // namespace
}  // namespace weft::outside
