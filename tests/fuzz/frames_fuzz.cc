// frames: however a peer cuts its HTTP/2 frames into pieces, and whatever they
// say, the frame guard comes to the same verdict, which stays.
//
// The first byte says which part of the input this end has sent.

#include <string>

#include "weft/net/edge/frame_guard.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(char type, char flags, char stream,
                  const std::string& payload) {
  const auto size = static_cast<char>(payload.size());
  return std::string({0, 0, size, type, flags, 0, 0, 0, stream}) + payload;
}

std::vector<std::string> Seeds() {
  const std::string message("\0\0\0\0\2xy", 7);
  const std::string begin = std::string(1, '\0') + std::string(kPreface);
  const std::string call = Frame(1, 4, 1, "head") + Frame(0, 1, 1, message);
  return {begin + call + Frame(8, 0, 0, "1234"),
          begin + Frame(4, 0, 0, "") + Frame(6, 0, 0, "01234567"),
          begin + Frame(1, 0, 1, "head") + Frame(9, 4, 1, "more"),
          begin + Frame(1, 4, 1, "head") +
              Frame(0, 0, 1, message + std::string(1, 0)) +
              Frame(3, 0, 1, "1234"),
          std::string(1, '\x80') + std::string(kPreface) + call + call};
}

std::vector<std::string> Words() {
  return {Frame(0, 0, 1, ""), Frame(1, 4, 3, ""), Frame(9, 0, 1, "x"),
          std::string(kPreface), "\xff\xff\xff"};
}

std::string VerdictOf(absl::string_view received, absl::string_view sent,
                      size_t piece) {
  net::FrameGuard::Options options;
  options.max_header_bytes = 64;
  options.frames_at_once = 8;
  options.max_budget = 12;
  net::FrameGuard guard(options);
  const auto in_pieces = [piece](absl::string_view bytes, auto take) {
    for (size_t at = 0; at < bytes.size(); at += piece)
      take(bytes.substr(at, piece));
  };
  const Instant now = Instant::FromNanoseconds(1);
  in_pieces(sent, [&](absl::string_view bytes) { guard.OnSent(bytes); });
  in_pieces(received,
            [&](absl::string_view bytes) { guard.OnReceived(bytes, now); });
  std::string verdict = guard.OnReceived("", now);
  Hold(verdict.empty() ||
       guard.OnReceived(Frame(1, 4, 101, ""), now) == verdict);
  return verdict;
}

void Run(absl::string_view input) {
  if (input.empty()) return;
  const size_t share = static_cast<uint8_t>(input[0]) * input.size() / 256;
  const absl::string_view sent = input.substr(input.size() - share);
  input = input.substr(1, input.size() - share);
  const std::string verdict = VerdictOf(input, sent, 1 << 20);
  Hold(VerdictOf(input, sent, 1) == verdict);
  Hold(VerdictOf(input, sent, 7) == verdict);
}

WEFT_FUZZ_TARGET(frames, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
