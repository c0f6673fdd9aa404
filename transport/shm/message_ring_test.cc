#include "weft/transport/shm/message_ring.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/net/loop/memory_queue.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::transport {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// A ring in this process, with both its ends.
template <uint64_t kCapacity>
struct Ring {
  // Aligned by hand: where asan keeps a frame, alignas(kRingLine) does not
  // hold.
  std::byte* Aligned() {
    void* begin = room;
    size_t size = sizeof room;
    return static_cast<std::byte*>(
        std::align(kRingLine, RingMemory::BytesFor(kCapacity), begin, size));
  }

  std::byte room[RingMemory::BytesFor(kCapacity) + kRingLine] = {};
  const RingMemory memory = RingMemory::At(Aligned(), kCapacity);
  MessageWriter writer{memory};
  MessageReader reader{memory};
};

// No two neighbours are equal, nor are the messages of two numbers.
std::string Text(size_t size, uint32_t number) {
  std::string text(size, '\0');
  uint32_t state = number * 2654435761u + 1;
  for (char& c : text) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

TEST(MessageRing, MessagesOfSeveralSlicesComeOutInOrder) {
  Ring<1024> ring;
  // Some times round, with all offsets; also the empty one.
  for (uint32_t i = 0; i < 300; ++i) {
    const std::string text = Text(i, i);
    ring.writer.Begin({Bytes::Copy(text.substr(0, i / 3)), Bytes(),
                       Bytes::Copy(text.substr(i / 3))});
    ASSERT_THAT(ring.writer.Go(), IsOk());
    ASSERT_TRUE(ring.writer.is_idle());
    EXPECT_TRUE(ring.reader.HasMore());
    const auto message = ring.reader.Read();
    ASSERT_THAT(message.status(), IsOk());
    ASSERT_TRUE(message->has_value());
    EXPECT_EQ((*message)->view(), text);
    EXPECT_FALSE(ring.reader.HasMore());
    EXPECT_FALSE(ring.reader.Read()->has_value());
  }
}

TEST(MessageRing, AMessageLongerThanTheRingPassesInParts) {
  Ring<1024> ring;
  const std::string text = Text(10000, 1);
  ring.writer.Begin({Bytes::Copy(text)});
  int parts = 0;
  std::optional<Bytes> message;
  while (!message.has_value()) {
    ASSERT_THAT(ring.writer.Go(), IsOk());
    EXPECT_EQ(ring.writer.is_idle(), parts == 9);
    EXPECT_FALSE(ring.writer.BeginSleep());
    message = *ring.reader.Read();
    EXPECT_TRUE(ring.reader.MustWake());
    EXPECT_FALSE(ring.reader.MustWake());
    EXPECT_TRUE(ring.writer.HasRoom());
    ASSERT_LE(++parts, 10);
  }
  EXPECT_EQ(message->view(), text);
}

TEST(MessageRing, WaiterIsWokenOnce) {
  Ring<1024> ring;
  ring.writer.Begin({Bytes::Copy("a")});
  ASSERT_THAT(ring.writer.Go(), IsOk());
  EXPECT_FALSE(ring.writer.MustWake());
  EXPECT_TRUE(ring.reader.BeginSleep());  // there is something
  ring.reader.EndSleep();
  EXPECT_FALSE(ring.writer.MustWake());
  ASSERT_TRUE(ring.reader.Read()->has_value());
  EXPECT_FALSE(ring.reader.MustWake());
  EXPECT_FALSE(ring.reader.BeginSleep());
  ring.writer.Begin({Bytes::Copy("b")});
  ASSERT_THAT(ring.writer.Go(), IsOk());
  EXPECT_TRUE(ring.writer.MustWake());
  EXPECT_FALSE(ring.writer.MustWake());
}

TEST(MessageRing, MessagesAfterTheStopAreNotRead) {
  Ring<1024> ring;
  for (const char* text : {"one", "two", "three"}) {
    if (std::string(text) == "three") ring.reader.StopAtWritten();
    ring.writer.Begin({Bytes::Copy(text)});
    ASSERT_THAT(ring.writer.Go(), IsOk());
  }
  EXPECT_EQ((*ring.reader.Read())->view(), "one");
  EXPECT_EQ((*ring.reader.Read())->view(), "two");
  EXPECT_FALSE(ring.reader.Read()->has_value());
}

// ---------------------------------------------------------------------- pages

// The ends of a ring of 64 KiB whose pages come as they are asked for; `fails`:
// from which byte on there are none.
class RingInPart : public ::testing::Test {
 protected:
  static constexpr uint64_t kCapacity = 64 << 10;
  using Range = std::pair<uint64_t, uint64_t>;

  RingPages Pages(std::vector<Range>& asked) {
    return RingPages(kCapacity, [&](uint64_t begin, uint64_t end) {
      asked.emplace_back(begin, end);
      return end <= fails_ ? absl::OkStatus()
                           : absl::ResourceExhaustedError("no pages");
    });
  }
  absl::Status Write(size_t size) {
    writer_.Begin({Bytes::Copy(Text(size, 1))});
    return writer_.Go();
  }

  uint64_t fails_ = ~uint64_t{0};
  std::vector<Range> of_writer_, of_reader_;
  const std::unique_ptr<Ring<kCapacity>> ring_ =
      std::make_unique<Ring<kCapacity>>();
  MessageWriter writer_{ring_->memory, Pages(of_writer_)};
  MessageReader reader_{ring_->memory, Pages(of_reader_)};
};

TEST_F(RingInPart, GetsPagesAsTheFirstLapGoesOnAndNoneAfterIt) {
  for (int i = 0; i < 300; ++i) {  // six laps
    ASSERT_THAT(Write(1000), IsOk());
    EXPECT_EQ((*reader_.Read())->view(), Text(1000, 1));
    if (i > 0) continue;
    EXPECT_THAT(of_writer_, ElementsAre(Range{0, 8 << 10}));
  }
  EXPECT_THAT(
      of_writer_,
      ElementsAre(Range{0, 8 << 10}, Range{8 << 10, 16 << 10},
                  Range{16 << 10, 32 << 10}, Range{32 << 10, 64 << 10}));
  EXPECT_EQ(of_reader_, of_writer_);
}

TEST_F(RingInPart, MessageThatIsLongerThanTheRingGetsThemAll) {
  ASSERT_THAT(Write(3 * kCapacity), IsOk());
  std::optional<Bytes> message;
  while (!message.has_value()) {
    ASSERT_THAT(writer_.Go(), IsOk());
    message = *reader_.Read();
  }
  EXPECT_EQ(message->view(), Text(3 * kCapacity, 1));
  EXPECT_EQ(of_writer_.back().second, kCapacity);
  EXPECT_EQ(of_reader_.back().second, kCapacity);
}

TEST_F(RingInPart, WriterForWhichThereAreNoPagesSaysSoAndShowsNothing) {
  ASSERT_THAT(Write(1000), IsOk());
  fails_ = 16 << 10;
  EXPECT_THAT(Write(20'000),
              StatusIs(absl::StatusCode::kResourceExhausted, "no pages"));
  EXPECT_EQ((*reader_.Read())->view(), Text(1000, 1));
  EXPECT_FALSE(reader_.HasMore());
}

// A peer that writes into memory without pages may see them, and we must not
// touch what the system cannot give.
TEST_F(RingInPart, ReaderForWhichThereAreNoPagesSaysSo) {
  ASSERT_THAT(Write(20'000), IsOk());
  fails_ = 16 << 10;
  EXPECT_THAT(reader_.Read(),
              StatusIs(absl::StatusCode::kResourceExhausted, "no pages"));
}

// ------------------------------------------------------------- a hostile peer

TEST(HostileRing, APositionThatCannotBeIsAnError) {
  for (const uint64_t written : {uint64_t{1024 + 8}, uint64_t{7}, ~uint64_t{0},
                                 ~uint64_t{7}, uint64_t{1} << 63}) {
    Ring<1024> ring;
    ring.memory.words->written = written;
    EXPECT_TRUE(ring.reader.HasMore());
    EXPECT_THAT(ring.reader.Read(),
                StatusIs(absl::StatusCode::kInvalidArgument, "to have written"))
        << written;
  }
  for (const uint64_t read :
       {uint64_t{1} << 63, ~uint64_t{7}, uint64_t{2048}, uint64_t{3}}) {
    Ring<1024> ring;
    ring.memory.words->read = read;
    // As long as there is room as far as we know, it is not even looked at.
    ring.writer.Begin({Bytes::Own(std::string(2000, 'x'))});
    EXPECT_THAT(ring.writer.Go(),
                StatusIs(absl::StatusCode::kInvalidArgument, "to have read"))
        << read;
  }
}

TEST(HostileRing, ALengthThatCannotBeIsAnError) {
  for (const uint64_t size :
       {kMaxRingMessageBytes + 1, ~uint64_t{0}, uint64_t{1} << 63}) {
    Ring<1024> ring;
    std::memcpy(ring.memory.bytes, &size, sizeof size);
    ring.memory.words->written = 16;
    EXPECT_THAT(ring.reader.Read(),
                StatusIs(absl::StatusCode::kInvalidArgument, "a message of"));
  }
}

// A length of which the rest never comes: it waits, and reads nothing else.
TEST(HostileRing, AMessageThatNeverEndsIsNoMessage) {
  Ring<1024> ring;
  const uint64_t size = kMaxRingMessageBytes;
  std::memcpy(ring.memory.bytes, &size, sizeof size);
  for (uint64_t written = 512; written < 20000; written += 512) {
    ring.memory.words->written = written;
    const auto message = ring.reader.Read();
    ASSERT_THAT(message.status(), IsOk());
    EXPECT_FALSE(message->has_value());
  }
}

// Whatever lies there at whatever moment: a message, none, or an error.
TEST(HostileRing, DataThatChangesWhileReadEndsInAStatus) {
  auto ring = std::make_unique<Ring<4096>>();
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    std::mt19937_64 random(7);
    auto* const bytes = reinterpret_cast<uint64_t*>(ring->memory.bytes);
    while (!stop) {
      // As another process does: not by this program's rules.
      __atomic_store_n(&bytes[random() % 512], random() % 3000,
                       __ATOMIC_RELAXED);
      ring->memory.words->written.fetch_add(random() % 64 * 8);
    }
  });
  int errors = 0;
  int messages = 0;
  const Instant deadline = SteadyClock().Now() + absl::Seconds(30);
  while (errors == 0 && SteadyClock().Now() < deadline) {
    const auto message = ring->reader.Read();
    errors += !message.ok();
    messages += message.ok() && message->has_value();
  }
  stop = true;
  scribbler.join();
  EXPECT_EQ(errors, 1) << "after " << messages << " messages";
}

// ------------------------------------------------------------- all schedules
//
// The handshakes of both ends, an access to shared memory at a time, on
// processors that delay their own stores, as x86 does. `delayed`: the store
// that is not sequentially consistent, to see that it must be.

enum Word { kWritten, kRead, kReaderSleeps, kWriterSleeps, kWords };
enum class Delayed { kNone, kWritten, kRead, kReaderSleeps, kWriterSleeps };

struct Machine {
  static constexpr int kMessages = 6;  // of one unit
  static constexpr int kCapacity = 4;  // units
  static constexpr int kEnough = 2;    // room for who has waited

  int memory[kWords] = {};
  struct Process {
    int line = 0;
    int position = 0;
    std::deque<std::pair<Word, int>> stores;  // not seen by the other yet
    bool event_fd = false;
  } writer, reader;
  Delayed delayed = Delayed::kNone;

  int Load(const Process& p, Word word) const {
    int value = memory[word];
    for (const auto& [w, v] : p.stores) {
      if (w == word) value = v;
    }
    return value;
  }
  static void Flush(Machine& m, Process& p, size_t keep = 0) {
    while (p.stores.size() > keep) {
      m.memory[p.stores.front().first] = p.stores.front().second;
      p.stores.pop_front();
    }
  }
  void Store(Process& p, Word word, int value, bool is_delayed) {
    p.stores.emplace_back(word, value);
    if (!is_delayed) Flush(*this, p);
  }
  int Exchange(Process& p, Word word, int value) {
    Flush(*this, p);
    return std::exchange(memory[word], value);
  }

  bool HasRoom(int units) const {
    return kCapacity - (writer.position - Load(writer, kRead)) >= units;
  }

  // False: it sleeps, or is done.
  bool StepWriter() {
    Process& p = writer;
    switch (p.line++) {
      case 0:  // Go
        if (p.position == kMessages) return false;
        if (HasRoom(1)) p.line = 5;
        return true;
      case 1:  // BeginSleep
        Store(p, kWriterSleeps, 1, delayed == Delayed::kWriterSleeps);
        return true;
      case 2:
        if (HasRoom(kEnough)) p.line = 4;
        return true;
      case 3:  // asleep
        return std::exchange(p.event_fd, false);
      case 4:  // EndSleep
        Store(p, kWriterSleeps, 0, true);
        p.line = 0;
        return true;
      case 5:  // Go, which has found room
        Store(p, kWritten, ++p.position, delayed == Delayed::kWritten);
        return true;
      case 6:  // MustWake
        if (Load(p, kReaderSleeps) == 0) p.line = 0;
        return true;
      default:
        reader.event_fd |= Exchange(p, kReaderSleeps, 0) != 0;
        p.line = 0;
        return true;
    }
  }

  bool StepReader() {
    Process& p = reader;
    const bool has_more = Load(p, kWritten) != p.position;
    switch (p.line++) {
      case 0:  // Read
        if (!has_more) p.line = 5;
        return true;
      case 1:
        Store(p, kRead, ++p.position, delayed == Delayed::kRead);
        return true;
      case 2:  // MustWake
        if (Load(p, kWriterSleeps) == 0) p.line = 0;
        return true;
      case 3:
        if (kCapacity - (Load(p, kWritten) - p.position) < kEnough) p.line = 0;
        return true;
      case 4:
        writer.event_fd |= Exchange(p, kWriterSleeps, 0) != 0;
        p.line = 0;
        return true;
      case 5:  // BeginSleep
        Store(p, kReaderSleeps, 1, delayed == Delayed::kReaderSleeps);
        return true;
      case 6:
        if (has_more) p.line = 8;
        return true;
      case 7:  // asleep
        return std::exchange(p.event_fd, false);
      default:  // EndSleep
        Store(p, kReaderSleeps, 0, true);
        p.line = 0;
        return true;
    }
  }

  std::string Fingerprint() const {
    std::string text;
    for (const int word : memory) absl::StrAppend(&text, word, " ");
    for (const Process* p : {&writer, &reader}) {
      absl::StrAppend(&text, p->line, ",", p->position, ",", p->event_fd, ":");
      for (const auto& [w, v] : p->stores)
        absl::StrAppend(&text, w, "=", v, ";");
    }
    return text;
  }
};

// Whether some schedule ends before all was read.
bool SomebodySleepsForEver(Delayed delayed, size_t* states) {
  absl::flat_hash_set<std::string> seen;
  Machine first;
  first.delayed = delayed;
  std::vector<Machine> todo = {first};
  bool stuck = false;
  while (!todo.empty()) {
    const Machine machine = std::move(todo.back());
    todo.pop_back();
    const auto go = [&](const std::function<bool(Machine&)>& step) {
      Machine next = machine;
      if (!step(next)) return false;
      EXPECT_LE(next.writer.position - next.reader.position,
                Machine::kCapacity);
      if (seen.insert(next.Fingerprint()).second) todo.push_back(next);
      return true;
    };
    bool moves = go([](Machine& m) { return m.StepWriter(); });
    moves |= go([](Machine& m) { return m.StepReader(); });
    for (const bool of_writer : {true, false}) {
      moves |= go([of_writer](Machine& m) {
        Machine::Process& p = of_writer ? m.writer : m.reader;
        if (p.stores.empty()) return false;
        Machine::Flush(m, p, p.stores.size() - 1);
        return true;
      });
    }
    stuck |= !moves && machine.reader.position < Machine::kMessages;
  }
  *states = seen.size();
  return stuck;
}

TEST(MessageRingExploration, NoSideSleepsForEver) {
  size_t states = 0;
  EXPECT_FALSE(SomebodySleepsForEver(Delayed::kNone, &states));
  EXPECT_GT(states, 2000u);
  RecordProperty("states", static_cast<int>(states));
}

TEST(MessageRingExploration, EachOfTheFourStoresMustBeSeenAtOnce) {
  for (const Delayed delayed :
       {Delayed::kWritten, Delayed::kRead, Delayed::kReaderSleeps,
        Delayed::kWriterSleeps}) {
    size_t states = 0;
    EXPECT_TRUE(SomebodySleepsForEver(delayed, &states))
        << static_cast<int>(delayed);
  }
}

// The real ends, a call at a time, in all orders.
struct Ends {
  static constexpr size_t kSizes[] = {40, 300, 0, 100};
  static constexpr size_t kMessages = 4;

  Ring<128> ring;
  size_t sent = 0;
  size_t got = 0;
  bool writer_sleeps = false, reader_sleeps = false;
  bool writer_event_fd = false, reader_event_fd = false;

  // 0: the writer goes on; 1: the reader reads; 2: the reader goes to sleep.
  // False: it cannot.
  bool Step(int what) {
    MessageWriter& writer = ring.writer;
    MessageReader& reader = ring.reader;
    if (what == 0) {
      if (writer_sleeps && !std::exchange(writer_event_fd, false)) return false;
      if (std::exchange(writer_sleeps, false)) writer.EndSleep();
      if (writer.is_idle()) {
        if (sent == kMessages) return false;
        const uint32_t number = static_cast<uint32_t>(sent);
        writer.Begin({Bytes::Copy(Text(kSizes[sent++], number))});
      }
      EXPECT_THAT(writer.Go(), IsOk());
      reader_event_fd |= writer.MustWake();
      writer_sleeps = !writer.is_idle() && !writer.BeginSleep();
      if (!writer_sleeps) writer.EndSleep();
      return true;
    }
    if (reader_sleeps && !std::exchange(reader_event_fd, false)) return false;
    if (std::exchange(reader_sleeps, false)) reader.EndSleep();
    if (what == 2) {
      reader_sleeps = !reader.BeginSleep();
      if (!reader_sleeps) reader.EndSleep();
      return true;
    }
    const auto message = reader.Read();
    EXPECT_THAT(message.status(), IsOk());
    writer_event_fd |= reader.MustWake();
    if (message.ok() && message->has_value()) {
      const uint32_t number = static_cast<uint32_t>(got);
      EXPECT_EQ((*message)->view(), Text(kSizes[got], number));
      ++got;
    }
    return true;
  }

  std::string Fingerprint() const {
    const RingWords& w = *ring.memory.words;
    return absl::StrCat(
        w.written.load(), " ", w.read.load(), " ", w.reader_sleeps.load(),
        w.writer_sleeps.load(), " ", sent, " ", got, writer_sleeps,
        reader_sleeps, writer_event_fd, reader_event_fd, ring.writer.is_idle());
  }
};

TEST(MessageRingExploration, TheRealEndsPassAllMessagesInAllOrders) {
  absl::flat_hash_set<std::string> seen;
  std::vector<std::vector<int>> todo = {{}};
  bool finished = false;
  while (!todo.empty() && !::testing::Test::HasFailure()) {
    const std::vector<int> schedule = std::move(todo.back());
    todo.pop_back();
    bool moves = false;
    for (int what = 0; what < 3; ++what) {
      const auto ends = std::make_unique<Ends>();
      for (const int step : schedule) ends->Step(step);
      finished |= ends->got == Ends::kMessages;
      if (!ends->Step(what)) {
        moves |= ends->got == Ends::kMessages;
        continue;
      }
      moves = true;
      if (!seen.insert(ends->Fingerprint()).second) continue;
      todo.push_back(schedule);
      todo.back().push_back(what);
    }
    EXPECT_TRUE(moves) << "all sleep";
  }
  EXPECT_TRUE(finished);
  EXPECT_GT(seen.size(), 50u);
}

// -------------------------------------------------------------------- stress

// One end of the ring, at which a thread polls.
class Source final : public net::MemorySource {
 public:
  explicit Source(std::function<bool()> has_work)
      : event_fd_(*net::EventFd::Create()), has_work_(std::move(has_work)) {}
  bool HasWork() override { return has_work_(); }
  bool BeginSleep() override {
    return reader != nullptr ? reader->BeginSleep() : writer->BeginSleep();
  }
  void EndSleep() override {
    reader != nullptr ? reader->EndSleep() : writer->EndSleep();
  }
  void Handle() override {}
  const net::EventFd& event_fd() const override { return event_fd_; }

  MessageReader* reader = nullptr;  // one of these
  MessageWriter* writer = nullptr;

 private:
  const net::EventFd event_fd_;
  const std::function<bool()> has_work_;
};

// Waits until `source` has work, sometimes asleep; false: it never came.
bool Await(net::MemoryQueue& queue, Source& source, std::mt19937& random) {
  for (int looks = random() % 4; looks > 0; --looks) {
    if (source.HasWork()) return true;
    if (random() % 8 == 0) std::this_thread::yield();
  }
  const Instant deadline = SteadyClock().Now() + absl::Seconds(30);
  while (SteadyClock().Now() < deadline) {
    if (queue.Next(deadline) == net::EventQueue::Outcome::kEvent) return true;
  }
  return false;
}

TEST(MessageRingStress, AMillionMessagesAndNoWakeUpIsLost) {
  constexpr uint32_t kMessages = 1'000'000;
  auto ring = std::make_unique<Ring<1024>>();
  auto to_write =
      std::make_shared<Source>([&] { return ring->writer.HasRoom(); });
  auto to_read =
      std::make_shared<Source>([&] { return ring->reader.HasMore(); });
  to_read->reader = &ring->reader;
  to_write->writer = &ring->writer;
  const auto size_of = [](uint32_t i) {
    return i % 1000 == 0 ? 3000u : i * 2654435761u >> 26;
  };
  std::thread writer([&] {
    auto queue = *net::MemoryQueue::Create();
    ASSERT_THAT(queue->Add(to_write), IsOk());
    std::mt19937 random(1);
    for (uint32_t i = 0; i < kMessages; ++i) {
      const uint32_t size = size_of(i);
      std::string text(size, static_cast<char>(i));
      ring->writer.Begin({Bytes::Own(std::move(text))});
      for (;;) {
        ASSERT_THAT(ring->writer.Go(), IsOk());
        if (ring->writer.MustWake()) to_read->event_fd().Ring();
        if (ring->writer.is_idle()) break;
        ASSERT_TRUE(Await(*queue, *to_write, random)) << "at " << i;
      }
      if (random() % 64 == 0) std::this_thread::yield();
    }
  });
  auto queue = *net::MemoryQueue::Create();
  ASSERT_THAT(queue->Add(to_read), IsOk());
  std::mt19937 random(2);
  for (uint32_t i = 0; i < kMessages;) {
    const auto message = ring->reader.Read();
    if (ring->reader.MustWake()) to_write->event_fd().Ring();
    ASSERT_THAT(message.status(), IsOk());
    if (!message->has_value()) {
      if (ring->reader.HasMore()) continue;
      ASSERT_TRUE(Await(*queue, *to_read, random)) << "at " << i;
      continue;
    }
    const Bytes& text = **message;
    ASSERT_EQ(text.size(), size_of(i));
    ASSERT_EQ(text.view().find_first_not_of(static_cast<char>(i)),
              absl::string_view::npos);
    ++i;
  }
  writer.join();
}

}  // namespace
}  // namespace weft::transport
