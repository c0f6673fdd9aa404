#include "weft/collectives/core/frame.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/slice_reader.h"

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
  SliceReader reader(message);
  Header header;
  const bool is_good = reader.Copy(&header, sizeof header) &&
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
  if (!reader.Copy(frame.text.data(), frame.text.size())) {
    return absl::InvalidArgumentError("a frame's text is cut");
  }
  const uint64_t bytes = reader.remaining();
  reader.Share(bytes, &frame.content);
  if (frame.offset > frame.total || bytes > frame.total - frame.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame has ", bytes, " bytes at ", frame.offset,
                     " of a message of ", frame.total));
  }
  return frame;
}

}  // namespace weft::collectives
