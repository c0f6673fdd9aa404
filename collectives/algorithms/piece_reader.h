// PieceReader: cuts bytes that arrive in any sizes into pieces of whole items.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_PIECE_READER_H_
#define WEFT_COLLECTIVES_ALGORITHMS_PIECE_READER_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "weft/collectives/algorithms/link.h"

namespace weft::collectives {

// Hands what is fed to `take` (Link::TakePiece). Bytes that are aligned are
// handed on where they are; others are copied, in portions that stay in the
// first cache.
//
// Thread-safety: one thread at a time.
class PieceReader {
 public:
  // `item`: the size of an item, a power of 2 and at most 8. `take` must
  // outlive it.
  PieceReader(int64_t item, Link::TakePiece take) : item_(item), take_(take) {}

  // The next bytes of the message.
  void Feed(absl::Span<const std::byte> bytes);
  // Bytes of the message fed so far; the last item may not be whole yet.
  int64_t fed() const { return taken_ + carried_; }

 private:
  void Take(absl::Span<const std::byte> piece);

  const int64_t item_;
  const Link::TakePiece take_;
  int64_t taken_ = 0;
  int64_t carried_ = 0;  // bytes of an item of which more must come
  alignas(8) std::byte carry_[8];
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_PIECE_READER_H_
