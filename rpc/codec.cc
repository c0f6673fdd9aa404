#include "weft/rpc/codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message_lite.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"

namespace weft::rpc {
namespace {

// Numbers travel as they lie in memory.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

size_t Padding(size_t position) {
  return (Encoder::kAlignment - position % Encoder::kAlignment) %
         Encoder::kAlignment;
}

}  // namespace

void Encoder::Varint(uint64_t value) {
  while (value >= 0x80) {
    chunk_.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  chunk_.push_back(static_cast<char>(value));
}

void Encoder::Raw(const void* bytes, size_t size) {
  chunk_.append(static_cast<const char*>(bytes), size);
}

void Encoder::Attach(Bytes bytes) {
  if (bytes.size() < kByReference) {
    return AttachCopy(bytes.data(), bytes.size());
  }
  Varint(bytes.size());
  Align();
  Flush();
  flushed_ += bytes.size();
  slices_.push_back(std::move(bytes));
}

void Encoder::Attach(Slices slices) {
  const size_t size = TotalSize(slices);
  Varint(size);
  if (size < kByReference) {
    for (const Bytes& slice : slices) Raw(slice.data(), slice.size());
    return;
  }
  Align();
  Flush();
  flushed_ += size;
  for (Bytes& slice : slices) slices_.push_back(std::move(slice));
}

void Encoder::AttachCopy(const void* bytes, size_t size) {
  Varint(size);
  if (size >= kByReference) Align();
  Raw(bytes, size);
}

void Encoder::Fail(absl::Status status) { status_.Update(std::move(status)); }

absl::StatusOr<Slices> Encoder::Finish() && {
  if (!status_.ok()) return status_;
  Flush();
  return std::move(slices_);
}

void Encoder::Align() {
  chunk_.append(Padding(flushed_ + chunk_.size()), '\0');
}

void Encoder::Flush() {
  if (chunk_.empty()) return;
  flushed_ += chunk_.size();
  slices_.push_back(Bytes::Own(std::move(chunk_)));
  chunk_.clear();
}

Decoder::Decoder(const Received& received)
    : slices_(received.slices),
      is_private_(received.is_private),
      remaining_(TotalSize(received.slices)) {}

absl::Status Decoder::Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed value: ", what));
}

absl::Status Decoder::Varint(uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    uint8_t byte;
    WEFT_RETURN_IF_ERROR(Raw(&byte, 1));
    if (shift == 63 && byte > 1) break;
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return absl::OkStatus();
  }
  return Malformed("a number of more than 64 bits");
}

absl::Status Decoder::Raw(void* bytes, size_t size) {
  if (size > remaining_) {
    return Malformed(
        absl::StrCat("it ends after ", remaining_, " of ", size, " bytes"));
  }
  auto* out = static_cast<uint8_t*>(bytes);
  while (size > 0) {
    const Bytes& slice = slices_[slice_];
    const size_t n = std::min(size, slice.size() - offset_);
    if (n > 0) std::memcpy(out, slice.data() + offset_, n);
    out += n;
    size -= n;
    Skip(n);
  }
  return absl::OkStatus();
}

// REQUIRES: size <= remaining_.
void Decoder::Skip(size_t size) {
  position_ += size;
  remaining_ -= size;
  offset_ += size;
  while (slice_ < slices_.size() && offset_ >= slices_[slice_].size()) {
    offset_ -= slices_[slice_].size();
    ++slice_;
  }
}

absl::Status Decoder::AttachedSize(size_t& size) {
  uint64_t length;
  WEFT_RETURN_IF_ERROR(Varint(length));
  const size_t padding =
      length >= Encoder::kByReference ? Padding(position_) : 0;
  if (length > remaining_ || padding > remaining_ - length) {
    return Malformed(absl::StrCat(length, " bytes are announced and ",
                                  remaining_, " are left"));
  }
  Skip(padding);
  size = length;
  return absl::OkStatus();
}

std::optional<Bytes> Decoder::InPlace(size_t size) {
  if (!is_private_ || size == 0 || size > remaining_) return std::nullopt;
  const Bytes& slice = slices_[slice_];
  const auto address = reinterpret_cast<uintptr_t>(slice.data() + offset_);
  if (size > slice.size() - offset_ || address % Encoder::kAlignment != 0) {
    return std::nullopt;
  }
  Bytes bytes = slice.subspan(offset_, size);
  Skip(size);
  return bytes;
}

absl::Status Decoder::Attached(Bytes& bytes) {
  Slices pieces;
  WEFT_RETURN_IF_ERROR(Attached(pieces));
  bytes = Flatten(pieces);
  return absl::OkStatus();
}

absl::Status Decoder::Attached(Slices& slices) {
  size_t size;
  WEFT_RETURN_IF_ERROR(AttachedSize(size));
  slices.clear();
  while (size > 0) {
    const Bytes& slice = slices_[slice_];
    const size_t n = std::min(size, slice.size() - offset_);
    if (n > 0) slices.push_back(slice.subspan(offset_, n));
    size -= n;
    Skip(n);
  }
  return absl::OkStatus();
}

absl::Status Decoder::Count(size_t element_bytes, size_t& count) {
  uint64_t announced;
  WEFT_RETURN_IF_ERROR(Varint(announced));
  if (announced > remaining_) {
    return Malformed(absl::StrCat(announced, " elements are announced and ",
                                  remaining_, " bytes are left"));
  }
  // No overflow: a message is far below 2^48 bytes, an element below 2^16.
  container_bytes_ += announced * element_bytes;
  if (container_bytes_ > kMaxContainerBytes + 4 * (position_ + remaining_)) {
    return Malformed(absl::StrCat("its containers need ", container_bytes_,
                                  " bytes of memory"));
  }
  count = announced;
  return absl::OkStatus();
}

absl::Status Decoder::AtEnd() const {
  if (remaining_ == 0) return absl::OkStatus();
  return Malformed(absl::StrCat(remaining_, " bytes too many"));
}

absl::Status Codec<std::string>::Decode(Decoder& d, std::string& value) {
  size_t size;
  WEFT_RETURN_IF_ERROR(d.AttachedSize(size));
  value.resize(size);
  return d.Raw(value.data(), size);
}

namespace internal {

void EncodeMessage(const google::protobuf::MessageLite& message,
                   Encoder& encoder) {
  std::string bytes;
  if (message.ByteSizeLong() > std::numeric_limits<int32_t>::max() ||
      !message.SerializeToString(&bytes)) {
    encoder.Fail(absl::InvalidArgumentError(
        absl::StrCat("a ", message.GetTypeName(),
                     " of more than 2 GiB or without its required fields")));
    return;
  }
  encoder.Attach(Bytes::Own(std::move(bytes)));
}

absl::Status DecodeMessage(Decoder& decoder,
                           google::protobuf::MessageLite& message) {
  Bytes bytes;
  WEFT_RETURN_IF_ERROR(decoder.Attached(bytes));
  if (bytes.size() > std::numeric_limits<int32_t>::max()) {
    return Decoder::Malformed("a protobuf message of more than 2 GiB");
  }
  google::protobuf::io::CodedInputStream input(bytes.data(),
                                               static_cast<int>(bytes.size()));
  input.SetRecursionLimit(Decoder::kMaxDepth);
  if (!message.ParseFromCodedStream(&input) || !input.ConsumedEntireMessage()) {
    return Decoder::Malformed(absl::StrCat("not a ", message.GetTypeName()));
  }
  return absl::OkStatus();
}

}  // namespace internal
}  // namespace weft::rpc
