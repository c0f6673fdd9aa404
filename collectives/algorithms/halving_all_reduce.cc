#include "weft/collectives/algorithms/halving_all_reduce.h"

#include <memory>
#include <vector>

#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/algorithms/blocks.h"

namespace weft::collectives {
namespace {

// The parts of a block, one for each of the ranks that take part.
class Halving {
 public:
  Halving(Link& link, const Operation& operation, const Block& block, int parts)
      : link_(link),
        operation_(operation),
        block_(block),
        parts_(parts),
        item_(AccumulatorBytes(operation.dtype)),
        mine_(block.memory) {
    if (item_ != ItemSize(operation.dtype)) {
      accumulators_.reset(new std::byte[block.elements * item_]);
      mine_ = accumulators_.get();
    }
    LoadElements(operation.dtype, operation.reduction, block.memory, mine_,
                 block.elements);
  }

  absl::Span<std::byte> all() {
    return {mine_, static_cast<size_t>(block_.elements * item_)};
  }
  // mine op what `rank` sends, of all elements.
  absl::Status AddAllOf(int rank) {
    std::vector<std::byte> theirs(all().size());
    WEFT_RETURN_IF_ERROR(link_.Receive(rank, absl::MakeSpan(theirs)));
    AddAccumulators(operation_.dtype, operation_.reduction.op, theirs.data(),
                    mine_, block_.elements);
    return absl::OkStatus();
  }

  // Afterwards this rank's part is reduced, and in the block.
  absl::Status Halve() {
    int first = 0;  // of the parts that this rank still reduces
    for (int half = parts_ / 2; half > 0; half /= 2) {
      const int partner = link_.rank() ^ half;
      const bool keeps_upper = (link_.rank() & half) != 0;
      const int kept = keeps_upper ? first + half : first;
      const int given = keeps_upper ? first : first + half;
      const absl::Span<std::byte> sums = BytesAt(kept, half);
      WEFT_RETURN_IF_ERROR(link_.SendReduce(
          partner, BytesAt(given, half), partner,
          static_cast<int64_t>(sums.size()), item_,
          [&](int64_t offset, absl::Span<const std::byte> piece) {
            AddAccumulators(operation_.dtype, operation_.reduction.op,
                            piece.data(), sums.data() + offset,
                            static_cast<int64_t>(piece.size()) / item_);
          }));
      first = kept;
    }
    const Range own = RangeOf(first, 1);
    StoreElements(operation_.dtype, operation_.reduction.op, link_.size(),
                  mine_ + own.begin * item_, ElementsAt(first, 1).data(),
                  own.count);
    return absl::OkStatus();
  }

  absl::Status Double() {
    for (int have = 1; have < parts_; have *= 2) {
      const int partner = link_.rank() ^ have;
      const int own = link_.rank() & ~(have - 1);
      WEFT_RETURN_IF_ERROR(link_.SendReceive(partner, ElementsAt(own, have),
                                             partner,
                                             ElementsAt(own ^ have, have)));
    }
    return absl::OkStatus();
  }

 private:
  Range RangeOf(int part, int count) const {
    const auto begin_of = [&](int i) {
      return i == parts_
                 ? block_.elements
                 : PartOf(block_.elements, operation_.dtype, parts_, i).begin;
    };
    const int64_t begin = begin_of(part);
    return {begin, begin_of(part + count) - begin};
  }
  absl::Span<std::byte> BytesAt(int part, int count) {
    const Range range = RangeOf(part, count);
    return all().subspan(range.begin * item_, range.count * item_);
  }
  absl::Span<std::byte> ElementsAt(int part, int count) {
    const Range range = RangeOf(part, count);
    const int64_t item = ItemSize(operation_.dtype);
    return {block_.memory + range.begin * item,
            static_cast<size_t>(range.count * item)};
  }

  Link& link_;
  const Operation& operation_;
  const Block block_;
  const int parts_;
  const int64_t item_;
  std::unique_ptr<std::byte[]> accumulators_;  // where they are not elements
  std::byte* mine_;
};

}  // namespace

absl::Status HalvingAllReduce(Link& link, const Operation& operation,
                              const Block& block) {
  const int n = link.size();
  const int rank = link.rank();
  int power = 1;
  while (power * 2 <= n) power *= 2;
  Halving halving(link, operation, block, power);
  if (rank >= power) {
    WEFT_RETURN_IF_ERROR(link.Send(rank - power, halving.all()));
    return link.Receive(rank - power, BytesOf(operation, block));
  }
  const int extra = rank + power;
  if (extra < n) WEFT_RETURN_IF_ERROR(halving.AddAllOf(extra));
  WEFT_RETURN_IF_ERROR(halving.Halve());
  WEFT_RETURN_IF_ERROR(halving.Double());
  return extra < n ? link.Send(extra, BytesOf(operation, block))
                   : absl::OkStatus();
}

}  // namespace weft::collectives
