// PushEncoder: the values of a client's pushes to one table, in the dtype in
// which the table's spec has them travel.
//
// Error feedback (v1::WireValues::KEEP): what a push loses of a row is added to
// what the client pushes of it next. So the rows that arrive add up to those
// that were given, but for what the last push of each has lost. It is kept
// here: with the client it is lost, and so it is where the table is opened
// again.
//
// A part of a SYNC round that is encoded again has the bytes of the first time,
// which are kept until the shard's next round: a server that took it before and
// one that did not must not differ.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_PS_WIRE_PUSH_ENCODER_H_
#define WEFT_PS_WIRE_PUSH_ENCODER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/wire/residuals.h"
#include "weft/ps/wire/wire_values.h"
#include "weft/tensor/tensor.h"

namespace weft::ps::internal {

class PushEncoder {
 public:
  // `layout` outlives it.
  explicit PushEncoder(const TableLayout& layout);

  // kInvalidArgument: gradients that the dtype cannot carry, NaN or infinity in
  // INT8.
  absl::Status Check(const Tensor& gradients) const;

  // `rows` f32, those of `keys`, or slices, one after another; SYNC: of the
  // part of `shard` in `round`. As it is in F32, else u8 [WireBytes]: as
  // ps.proto has push_values.
  Tensor Encode(int shard, int64_t round, absl::Span<const uint64_t> keys,
                Tensor rows);

 private:
  struct Chunk {
    std::vector<uint64_t> keys;
    Tensor bytes;
  };
  struct Part {
    int64_t round = -1;
    std::vector<Chunk> chunks;  // one for each server
  };

  Tensor EncodeNew(int shard, absl::Span<const uint64_t> keys,
                   const float* rows, bool with_residuals);

  const TableLayout& layout_;
  const WireDtype dtype_;
  std::optional<Residuals> residuals_;  // of tables that keep them
  std::map<int, Part> parts_;           // SYNC: of each shard the newest
};

}  // namespace weft::ps::internal

#endif  // WEFT_PS_WIRE_PUSH_ENCODER_H_
