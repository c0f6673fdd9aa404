#include "weft/collectives/core/frame.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft::collectives {
namespace {

constexpr uint32_t kMagic = 0x31534357;  // "WCS1"

struct Header {
  uint32_t magic;
  uint32_t kind;
  uint32_t code;
  uint32_t text_bytes;
  uint64_t sequence;
  uint64_t fingerprint;
  uint64_t tag;
  uint64_t total;
  uint64_t offset;
};
static_assert(sizeof(Header) == 56);

// Reads through a message whose slices may be cut anywhere.
class Reader {
 public:
  explicit Reader(const Slices& message) : message_(message) {}

  bool Read(void* to, size_t bytes) {
    char* out = static_cast<char*>(to);
    while (bytes > 0) {
      if (slice_ == message_.size()) return false;
      const size_t n = std::min(bytes, message_[slice_].size() - at_);
      memcpy(out, message_[slice_].data() + at_, n);
      out += n;
      bytes -= n;
      Skip(n);
    }
    return true;
  }
  // What has not been read.
  Slices Rest() const {
    Slices rest;
    for (size_t i = slice_; i < message_.size(); ++i) {
      const size_t begin = i == slice_ ? at_ : 0;
      if (begin == message_[i].size()) continue;
      rest.push_back(message_[i].subspan(begin));
    }
    return rest;
  }

 private:
  void Skip(size_t n) {
    at_ += n;
    while (slice_ < message_.size() && at_ == message_[slice_].size()) {
      ++slice_;
      at_ = 0;
    }
  }

  const Slices& message_;
  size_t slice_ = 0;
  size_t at_ = 0;
};

}  // namespace

Slices CopyOf(const std::byte* begin, int64_t bytes) {
  if (bytes == 0) return {};
  const uint8_t* from = reinterpret_cast<const uint8_t*>(begin);
  return {Bytes::Own(std::vector<uint8_t>(from, from + bytes))};
}

Slices Encode(Frame frame) {
  if (frame.text.size() > Frame::kMaxTextBytes) {
    frame.text.resize(Frame::kMaxTextBytes);
  }
  Header header;
  header.magic = kMagic;
  header.kind = frame.kind;
  header.code = frame.code;
  header.text_bytes = static_cast<uint32_t>(frame.text.size());
  header.sequence = frame.sequence;
  header.fingerprint = frame.fingerprint;
  header.tag = frame.tag;
  header.total = frame.total;
  header.offset = frame.offset;
  std::string begin(reinterpret_cast<const char*>(&header), sizeof header);
  begin += frame.text;
  Slices message = {Bytes::Own(std::move(begin))};
  for (Bytes& slice : frame.content) message.push_back(std::move(slice));
  return message;
}

absl::StatusOr<Frame> Decode(const Slices& message) {
  Reader reader(message);
  Header header;
  const bool is_good = reader.Read(&header, sizeof header) &&
                       header.magic == kMagic && header.kind >= Frame::kHello &&
                       header.kind <= Frame::kLeaveAck &&
                       header.text_bytes <= Frame::kMaxTextBytes;
  if (!is_good) {
    return absl::InvalidArgumentError("what has arrived is no frame");
  }
  Frame frame;
  frame.kind = static_cast<Frame::Kind>(header.kind);
  frame.code = header.code;
  frame.sequence = header.sequence;
  frame.fingerprint = header.fingerprint;
  frame.tag = header.tag;
  frame.total = header.total;
  frame.offset = header.offset;
  frame.text.resize(header.text_bytes);
  if (!reader.Read(frame.text.data(), frame.text.size())) {
    return absl::InvalidArgumentError("a frame's text is cut");
  }
  frame.content = reader.Rest();
  uint64_t bytes = 0;
  for (const Bytes& slice : frame.content) bytes += slice.size();
  if (frame.offset > frame.total || bytes > frame.total - frame.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame has ", bytes, " bytes at ", frame.offset,
                     " of a message of ", frame.total));
  }
  return frame;
}

}  // namespace weft::collectives
