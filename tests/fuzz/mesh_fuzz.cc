// mesh: whatever another rank of a group writes on its stream, its messages are
// received whole or not at all.
//
// The input is frames: two bytes of length, and then the frame.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "weft/base/driver.h"
#include "weft/collectives/backends/stream/mesh.h"
#include "weft/collectives/core/frame.h"
#include "weft/collectives/core/inbox.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using collectives::Decode;
using collectives::Encode;
using collectives::Frame;
using collectives::Mesh;

void Append(Frame frame, std::string& input) {
  const Bytes bytes = Flatten(Encode(std::move(frame)));
  const uint16_t size = static_cast<uint16_t>(bytes.size());
  input.append(reinterpret_cast<const char*>(&size), sizeof size);
  input += std::string(bytes.view());
}

std::string SeedOf(const std::vector<Frame>& frames) {
  std::string input;
  for (const Frame& frame : frames) Append(frame, input);
  return input;
}

Frame FrameOf(Frame::Kind kind, uint64_t total = 0, std::string content = "",
              uint64_t offset = 0) {
  Frame frame;
  frame.kind = kind;
  frame.sequence = 1;
  frame.total = total;
  frame.offset = offset;
  if (!content.empty()) frame.content = {Bytes::Copy(content)};
  return frame;
}

std::vector<std::string> Seeds() {
  Frame hello = FrameOf(Frame::kHello);
  hello.code = 1;
  hello.sequence = 2;
  hello.text = "g";
  Frame announce = FrameOf(Frame::kAnnounce);
  announce.text = "AllReduce";
  Frame refused = FrameOf(Frame::kStatus);
  refused.code = 1;
  refused.text = "no memory";
  Frame stop = FrameOf(Frame::kAbort);
  stop.code = 14;
  stop.text = "why";
  return {SeedOf({hello, announce, FrameOf(Frame::kLeave)}),
          SeedOf({FrameOf(Frame::kPart, 8, "12345678"), stop}),
          SeedOf({FrameOf(Frame::kTransfer, 8, "12345678"),
                  FrameOf(Frame::kTransfer, 4, "5678")}),
          SeedOf({FrameOf(Frame::kStatus), FrameOf(Frame::kPartAck),
                  FrameOf(Frame::kTransferAck), announce, refused}),
          SeedOf({hello, hello}),
          // In chunks of 4 bytes, as TakeApart wants them.
          SeedOf({FrameOf(Frame::kPart, 8, "1234"),
                  FrameOf(Frame::kPart, 8, "5678", 4)}),
          SeedOf({FrameOf(Frame::kPart, 8, "1234"),
                  FrameOf(Frame::kPart, 12, "5678", 4)}),
          SeedOf({FrameOf(Frame::kPart, 8, "5678", 4)}),
          SeedOf({FrameOf(Frame::kTransfer, 8, "1234"),
                  FrameOf(Frame::kTransfer, 8, "5678", 4),
                  FrameOf(Frame::kTransfer, 4, "1234")}),
          SeedOf({FrameOf(Frame::kTransfer, 8, "1234"),
                  FrameOf(Frame::kTransfer, 8, "1234")}),
          SeedOf({FrameOf(Frame::kTransfer, 8, "5678", 4)}),
          SeedOf({FrameOf(Frame::kLeaveAck)})};
}

// Takes what has come of any dtype, into memory of just its size.
void Receive(Mesh& mesh) {
  for (const DType dtype : {DType::kU8, DType::kF32, DType::kI64}) {
    for (const int64_t elements : {1, 2, 8}) {
      std::vector<std::byte> memory(elements * ItemSize(dtype));
      collectives::Transfer transfer;
      transfer.peer = -1;
      transfer.dtype = dtype;
      transfer.block = {memory.data(), elements};
      const auto taken = mesh.Advance(transfer);
      Hold(!taken.ok() || !*taken || transfer.peer == 1);
    }
  }
}

// The same into an inbox whose chunks are so small that an input has several.
class SmallInbox {
 public:
  void TakeApart(Frame frame) {
    if (is_broken_) return;
    if (frame.kind == Frame::kTransfer) {
      is_broken_ = !inbox_.AddTransfer(frame).ok();
    } else if (frame.kind == Frame::kPart) {
      is_broken_ = !inbox_.AddPart(frame, 1).ok();
    }
    if (is_broken_) return;
    for (;;) {
      const collectives::Message* const part = inbox_.NextPart(1);
      if (part == nullptr || part->arrived < part->total) return;
      Hold(part->arrived == part->total);
      Hold(inbox_.TookOfPart(part->total));
    }
  }

 private:
  collectives::Inbox inbox_{64, 4};
  bool is_broken_ = false;
};

void Run(absl::string_view input) {
  SmallInbox small;
  collectives::MeshOptions options;
  options.group = "g";
  options.size = 2;
  const auto mesh = std::make_shared<Mesh>(std::move(options), ParkingDriver());
  while (input.size() >= 2) {
    uint16_t size;
    memcpy(&size, input.data(), sizeof size);
    input.remove_prefix(sizeof size);
    const absl::string_view text = input.substr(0, size);
    input.remove_prefix(text.size());
    // Cut somewhere, as messages of a network are.
    const Slices message = {Bytes::Copy(text.substr(0, text.size() / 3)),
                            Bytes::Copy(text.substr(text.size() / 3))};
    if (const auto frame = Decode(message); frame.ok()) {
      Hold(Flatten(Encode(*frame)).view() == text);
      small.TakeApart(*frame);
    }
    mesh->OnMessage(1, message);
    Receive(*mesh);
  }
  mesh->OnClosed(1, absl::OkStatus());
}

WEFT_FUZZ_TARGET(mesh, Seeds, NoWords, Run);

}  // namespace
}  // namespace weft::testing
