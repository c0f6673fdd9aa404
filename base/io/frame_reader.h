// FrameReader: the records of a file of record frames (record_frames.h), one
// after another, with no more of the file in memory than one record, or a piece
// of it.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_BASE_IO_FRAME_READER_H_
#define WEFT_BASE_IO_FRAME_READER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

class FrameReader {
 public:
  // The bytes of the file from `offset` on, `most` of them or up to its end.
  using Source =
      std::function<absl::StatusOr<std::string>(int64_t offset, int64_t most)>;

  // It asks for `piece_bytes` at a time, or for a record that is larger; one of
  // more than `most_bytes` is kDataLoss. The frames begin at `begin` of a file
  // of `size` bytes.
  FrameReader(Source source, int64_t begin, int64_t size, uint32_t most_bytes,
              int64_t piece_bytes = int64_t{1} << 20)
      : source_(std::move(source)),
        size_(size),
        most_bytes_(most_bytes),
        piece_bytes_(piece_bytes),
        at_(begin) {}

  // As TakeFrame on all that follows; `record` is good until the next call. An
  // error of the source is returned as it is.
  absl::StatusOr<bool> Next(absl::string_view* record);

  // Where the next record begins.
  int64_t offset() const { return at_; }

 private:
  // Has `bytes` from at_ on in the buffer, which must be there.
  absl::Status Have(int64_t bytes);
  // Whether the file has only zeros from `offset` on.
  absl::StatusOr<bool> IsZeros(int64_t offset) const;

  const Source source_;
  const int64_t size_;
  const uint32_t most_bytes_;
  const int64_t piece_bytes_;
  int64_t at_;
  std::string buffer_;  // of the file, from buffer_at_ on
  int64_t buffer_at_ = 0;
};

}  // namespace weft

#endif  // WEFT_BASE_IO_FRAME_READER_H_
