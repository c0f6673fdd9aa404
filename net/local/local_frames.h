// Local frames: what passes over a unix socket that carries one stream between
// two processes of a host.
//
//   caller:  preface, opening, then messages, and a half-close when no more
//            come
//   callee:  messages, then a closing with its status
//
// Either may ask for a sign of life at any time (ping), which the other gives
// (pong). A frame is a header of 8 bytes (its kind, three zeros, the size of
// its body, least byte first) and a body. A caller that ends early closes its
// socket; a callee's closing is its last frame.
//
// The kind is never 0, with which every frame of HTTP/2 begins that a server
// sends first, and the preface differs from HTTP/2's in its first byte: so each
// end notices a peer that speaks the other protocol.

#ifndef WEFT_NET_LOCAL_LOCAL_FRAMES_H_
#define WEFT_NET_LOCAL_LOCAL_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/base/bytes.h"
#include "weft/net/tls/peer.h"

namespace weft::net {

// The protocol, and its version: a digit and the end of a line follow.
inline constexpr absl::string_view kLocalProtocol = "weft-local/";
inline constexpr absl::string_view kLocalPreface = "weft-local/1\n";

enum class FrameKind : uint8_t {
  kOpening = 1,    // an Opening
  kMessage = 2,    // one message, of any size from 0
  kHalfClose = 3,  // nothing
  kClosing = 4,    // a status
  kPing = 5,       // nothing
  kPong = 6,       // nothing
};

inline constexpr size_t kFrameHeaderBytes = 8;
using FrameHeader = std::array<uint8_t, kFrameHeaderBytes>;

// REQUIRES: `body_bytes` is less than 2^32.
FrameHeader HeaderOf(FrameKind kind, size_t body_bytes);

// What opens a stream.
struct Opening {
  std::string endpoint;  // ps0; empty: the one there is
  std::string method;    // /weft.rpc.v1.Worker/Connect
  Metadata metadata;
};

// The body of its frame. kResourceExhausted: longer than `max_bytes`;
// kInvalidArgument: it would not be accepted by ParseOpening.
absl::StatusOr<std::string> ToBody(const Opening& opening, size_t max_bytes);
// kInvalidArgument for all that ToBody does not make: text that cannot be
// printed, a method without "/", keys of metadata with other characters than
// HTTP/2's (values of keys that end in "-bin" are free).
absl::StatusOr<Opening> ParseOpening(absl::string_view body);

// Likewise of a status, whose message is cut at 2,000 bytes; a code that is not
// known is kUnknown.
std::string ToClosingBody(const absl::Status& status);
absl::Status ParseClosing(absl::string_view body, absl::Status* said);

struct Frame {
  FrameKind kind;
  Slices body;
};

// Takes the bytes of a connection apart, as they come, and holds the peer to
// the order above. After an error it takes no more.
//
// Thread-safety: one thread at a time.
class LocalFrameReader {
 public:
  enum class End { kCaller, kCallee };  // which end reads
  struct Limits {
    uint64_t max_message_bytes = uint64_t{256} << 20;
    uint64_t max_opening_bytes = 9 << 10;
  };

  LocalFrameReader(End end, const Limits& limits);

  // Takes all of `bytes`, or those up to the end of a frame: then TakeFrame()
  // gives it, and must be called before the next bytes. Returns how many.
  //   kInvalidArgument    what this protocol does not have, there
  //   kUnimplemented      another version of it
  //   kResourceExhausted  a frame that is too large
  absl::StatusOr<size_t> Take(absl::Span<const uint8_t> bytes);
  std::optional<Frame> TakeFrame();

  // Where the next bytes of a body that has begun may be read to; empty between
  // bodies, and while a frame waits to be taken. What was read there is told by
  // Filled(); the memory stays until then.
  absl::Span<uint8_t> Room();
  // REQUIRES: `bytes` <= Room().size().
  void Filled(size_t bytes);

  // The memory of a body that is not whole. It is at most 16 KiB, or 17 times
  // what has come of it.
  size_t held_bytes() const { return held_; }

 private:
  enum class Stage { kPreface, kOpening, kOpen, kHalfClosed, kClosed };

  absl::Status CheckPreface();
  absl::Status BeginFrame();
  absl::Status CheckOrder(uint8_t kind) const;
  absl::Status CheckSize(FrameKind kind, uint64_t size) const;
  void MakePiece();
  void EndPiece();
  void EndFrameIfWhole();

  const End end_;
  const Limits limits_;
  Stage stage_;
  absl::Status failed_;
  // The preface or the header, as far as it has come.
  std::array<uint8_t, 16> head_;
  size_t head_size_ = 0;
  bool in_body_ = false;
  bool is_whole_ = false;  // the frame waits to be taken
  Frame frame_{FrameKind::kPing, {}};
  uint64_t missing_ = 0;  // of the body
  // Of the body, that is being filled.
  std::shared_ptr<uint8_t[]> piece_;
  size_t piece_size_ = 0;
  size_t piece_filled_ = 0;
  size_t held_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_LOCAL_LOCAL_FRAMES_H_
