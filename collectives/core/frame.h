// Frame: what one message of a stream between two ranks says.
//
// Messages, after a header of fixed size; integers are little-endian, since
// both ends are of one build:
//   kHello        the first in each direction: who speaks, of which group
//   kAnnounce     what the sender has called; a status is wanted
//   kStatus       the answer: what its sender has called last
//   kPart         bytes of an operation's message, with its fingerprint; the
//                 first of an operation says what was called
//   kPartAck      so many bytes of parts were taken
//   kTransfer     bytes of a Send
//   kTransferAck  so many bytes of Sends were received
//   kAbort        the group is broken, and why; or what is made of it is to end
//   kLeave        the sender has left the group

#ifndef WEFT_COLLECTIVES_CORE_FRAME_H_
#define WEFT_COLLECTIVES_CORE_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "weft/base/bytes.h"

namespace weft::collectives {

struct Frame {
  enum Kind : uint32_t {
    kHello = 1,
    kAnnounce,
    kStatus,
    kPart,
    kPartAck,
    kTransfer,
    kTransferAck,
    kAbort,
    kLeave,
    kLeaveAck,  // all that the peer sent before its kLeave has arrived
  };
  static constexpr size_t kMaxTextBytes = 4096;

  Kind kind = kHello;
  // kHello: the sender's rank. kTransfer: the DType. kAbort: the code.
  // kAnnounce, kStatus: 1 if it refuses its part.
  uint32_t code = 0;
  // The number of the operation that was called, 0 if none was: see
  // StreamBackend. kHello: the size of the group.
  uint64_t sequence = 0;
  // kAbort: the key of the Shrink that is to end; 0: the group is broken.
  uint64_t fingerprint = 0;
  // kTransfer: its tag. kPart: counts the operation's messages on this stream.
  // kAnnounce: a number, which the answer repeats; other kStatus: 0. kAbort of
  // a Shrink: 1 if the sender has heard of it from another rank.
  uint64_t tag = 0;
  // Bytes of the whole message, and how many of them came before these. An ack:
  // how many were taken since the last.
  uint64_t total = 0;
  uint64_t offset = 0;
  // What was called; why; the group's name.
  std::string text;
  Slices content;
};

// A copy of these bytes, for Frame::content.
Slices CopyOf(const std::byte* begin, int64_t bytes);

// Cuts the text at kMaxTextBytes.
Slices Encode(Frame frame);

// kInvalidArgument for anything that Encode does not write.
absl::StatusOr<Frame> Decode(const Slices& message);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_CORE_FRAME_H_
