// local_frames: however the bytes of a stream over a unix socket are cut, they
// are the same frames and end in the same error; what is announced and does not
// come holds little; openings and closings are read as they are written.
//
// The first byte says which end reads.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "weft/net/local/local_frames.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using net::FrameKind;
using net::LocalFrameReader;

constexpr size_t kMaxMessage = 100'000;

std::string FrameOf(FrameKind kind, const std::string& body = "") {
  const net::FrameHeader header = net::HeaderOf(kind, body.size());
  return std::string(header.begin(), header.end()) + body;
}

std::string OpeningOf(const net::Opening& opening) {
  return FrameOf(FrameKind::kOpening, *net::ToBody(opening, 1000));
}

std::vector<std::string> Seeds() {
  const std::string preface(net::kLocalPreface);
  const std::string open =
      preface +
      OpeningOf({"ps0", "/a/B", {{"key", "value"}, {"x-bin", "\x01"}}});
  const std::string message = FrameOf(FrameKind::kMessage, "hello");
  return {
      "s" + open + message + FrameOf(FrameKind::kMessage) +
          FrameOf(FrameKind::kPing) + FrameOf(FrameKind::kHalfClose),
      "s" + preface + OpeningOf({"", "/a/B", {}}) + message,
      "s" + open + FrameOf(FrameKind::kMessage, std::string(5000, 'x')),
      "s" + open + "\x02",
      "sweft-local/2\n....",
      "sPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "s" + preface + FrameOf(FrameKind::kOpening, "\xff\xff\xff\xff"),
      "c" + message + FrameOf(FrameKind::kPong) +
          FrameOf(FrameKind::kClosing,
                  net::ToClosingBody(absl::AbortedError("why"))),
      "c" + FrameOf(FrameKind::kClosing, "\x63"),
      "c" + FrameOf(FrameKind::kClosing, net::ToClosingBody(absl::OkStatus()))};
}

std::vector<std::string> Words() {
  std::vector<std::string> words = {std::string(net::kLocalPreface)};
  for (const char kind : {1, 2, 3, 4, 5, 6})
    words.push_back(FrameOf(static_cast<FrameKind>(kind)));
  return words;
}

void CheckBody(const net::Frame& frame) {
  const std::string body(Flatten(frame.body).view());
  if (frame.kind == FrameKind::kOpening) {
    const auto opening = net::ParseOpening(body);
    if (opening.ok()) Hold(*net::ToBody(*opening, body.size()) == body);
  } else if (frame.kind == FrameKind::kClosing) {
    absl::Status said;
    absl::Status again;
    if (!net::ParseClosing(body, &said).ok()) return;
    Hold(net::ParseClosing(net::ToClosingBody(said), &again).ok());
    Hold(again == said);
  }
}

// All that was read, as text, and how it ended.
std::string Read(LocalFrameReader::End end, absl::string_view bytes,
                 size_t piece) {
  LocalFrameReader::Limits limits;
  limits.max_message_bytes = kMaxMessage;
  limits.max_opening_bytes = 1000;
  LocalFrameReader reader(end, limits);
  std::string all;
  bool by_room = false;
  while (!bytes.empty()) {
    const size_t some = std::min(piece, bytes.size());
    const absl::Span<uint8_t> room = reader.Room();
    by_room = !by_room && !room.empty();
    size_t taken = 0;
    if (by_room) {
      taken = std::min(some, room.size());
      std::copy_n(bytes.begin(), taken, room.begin());
      reader.Filled(taken);
    } else {
      const auto by_copy =
          reader.Take({reinterpret_cast<const uint8_t*>(bytes.data()), some});
      if (!by_copy.ok()) return all + by_copy.status().ToString();
      taken = *by_copy;
    }
    Hold(taken > 0 && taken <= some);
    bytes.remove_prefix(taken);
    Hold(reader.held_bytes() <= kMaxMessage);
    const auto frame = reader.TakeFrame();
    if (!frame.has_value()) continue;
    CheckBody(*frame);
    all.push_back(static_cast<char>('0' + static_cast<int>(frame->kind)));
    all += std::string(Flatten(frame->body).view());
  }
  return all;
}

void Run(absl::string_view input) {
  if (input.empty()) return;
  const auto end = input[0] == 'c' ? LocalFrameReader::End::kCaller
                                   : LocalFrameReader::End::kCallee;
  input.remove_prefix(1);
  const std::string all = Read(end, input, 1 << 20);
  Hold(Read(end, input, 1) == all);
  Hold(Read(end, input, 13) == all);
}

WEFT_FUZZ_TARGET(local_frames, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
