#include "weft/ps/replicated/frame.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"

namespace weft::ps {
namespace {

constexpr size_t kWord = sizeof(uint64_t);

struct Header {
  uint64_t kind = 0;   // with the dtype of the values above it
  uint64_t count = 0;  // of keys

  static constexpr int kDtypeShift = 8;
  Frame::Kind KindOf() const {
    return static_cast<Frame::Kind>(kind & ((1 << kDtypeShift) - 1));
  }
  uint64_t DtypeOf() const { return kind >> kDtypeShift; }
};

Header GradientHeader(WireDtype dtype, size_t keys) {
  return {static_cast<uint64_t>(Frame::Kind::kGradient) |
              static_cast<uint64_t>(dtype) << Header::kDtypeShift,
          keys};
}

template <typename T>
void Add(std::string& to, const T* from, size_t count) {
  to.append(reinterpret_cast<const char*>(from), count * sizeof(T));
}

template <typename T>
T At(const Bytes& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

absl::Status Unfit(const TableLayout& layout, int partition,
                   absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "table '", layout.spec().name(), "' partition ", partition, ": ", why,
      "; client and server must be built from the same sources"));
}

absl::Status CheckKeys(absl::Span<const uint64_t> keys,
                       const TableLayout& layout, const Placement& placement,
                       int partition) {
  uint64_t last = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t key = keys[i];
    const bool is_here = layout.is_dense()
                             ? key < static_cast<uint64_t>(layout.slices()) &&
                                   placement.PartitionOfSlice(
                                       static_cast<int64_t>(key)) == partition
                             : placement.PartitionOfKey(key) == partition;
    if (!is_here) {
      return Unfit(layout, partition,
                   absl::StrCat("key ", key, " does not belong to it"));
    }
    const uint64_t place = layout.is_dense() ? key : Mix64(key);
    if (i > 0 && place <= last) {
      return Unfit(layout, partition,
                   absl::StrCat("keys do not strictly ascend at ", key));
    }
    last = place;
  }
  return absl::OkStatus();
}

absl::Span<const uint64_t> KeysAt(const Bytes& bytes, size_t offset,
                                  uint64_t count) {
  return absl::MakeConstSpan(
      reinterpret_cast<const uint64_t*>(bytes.data() + offset), count);
}

}  // namespace

Durability LevelOf(const v1::TableSpec& spec) {
  switch (spec.durability()) {
    case v1::TableSpec::NONE:
      return Durability::kD0;
    case v1::TableSpec::STABLE:
      return Durability::kD2;
    case v1::TableSpec::LOGGED:
      return Durability::kD3;
    default:
      return Durability::kD1;
  }
}

Bytes Aligned(Bytes bytes) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kWord == 0) return bytes;
  std::vector<uint64_t> words((bytes.size() + kWord - 1) / kWord);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return Bytes::Own(std::move(words)).subspan(0, bytes.size());
}

std::vector<Bytes> AlignedAll(absl::Span<const Bytes> all) {
  const auto is_aligned = [](const Bytes& bytes) {
    return reinterpret_cast<uintptr_t>(bytes.data()) % kWord == 0;
  };
  const auto words_of = [](const Bytes& bytes) {
    return (bytes.size() + kWord - 1) / kWord;
  };
  std::vector<Bytes> out(all.begin(), all.end());
  size_t words = 0;
  for (const Bytes& bytes : all) {
    if (!is_aligned(bytes)) words += words_of(bytes);
  }
  if (words == 0) return out;
  // Not a vector, which would fill it with zeros first.
  const std::shared_ptr<uint64_t[]> copied(new uint64_t[words]);
  size_t at = 0;
  for (const Bytes& bytes : all) {
    if (is_aligned(bytes)) continue;
    std::memcpy(copied.get() + at, bytes.data(), bytes.size());
    at += words_of(bytes);
  }
  const Bytes shared = Bytes::Wrap(copied.get(), words * kWord, copied);
  at = 0;
  for (Bytes& bytes : out) {
    if (is_aligned(bytes)) continue;
    const size_t size = bytes.size();
    bytes = shared.subspan(at * kWord, size);
    at += (size + kWord - 1) / kWord;
  }
  return out;
}

size_t FrameBytes(size_t keys, int64_t value_bytes) {
  return sizeof(Header) + keys * kWord + static_cast<size_t>(value_bytes);
}

size_t FrameWords(size_t keys, int64_t value_bytes) {
  return (FrameBytes(keys, value_bytes) + kWord - 1) / kWord;
}

char* WriteFrame(WireDtype dtype, absl::Span<const uint64_t> keys,
                 uint64_t* to) {
  const Header header = GradientHeader(dtype, keys.size());
  std::memcpy(to, &header, sizeof(header));
  to += sizeof(header) / kWord;
  if (!keys.empty()) std::memcpy(to, keys.data(), keys.size() * kWord);
  return reinterpret_cast<char*>(to + keys.size());
}

Bytes EncodeGradient(WireDtype dtype, absl::Span<const uint64_t> keys,
                     absl::string_view values) {
  const auto value_bytes = static_cast<int64_t>(values.size());
  std::vector<uint64_t> words(FrameWords(keys.size(), value_bytes));
  char* const to = WriteFrame(dtype, keys, words.data());
  if (!values.empty()) std::memcpy(to, values.data(), values.size());
  return Bytes::Own(std::move(words))
      .subspan(0, FrameBytes(keys.size(), value_bytes));
}

Bytes EncodeSeparateRows(Frame::Kind kind, absl::Span<const uint64_t> keys,
                         absl::Span<const absl::Span<const float>> rows) {
  const Header header = {static_cast<uint64_t>(kind), keys.size()};
  size_t floats = 0;
  for (const absl::Span<const float> row : rows) floats += row.size();
  std::string out;
  out.reserve(sizeof(header) + keys.size() * kWord + floats * sizeof(float));
  Add(out, &header, 1);
  Add(out, keys.data(), keys.size());
  for (const absl::Span<const float> row : rows) {
    Add(out, row.data(), row.size());
  }
  return Aligned(Bytes::Own(std::move(out)));
}

Bytes EncodeRows(Frame::Kind kind, absl::Span<const uint64_t> keys,
                 absl::Span<const float> values) {
  return EncodeSeparateRows(kind, keys, absl::MakeConstSpan(&values, 1));
}

Bytes EncodeRate(int64_t round, double scale) {
  const Header header = {static_cast<uint64_t>(Frame::Kind::kRate), 0};
  std::string out;
  Add(out, &header, 1);
  Add(out, &round, 1);
  Add(out, &scale, 1);
  return Aligned(Bytes::Own(std::move(out)));
}

namespace {

// Before the words of a clock, which are its rank, its place, and of kJoin the
// worker, when that has opened the table, and the bytes of its name.
Bytes EncodeClock(Frame::Kind kind, absl::Span<const uint64_t> words,
                  absl::string_view name) {
  const Header header = {static_cast<uint64_t>(kind), 0};
  std::string out;
  Add(out, &header, 1);
  Add(out, words.data(), words.size());
  out.append(name.data(), name.size());
  return Aligned(Bytes::Own(std::move(out)));
}

constexpr size_t kTickWords = 2;
constexpr size_t kJoinWords = 5;

}  // namespace

Bytes EncodeTick(int rank, int64_t clock) {
  return EncodeClock(
      Frame::Kind::kTick,
      {static_cast<uint64_t>(rank), static_cast<uint64_t>(clock)}, "");
}

Bytes EncodeLeave(int rank) {
  return EncodeClock(Frame::Kind::kLeave, {static_cast<uint64_t>(rank), 0}, "");
}

Bytes EncodeJoin(int rank, int64_t clock, WorkerKey worker, uint64_t opened_at,
                 absl::string_view name) {
  return EncodeClock(Frame::Kind::kJoin,
                     {static_cast<uint64_t>(rank), static_cast<uint64_t>(clock),
                      worker.id, worker.epoch, opened_at},
                     name.substr(0, PartitionClocks::kMostName));
}

bool IsOfClock(const Bytes& bytes) {
  if (bytes.size() < sizeof(Header)) return false;
  Frame frame;
  frame.kind = At<Header>(bytes, 0).KindOf();
  return frame.is_of_clock();
}

Bytes EncodeKeys(absl::Span<const uint64_t> keys) {
  std::string out;
  Add(out, keys.data(), keys.size());
  return Aligned(Bytes::Own(std::move(out)));
}

Bytes EncodeSum(const TableLayout& layout, SpanSum sum) {
  const SpanSum sorted = InMessageOrder(layout, std::move(sum));
  return EncodeRows(Frame::Kind::kGradient, sorted.keys, sorted.values);
}

Frame DecodeCheckedFrame(const Bytes& bytes) {
  const auto header = At<Header>(bytes, 0);
  Frame frame;
  frame.kind = header.KindOf();
  frame.dtype = static_cast<WireDtype>(header.DtypeOf());
  if (frame.kind == Frame::Kind::kRate) {
    frame.round = At<int64_t>(bytes, sizeof(Header));
    frame.scale = At<double>(bytes, sizeof(Header) + kWord);
    return frame;
  }
  if (frame.is_of_clock()) {
    const auto word = [&](size_t i) {
      return At<uint64_t>(bytes, sizeof(Header) + i * kWord);
    };
    frame.rank = static_cast<int>(word(0));
    frame.clock = static_cast<int64_t>(word(1));
    if (frame.kind != Frame::Kind::kJoin) return frame;
    frame.worker = {static_cast<uint32_t>(word(2)), word(3)};
    frame.opened_at = word(4);
    frame.name = bytes.view().substr(sizeof(Header) + kJoinWords * kWord);
    return frame;
  }
  frame.keys = KeysAt(bytes, sizeof(Header), header.count);
  const size_t before = sizeof(Header) + frame.keys.size() * kWord;
  frame.values = bytes.view().substr(before);
  return frame;
}

const float* FloatsOf(const Frame& frame, const TableLayout& layout,
                      std::vector<float>& memory) {
  if (frame.dtype == v1::WireValues::F32) {
    return reinterpret_cast<const float*>(frame.values.data());
  }
  int64_t floats = 0;
  for (const uint64_t key : frame.keys) floats += layout.RowLength(key);
  memory.resize(floats);
  ReadWire(layout, frame.dtype, frame.keys, frame.values.data(), memory.data());
  return memory.data();
}

namespace {

// Whether the kind, and the dtype with it, are ones that this table may have.
absl::Status CheckKind(const Header& header, const TableLayout& layout,
                       int partition) {
  const WireDtype push = layout.spec().wire().push();
  switch (header.KindOf()) {
    case Frame::Kind::kGradient:
      if (header.DtypeOf() == v1::WireValues::F32 ||
          header.DtypeOf() == static_cast<uint64_t>(push)) {
        return absl::OkStatus();
      }
      return Unfit(layout, partition,
                   absl::StrCat("wanted a gradient in ", WireName(push),
                                ", found dtype ", header.DtypeOf()));
    case Frame::Kind::kPut:
    case Frame::Kind::kRate:
      if (header.DtypeOf() == v1::WireValues::F32) return absl::OkStatus();
      break;
    case Frame::Kind::kTick:
    case Frame::Kind::kJoin:
    case Frame::Kind::kLeave:
      if (!layout.spec().has_staleness()) {
        return Unfit(layout, partition,
                     "wanted no clock, found one: the table has no staleness");
      }
      if (header.DtypeOf() == 0 && header.count == 0) return absl::OkStatus();
  }
  return Unfit(layout, partition,
               absl::StrCat("change of unknown kind ", header.kind));
}

}  // namespace

namespace {

// REQUIRES: a header of a clock.
absl::StatusOr<Frame> DecodeClock(const Bytes& bytes, const TableLayout& layout,
                                  int partition) {
  const size_t rest = bytes.size() - sizeof(Header);
  const bool is_join = At<Header>(bytes, 0).KindOf() == Frame::Kind::kJoin;
  const size_t words = (is_join ? kJoinWords : kTickWords) * kWord;
  if (rest < words ||
      rest > words + (is_join ? PartitionClocks::kMostName : 0)) {
    return Unfit(layout, partition,
                 absl::StrCat("wanted a clock of ", words, " bytes",
                              is_join ? " and a name" : "", ", found ", rest));
  }
  constexpr uint64_t kMostRank = std::numeric_limits<int>::max();
  const auto rank = At<uint64_t>(bytes, sizeof(Header));
  const auto clock = At<uint64_t>(bytes, sizeof(Header) + kWord);
  if (rank > kMostRank ||
      clock > static_cast<uint64_t>(ClockGate::kMostClock)) {
    return Unfit(layout, partition,
                 absl::StrCat("clock ", clock, " of rank ", rank,
                              ": wanted clocks of 0 to ", ClockGate::kMostClock,
                              " and ranks of 0 to ", kMostRank));
  }
  return DecodeCheckedFrame(bytes);
}

}  // namespace

absl::StatusOr<Frame> DecodeFrame(const Bytes& bytes, const TableLayout& layout,
                                  const Placement& placement, int partition) {
  if (bytes.size() < sizeof(Header)) {
    return Unfit(layout, partition, "a change was cut short");
  }
  const auto header = At<Header>(bytes, 0);
  const size_t rest = bytes.size() - sizeof(Header);
  WEFT_RETURN_IF_ERROR(CheckKind(header, layout, partition));
  if (header.KindOf() == Frame::Kind::kRate) {
    if (rest == 2 * kWord) return DecodeCheckedFrame(bytes);
    return Unfit(layout, partition, "a learning rate was cut short");
  }
  if (IsOfClock(bytes)) return DecodeClock(bytes, layout, partition);
  if (header.count > rest / kWord) {
    return Unfit(
        layout, partition,
        absl::StrCat(header.count, " keys were announced in ", rest, " bytes"));
  }
  WEFT_RETURN_IF_ERROR(CheckKeys(KeysAt(bytes, sizeof(Header), header.count),
                                 layout, placement, partition));
  const Frame frame = DecodeCheckedFrame(bytes);
  const int64_t wanted = WireBytes(layout, frame.dtype, frame.keys);
  if (static_cast<int64_t>(frame.values.size()) != wanted) {
    return Unfit(layout, partition,
                 absl::StrCat("wanted ", wanted, " bytes of ",
                              WireName(frame.dtype), " for ", frame.keys.size(),
                              " rows, found ", frame.values.size()));
  }
  const std::string fault =
      FaultOfPushed(layout, frame.dtype, frame.keys, frame.values.data());
  if (!fault.empty()) return Unfit(layout, partition, fault);
  return frame;
}

absl::StatusOr<absl::Span<const uint64_t>> DecodeKeys(
    const Bytes& bytes, const TableLayout& layout, const Placement& placement,
    int partition) {
  if (bytes.size() % kWord != 0) {
    return Unfit(layout, partition, "the keys of a pull were cut short");
  }
  const auto keys = KeysAt(bytes, 0, bytes.size() / kWord);
  WEFT_RETURN_IF_ERROR(CheckKeys(keys, layout, placement, partition));
  return keys;
}

namespace {

void AddClocks(const PartitionClocks::State& clocks, v1::PartitionCopy& copy) {
  copy.set_clock_floor(clocks.floor);
  for (const PartitionClocks::State::OfRank& from : clocks.ranks) {
    v1::PartitionCopy::Clock& to = *copy.add_clocks();
    const ClockGate::Holder& holder = from.clock.holder;
    to.set_rank(from.rank);
    to.mutable_worker()->set_id(holder.worker.id);
    to.mutable_worker()->set_epoch(holder.worker.epoch);
    to.set_client(holder.client);
    to.set_name(holder.name);
    to.set_at(from.clock.at);
    for (const PartitionClocks::Waiting& waiting : from.waiting) {
      auto* const its = to.add_waiting();
      its->set_n(waiting.n);
      its->set_clock(waiting.clock);
      its->set_leaves(waiting.leaves);
    }
  }
}

PartitionClocks::State ClocksOf(const v1::PartitionCopy& copy) {
  PartitionClocks::State clocks;
  clocks.floor = copy.clock_floor();
  for (const v1::PartitionCopy::Clock& from : copy.clocks()) {
    PartitionClocks::State::OfRank& to = clocks.ranks.emplace_back();
    to.rank = from.rank();
    to.clock.holder = {{from.worker().id(), from.worker().epoch()},
                       from.client(),
                       from.name()};
    to.clock.at = from.at();
    for (const auto& its : from.waiting()) {
      to.waiting.push_back({its.n(), to.rank, its.clock(), its.leaves()});
    }
  }
  return clocks;
}

// `clocks`: null in all but the first of a copy's pieces.
Bytes EncodeRange(const PartitionImage& image, const RateChanges& rates,
                  const PartitionClocks::State* clocks, size_t row,
                  size_t row_end, size_t at, size_t end) {
  v1::PartitionCopy copy;
  if (clocks != nullptr) AddClocks(*clocks, copy);
  const auto add = [](const auto& from, size_t begin, size_t before, auto* to) {
    to->Add(from.data() + begin, from.data() + before);
  };
  add(image.keys, row, row_end, copy.mutable_keys());
  add(image.steps, row, row_end, copy.mutable_steps());
  add(image.weights, at, end, copy.mutable_weights());
  for (const std::vector<float>& slot : image.slots) {
    // One value for a row: where both are of one length, so are the ranges.
    const bool is_per_row = slot.size() == image.keys.size();
    add(slot, is_per_row ? row : at, is_per_row ? row_end : end,
        copy.add_slots()->mutable_values());
  }
  copy.set_rates(rates.Format());
  if (!image.touched.empty()) {
    add(image.touched, row, row_end, copy.mutable_touched());
  }
  if (row == 0) copy.set_life(image.life);
  return Bytes::Own(copy.SerializeAsString());
}

}  // namespace

Bytes EncodeCopy(const PartitionImage& image, const RateChanges& rates,
                 const PartitionClocks::State& clocks) {
  return EncodeRange(image, rates, &clocks, 0, image.keys.size(), 0,
                     image.weights.size());
}

CopyInPieces::CopyInPieces(const TableLayout& layout, PartitionImage image,
                           RateChanges rates, int64_t most_bytes,
                           PartitionClocks::State clocks)
    : image_(std::move(image)),
      rates_(std::move(rates)),
      clocks_(std::move(clocks)) {
  const int64_t words = image_.touched.empty() ? 2 : 3;
  End end;
  int64_t bytes = 0;
  for (uint64_t key : image_.keys) {
    const int64_t length = layout.RowLength(key);
    int64_t floats = length;
    for (int s = 0; s < layout.slots(); ++s) {
      floats += layout.SlotLength(s, length);
    }
    const int64_t of_row = words * static_cast<int64_t>(kWord) +
                           floats * static_cast<int64_t>(sizeof(float));
    if (bytes > 0 && bytes + of_row > most_bytes) {
      ends_.push_back(end);
      bytes = 0;
    }
    bytes += of_row;
    bytes_ += of_row;
    ++end.rows;
    end.floats += static_cast<size_t>(length);
  }
  ends_.push_back(end);
}

Bytes CopyInPieces::Encode(uint32_t piece) const {
  const End begin = piece == 0 ? End() : ends_[piece - 1];
  const End& end = ends_[piece];
  return EncodeRange(image_, rates_, piece == 0 ? &clocks_ : nullptr,
                     begin.rows, end.rows, begin.floats, end.floats);
}

absl::StatusOr<PartitionCopy> DecodeCopy(const Bytes& bytes,
                                         const TableLayout& layout,
                                         const Placement& placement,
                                         int partition) {
  v1::PartitionCopy copy;
  if (!copy.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Unfit(layout, partition, "a copy of its rows cannot be read");
  }
  PartitionCopy out;
  out.image.keys.assign(copy.keys().begin(), copy.keys().end());
  out.image.steps.assign(copy.steps().begin(), copy.steps().end());
  out.image.weights.assign(copy.weights().begin(), copy.weights().end());
  for (const auto& slot : copy.slots()) {
    out.image.slots.emplace_back(slot.values().begin(), slot.values().end());
  }
  out.image.touched.assign(copy.touched().begin(), copy.touched().end());
  out.image.life = std::move(*copy.mutable_life());
  WEFT_RETURN_IF_ERROR(CheckImage(layout, placement, partition, out.image));
  WEFT_ASSIGN_OR_RETURN(out.rates, RateChanges::Parse(copy.rates()));
  out.clocks = ClocksOf(copy);
  const std::string fault = PartitionClocks::FaultOf(out.clocks);
  if (!fault.empty()) return Unfit(layout, partition, fault);
  return out;
}

}  // namespace weft::ps
