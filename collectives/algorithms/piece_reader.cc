#include "weft/collectives/algorithms/piece_reader.h"

#include <algorithm>
#include <cstring>

namespace weft::collectives {

void PieceReader::Take(absl::Span<const std::byte> piece) {
  take_(taken_, piece);
  taken_ += static_cast<int64_t>(piece.size());
}

void PieceReader::Feed(absl::Span<const std::byte> bytes) {
  constexpr int64_t kPortion = 8 << 10;
  if (carried_ > 0) {
    const int64_t n =
        std::min(item_ - carried_, static_cast<int64_t>(bytes.size()));
    memcpy(carry_ + carried_, bytes.data(), n);
    carried_ += n;
    bytes.remove_prefix(n);
    if (carried_ < item_) return;
    carried_ = 0;
    Take(absl::MakeConstSpan(carry_, item_));
  }
  const int64_t whole = static_cast<int64_t>(bytes.size()) / item_ * item_;
  absl::Span<const std::byte> rest = bytes.subspan(0, whole);
  if (reinterpret_cast<uintptr_t>(rest.data()) % item_ == 0) {
    if (!rest.empty()) Take(rest);
  } else {
    alignas(64) std::byte aligned[kPortion];
    while (!rest.empty()) {
      const auto portion = rest.subspan(0, kPortion);
      memcpy(aligned, portion.data(), portion.size());
      rest.remove_prefix(portion.size());
      Take(absl::MakeConstSpan(aligned, portion.size()));
    }
  }
  carried_ = static_cast<int64_t>(bytes.size()) - whole;
  if (carried_ > 0) memcpy(carry_, bytes.data() + whole, carried_);
}

}  // namespace weft::collectives
