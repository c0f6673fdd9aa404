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
// Keys whose memory is fetched before the first of them is compared. So the
// core has as many misses of the second-level cache under way as it can.
constexpr size_t kAhead = 128;
constexpr int64_t kFloat = sizeof(float);

int HeaderOf(int64_t floats, bool keeps_use) {
  if (keeps_use) return floats < kShortRow ? 6 : 8;
  return floats < kShortRow ? 3 : 4;
}

size_t GroupsAfter(size_t groups) { return groups + groups / 2 + 1; }

}  // namespace

RowStore::RowStore(int64_t floats, int placed_bits, bool keeps_use)
    : placed_bits_(placed_bits),
      keeps_use_(keeps_use),
      header_(HeaderOf(floats, keeps_use)),
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
  if (keeps_use_) AddNewest(number);
  if (size_ > static_cast<int64_t>(index_.size()) * kMostInGroup) {
    Rehash(GroupsAfter(index_.size()));
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

bool RowStore::Locate(uint64_t wanted, Spot& spot) const {
  if (index_.empty()) return false;
  const Place place = PlaceOf(wanted);
  spot.group = place.group;
  for (size_t tried = 0; tried < index_.size(); ++tried) {
    const Group& group = index_[spot.group];
    for (uint32_t matches = Matches(group, place.tag); matches != 0;
         matches &= matches - 1) {
      spot.place = absl::countr_zero(matches);
      if (key(At(group.rows[spot.place])) == wanted) return true;
    }
    if (Matches(group, 0) != 0) return false;
    spot.group = GroupAfter(spot.group);
  }
  return false;
}

int64_t RowStore::NumberOf(Row row) const {
  Spot spot;
  WEFT_CHECK(Locate(key(row), spot));
  return index_[spot.group].rows[spot.place];
}

bool RowStore::Remove(uint64_t key) {
  Spot spot;
  if (!Locate(key, spot)) return false;
  if (size_ == 1) {  // a free place of the index names the first row
    Clear();
    return true;
  }
  last_keys_.clear();
  const uint32_t number = index_[spot.group].rows[spot.place];
  if (keeps_use_) Join(Word(At(number), kOlder), Word(At(number), kNewer));
  Free(spot);
  MoveLastTo(number);
  --size_;
  std::fill_n(At(size_).block, stride_, 0.0f);
  GiveBack();
  return true;
}

// A row is found if all groups from the one where it is looked for first, to
// the one before its own, are full. So where a full group gets a free place,
// one that lies further on and had passed that group by moves there, and so on.
void RowStore::Free(Spot spot) {
  const auto groups = static_cast<uint32_t>(index_.size());
  const auto distance = [groups](uint32_t from, uint32_t to) {
    return to >= from ? to - from : to + groups - from;
  };
  for (bool goes_on = true; goes_on;) {
    Group& group = index_[spot.group];
    const bool was_full = Matches(group, 0) == 0;
    group.tags[spot.place] = 0;
    group.rows[spot.place] = 0;
    goes_on = false;
    uint32_t at = spot.group;
    while (was_full && !goes_on) {
      at = GroupAfter(at);
      Group& later = index_[at];
      for (int i = 0; i < kPlaces && !goes_on; ++i) {
        if (later.tags[i] == 0) continue;
        const uint32_t first = PlaceOf(key(At(later.rows[i]))).group;
        if (distance(first, at) < distance(spot.group, at)) continue;
        group.tags[spot.place] = later.tags[i];
        group.rows[spot.place] = later.rows[i];
        spot = {at, i};
        goes_on = true;
      }
      if (Matches(later, 0) != 0) break;  // nothing has passed it by
    }
  }
}

void RowStore::MoveLastTo(uint32_t number) {
  const uint32_t last = static_cast<uint32_t>(size_ - 1);
  if (number == last) return;
  const Row from = At(last);
  Spot spot;
  WEFT_CHECK(Locate(key(from), spot));
  index_[spot.group].rows[spot.place] = number;
  std::copy_n(from.block, stride_, At(number).block);
  if (!keeps_use_) return;
  const uint32_t older = Word(from, kOlder);
  const uint32_t newer = Word(from, kNewer);
  Join(older, number);
  Join(number, newer);
}

void RowStore::GiveBack() {
  const int64_t whole = int64_t{1} << chunk_bits_;
  while (chunks_.size() > 1) {
    const int64_t before = static_cast<int64_t>(chunks_.size() - 1) * whole;
    if (size_ + whole / 2 > before) break;
    chunks_.pop_back();
    room_ = before;
  }
  const auto groups = static_cast<int64_t>(index_.size());
  if (groups > 4 && size_ * 4 < groups * kMostInGroup) {
    Rehash(static_cast<size_t>(size_ / (kMostInGroup * 2 / 3) + 1));
  }
}

void RowStore::Join(uint32_t older, uint32_t newer) {
  if (older == kNone) {
    oldest_ = newer;
  } else {
    SetWord(At(older), kNewer, newer);
  }
  if (newer == kNone) {
    newest_ = older;
  } else {
    SetWord(At(newer), kOlder, older);
  }
}

void RowStore::AddNewest(uint32_t number) {
  Join(newest_, number);
  Join(number, kNone);
}

void RowStore::Touch(Row row, int64_t now) {
  SetBase(now);
  SetWord(row, kTouched, static_cast<uint32_t>(now - base_));
  const uint32_t older = Word(row, kOlder);
  const uint32_t newer = Word(row, kNewer);
  if (newer == kNone) return;
  // Its number is what its neighbour says.
  const uint32_t number = Word(At(newer), kOlder);
  Join(older, newer);
  AddNewest(number);
}

// A time from 2^31 to 2^32 before `now`, in steps of 2^31: it is a function of
// the time alone, so that rows tell the same wherever they were copied to.
int64_t RowStore::BaseOf(int64_t now) {
  return std::max<int64_t>(0, now / kExactAge - 1) * kExactAge;
}

void RowStore::SetBase(int64_t now) {
  const int64_t base = BaseOf(now);
  if (base == base_) return;
  for (int64_t i = 0; i < size_; ++i) {
    const int64_t was = touched(At(i));
    SetWord(At(i), kTouched,
            static_cast<uint32_t>(std::max<int64_t>(was - base, 0)));
  }
  base_ = base;
  SortByUse();
}

void RowStore::SetTouched(Row row, int64_t touched, int64_t now) {
  SetBase(now);
  SetWord(row, kTouched,
          static_cast<uint32_t>(std::max<int64_t>(touched - base_, 0)));
}

void RowStore::SortByUse() {
  struct Used {
    uint32_t touched;
    uint32_t number;
    uint64_t mixed;
  };
  std::vector<Used> order;
  order.reserve(size_);
  for (int64_t i = 0; i < size_; ++i) {
    const Row row = At(i);
    order.push_back(
        {Word(row, kTouched), static_cast<uint32_t>(i), Mix64(key(row))});
  }
  std::sort(order.begin(), order.end(), [](const Used& a, const Used& b) {
    return a.touched != b.touched ? a.touched < b.touched : a.mixed < b.mixed;
  });
  oldest_ = newest_ = kNone;
  for (const Used& used : order) AddNewest(used.number);
}

int64_t RowStore::RowsAfter(int64_t room) const {
  const int64_t whole = int64_t{1} << chunk_bits_;
  const int64_t in_last = room & (whole - 1);  // 0: there is none to grow
  // The first chunk doubles from a few rows; a later one begins with a quarter.
  const int64_t least = room == 0 ? kFirstRows : whole / 4;
  return std::min(whole, std::max({2 * in_last, least, int64_t{1}}));
}

void RowStore::Grow() {
  const int64_t in_last = room_ & chunk_mask_;
  const int64_t rows = RowsAfter(room_);
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
  oldest_ = newest_ = kNone;
  base_ = 0;
}

int64_t RowStore::memory_bytes() const {
  return static_cast<int64_t>(
      room_ * stride_ * static_cast<int64_t>(sizeof(float)) +
      static_cast<int64_t>(chunks_.capacity() * sizeof(chunks_[0]) +
                           index_.capacity() * sizeof(Group) +
                           last_keys_.capacity() * sizeof(uint64_t) +
                           last_rows_.capacity() * sizeof(Row)));
}

int64_t RowStore::GrowthOf(int64_t rows) const {
  int64_t room = room_;
  while (room < size_ + rows) {
    room += RowsAfter(room) - (room & chunk_mask_);
  }
  size_t groups = index_.size();
  while (size_ + rows > static_cast<int64_t>(groups) * kMostInGroup) {
    groups = GroupsAfter(groups);
  }
  return (room - room_) * stride_ * kFloat +
         static_cast<int64_t>((groups - index_.size()) * sizeof(Group));
}

int64_t RowStore::BytesOfRow(int64_t floats, bool keeps_use) {
  // The index has six rows to a group after it has grown.
  return (HeaderOf(floats, keeps_use) + floats) * kFloat +
         (static_cast<int64_t>(sizeof(Group)) + 5) / 6;
}

}  // namespace weft::ps
