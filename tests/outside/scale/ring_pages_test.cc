// Rings whose pages come as their first lap goes on (message_ring.h,
// ring_connection.h), under messages that end at, before and behind the end of
// a page and of the ring, and under a peer that lies about what it has written.

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/shm/message_ring.h"
#include "weft/transport/shm/ring_connection.h"
#include "weft/transport/testing/ring_transport.h"

namespace weft::transport {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kCapacity = SharedRings::kCapacity;
// What a message takes in the ring besides its bytes.
constexpr uint64_t kLength = 8;

// `bytes` bytes that no other seed gives.
std::string Text(uint64_t bytes, uint64_t seed) {
  std::string text(bytes, '\0');
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (char& byte : text) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(state >> 56);
  }
  return text;
}

// How much memory the kernel has given to what both ends map.
int64_t PagesOf(const SharedRings& rings) {
  struct stat found = {};
  EXPECT_EQ(fstat(rings.memory->fd(), &found), 0);
  return found.st_blocks * 512;
}

// The two ends of one direction, each with a mapping of its own.
class Ends {
 public:
  explicit Ends(bool from_caller = true)
      : pair_(RingPair::Make()),
        writer_((from_caller ? pair_.caller : pair_.callee).MakeWriter()),
        reader_((from_caller ? pair_.callee : pair_.caller).MakeReader()) {}

  // Writes `text`, reads until it is there, and compares it.
  void Pass(const std::string& text) {
    writer_.Begin({Bytes::Copy(text)});
    for (uint64_t steps = 0;; ++steps) {
      ASSERT_LT(steps, text.size() / kPage + 64) << "neither end gets on";
      if (!writer_.is_idle()) {
        ASSERT_THAT(writer_.Go(), IsOk());
      }
      const absl::StatusOr<std::optional<Bytes>> message = reader_.Read();
      ASSERT_THAT(message.status(), IsOk());
      if (!message->has_value()) continue;
      ASSERT_TRUE(writer_.is_idle());
      ASSERT_EQ((*message)->size(), text.size());
      // Not EXPECT_EQ, which would print them.
      EXPECT_TRUE((*message)->view() == text) << text.size() << " bytes";
      EXPECT_FALSE(reader_.HasMore());
      return;
    }
  }

  int64_t pages() const { return PagesOf(pair_.caller); }
  MessageWriter& writer() { return writer_; }
  MessageReader& reader() { return reader_; }

 private:
  RingPair pair_;
  MessageWriter writer_;
  MessageReader reader_;
};

// At, before and behind each place where something changes: the end of a page,
// of as many pages as are given at once, of the ring, of what may be sent.
std::vector<uint64_t> Sizes() {
  std::vector<uint64_t> sizes = {0, 1, 7, 8, 9};
  for (uint64_t place = kPage; place <= 2 * kCapacity; place *= 2) {
    for (const uint64_t taken : {uint64_t{0}, kLength, kLength + 384}) {
      for (const int more : {-8, -1, 0, 1, 8}) {
        sizes.push_back(place - taken + more);
      }
    }
  }
  sizes.push_back(kMaxRingMessageBytes - 1);
  sizes.push_back(kMaxRingMessageBytes);
  return sizes;
}

TEST(RingPages, FirstMessageOfAnySizePassesInBothDirections) {
  for (const bool from_caller : {true, false}) {
    for (const uint64_t size : Sizes()) {
      SCOPED_TRACE(absl::StrCat(size, " bytes", from_caller ? "" : " back"));
      Ends ends(from_caller);
      ends.Pass(Text(size, size));
      ends.Pass(Text(1, 1));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(RingPages, MessageThatEndsWithAPageOrTheRingIsFollowedByAnyOther) {
  // What lies there first, so that the next begins at the end of a page, one
  // unit before and one behind; or so far on that the ring begins again.
  for (const uint64_t first :
       {kPage - 2 * kLength, kPage - kLength, kPage, 2 * kPage - kLength,
        kCapacity - 2 * kLength, kCapacity - kLength, kCapacity,
        kCapacity + kPage - kLength}) {
    for (const uint64_t second :
         {uint64_t{0}, uint64_t{1}, kPage - kLength, kPage, kPage + 1,
          kCapacity - kLength, kCapacity, kCapacity + 1}) {
      SCOPED_TRACE(absl::StrCat(first, " bytes, then ", second));
      Ends ends;
      ends.Pass(Text(first, 1));
      ends.Pass(Text(second, 2));
      ends.Pass(Text(3, 3));
      if (HasFatalFailure()) return;
    }
  }
}

// "Of many connections most carry little" (docs/shared_memory.md): a ring has
// at most about twice the pages of what it has carried, and no more than all.
TEST(RingPages, ComeAsTheyAreUsedAndNoMore) {
  Ends ends;
  const int64_t at_first = ends.pages();
  EXPECT_LE(at_first, int64_t{16 * kPage});
  uint64_t carried = 0;
  for (uint64_t size = 1; size < 4 * kCapacity; size = size * 2 + 5) {
    ends.Pass(Text(size, size));
    carried += size + 2 * kLength;
    EXPECT_LE(ends.pages(),
              static_cast<int64_t>(at_first + 2 * carried + 8 * kPage))
        << carried << " bytes were carried";
  }
  // The first direction has all of its pages, the other one none but those of
  // the beginning.
  EXPECT_GE(ends.pages(), static_cast<int64_t>(kCapacity));
  EXPECT_LE(ends.pages(), static_cast<int64_t>(kCapacity + 16 * kPage));
}

// The reader may be anywhere behind the writer, in any lap.
TEST(RingPages, AnyOrderOfStepsBringsAllMessages) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    Ends ends(seed % 2 == 0);
    std::vector<std::string> texts(20);
    for (std::string& text : texts) {
      const uint64_t most = uint64_t{1} << (random() % 20);
      text = Text(random() % most, random());
    }
    size_t begun = 0;
    size_t read = 0;
    for (int steps = 0; read < texts.size(); ++steps) {
      ASSERT_LT(steps, 100'000);
      if (random() % 2 == 0) {
        if (ends.writer().is_idle() && begun < texts.size()) {
          ends.writer().Begin({Bytes::Copy(texts[begun++])});
        }
        if (!ends.writer().is_idle()) {
          ASSERT_THAT(ends.writer().Go(), IsOk());
        }
        continue;
      }
      const auto message = ends.reader().Read();
      ASSERT_THAT(message.status(), IsOk());
      if (!message->has_value()) continue;
      ASSERT_LT(read, begun);
      ASSERT_TRUE((*message)->view() == texts[read]) << "message " << read;
      ++read;
    }
  }
}

// ---- A peer that lies.

// One direction over memory in which the test writes what a peer could: as both
// rings of a connection have it, with pages that come as they are asked for.
struct Lied {
  static constexpr uint64_t kBytes = 64 << 10;

  std::vector<std::byte> memory =
      std::vector<std::byte>(RingMemory::BytesFor(kBytes) + kRingLine);
  uint64_t given = 0;
  uint64_t asked = 0;
  bool has_none = false;

  RingMemory At() {
    void* begin = memory.data();
    size_t space = memory.size();
    std::align(kRingLine, RingMemory::BytesFor(kBytes), begin, space);
    return RingMemory::At(static_cast<std::byte*>(begin), kBytes);
  }
  RingPages Pages() {
    return RingPages(kBytes, [this](uint64_t begin, uint64_t end) {
      EXPECT_LT(begin, end);
      EXPECT_LE(end, kBytes);
      // No gap is left behind.
      EXPECT_LE(begin, given);
      asked += 1;
      if (has_none) return absl::ResourceExhaustedError("no pages");
      given = std::max(given, end);
      return absl::OkStatus();
    });
  }
};

// "Words are copied before they are checked; a position or a length that cannot
// be is an error": and none has the reader ask for pages beyond the ring.
TEST(RingPages, PositionsAndLengthsThatLieEndInAnError) {
  std::vector<uint64_t> numbers = {1, 7, 8, 9, kPage - 1, kPage, kPage + 8};
  for (const uint64_t base :
       {Lied::kBytes, 2 * Lied::kBytes, kMaxRingMessageBytes, uint64_t{1} << 32,
        uint64_t{1} << 63, ~uint64_t{0}}) {
    for (const int more : {-9, -8, -1, 0, 1, 8, 9}) {
      numbers.push_back(base + more);
    }
  }
  for (const uint64_t written : numbers) {
    for (const uint64_t length : numbers) {
      SCOPED_TRACE(absl::StrCat("written ", written, ", length ", length));
      Lied lied;
      const RingMemory memory = lied.At();
      std::memcpy(memory.bytes, &length, sizeof length);
      memory.words->written.store(written);
      MessageReader reader(memory, lied.Pages());
      for (int i = 0; i < 4; ++i) {
        const auto message = reader.Read();
        if (!message.ok()) {
          EXPECT_THAT(message.status(),
                      StatusIs(absl::StatusCode::kInvalidArgument));
          break;
        }
        if (!message->has_value()) break;
        EXPECT_LE((*message)->size() + kLength, written);
      }
      EXPECT_LE(lied.given, Lied::kBytes);
    }
  }
}

// The same of a reader that says to have read what was not written.
TEST(RingPages, ReaderThatLiesEndsItsWriter) {
  for (const uint64_t said :
       {uint64_t{1}, uint64_t{4104}, uint64_t{8192}, Lied::kBytes,
        Lied::kBytes + 8, uint64_t{1} << 63, ~uint64_t{0}}) {
    SCOPED_TRACE(said);
    Lied lied;
    const RingMemory memory = lied.At();
    MessageWriter writer(memory, lied.Pages());
    writer.Begin({Bytes::Copy(Text(100, 1))});
    ASSERT_THAT(writer.Go(), IsOk());
    ASSERT_TRUE(writer.is_idle());
    memory.words->read.store(said);
    // It looks once room is short.
    absl::Status ended;
    for (int i = 0; i < 40 && ended.ok(); ++i) {
      if (writer.is_idle()) writer.Begin({Bytes::Copy(Text(kPage, 2))});
      ended = writer.Go();
    }
    // What it says may be possible: then the ring is full, and the writer
    // waits.
    if (ended.ok()) {
      EXPECT_FALSE(writer.is_idle());
      EXPECT_LE(said, memory.words->written.load());
    } else {
      EXPECT_THAT(ended, StatusIs(absl::StatusCode::kInvalidArgument));
    }
    EXPECT_LE(lied.given, Lied::kBytes);
  }
}

// "kResourceExhausted: the ring gets no more pages": whichever page it is, at
// either end, and nothing before it is lost.
TEST(RingPages, EndThatGetsNoMorePagesSaysSo) {
  for (const bool is_writer : {true, false}) {
    Lied lied;
    MessageWriter writer(lied.At(), is_writer ? lied.Pages() : RingPages());
    MessageReader reader(lied.At(), is_writer ? RingPages() : lied.Pages());
    absl::Status ended;
    int passed = 0;
    for (; passed < 40 && ended.ok(); ++passed) {
      lied.has_none = lied.given >= 2 * kPage;
      writer.Begin({Bytes::Copy(Text(1000, passed))});
      ended = writer.Go();
      if (!ended.ok()) break;
      const auto message = reader.Read();
      ended = message.status();
      if (!ended.ok()) break;
      ASSERT_TRUE(message->has_value());
      EXPECT_TRUE((*message)->view() == Text(1000, passed));
    }
    EXPECT_THAT(ended, StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_GE(passed, 2);
    EXPECT_LT(passed, 40);
  }
}

}  // namespace
}  // namespace weft::transport
