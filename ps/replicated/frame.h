// Frame: one change of a partition, as its client sends it, its primary logs it
// and its backup applies it.
//
// In bytes, in the order of the host: the kind, a count, and then the keys and
// the floats of their rows, or the round and the scale of a learning rate, or a
// rank, its clock, and whose it is. A dense table's keys are slices. Gradients
// may have their values in the dtype of the table's pushes
// (ps/wire/wire_values.h) in place of floats; the kind says so. They stay so in
// the log, and are sent again so: primary and backup read the same.
//
// Thread-safety: immutable.

#ifndef WEFT_PS_REPLICATED_FRAME_H_
#define WEFT_PS_REPLICATED_FRAME_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/base/bytes.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/partition.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/rate_changes.h"
#include "weft/ps/core/replication/partition_clocks.h"
#include "weft/ps/core/replication/replication.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/wire/wire_values.h"

namespace weft::ps {

// The durability level of a table.
Durability LevelOf(const v1::TableSpec& spec);

struct Frame {
  enum class Kind : uint64_t {
    kGradient = 1,  // one step of the rule on each row
    kPut = 2,       // first values of rows that are not there
    kRate = 3,      // RateChanges::Set
    // Of a table with a staleness, as PartitionClocks has them.
    kTick = 4,
    kJoin = 5,
    kLeave = 6,
  };
  Kind kind = Kind::kGradient;
  // kGradient, kPut. They point into the bytes.
  absl::Span<const uint64_t> keys;
  WireDtype dtype = v1::WireValues::F32;  // kPut: F32
  absl::string_view values;
  // kRate; a negative round: from now on (ASYNC).
  int64_t round = 0;
  double scale = 1;
  // kTick, kJoin, kLeave
  int rank = 0;
  int64_t clock = 0;  // kTick, kJoin
  // kJoin, as its primary writes them: who pushed it, and since when that has
  // the table open. What a client sends there counts for nothing.
  WorkerKey worker;
  uint64_t opened_at = 0;
  absl::string_view name;

  bool is_of_clock() const {
    return kind == Kind::kTick || kind == Kind::kJoin || kind == Kind::kLeave;
  }
};

Bytes EncodeRows(Frame::Kind kind, absl::Span<const uint64_t> keys,
                 absl::Span<const float> values);
// The same of rows that lie apart.
Bytes EncodeSeparateRows(Frame::Kind kind, absl::Span<const uint64_t> keys,
                         absl::Span<const absl::Span<const float>> rows);
// A gradient whose rows WriteWire has written.
Bytes EncodeGradient(WireDtype dtype, absl::Span<const uint64_t> keys,
                     absl::string_view values);
Bytes EncodeRate(int64_t round, double scale);
Bytes EncodeTick(int rank, int64_t clock);
Bytes EncodeLeave(int rank);
// kJoin; a client leaves all but the rank out. Of a longer name
// PartitionClocks::kMostName bytes.
Bytes EncodeJoin(int rank, int64_t clock = 0, WorkerKey worker = {},
                 uint64_t opened_at = 0, absl::string_view name = "");
// Whether these bytes, of whoever, are a frame of a clock.
bool IsOfClock(const Bytes& bytes);

// The same where many gradients share one memory: how many words one takes, and
// what writes all of it but the `value_bytes` of its values, whose place it
// returns.
size_t FrameWords(size_t keys, int64_t value_bytes);
char* WriteFrame(WireDtype dtype, absl::Span<const uint64_t> keys,
                 uint64_t* to);
// The bytes that a frame needs; WriteFrame fills whole words.
size_t FrameBytes(size_t keys, int64_t value_bytes);

// The keys of a pull.
Bytes EncodeKeys(absl::Span<const uint64_t> keys);

// `bytes` at an address that suits their contents; copied only if need be.
Bytes Aligned(Bytes bytes);
// The same of each; what must be copied shares one memory.
std::vector<Bytes> AlignedAll(absl::Span<const Bytes> all);

// The keys of kGradient in the order that DecodeFrame wants.
Bytes EncodeSum(const TableLayout& layout, SpanSum sum);

// A frame as anyone may send it; it points into `bytes`, which are Aligned.
// kInvalidArgument: it is none, or its keys are not of `partition`, or do not
// strictly ascend, by Mix64 or, of a dense table, by slice; or its values are
// in a dtype that is neither F32 nor that of the table's pushes, or are none
// (FaultOfPushed); or it is of a clock, and the table has none, or of no
// possible one.
absl::StatusOr<Frame> DecodeFrame(const Bytes& bytes, const TableLayout& layout,
                                  const Placement& placement, int partition);
// The same of bytes that DecodeFrame has checked.
Frame DecodeCheckedFrame(const Bytes& bytes);
// The floats of its rows, one after another: in its bytes, or read into
// `memory`.
const float* FloatsOf(const Frame& frame, const TableLayout& layout,
                      std::vector<float>& memory);
absl::StatusOr<absl::Span<const uint64_t>> DecodeKeys(
    const Bytes& bytes, const TableLayout& layout, const Placement& placement,
    int partition);

// A copy of a partition's rows, learning rates and clocks, and back.
// kInvalidArgument as CheckImage, or PartitionClocks::FaultOf.
Bytes EncodeCopy(const PartitionImage& image, const RateChanges& rates,
                 const PartitionClocks::State& clocks = {});

// The same in pieces, each of about `most_bytes` or of one row: at least one.
// They are encoded one at a time. The clocks are in the first.
class CopyInPieces {
 public:
  CopyInPieces(const TableLayout& layout, PartitionImage image,
               RateChanges rates, int64_t most_bytes,
               PartitionClocks::State clocks = {});
  uint32_t pieces() const { return static_cast<uint32_t>(ends_.size()); }
  int64_t bytes() const { return bytes_; }  // about, of all
  // REQUIRES: piece < pieces().
  Bytes Encode(uint32_t piece) const;

 private:
  // The rows, and their floats, that come before the end of a piece.
  struct End {
    size_t rows = 0;
    size_t floats = 0;
  };
  PartitionImage image_;
  RateChanges rates_;
  PartitionClocks::State clocks_;
  std::vector<End> ends_;
  int64_t bytes_ = 0;
};

struct PartitionCopy {
  PartitionImage image;
  RateChanges rates;
  PartitionClocks::State clocks;
};
absl::StatusOr<PartitionCopy> DecodeCopy(const Bytes& bytes,
                                         const TableLayout& layout,
                                         const Placement& placement,
                                         int partition);

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_FRAME_H_
