// FrameGuard: reads the frames of one HTTP/2 connection in both directions and
// reports a peer that floods it.
//
// gRPC 1.51 handles as many frames as a peer sends, on the one thread that
// polls. A frame costs it about the same whether it carries something or not,
// so the guard keeps a budget in frames. Each frame of the peer costs 1, and 1
// more for each 64 bytes if it is neither headers nor data. What explains
// frames of an honest peer adds to the budget:
//   - a new stream, and each whole message on a stream that is open: 4 (its
//     frames, and the WINDOW_UPDATEs that go with them);
//   - data: 1 for 256 bytes;
//   - each frame of ours with headers or data: 4 and 1 for 2 KiB (the peer
//     acknowledges data by WINDOW_UPDATE, and measures its bandwidth by PING);
//     our own PING, SETTINGS and WINDOW_UPDATE: 1;
//   - time.
// So PING, SETTINGS, PRIORITY, WINDOW_UPDATE and RST_STREAM without a reason,
// frames of unknown types, and data frames without data or with a few bytes
// each use it up. So do records of TLS itself, such as KeyUpdate: each
// costs 10. A header block beyond `max_header_bytes`, in however many
// CONTINUATION frames, is a flood too.
//
// Source: RFC 9113, sections 4.1, 6 and 10.5; the length of a message is gRPC's
// Length-Prefixed-Message. Cost: the header of each frame is looked at, and the
// five bytes before each message; other bytes are skipped.

#ifndef WEFT_NET_EDGE_FRAME_GUARD_H_
#define WEFT_NET_EDGE_FRAME_GUARD_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "weft/base/clock.h"

namespace weft::net {

// Cuts a stream of bytes into HTTP/2 frames. Thread-safety: one thread at a
// time.
class FrameReader {
 public:
  struct Header {
    uint8_t type = 0;
    uint8_t flags = 0;
    uint32_t stream = 0;
    uint32_t length = 0;  // of the payload, in bytes
  };

  // Takes a prefix of `*bytes` (not empty). True if it completed the header of
  // a frame: header() is that frame's. `*payload` is the part of the current
  // frame's payload that it took, which may be empty.
  bool Take(absl::string_view* bytes, absl::string_view* payload);

  const Header& header() const { return header_; }
  bool is_at_end_of_frame() const {
    return payload_left_ == 0 && header_filled_ == 0;
  }

 private:
  static constexpr size_t kHeaderBytes = 9;

  std::array<char, kHeaderBytes> header_bytes_ = {};
  size_t header_filled_ = 0;
  uint32_t payload_left_ = 0;
  Header header_;
};

// Thread-safety: one thread at a time.
class FrameGuard {
 public:
  struct Options {
    // The HEADERS and CONTINUATION frames of one header block have no more
    // together.
    int64_t max_header_bytes = 64 << 10;
    // The budget at the beginning, and the most that time alone brings it to.
    int64_t frames_at_once = 2'000;
    int64_t frames_per_second = 500;
    // The most that it can be.
    int64_t max_budget = 10'000;
  };

  explicit FrameGuard(Options options);

  // Bytes from the peer, beginning with the preface, in pieces of any size,
  // also 0. Returns an empty text, or what the peer floods the connection with;
  // then, and for all later bytes, the connection must be ended. `now` is no
  // earlier than before.
  const std::string& OnReceived(absl::string_view bytes, Instant now);

  // A record of TLS from the peer that has no bytes of the application:
  // handshake, KeyUpdate, alert. The next OnReceived says whether that is a
  // flood.
  void OnTlsRecord();

  // Bytes to the peer.
  void OnSent(absl::string_view bytes);

 private:
  // A message of gRPC on an open stream: a flag and four bytes of length.
  struct Message {
    uint32_t prefix_bytes = 0;  // seen
    uint32_t length = 0;
    uint32_t left = 0;
  };

  bool SkipPreface(absl::string_view* bytes);
  void OnReceivedHeader(const FrameReader::Header& header);
  void OnHeaderBlock(const FrameReader::Header& header);
  void OnPayload(const FrameReader::Header& header, absl::string_view payload);
  void OnData(uint32_t stream, absl::string_view payload);
  void OnEndOfFrame(const FrameReader::Header& header);
  void OnSentHeader(const FrameReader::Header& header);
  void Grant(int64_t frames);
  void Refill(Instant now);
  std::string Flood() const;

  const Options options_;
  size_t preface_seen_ = 0;
  bool is_http2_ = true;
  FrameReader received_;
  FrameReader sent_;
  absl::flat_hash_map<uint32_t, Message> streams_;
  uint32_t last_stream_ = 0;
  int64_t header_block_bytes_ = 0;
  int64_t data_bytes_ = 0;     // not granted for yet
  int64_t control_bytes_ = 0;  // not charged for yet
  int64_t budget_;
  Instant refilled_;
  bool has_begun_ = false;
  // By type; then unknown types, and records of TLS.
  std::array<int64_t, 12> frames_by_type_ = {};
  std::string flood_;
};

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_FRAME_GUARD_H_
