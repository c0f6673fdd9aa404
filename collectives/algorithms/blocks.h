// Blocks: how algorithms divide elements among ranks.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_BLOCKS_H_
#define WEFT_COLLECTIVES_ALGORITHMS_BLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// Some elements of a block.
struct Range {
  int64_t begin;
  int64_t count;
};

// Part `i` of so many elements in `parts` parts, as equal as whole cache lines
// allow: two ranks never write into the same line of an aligned block. Later
// parts may be empty.
inline Range PartOf(int64_t elements, DType dtype, int parts, int i) {
  const int64_t line = std::max<int64_t>(1, 64 / ItemSize(dtype));
  const int64_t lines = (elements + line - 1) / line;
  const int64_t share = (lines + parts - 1) / parts * line;
  const int64_t begin = std::min(elements, share * i);
  return {begin, std::min(elements, begin + share) - begin};
}

inline Blocks PartsOf(const Block& block, DType dtype, int parts) {
  Blocks result;
  for (int i = 0; i < parts; ++i) {
    const Range part = PartOf(block.elements, dtype, parts, i);
    result.push_back({block.memory + part.begin * ItemSize(dtype), part.count});
  }
  return result;
}

inline absl::Span<std::byte> BytesOf(const Operation& operation,
                                     const Block& block) {
  return {block.memory, static_cast<size_t>(operation.BytesOf(block))};
}

// `i` modulo `n`, never negative.
inline int Wrap(int i, int n) { return ((i % n) + n) % n; }

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_BLOCKS_H_
