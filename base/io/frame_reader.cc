#include "weft/base/io/frame_reader.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "weft/base/io/record_frames.h"
#include "weft/base/status_macros.h"

namespace weft {

absl::StatusOr<bool> FrameReader::Next(absl::string_view* record) {
  const int64_t left = size_ - at_;
  if (left < kFrameHeaderBytes) return false;
  WEFT_RETURN_IF_ERROR(Have(kFrameHeaderBytes));
  const std::optional<uint32_t> length =
      FrameLength(absl::string_view(buffer_).substr(at_ - buffer_at_));
  // TakeFrame says what is wrong with what does not go on so.
  int64_t bytes = kFrameHeaderBytes;
  if (length.has_value() && *length <= most_bytes_) {
    bytes += int64_t{*length} + kFrameEndBytes;
    if (bytes > left) return false;  // it was cut
    WEFT_RETURN_IF_ERROR(Have(bytes));
  }
  absl::string_view frame =
      absl::string_view(buffer_).substr(at_ - buffer_at_, bytes);
  WEFT_ASSIGN_OR_RETURN(const bool is_whole,
                        TakeFrame(&frame, most_bytes_, record));
  if (is_whole) {
    at_ += bytes;
    return true;
  }
  WEFT_ASSIGN_OR_RETURN(const bool is_cut, IsZeros(at_ + bytes));
  if (is_cut) return false;
  return absl::DataLossError(length.has_value() ? "a false checksum"
                                                : "a false length");
}

absl::Status FrameReader::Have(int64_t bytes) {
  const int64_t end = buffer_at_ + static_cast<int64_t>(buffer_.size());
  if (at_ >= buffer_at_ && at_ + bytes <= end) return absl::OkStatus();
  const int64_t wanted = std::min(std::max(bytes, piece_bytes_), size_ - at_);
  buffer_.clear();
  buffer_at_ = at_;
  WEFT_ASSIGN_OR_RETURN(buffer_, source_(at_, wanted));
  if (static_cast<int64_t>(buffer_.size()) >= bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("wanted ", bytes, " bytes, found ", buffer_.size(),
                   ": the file has been cut while it was read"));
}

absl::StatusOr<bool> FrameReader::IsZeros(int64_t offset) const {
  while (offset < size_) {
    WEFT_ASSIGN_OR_RETURN(
        const std::string piece,
        source_(offset, std::min(piece_bytes_, size_ - offset)));
    if (piece.find_first_not_of('\0') != std::string::npos) return false;
    if (piece.empty()) break;
    offset += static_cast<int64_t>(piece.size());
  }
  return true;
}

}  // namespace weft
