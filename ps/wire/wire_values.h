// Wire values: rows of floats as pushes and pulls carry them, in the dtype that
// the table's spec names (v1::WireValues).
//
// In bytes, in the order of the host: F32, F16 and BF16 are the values. INT8 is
// for each 1,024 values of a row, or for those that are left, a scale s in f32
// and a byte q of [-127, 127] for each, which stands for q * s; s is a 127th of
// the largest magnitude, rounded up where it is below the normal numbers, so a
// value is off by s / 2 at most, and by the rounding of q * s. Zeros are exact
// in all of them; INT8 has no -0.
//
// NaN and infinity: F16 and BF16 carry them. What is finite and beyond the
// largest number (65,504 in F16) is sent as that, with its sign. An INT8 scale
// of NaN says that one of its values was neither: all of them are read as NaN.
//
// Thread-safety: pure functions.

#ifndef WEFT_PS_WIRE_WIRE_VALUES_H_
#define WEFT_PS_WIRE_WIRE_VALUES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/table_layout.h"

namespace weft::ps {

using WireDtype = v1::WireValues::Dtype;

// So many values of an INT8 row share a scale.
inline constexpr int64_t kInt8Block = 1024;

// "f32", "f16", "bf16", "int8".
absl::string_view WireName(WireDtype dtype);

// The bytes of a row of `n` values.
int64_t WireBytes(WireDtype dtype, int64_t n);
// Writes a row of `n` values, all of WireBytes().
void WriteWire(WireDtype dtype, const float* row, int64_t n, char* to);
// The same of row + residual [n], which becomes what is lost of their sum: with
// what was written it is the sum, without rounding unless that is far beyond
// the largest number of the dtype. 0 where what was written is not finite.
void WriteWire(WireDtype dtype, const float* row, int64_t n, float* residual,
               char* to);
void ReadWire(WireDtype dtype, const char* from, int64_t n, float* to);

// The same of the rows of `keys`, of a dense table slices, one after another.
int64_t WireBytes(const TableLayout& layout, WireDtype dtype,
                  absl::Span<const uint64_t> keys);
void WriteWire(const TableLayout& layout, WireDtype dtype,
               absl::Span<const uint64_t> keys, const float* rows, char* to);
void ReadWire(const TableLayout& layout, WireDtype dtype,
              absl::Span<const uint64_t> keys, const char* from, float* to);

// Whether WriteWire can have written these rows as a push: empty, or what of
// which row it cannot. A client pushes only what is finite in INT8, so that one
// NaN does not become a row of them.
std::string FaultOfPushed(const TableLayout& layout, WireDtype dtype,
                          absl::Span<const uint64_t> keys, const char* from);

}  // namespace weft::ps

#endif  // WEFT_PS_WIRE_WIRE_VALUES_H_
