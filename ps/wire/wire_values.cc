#include "weft/ps/wire/wire_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "weft/tensor/half.h"

namespace weft::ps {
namespace {

using v1::WireValues;

constexpr float kQuanta = 127;

// What is finite stays so.
template <typename Half>
Half Rounded(float value, float most) {
  const bool is_beyond = std::fabs(value) > most && std::isfinite(value);
  return Half(is_beyond ? std::copysign(most, value) : value);
}

struct ToFloat16 {
  using Half = Float16;
  Half operator()(float value) const { return Rounded<Half>(value, 65504.0f); }
};
struct ToBFloat16 {
  using Half = BFloat16;
  Half operator()(float value) const {
    return Rounded<Half>(value, 0x1.FEp127f);
  }
};

template <typename To>
void WriteHalves(const float* row, int64_t n, char* to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = To()(row[i]).bits();
    std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
  }
}

template <typename Half>
void ReadHalves(const char* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    to[i] = static_cast<float>(Half::FromBits(bits));
  }
}

// NaN if one of the values is not finite.
float ScaleOf(const float* values, int64_t n) {
  float largest = 0;
  bool is_finite = true;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::fabs(values[i]));
    is_finite = is_finite && std::isfinite(values[i]);
  }
  if (!is_finite) return std::numeric_limits<float>::quiet_NaN();
  const float scale = largest / kQuanta;
  if (std::isinf(scale * kQuanta)) return std::nextafter(scale, 0.0f);
  // A subnormal number has few digits, and may be 0.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool is_short = scale < std::numeric_limits<float>::min() &&
                        static_cast<double>(scale) * 127 < largest;
  return is_short ? std::nextafter(scale, kInfinity) : scale;
}

void WriteInt8(const float* values, int64_t n, char* to) {
  const float scale = ScaleOf(values, n);
  std::memcpy(to, &scale, sizeof(scale));
  to += sizeof(scale);
  if (!(scale > 0)) {  // all are 0, or one is not finite
    std::memset(to, 0, n);
    return;
  }
  // Rounds to the nearest by the adder, ties to even, in a loop that
  // vectorises: a sum of this size has no place below 1.
  constexpr float kRound = 0x1.8p23f;
  for (int64_t i = 0; i < n; ++i) {
    const float quanta = (values[i] / scale + kRound) - kRound;
    to[i] = static_cast<char>(
        static_cast<int8_t>(std::clamp(quanta, -kQuanta, kQuanta)));
  }
}

void ReadInt8(const char* from, int64_t n, float* to) {
  float scale;
  std::memcpy(&scale, from, sizeof(scale));
  from += sizeof(scale);
  for (int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<float>(static_cast<int8_t>(from[i])) * scale;
  }
}

void WriteBlockOf(WireDtype dtype, const float* values, int64_t n, char* to) {
  switch (dtype) {
    case WireValues::F16:
      return WriteHalves<ToFloat16>(values, n, to);
    case WireValues::BF16:
      return WriteHalves<ToBFloat16>(values, n, to);
    case WireValues::INT8:
      return WriteInt8(values, n, to);
    default:
      std::memcpy(to, values, n * sizeof(float));
  }
}

void ReadBlockOf(WireDtype dtype, const char* from, int64_t n, float* to) {
  switch (dtype) {
    case WireValues::F16:
      return ReadHalves<Float16>(from, n, to);
    case WireValues::BF16:
      return ReadHalves<BFloat16>(from, n, to);
    case WireValues::INT8:
      return ReadInt8(from, n, to);
    default:
      std::memcpy(to, from, n * sizeof(float));
  }
}

// Calls `block(begin, length, place)` for each block of a row, whose bytes
// begin at `place`.
template <typename Block>
void ForBlocks(WireDtype dtype, int64_t n, Block block) {
  for (int64_t i = 0; i < n; i += kInt8Block) {
    block(i, std::min(kInt8Block, n - i), WireBytes(dtype, i));
  }
}

}  // namespace

absl::string_view WireName(WireDtype dtype) {
  switch (dtype) {
    case WireValues::F16:
      return "f16";
    case WireValues::BF16:
      return "bf16";
    case WireValues::INT8:
      return "int8";
    default:
      return "f32";
  }
}

int64_t WireBytes(WireDtype dtype, int64_t n) {
  switch (dtype) {
    case WireValues::F16:
    case WireValues::BF16:
      return 2 * n;
    case WireValues::INT8:
      return n + (n + kInt8Block - 1) / kInt8Block *
                     static_cast<int64_t>(sizeof(float));
    default:
      return n * static_cast<int64_t>(sizeof(float));
  }
}

void WriteWire(WireDtype dtype, const float* row, int64_t n, char* to) {
  ForBlocks(dtype, n, [&](int64_t begin, int64_t length, int64_t place) {
    WriteBlockOf(dtype, row + begin, length, to + place);
  });
}

void WriteWire(WireDtype dtype, const float* row, int64_t n, float* residual,
               char* to) {
  ForBlocks(dtype, n, [&](int64_t begin, int64_t length, int64_t place) {
    float sent[kInt8Block];
    float* const lost = residual + begin;
    for (int64_t i = 0; i < length; ++i) lost[i] += row[begin + i];
    WriteBlockOf(dtype, lost, length, to + place);
    ReadBlockOf(dtype, to + place, length, sent);
    for (int64_t i = 0; i < length; ++i) {
      // Without rounding (Sterbenz): neither is more than twice the other, or
      // `sent` is 0, but for a sum beyond the largest number of the dtype.
      const float difference = lost[i] - sent[i];
      lost[i] = std::isfinite(difference) ? difference : 0.0f;
    }
  });
}

void ReadWire(WireDtype dtype, const char* from, int64_t n, float* to) {
  ForBlocks(dtype, n, [&](int64_t begin, int64_t length, int64_t place) {
    ReadBlockOf(dtype, from + place, length, to + begin);
  });
}

int64_t WireBytes(const TableLayout& layout, WireDtype dtype,
                  absl::Span<const uint64_t> keys) {
  if (!layout.is_dense()) {
    return WireBytes(dtype, layout.dim()) * static_cast<int64_t>(keys.size());
  }
  int64_t bytes = 0;
  for (const uint64_t key : keys) {
    bytes += WireBytes(dtype, layout.RowLength(key));
  }
  return bytes;
}

void WriteWire(const TableLayout& layout, WireDtype dtype,
               absl::Span<const uint64_t> keys, const float* rows, char* to) {
  for (const uint64_t key : keys) {
    const int64_t length = layout.RowLength(key);
    WriteWire(dtype, rows, length, to);
    rows += length;
    to += WireBytes(dtype, length);
  }
}

void ReadWire(const TableLayout& layout, WireDtype dtype,
              absl::Span<const uint64_t> keys, const char* from, float* to) {
  for (const uint64_t key : keys) {
    const int64_t length = layout.RowLength(key);
    ReadWire(dtype, from, length, to);
    from += WireBytes(dtype, length);
    to += length;
  }
}

std::string FaultOfPushed(const TableLayout& layout, WireDtype dtype,
                          absl::Span<const uint64_t> keys, const char* from) {
  if (dtype != WireValues::INT8) return "";
  for (const uint64_t key : keys) {
    const int64_t length = layout.RowLength(key);
    for (int64_t i = 0; i < length; i += kInt8Block) {
      float scale;
      std::memcpy(&scale, from + WireBytes(dtype, i), sizeof(scale));
      if (scale >= 0 && std::isfinite(scale)) continue;
      return absl::StrCat(
          "row ", key, " has a scale of ", scale,
          ", wanted a finite one of at least 0: int8 carries no "
          "NaN and no infinity in a push");
    }
    from += WireBytes(dtype, length);
  }
  return "";
}

}  // namespace weft::ps
