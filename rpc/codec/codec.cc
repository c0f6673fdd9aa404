#include "weft/rpc/codec/codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message_lite.h>

#include <cstring>
#include <limits>

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

void Encoder::AttachLater(Bytes bytes, StagedCall* copy) {
  Varint(bytes.size());
  if (bytes.size() >= kByReference) Align();
  Flush();
  flushed_ += bytes.size();
  slices_.push_back(std::move(bytes));
  copies_.push_back(copy);
}

void Encoder::AttachCopy(const void* bytes, size_t size) {
  Varint(size);
  if (size >= kByReference) Align();
  Raw(bytes, size);
}

void Encoder::Fail(absl::Status status) { status_.Update(std::move(status)); }

Attachment* Encoder::Stage(
    absl::string_view kind,
    absl::FunctionRef<std::unique_ptr<Attachment>()> make) {
  if (attachments_ == nullptr) {
    Fail(absl::FailedPreconditionError(
        absl::StrCat("the message carries no attachments, of which a value "
                     "wants one of kind '",
                     kind, "': ", why_none_)));
    return nullptr;
  }
  if (*attachments_ == nullptr) {
    *attachments_ = std::make_shared<StagedAttachments>();
  }
  Attachment* const staged = (*attachments_)->Find(kind);
  return staged != nullptr ? staged : (*attachments_)->Add(kind, make());
}

Attachment* Encoder::Staged(absl::string_view kind) const {
  const bool any = attachments_ != nullptr && *attachments_ != nullptr;
  return any ? (*attachments_)->Find(kind) : nullptr;
}

absl::StatusOr<Slices> Encoder::Finish() && {
  if (!status_.ok()) return status_;
  Flush();
  return std::move(slices_);
}

void Encoder::Align() {
  const size_t padding = Padding(flushed_ + chunk_.size());
  std::memset(chunk_.Extend(padding), 0, padding);
}

void Encoder::Flush() {
  if (chunk_.empty()) return;
  flushed_ += chunk_.size();
  slices_.push_back(chunk_.Take());
}

absl::Status Decoder::Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed value: ", what));
}

absl::Status Decoder::NoNumber() const {
  return Malformed(remaining() == 0 ? "it ends within a number"
                                    : "a number of more than 64 bits");
}

absl::Status Decoder::TooFew(size_t wanted) const {
  return Malformed(
      absl::StrCat("it ends after ", remaining(), " of ", wanted, " bytes"));
}

absl::Status Decoder::AttachedSize(size_t& size) {
  uint64_t length;
  WEFT_RETURN_IF_ERROR(Varint(length));
  const size_t padding =
      length >= Encoder::kByReference ? Padding(bytes_.position()) : 0;
  if (length > remaining() || padding > remaining() - length) {
    return Malformed(absl::StrCat(length, " bytes are announced and ",
                                  remaining(), " are left"));
  }
  bytes_.Skip(padding);
  size = length;
  return absl::OkStatus();
}

std::optional<Bytes> Decoder::InPlace(size_t size) {
  if (!is_private_ || size == 0) return std::nullopt;
  const uint8_t* const begin = bytes_.Peek(size);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  if (begin == nullptr || address % Encoder::kAlignment != 0) {
    return std::nullopt;
  }
  Slices one;
  bytes_.Share(size, &one);
  return std::move(one.front());
}

absl::Status Decoder::Attached(Bytes& bytes) {
  Slices chunks;
  WEFT_RETURN_IF_ERROR(Attached(chunks));
  bytes = Flatten(chunks);
  return absl::OkStatus();
}

absl::Status Decoder::Attached(Slices& slices) {
  size_t size;
  WEFT_RETURN_IF_ERROR(AttachedSize(size));
  slices.clear();
  bytes_.Share(size, &slices);
  return absl::OkStatus();
}

absl::Status Decoder::Count(size_t element_bytes, size_t& count) {
  uint64_t announced;
  WEFT_RETURN_IF_ERROR(Varint(announced));
  if (announced > remaining()) {
    return Malformed(absl::StrCat(announced, " elements are announced and ",
                                  remaining(), " bytes are left"));
  }
  // No overflow: a message is far below 2^48 bytes, an element below 2^16.
  container_bytes_ += announced * element_bytes;
  if (container_bytes_ >
      kMaxContainerBytes + 4 * (bytes_.position() + remaining())) {
    return Malformed(absl::StrCat("its containers need ", container_bytes_,
                                  " bytes of memory"));
  }
  count = announced;
  return absl::OkStatus();
}

absl::Status Decoder::AtEnd() const {
  if (remaining() == 0) return absl::OkStatus();
  return Malformed(absl::StrCat(remaining(), " bytes too many"));
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
