#include "weft/ps/core/row_store.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <utility>

#include "absl/numeric/bits.h"
#include "weft/base/check.h"

namespace weft::ps {
namespace {

constexpr int64_t kChunkBytes = 16384;
constexpr int64_t kFirstRows = 4;
// Rows to a group, on average, at most: 3 in 100 lie in another group than
// their own then.
constexpr int64_t kMostInGroup = 9;
// Lengths up to which a row's own floats need not begin at a multiple of 16
// bytes.
constexpr int64_t kShortRow = 16;
// Keys whose memory is fetched before the first of them is compared. Of the
// second-level cache's misses so many are under way as the core can have.
constexpr size_t kAhead = 128;

}  // namespace

RowStore::RowStore(int64_t floats, int placed_bits)
    : placed_bits_(placed_bits),
      header_(floats < kShortRow ? 3 : 4),
      stride_(header_ + floats) {
  const int64_t rows = std::max<int64_t>(
      1, kChunkBytes / (stride_ * static_cast<int64_t>(sizeof(float))));
  chunk_bits_ =
      static_cast<int>(absl::bit_width(static_cast<uint64_t>(rows))) - 1;
  chunk_mask_ = (int64_t{1} << chunk_bits_) - 1;
}

RowStore::Row RowStore::Find(uint64_t key) const {
  return FindAll(absl::MakeConstSpan(&key, 1))[0];
}

absl::Span<const RowStore::Row> RowStore::FindAll(
    absl::Span<const uint64_t> keys) const {
  if (keys.empty()) return {};
  if (keys == absl::MakeConstSpan(last_keys_)) return last_rows_;
  WEFT_CHECK(keys.size() <= kMostKeys);
  last_keys_.assign(keys.begin(), keys.end());
  last_rows_.resize(keys.size());
  last_missed_ = !LookUp(keys, last_rows_.data());
  return last_rows_;
}

inline uint32_t RowStore::Matches(const Group& group, uint32_t tag) {
  constexpr uint32_t kAll = (1u << kPlaces) - 1;
#ifdef __SSE2__
  const __m128i tags =
      _mm_load_si128(reinterpret_cast<const __m128i*>(group.tags));
  const __m128i equal =
      _mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(tag)));
  return static_cast<uint32_t>(_mm_movemask_epi8(equal)) & kAll;
#else
  uint32_t matches = 0;
  for (int i = 0; i < kPlaces; ++i) {
    matches |= static_cast<uint32_t>(group.tags[i] == tag) << i;
  }
  return matches;
#endif
}

bool RowStore::LookUp(absl::Span<const uint64_t> keys, Row* rows) const {
  if (index_.empty()) {
    std::fill_n(rows, keys.size(), Row{});
    return keys.empty();
  }
  const Group* const index = index_.data();
  Place places[kAhead];
  bool all = true;
  for (size_t begin = 0; begin < keys.size(); begin += kAhead) {
    const size_t n = std::min(kAhead, keys.size() - begin);
    const uint64_t* const wanted = keys.data() + begin;
    Row* const found = rows + begin;
    for (size_t i = 0; i < n; ++i) {
      places[i] = PlaceOf(wanted[i]);
      __builtin_prefetch(index + places[i].group);
    }
    // The row that it is most likely. If no tag matches, any: a free place
    // names the first row.
    constexpr uint32_t kLastPlace = 1u << (kPlaces - 1);
    for (size_t i = 0; i < n; ++i) {
      const Group& group = index[places[i].group];
      const uint32_t matches = Matches(group, places[i].tag) | kLastPlace;
      found[i] = At(group.rows[absl::countr_zero(matches)]);
      __builtin_prefetch(found[i].block);
    }
    for (size_t i = 0; i < n; ++i) {
      if (key(found[i]) == wanted[i]) continue;
      found[i] = Search(wanted[i], places[i]);
      all &= found[i].exists();
    }
  }
  return all;
}

RowStore::Row RowStore::Search(uint64_t wanted, Place place) const {
  for (size_t tried = 0; tried < index_.size(); ++tried) {
    const Group& group = index_[place.group];
    for (uint32_t matches = Matches(group, place.tag); matches != 0;
         matches &= matches - 1) {
      const Row row = At(group.rows[absl::countr_zero(matches)]);
      if (key(row) == wanted) return row;
    }
    if (Matches(group, 0) != 0) break;  // it would be there
    place.group = GroupAfter(place.group);
  }
  return Row{};
}

RowStore::Row RowStore::Add(uint64_t key) {
  const uint32_t number = static_cast<uint32_t>(size_);
  WEFT_CHECK(number != ~uint32_t{0});
  if (last_missed_) last_keys_.clear();
  if (size_ == room_) Grow();
  ++size_;
  const Row row = At(number);
  std::memcpy(row.block, &key, sizeof(key));
  if (size_ > static_cast<int64_t>(index_.size()) * kMostInGroup) {
    Rehash(index_.size() + index_.size() / 2 + 1);
  } else {
    Insert(number);
  }
  return row;
}

void RowStore::Insert(uint32_t row) {
  const Place place = PlaceOf(key(At(row)));
  uint32_t at = place.group;
  uint32_t free = 0;
  while ((free = Matches(index_[at], 0)) == 0) at = GroupAfter(at);
  const int first = absl::countr_zero(free);
  index_[at].tags[first] = static_cast<uint8_t>(place.tag);
  index_[at].rows[first] = row;
}

void RowStore::Grow() {
  const int64_t whole = int64_t{1} << chunk_bits_;
  const int64_t in_last = room_ & (whole - 1);  // 0: there is none to grow
  // The first chunk doubles from a few rows; a later one begins with a quarter.
  const int64_t least = chunks_.empty() ? kFirstRows : whole / 4;
  const int64_t rows =
      std::min(whole, std::max({2 * in_last, least, int64_t{1}}));
  auto chunk = std::make_unique<float[]>(rows * stride_);
  room_ += rows - in_last;
  if (in_last == 0) {
    chunks_.push_back(std::move(chunk));
    return;
  }
  std::copy_n(chunks_.back().get(), in_last * stride_, chunk.get());
  last_keys_.clear();
  chunks_.back() = std::move(chunk);
}

void RowStore::Rehash(size_t groups) {
  std::vector<Group>(groups).swap(index_);
  for (int64_t row = 0; row < size_; ++row) {
    Insert(static_cast<uint32_t>(row));
  }
}

void RowStore::Clear() {
  size_ = 0;
  room_ = 0;
  chunks_.clear();
  index_.clear();
  last_keys_.clear();
  last_rows_.clear();
}

int64_t RowStore::memory_bytes() const {
  return static_cast<int64_t>(
      room_ * stride_ * static_cast<int64_t>(sizeof(float)) +
      static_cast<int64_t>(chunks_.capacity() * sizeof(chunks_[0]) +
                           index_.capacity() * sizeof(Group) +
                           last_keys_.capacity() * sizeof(uint64_t) +
                           last_rows_.capacity() * sizeof(Row)));
}

}  // namespace weft::ps
