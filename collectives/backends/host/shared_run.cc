#include "weft/collectives/backends/host/shared_run.h"

#include <algorithm>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/algorithms/blocks.h"
#include "weft/collectives/diagnosis.h"

namespace weft::collectives {
namespace {

// Up to this many bytes travel in the first phase.
constexpr int64_t kSmallBytes = 8 * 1024;

// Elements [begin, begin + count) of `block`, as far as it has them, from or to
// `piece`.
void CopyOut(const Block& block, int64_t item, int64_t begin, int64_t count,
             std::byte* piece) {
  const int64_t n = std::min(count, block.elements - begin);
  if (n > 0) memcpy(piece, block.memory + begin * item, n * item);
}
void CopyIn(const Block& block, int64_t item, int64_t begin, int64_t count,
            const std::byte* piece) {
  const int64_t n = std::min(count, block.elements - begin);
  if (n > 0) memcpy(block.memory + begin * item, piece, n * item);
}

int64_t MostElements(const Blocks& blocks) {
  int64_t most = 0;
  for (const Block& block : blocks) most = std::max(most, block.elements);
  return most;
}

// Whether the blocks follow each other in memory.
bool AreAdjacent(const Blocks& blocks, int64_t item) {
  for (size_t i = 1; i < blocks.size(); ++i) {
    if (blocks[i].memory !=
        blocks[i - 1].memory + blocks[i - 1].elements * item) {
      return false;
    }
  }
  return true;
}

int64_t TotalElements(const Blocks& blocks) {
  int64_t total = 0;
  for (const Block& block : blocks) total += block.elements;
  return total;
}

void NoStage(std::byte*) {}

bool HasFactors(Verb verb) {
  return verb == Verb::kAllReduce || verb == Verb::kReduce ||
         verb == Verb::kReduceScatter;
}

// Whether the others can reach what an all-reduce reads and writes: in an
// arena, or in the rank's own memory.
bool IsReached(const OperationRecord::Places& places) {
  return (places.input != 0 && places.output != 0) ||
         (places.input_address != 0 && places.output_address != 0);
}

}  // namespace

SharedRun::SliceCut::SliceCut(int64_t elements, DType dtype, int ranks)
    : elements_(elements),
      dtype_(dtype),
      ranks_(ranks),
      room_(Slot::kBytes / std::max(ranks - 1, 1) / 64 * 64),
      piece_(room_ / ItemSize(dtype) * ranks) {}

Range SharedRun::SliceCut::SliceOf(int64_t piece, int rank) const {
  const int64_t begin = piece * piece_;
  const Range slice =
      PartOf(std::min(piece_, elements_ - begin), dtype_, ranks_, rank);
  return {begin + slice.begin, slice.count};
}

absl::StatusOr<Slot*> SharedRun::BeginPhase() {
  WEFT_RETURN_IF_ERROR(phases_.Await(phases_.next() - 1, check_));
  return &SlotNow(rank(), phases_.next());
}

absl::Status SharedRun::EndPhase() {
  phases_.Arrive();
  return phases_.Await(phases_.next() - 1, check_);
}

absl::Status SharedRun::Meet() {
  WEFT_RETURN_IF_ERROR(BeginPhase().status());
  return EndPhase();
}

OperationRecord::Places SharedRun::OwnPlaces() const {
  OperationRecord::Places places;
  const Blocks& in = operation_.inputs;
  const Blocks& out = operation_.outputs;
  if (!in.empty() && AreAdjacent(in, item_)) {
    places.input = segment_.PlaceOf(in[0].memory, TotalElements(in) * item_);
  }
  if (out.size() == 1) {
    places.output = segment_.PlaceOf(out[0].memory, out[0].elements * item_);
  }
  if (!reading_.peers.reads_all()) return places;
  const auto is_read = [&](const Blocks& blocks) {
    return TotalElements(blocks) * item_ >= reading_.least_bytes;
  };
  if (!in.empty() && AreAdjacent(in, item_) && is_read(in)) {
    places.input_address = reinterpret_cast<uint64_t>(in[0].memory);
  }
  if (out.size() == 1 && is_read(out)) {
    places.output_address = reinterpret_cast<uint64_t>(out[0].memory);
  }
  return places;
}

absl::Status SharedRun::Announce(
    absl::FunctionRef<void(std::byte* staged)> stage) {
  WEFT_ASSIGN_OR_RETURN(Slot * slot, BeginPhase());
  const uint64_t phase = phases_.next();
  const uint64_t fingerprint = Fingerprint(operation_);
  slot->record.Write(operation_, fingerprint, OwnPlaces());
  FingerprintOf(rank(), phase).store(fingerprint, std::memory_order_relaxed);
  stage(slot->staged);
  WEFT_RETURN_IF_ERROR(EndPhase());
  return CompareRecords(phase);
}

bool SharedRun::AreFingerprintsEqual(uint64_t phase) const {
  const auto of = [&](int r) {
    return FingerprintOf(r, phase).load(std::memory_order_relaxed);
  };
  const uint64_t own = of(rank());
  for (int r = 0; r < size(); ++r) {
    if (of(r) != own) return false;
  }
  return own != 0;
}

// All ranks compare the same records, so all find the same.
absl::Status SharedRun::CompareRecords(uint64_t phase) {
  if (AreFingerprintsEqual(phase)) {
    for (int r = 0; HasFactors(operation_.verb) && r < size(); ++r) {
      factors_.push_back(SlotNow(r, phase).record.factor());
    }
    return absl::OkStatus();
  }
  const OperationRecord& first = SlotNow(0, phase).record;
  for (int r = 0; r < size(); ++r) {
    const Slot& slot = SlotNow(r, phase);
    if (!slot.record.is_refusal()) continue;
    const uint32_t bytes =
        std::min<uint32_t>(slot.refusal_bytes, sizeof slot.refusal);
    return Refused(segment_.NumberOf(r),
                   absl::string_view(slot.refusal, bytes));
  }
  int different = 0;
  for (int r = 0; r < size() && different == 0; ++r) {
    const OperationRecord& record = SlotNow(r, phase).record;
    if (record.fingerprint() != first.fingerprint()) different = r;
  }
  return Mismatch(segment_.NumberOf(0), first.ToString(),
                  segment_.NumberOf(different),
                  SlotNow(different, phase).record.ToString());
}

absl::Status SharedRun::Refuse(const absl::Status& why) {
  WEFT_ASSIGN_OR_RETURN(Slot * slot, BeginPhase());
  const std::string text =
      absl::StrCat(Describe(operation_), ": ", why.message());
  slot->record.WriteRefusal(operation_, text);
  FingerprintOf(rank(), phases_.next()).store(0, std::memory_order_relaxed);
  slot->refusal_bytes =
      static_cast<uint32_t>(std::min(text.size(), sizeof slot->refusal));
  memcpy(slot->refusal, text.data(), slot->refusal_bytes);
  phases_.Arrive();
  return absl::OkStatus();
}

std::vector<std::byte*> SharedRun::InArenas(
    uint64_t OperationRecord::Places::*which, int64_t bytes,
    uint64_t phase) const {
  std::vector<std::byte*> found;
  for (int r = 0; r < size(); ++r) {
    std::byte* memory =
        segment_.Find(r, SlotNow(r, phase).record.places().*which, bytes);
    if (memory == nullptr) return {};
    found.push_back(memory);
  }
  return found;
}

std::vector<uint64_t> SharedRun::InPeers(
    uint64_t OperationRecord::Places::*which, uint64_t phase) const {
  std::vector<uint64_t> found;
  for (int r = 0; r < size(); ++r) {
    const uint64_t address = SlotNow(r, phase).record.places().*which;
    if (address == 0) return {};
    found.push_back(address);
  }
  return found;
}

absl::Status SharedRun::ReadFrom(int rank, uint64_t address, int64_t bytes,
                                 std::byte* to) {
  const absl::Status read = reading_.peers.Read(rank, address, bytes, to);
  if (read.ok()) return read;
  // Rather what is known of that rank: it has ended, another has failed.
  WEFT_RETURN_IF_ERROR(check_({rank}));
  return absl::UnavailableError(
      absl::StrCat("rank ", segment_.NumberOf(rank), ": ", read.message()));
}

// What is read goes through this rank's slots, in pieces that stay in its
// core's cache: nobody looks into them between the phases of this operation.
absl::Status SharedRun::ReduceFromPeers(const std::vector<uint64_t>& inputs,
                                        const std::byte* own, int64_t count,
                                        std::byte* output) {
  const int64_t room = Slot::kBytes / std::max(size() / 2, 1) / 64 * 64;
  const int64_t piece = room / item_;
  for (int64_t begin = 0; begin < count; begin += piece) {
    const int64_t n = std::min(piece, count - begin);
    Pieces pieces;
    int read = 0;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) {
        pieces.push_back(own + begin * item_);
        continue;
      }
      std::byte* const to = SlotNow(rank(), read % 2).staged + read / 2 * room;
      ++read;
      WEFT_RETURN_IF_ERROR(
          ReadFrom(r, inputs[r] + begin * item_, n * item_, to));
      pieces.push_back(to);
    }
    ReducePieces(pieces, n, output + begin * item_);
  }
  return absl::OkStatus();
}

// Each reduces its slice into its own output; once all have, and no input is
// needed any more, each takes the other slices from the outputs of their ranks.
absl::Status SharedRun::AllReduceFromPeers(
    const std::vector<uint64_t>& inputs, const std::vector<uint64_t>& outputs) {
  const Block& in = operation_.inputs[0];
  const Block& out = operation_.outputs[0];
  const auto slice = [&](int r) {
    return PartOf(in.elements, operation_.dtype, size(), r);
  };
  const Range own = slice(rank());
  const int64_t offset = own.begin * item_;
  std::vector<uint64_t> places;
  for (const uint64_t input : inputs) places.push_back(input + offset);
  WEFT_RETURN_IF_ERROR(ReduceFromPeers(places, in.memory + offset, own.count,
                                       out.memory + offset));
  WEFT_RETURN_IF_ERROR(Meet());
  for (int i = 1; i < size(); ++i) {
    const int r = (rank() + i) % size();  // not all from the same one at once
    const int64_t from = slice(r).begin * item_;
    WEFT_RETURN_IF_ERROR(ReadFrom(r, outputs[r] + from, slice(r).count * item_,
                                  out.memory + from));
  }
  return Meet();
}

absl::Status SharedRun::Run() {
  switch (operation_.verb) {
    case Verb::kAllReduce:
      return AllReduce();
    case Verb::kBroadcast:
      return Broadcast();
    case Verb::kReduce:
      return Reduce();
    case Verb::kAllGather:
      return AllGather();
    case Verb::kReduceScatter:
      return ReduceScatter();
    case Verb::kGather:
    case Verb::kScatter:
    case Verb::kAllToAll:
      return Exchange();
    case Verb::kBarrier:
      return Announce(NoStage);
    case Verb::kSend:
    case Verb::kReceive:
    case Verb::kSplit:
    case Verb::kSubgroup:
      break;
  }
  return absl::InternalError("no collective operation");
}

absl::Status SharedRun::Spread(const Block& own, int64_t most,
                               Consume consume) {
  const int64_t piece = Slot::kBytes / item_;
  Pieces pieces(size());
  const auto take = [&](int64_t begin, int64_t count, uint64_t phase) {
    for (int r = 0; r < size(); ++r) pieces[r] = SlotNow(r, phase).staged;
    consume(pieces, begin, count);
  };
  if (most * item_ <= kSmallBytes) {
    const uint64_t phase = phases_.next();
    WEFT_RETURN_IF_ERROR(Announce(
        [&](std::byte* staged) { CopyOut(own, item_, 0, most, staged); }));
    take(0, most, phase);
    return absl::OkStatus();
  }
  for (int64_t begin = 0; begin < most; begin += piece) {
    const int64_t count = std::min(piece, most - begin);
    WEFT_ASSIGN_OR_RETURN(Slot * slot, BeginPhase());
    const uint64_t phase = phases_.next();
    CopyOut(own, item_, begin, count, slot->staged);
    WEFT_RETURN_IF_ERROR(EndPhase());
    take(begin, count, phase);
  }
  return absl::OkStatus();
}

void SharedRun::ReducePieces(const Pieces& pieces, int64_t count,
                             std::byte* output) {
  absl::InlinedVector<Contribution, 8> contributions;
  for (int r = 0; r < size(); ++r) {
    contributions.push_back({pieces[r], factors_[r]});
  }
  ReduceContributions(operation_.dtype, operation_.reduction.op, contributions,
                      {&output, 1}, count);
}

absl::Status SharedRun::AllReduceInArenas(
    const std::vector<std::byte*>& inputs,
    const std::vector<std::byte*>& outputs) {
  const Range part =
      PartOf(operation_.inputs[0].elements, operation_.dtype, size(), rank());
  const int64_t offset = part.begin * item_;
  absl::InlinedVector<Contribution, 8> contributions;
  absl::InlinedVector<std::byte*, 8> targets;
  for (int r = 0; r < size(); ++r) {
    contributions.push_back({inputs[r] + offset, factors_[r]});
    targets.push_back(outputs[r] + offset);
  }
  ReduceContributions(operation_.dtype, operation_.reduction.op, contributions,
                      targets, part.count);
  return Meet();
}

void SharedRun::StagePiece(const SliceCut& cut, int64_t piece,
                           std::byte* staged) const {
  const Block& in = operation_.inputs[0];
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const Range slice = cut.SliceOf(piece, r);
    CopyOut(in, item_, slice.begin, slice.count,
            staged + cut.PlaceOf(rank(), r));
  }
}

// Written to where the others staged it: a line of a slot goes to the core of
// the rank that reduces it and back, once each, and so is in the cache of its
// own rank, and writable, when that stages the next piece.
void SharedRun::ReduceSlice(const SliceCut& cut, int64_t piece,
                            uint64_t phase) {
  const Range slice = cut.SliceOf(piece, rank());
  const int64_t offset = slice.begin * item_;
  absl::InlinedVector<Contribution, 8> contributions;
  absl::InlinedVector<std::byte*, 8> outputs = {operation_.outputs[0].memory +
                                                offset};
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) {
      contributions.push_back(
          {operation_.inputs[0].memory + offset, factors_[r]});
      continue;
    }
    std::byte* const staged = SlotNow(r, phase).staged + cut.PlaceOf(r, rank());
    contributions.push_back({staged, factors_[r]});
    outputs.push_back(staged);
  }
  ReduceContributions(operation_.dtype, operation_.reduction.op, contributions,
                      outputs, slice.count);
}

void SharedRun::TakeSlices(const SliceCut& cut, int64_t piece,
                           uint64_t phase) const {
  const Block& out = operation_.outputs[0];
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const Range slice = cut.SliceOf(piece, r);
    CopyIn(out, item_, slice.begin, slice.count,
           SlotNow(rank(), phase).staged + cut.PlaceOf(rank(), r));
  }
}

// Each rank stages a piece but for its own slice; once all have, each reduces
// its slice in their slots; once all have, which they say with the next piece,
// each takes its slot's slices. That slot is written again in the phase after,
// when nobody but its rank has to do with it.
absl::Status SharedRun::AllReduceThroughSlots(const SliceCut& cut,
                                              bool is_staged) {
  if (!is_staged) {
    WEFT_ASSIGN_OR_RETURN(Slot * slot, BeginPhase());
    StagePiece(cut, 0, slot->staged);
    WEFT_RETURN_IF_ERROR(EndPhase());
  }
  for (int64_t piece = 0; piece < cut.pieces(); ++piece) {
    const uint64_t phase = phases_.next() - 1;
    ReduceSlice(cut, piece, phase);
    WEFT_ASSIGN_OR_RETURN(Slot * slot, BeginPhase());
    if (piece + 1 < cut.pieces()) StagePiece(cut, piece + 1, slot->staged);
    WEFT_RETURN_IF_ERROR(EndPhase());
    TakeSlices(cut, piece, phase);
  }
  return absl::OkStatus();
}

absl::Status SharedRun::AllReduce() {
  const Block& in = operation_.inputs[0];
  const Block& out = operation_.outputs[0];
  const int64_t bytes = in.elements * item_;
  if (bytes <= kSmallBytes) {
    return Spread(in, in.elements,
                  [&](const Pieces& pieces, int64_t begin, int64_t count) {
                    ReducePieces(pieces, count, out.memory + begin * item_);
                  });
  }
  // A rank whose memory no other reaches stages its first piece at once.
  const SliceCut cut(in.elements, operation_.dtype, size());
  const bool stages = !IsReached(OwnPlaces());
  const uint64_t phase = phases_.next();
  WEFT_RETURN_IF_ERROR(Announce([&](std::byte* staged) {
    if (stages) StagePiece(cut, 0, staged);
  }));
  const auto inputs = InArenas(&OperationRecord::Places::input, bytes, phase);
  const auto outputs = InArenas(&OperationRecord::Places::output, bytes, phase);
  if (!inputs.empty() && !outputs.empty()) {
    return AllReduceInArenas(inputs, outputs);
  }
  const auto read_inputs =
      InPeers(&OperationRecord::Places::input_address, phase);
  const auto read_outputs =
      InPeers(&OperationRecord::Places::output_address, phase);
  if (!read_inputs.empty() && !read_outputs.empty()) {
    return AllReduceFromPeers(read_inputs, read_outputs);
  }
  bool have_all_staged = true;
  for (int r = 0; r < size(); ++r) {
    const auto places = SlotNow(r, phase).record.places();
    have_all_staged = have_all_staged && !IsReached(places);
  }
  return AllReduceThroughSlots(cut, have_all_staged);
}

absl::Status SharedRun::Broadcast() {
  const Block& out = operation_.outputs[0];
  const bool is_root = rank() == operation_.root;
  const Block own = is_root ? out : Block();
  const int64_t bytes = out.elements * item_;
  const auto copy = [&](const Pieces& pieces, int64_t begin, int64_t count) {
    if (is_root) return;
    CopyIn(out, item_, begin, count, pieces[operation_.root]);
  };
  if (bytes <= kSmallBytes) return Spread(own, out.elements, copy);
  const uint64_t phase = phases_.next();
  WEFT_RETURN_IF_ERROR(Announce(NoStage));
  const std::byte* from = segment_.Find(
      operation_.root, SlotNow(operation_.root, phase).record.places().output,
      bytes);
  if (from != nullptr) {
    if (!is_root) CopyIn(out, item_, 0, out.elements, from);
    return Meet();
  }
  const auto places = InPeers(&OperationRecord::Places::output_address, phase);
  if (places.empty()) return Spread(own, out.elements, copy);
  if (!is_root) {
    WEFT_RETURN_IF_ERROR(
        ReadFrom(operation_.root, places[operation_.root], bytes, out.memory));
  }
  return Meet();
}

absl::Status SharedRun::Reduce() {
  const Block& in = operation_.inputs[0];
  const int64_t bytes = in.elements * item_;
  if (bytes > kSmallBytes) {
    const uint64_t phase = phases_.next();
    WEFT_RETURN_IF_ERROR(Announce(NoStage));
    const auto inputs = InPeers(&OperationRecord::Places::input_address, phase);
    if (!inputs.empty()) {
      if (rank() == operation_.root) {
        WEFT_RETURN_IF_ERROR(ReduceFromPeers(inputs, in.memory, in.elements,
                                             operation_.outputs[0].memory));
      }
      return Meet();
    }
  }
  return Spread(in, in.elements,
                [&](const Pieces& pieces, int64_t begin, int64_t count) {
                  if (rank() != operation_.root) return;
                  ReducePieces(pieces, count,
                               operation_.outputs[0].memory + begin * item_);
                });
}

absl::Status SharedRun::AllGather() {
  const Block& in = operation_.inputs[0];
  const Blocks& out = operation_.outputs;
  const int64_t most = MostElements(out);
  const auto copy = [&](const Pieces& pieces, int64_t begin, int64_t count) {
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) CopyIn(out[r], item_, begin, count, pieces[r]);
    }
  };
  CopyBlock(operation_, in, out[rank()]);
  if (most * item_ > kSmallBytes) {
    const uint64_t phase = phases_.next();
    WEFT_RETURN_IF_ERROR(Announce(NoStage));
    const auto inputs = InPeers(&OperationRecord::Places::input_address, phase);
    if (!inputs.empty()) {
      for (int i = 1; i < size(); ++i) {
        const int r = (rank() + i) % size();
        WEFT_RETURN_IF_ERROR(
            ReadFrom(r, inputs[r], out[r].elements * item_, out[r].memory));
      }
      return Meet();
    }
  }
  return Spread(in, most, copy);
}

absl::Status SharedRun::SpreadTo(const Blocks& blocks, int64_t most,
                                 Consume consume) {
  // Whole cache lines for each rank.
  const int64_t room = Slot::kBytes / size() / 64 * 64;
  const int64_t piece = room / item_;
  Pieces pieces(size());
  for (int64_t begin = 0; begin < most; begin += piece) {
    const int64_t count = std::min(piece, most - begin);
    WEFT_ASSIGN_OR_RETURN(Slot * slot, BeginPhase());
    const uint64_t phase = phases_.next();
    for (size_t r = 0; r < blocks.size(); ++r) {
      CopyOut(blocks[r], item_, begin, count, slot->staged + r * room);
    }
    WEFT_RETURN_IF_ERROR(EndPhase());
    for (int r = 0; r < size(); ++r) {
      pieces[r] = SlotNow(r, phase).staged + rank() * room;
    }
    consume(pieces, begin, count);
  }
  return absl::OkStatus();
}

absl::Status SharedRun::ReduceScatter() {
  const Blocks& in = operation_.inputs;
  const Block& out = operation_.outputs[0];
  const uint64_t phase = phases_.next();
  WEFT_RETURN_IF_ERROR(Announce(NoStage));
  const auto inputs = InArenas(&OperationRecord::Places::input,
                               TotalElements(in) * item_, phase);
  if (!inputs.empty() && AreAdjacent(in, item_)) {
    Pieces pieces;
    for (const std::byte* input : inputs) {
      pieces.push_back(input + (in[rank()].memory - in[0].memory));
    }
    ReducePieces(pieces, out.elements, out.memory);
    return Meet();
  }
  const auto places = InPeers(&OperationRecord::Places::input_address, phase);
  if (!places.empty()) {
    std::vector<uint64_t> own_parts;
    for (const uint64_t place : places) {
      own_parts.push_back(place + (in[rank()].memory - in[0].memory));
    }
    WEFT_RETURN_IF_ERROR(ReduceFromPeers(own_parts, in[rank()].memory,
                                         out.elements, out.memory));
    return Meet();
  }
  return SpreadTo(in, MostElements(in),
                  [&](const Pieces& pieces, int64_t begin, int64_t count) {
                    const int64_t n = std::min(count, out.elements - begin);
                    if (n <= 0) return;
                    ReducePieces(pieces, n, out.memory + begin * item_);
                  });
}

// What rank a sends to rank b must be what b wants of a, for all a and b.
absl::Status SharedRun::CheckCounts(uint64_t phase, int64_t* most) const {
  const auto count = [&](int rank, int index) {
    int64_t value;
    memcpy(&value, SlotNow(rank, phase).staged + index * sizeof value,
           sizeof value);
    return value;
  };
  *most = 0;
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      const int64_t sent = count(from, to);
      const int64_t wanted = count(to, size() + from);
      if (sent != wanted) {
        return absl::FailedPreconditionError(absl::StrCat(
            "the ranks called different operations: rank ",
            segment_.NumberOf(from), " sends ", sent, " elements to rank ",
            segment_.NumberOf(to), ", which wants ", wanted, "; ",
            SlotNow(from, phase).record.ToString(), ", ",
            SlotNow(to, phase).record.ToString()));
      }
      *most = std::max(*most, sent);
    }
  }
  return absl::OkStatus();
}

absl::Status SharedRun::Exchange() {
  const Blocks none(size(), Block());
  Blocks in = operation_.inputs.empty() ? none : operation_.inputs;
  Blocks out = operation_.outputs.empty() ? none : operation_.outputs;
  if (operation_.verb == Verb::kGather) {
    in = none;
    in[operation_.root] = operation_.inputs[0];
  } else if (operation_.verb == Verb::kScatter) {
    out = none;
    out[operation_.root] = operation_.outputs[0];
  }
  const uint64_t phase = phases_.next();
  WEFT_RETURN_IF_ERROR(Announce([&](std::byte* staged) {
    std::vector<int64_t> counts;
    for (const Block& block : in) counts.push_back(block.elements);
    for (const Block& block : out) counts.push_back(block.elements);
    memcpy(staged, counts.data(), counts.size() * sizeof(int64_t));
  }));
  int64_t most;
  WEFT_RETURN_IF_ERROR(CheckCounts(phase, &most));
  return SpreadTo(in, most,
                  [&](const Pieces& pieces, int64_t begin, int64_t count) {
                    for (int r = 0; r < size(); ++r) {
                      CopyIn(out[r], item_, begin, count, pieces[r]);
                    }
                  });
}

}  // namespace weft::collectives
