// ring: whatever the other process writes into the memory that it shares, and
// says on the stream, a connection ends at worst.
//
// The input is steps: a byte says what happens, and up to two more how.

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "weft/memory/segment.h"
#include "weft/tests/fuzz/fuzz_target.h"
#include "weft/transport/shm/ring_connection.h"

namespace weft::testing {
namespace {

using transport::RingMemory;
using transport::SharedRings;

constexpr uint64_t kLongBytes = 96 << 10;

class Stream final : public transport::Connection {
 public:
  Written Write(Slices) override {
    Hold(!is_busy);
    if (is_closed) return Written::kRefused;
    is_busy = true;
    return Written::kUnderWay;
  }
  void Close(absl::Status) override { is_closed = true; }

  bool is_busy = false;
  bool is_closed = false;
};

class Watch final : public net::MemoryWatch {
 public:
  absl::Status AddMemory(std::shared_ptr<net::MemorySource> added) override {
    source = std::move(added);
    return absl::OkStatus();
  }
  void RemoveMemory(const net::MemorySource*) override { source = nullptr; }

  std::shared_ptr<net::MemorySource> source;
};

// Checks that no message is too long, and that nothing comes after the end.
class RingObserver final : public transport::ConnectionObserver {
 public:
  void OnMessage(Slices message) override {
    Hold(!has_ended && TotalSize(message) <= transport::kMaxRingMessageBytes);
  }
  void OnWritten() override { Hold(!has_ended); }
  void OnClosed(absl::Status) override {
    Hold(!std::exchange(has_ended, true));
  }

  bool has_ended = false;
};

enum Step : char {
  kWritten,  // the words, in units of eight bytes or not
  kRead,
  kMoreWritten,
  kMoreRead,
  kSleeps,
  kLength,  // where a message may begin
  kPoll,
  kSleep,
  kStreamEnds,  // its part: the empty message
  kStreamSays,
  kStreamWrote,
  kWrite,
  kWriteLong,
  kSteps,
};

class Run {
 public:
  // `memory` is all zeros, before and after.
  Run(absl::string_view input, const std::shared_ptr<memory::Segment>& memory)
      : input_(input), is_offerer_(Byte() % 2 == 0) {
    in_ = RingAt(*memory, is_offerer_ ? 1 : 0);
    out_ = RingAt(*memory, is_offerer_ ? 0 : 1);
    ring_ = std::make_shared<transport::RingConnection>(
        SharedRings{memory, *net::EventFd::Create(), *net::EventFd::Create(),
                    is_offerer_},
        watch_);
    Hold(ring_->Start().ok());
    ring_->Observe(observer_);
    connection_ = ring_->Attach(stream_);
  }

  ~Run() {
    Clear(in_, 8 * 256);
    Clear(out_, std::min(written_bytes_, SharedRings::kCapacity));
  }

  void All() {
    while (!input_.empty()) {
      const auto polled = watch_->source;  // a poller releases it late
      One(static_cast<Step>(Byte() % kSteps));
      if (polled != nullptr) Sleep(*polled);
    }
    ring_->OnClosed(absl::UnavailableError("the fuzzer closes the connection"));
    Hold(observer_->has_ended && watch_->source == nullptr);
  }

 private:
  static RingMemory RingAt(const memory::Segment& memory, int direction) {
    return RingMemory::At(
        memory.data() +
            direction * RingMemory::BytesFor(SharedRings::kCapacity),
        SharedRings::kCapacity);
  }
  static void Clear(const RingMemory& ring, uint64_t bytes) {
    std::memset(static_cast<void*>(ring.words), 0, RingMemory::BytesFor(bytes));
  }
  uint8_t Byte() {
    if (input_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(input_[0]);
    input_.remove_prefix(1);
    return byte;
  }
  // Small, at a border, or senseless.
  uint64_t Number() {
    const uint64_t byte = Byte();
    if (byte < 200) return byte * 8;
    if (byte < 220) return SharedRings::kCapacity + (byte - 210) * 8;
    if (byte < 240) return transport::kMaxRingMessageBytes + byte - 230;
    return ~uint64_t{0} - (byte - 240);
  }

  void One(Step step) {
    switch (step) {
      case kWritten:
        return in_.words->written.store(Number());
      case kRead:
        return out_.words->read.store(Number());
      case kMoreWritten:
        in_.words->written.fetch_add(8 * uint64_t{Byte()});
        return;
      case kMoreRead:
        return out_.words->read.store(out_.words->written.load());
      case kSleeps:
        in_.words->writer_sleeps.store(Byte());
        return out_.words->reader_sleeps.store(Byte());
      case kLength: {
        const uint64_t at = 8 * uint64_t{Byte()};
        const uint64_t length = Number();
        std::memcpy(in_.bytes + at, &length, sizeof length);
        return;
      }
      case kPoll:
        return Poll();
      case kSleep:
        if (watch_->source != nullptr) Sleep(*watch_->source);
        return;
      case kStreamEnds:
        return ring_->OnMessage({});
      case kStreamSays:
        return ring_->OnMessage({Bytes::Own("said")});
      case kStreamWrote:
        if (std::exchange(stream_->is_busy, false)) ring_->OnWritten();
        return;
      case kWrite:
        return Write(Byte());
      default:
        return Write(kLongBytes);
    }
  }

  // What is there ends: each turn reads some.
  void Poll() {
    for (int i = 0; i < 64 && watch_->source != nullptr; ++i) {
      const std::shared_ptr<net::MemorySource> source = watch_->source;
      if (!source->HasWork()) return;
      const uint64_t read = in_.words->read.load();
      source->Handle();
      Hold(in_.words->read.load() != read || stream_->is_closed ||
           out_.words->written.load() > 0);
    }
  }

  static void Sleep(net::MemorySource& source) {
    (void)source.BeginSleep();
    source.EndSleep();
  }

  void Write(uint64_t bytes) {
    written_bytes_ += bytes + 16;
    (void)connection_->Write({Bytes::Own(std::string(bytes, 'w'))});
  }

  absl::string_view input_;
  const bool is_offerer_;
  uint64_t written_bytes_ = 0;  // by this end, at most
  RingMemory in_;
  RingMemory out_;
  const std::shared_ptr<Stream> stream_ = std::make_shared<Stream>();
  const std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  const std::shared_ptr<RingObserver> observer_ =
      std::make_shared<RingObserver>();
  std::shared_ptr<transport::RingConnection> ring_;
  std::unique_ptr<transport::Connection> connection_;
};

std::vector<std::string> Seeds() {
  const std::string over = {kStreamWrote, kStreamEnds, kStreamWrote};
  const std::string message = {kLength, 0, 2, kMoreWritten, 3, kPoll};
  std::vector<std::string> seeds;
  for (const char role : {0, 1}) {
    const std::string begin = std::string(1, role) + over;
    seeds.push_back(begin + message);
    seeds.push_back(begin + std::string({kWrite, 20, kSleeps, 1, 1, kWriteLong,
                                         kMoreRead, kPoll, kSleep}));
    seeds.push_back(begin + std::string({kLength, 0, 100, kMoreWritten, 9,
                                         kPoll, kMoreWritten, 100, kPoll}));
    seeds.push_back(std::string({role, kStreamSays, kWrite, 7, kStreamWrote}));
    seeds.push_back(begin + std::string({kWritten, 9, kPoll, kRead, 3}));
    seeds.push_back(begin + std::string({kWriteLong, kWriteLong, kWriteLong,
                                         kSleep, kMoreRead, kPoll, kWrite, 9}));
  }
  return seeds;
}

std::vector<std::string> Words() {
  return {{kPoll}, {kLength, 0, 2, kMoreWritten, 3}, {kStreamEnds}, "\xff"};
}

void RunRing(absl::string_view input) {
  static const auto memory = std::make_shared<memory::Segment>(
      *memory::Segment::Create(SharedRings::kBytes));
  Run(input, memory).All();
}

WEFT_FUZZ_TARGET(ring, Seeds, Words, RunRing);

}  // namespace
}  // namespace weft::testing
