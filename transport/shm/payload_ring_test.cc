#include "weft/transport/shm/payload_ring.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::transport {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr uint64_t kCapacity = 1024;

TEST(PayloadRing, ChunksLieOneBehindTheOtherAndWrap) {
  PayloadWriter writer(kCapacity);
  PayloadReader reader(kCapacity);
  // 300 bytes fill 320: chunks begin at cache lines.
  for (const size_t offset : {0, 320, 640}) {
    const auto place = writer.Reserve(300);
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(place->offset, offset);
    EXPECT_EQ(place->size, 300u);
    EXPECT_EQ(*reader.Take(300), offset);
  }
  // What fits before the end, then the rest from the beginning.
  EXPECT_EQ(writer.Reserve(300)->size, 64u);
  EXPECT_EQ(*reader.Take(64), 960u);
  EXPECT_FALSE(writer.Reserve(236).has_value());
  reader.Consume();
  ASSERT_TRUE(reader.MustReport());
  ASSERT_THAT(writer.Release(reader.Report()), IsOk());
  EXPECT_FALSE(reader.MayReport());
  EXPECT_EQ(writer.Reserve(236)->offset, 0u);
  EXPECT_EQ(*reader.Take(236), 0u);
}

TEST(PayloadRing, GoesOnBeyondFourGigabytes) {
  constexpr uint64_t kLarge = uint64_t{4} << 20;
  PayloadWriter writer(kLarge);
  PayloadReader reader(kLarge);
  uint64_t passed = 0;
  uint64_t reported = 0;
  while (passed < (uint64_t{1} << 32) + kLarge) {
    const auto place = writer.Reserve(kLarge / 3);
    ASSERT_TRUE(place.has_value()) << passed;
    const absl::StatusOr<size_t> offset = reader.Take(place->size);
    ASSERT_THAT(offset, IsOk());
    ASSERT_EQ(*offset, place->offset);
    reader.Consume();
    passed += place->size;
    reported = reader.Report();
    ASSERT_THAT(writer.Release(reported), IsOk());
  }
  EXPECT_GE(reported, passed);
}

TEST(PayloadRing, RefusesImpossiblePositions) {
  PayloadWriter writer(kCapacity);
  ASSERT_TRUE(writer.Reserve(200).has_value());
  EXPECT_THAT(writer.Release(320), StatusIs(absl::StatusCode::kInvalidArgument,
                                            "read shared memory up to 320"));
  EXPECT_THAT(writer.Release(100),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_THAT(writer.Release(256), IsOk());
  EXPECT_THAT(writer.Release(192),
              StatusIs(absl::StatusCode::kInvalidArgument));
  PayloadReader reader(kCapacity);
  EXPECT_THAT(reader.Take(0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(reader.Take(1025), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(reader.Take(SIZE_MAX),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(*reader.Take(1000), 0u);
  EXPECT_EQ(*reader.Take(1), 0u);  // the next round
  EXPECT_THAT(reader.Take(1000), StatusIs(absl::StatusCode::kInvalidArgument));
}

// Both halves and what is under way between them: chunks one way, reports the
// other. Each step is one that some interleaving of two processes can take.
struct World {
  struct Chunk {
    size_t offset;
    size_t size;
  };

  PayloadWriter writer{kCapacity};
  PayloadReader reader{kCapacity};
  std::deque<Chunk> named;       // written, and named to the reader
  std::vector<Chunk> copying;    // taken, not copied out yet
  std::deque<uint64_t> reports;  // told, not heard yet

  static uint64_t Lines(size_t bytes) { return (bytes + 63) / 64; }

  // Whether a chunk at `place` would be written over one still to be read.
  bool Overlaps(const PayloadWriter::Place& place) const {
    const auto meets = [&](const Chunk& p) {
      return place.offset < p.offset + Lines(p.size) * 64 &&
             p.offset < place.offset + Lines(place.size) * 64;
    };
    return std::any_of(named.begin(), named.end(), meets) ||
           std::any_of(copying.begin(), copying.end(), meets);
  }

  // Nothing that could still free memory is under way.
  bool IsQuiet() const {
    return named.empty() && copying.empty() && reports.empty() &&
           !reader.MustReport();
  }

  // Equal texts: the same futures, for positions only matter modulo the
  // capacity.
  std::string Fingerprint() const {
    std::string text =
        absl::StrCat(next_offset, " ", writer.unread_bytes(), ";");
    for (const Chunk& p : named) absl::StrAppend(&text, p.size, ",");
    absl::StrAppend(&text, ";");
    for (const Chunk& p : copying) absl::StrAppend(&text, p.size, ",");
    absl::StrAppend(&text, ";");
    for (const uint64_t r : reports) absl::StrAppend(&text, r - heard, ",");
    return absl::StrCat(text, unreported);
  }

  uint64_t next_offset = 0;
  uint64_t unreported = 0;
  uint64_t heard = 0;  // the last report that the writer has heard
};

constexpr size_t kBodies[] = {150, 450, 5000};

// All worlds that follow from one; none if a step broke a promise.
std::vector<World> Successors(const World& world) {
  std::vector<World> next;
  for (const size_t bytes : kBodies) {
    World w = world;
    const auto place = w.writer.Reserve(bytes);
    if (!place.has_value()) {
      EXPECT_FALSE(w.IsQuiet()) << "waits for ever: " << w.Fingerprint();
      continue;
    }
    EXPECT_GT(place->size, 0u);
    EXPECT_LE(place->size, bytes);
    EXPECT_FALSE(w.Overlaps(*place)) << w.Fingerprint();
    w.named.push_back({place->offset, place->size});
    w.next_offset =
        (place->offset + World::Lines(place->size) * 64) % kCapacity;
    next.push_back(std::move(w));
  }
  if (!world.named.empty()) {
    World w = world;
    const auto offset = w.reader.Take(w.named.front().size);
    EXPECT_THAT(offset.status(), IsOk());
    EXPECT_EQ(*offset, w.named.front().offset);
    w.copying.push_back(w.named.front());
    w.named.pop_front();
    next.push_back(std::move(w));
  }
  if (!world.copying.empty()) {
    World w = world;
    for (const auto& chunk : w.copying) {
      w.unreported += World::Lines(chunk.size) * 64;
    }
    w.copying.clear();
    w.reader.Consume();
    next.push_back(std::move(w));
  }
  if (world.reader.MayReport()) {
    World w = world;
    w.reports.push_back(w.reader.Report());
    w.unreported = 0;
    next.push_back(std::move(w));
  }
  if (!world.reports.empty()) {
    World w = world;
    w.heard = w.reports.front();
    EXPECT_THAT(w.writer.Release(w.heard), IsOk());
    w.reports.pop_front();
    next.push_back(std::move(w));
  }
  return next;
}

TEST(PayloadRingExploration, NoUnreadByteIsOverwrittenAndNoSideWaitsForEver) {
  absl::flat_hash_set<std::string> seen;
  std::vector<World> todo = {World()};
  seen.insert(World().Fingerprint());
  while (!todo.empty() && !::testing::Test::HasFailure()) {
    const World world = std::move(todo.back());
    todo.pop_back();
    for (World& next : Successors(world)) {
      if (seen.insert(next.Fingerprint()).second) {
        todo.push_back(std::move(next));
      }
    }
  }
  RecordProperty("states", static_cast<int>(seen.size()));
  EXPECT_GT(seen.size(), 1000u);
}

}  // namespace
}  // namespace weft::transport
