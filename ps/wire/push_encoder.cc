#include "weft/ps/wire/push_encoder.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace weft::ps::internal {
namespace {

constexpr int64_t kDefaultResidualBytes = int64_t{64} << 20;

int64_t ResidualBytes(const TableLayout& layout) {
  if (layout.is_dense()) return std::numeric_limits<int64_t>::max();
  const int64_t bytes = layout.spec().wire().residual_bytes();
  return bytes == 0 ? kDefaultResidualBytes : bytes;
}

char* BytesOf(Tensor& tensor) {
  return reinterpret_cast<char*>(tensor.data<uint8_t>());
}

}  // namespace

PushEncoder::PushEncoder(const TableLayout& layout)
    : layout_(layout), dtype_(layout.spec().wire().push()) {
  if (dtype_ == v1::WireValues::F32 ||
      layout.spec().wire().residual() == v1::WireValues::DROP) {
    return;
  }
  residuals_.emplace(layout.dim(), ResidualBytes(layout));
}

absl::Status PushEncoder::Check(const Tensor& gradients) const {
  if (dtype_ != v1::WireValues::INT8) return absl::OkStatus();
  const Tensor flat = gradients.Contiguous();
  const absl::Span<const float> values = flat.span<float>();
  const auto bad = std::find_if_not(values.begin(), values.end(),
                                    [](float x) { return std::isfinite(x); });
  if (bad == values.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "table '", layout_.spec().name(), "': gradients: element ",
      bad - values.begin(), " of ", values.size(), " is ", *bad,
      ", wanted a finite number: pushes of this table are int8, which has "
      "neither NaN nor infinity; skip the step, or make the table with "
      "wire.push "
      "F16 or BF16"));
}

Tensor PushEncoder::EncodeNew(int shard, absl::Span<const uint64_t> keys,
                              const float* rows, bool with_residuals) {
  Tensor bytes = Tensor::Empty({WireBytes(layout_, dtype_, keys)}, DType::kU8);
  char* to = BytesOf(bytes);
  if (!with_residuals) {
    WriteWire(layout_, dtype_, keys, rows, to);
    return bytes;
  }
  for (const uint64_t key : keys) {
    const int64_t length = layout_.RowLength(key);
    WriteWire(dtype_, rows, length, residuals_->Of(shard, key), to);
    rows += length;
    to += WireBytes(dtype_, length);
  }
  return bytes;
}

Tensor PushEncoder::Encode(int shard, int64_t round,
                           absl::Span<const uint64_t> keys, Tensor rows) {
  if (dtype_ == v1::WireValues::F32) return rows;
  const float* const values = rows.data<float>();
  if (!residuals_.has_value()) return EncodeNew(0, keys, values, false);
  if (layout_.spec().mode() != v1::TableSpec::SYNC) {
    return EncodeNew(0, keys, values, true);
  }
  Part& part = parts_[shard];
  // Nothing is kept for a round that is over for this client: another client
  // gave the part, and what the encoding lost was added to a later round.
  if (round < part.round) return EncodeNew(shard, keys, values, false);
  if (round > part.round) part = {round, {}};
  for (const Chunk& chunk : part.chunks) {
    if (absl::MakeConstSpan(chunk.keys) == keys) return chunk.bytes;
  }
  part.chunks.push_back(
      {{keys.begin(), keys.end()}, EncodeNew(shard, keys, values, true)});
  return part.chunks.back().bytes;
}

}  // namespace weft::ps::internal
