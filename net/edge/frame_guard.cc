#include "weft/net/edge/frame_guard.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace weft::net {
namespace {

// RFC 9113, 3.4.
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// RFC 9113, section 6: types of frames, and flags.
constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kReset = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kPing = 6;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kAck = 1;  // of SETTINGS and PING
constexpr uint8_t kEndStream = 1;
constexpr const char* kNames[] = {
    "DATA",          "HEADERS",      "PRIORITY", "RST_STREAM",
    "SETTINGS",      "PUSH_PROMISE", "PING",     "GOAWAY",
    "WINDOW_UPDATE", "CONTINUATION", "unknown",  "TLS, not HTTP/2"};

constexpr size_t kUnknownType = 10;
constexpr size_t kTlsRecord = 11;

constexpr int64_t kTlsRecordCost = 10;  // keys are derived
constexpr int64_t kGrantForCallOrMessage = 4;
constexpr int64_t kDataBytesForOne = 256;
constexpr uint32_t kSentBytesForOne = 2048;
// A control frame of many bytes costs more: SETTINGS has an entry in each six.
constexpr int64_t kControlBytesForOne = 64;
// Beyond it messages grant nothing. A connection with 1024 calls is cut anyway:
// AcceptLoop.
constexpr size_t kMostStreams = 2048;
constexpr uint32_t kMessagePrefixBytes = 5;

}  // namespace

bool FrameReader::Take(absl::string_view* bytes, absl::string_view* payload) {
  *payload = {};
  if (header_filled_ == kHeaderBytes) {  // within a payload
    *payload = bytes->substr(0, payload_left_);
    bytes->remove_prefix(payload->size());
    payload_left_ -= static_cast<uint32_t>(payload->size());
    if (payload_left_ == 0) header_filled_ = 0;
    return false;
  }
  const size_t take = std::min(bytes->size(), kHeaderBytes - header_filled_);
  std::copy_n(bytes->begin(), take, header_bytes_.begin() + header_filled_);
  bytes->remove_prefix(take);
  header_filled_ += take;
  if (header_filled_ < kHeaderBytes) return false;
  const auto byte = [this](size_t at) {
    return uint32_t{static_cast<uint8_t>(header_bytes_[at])};
  };
  header_.length = byte(0) << 16 | byte(1) << 8 | byte(2);
  header_.type = static_cast<uint8_t>(byte(3));
  header_.flags = static_cast<uint8_t>(byte(4));
  header_.stream =
      (byte(5) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8)) & 0x7fffffff;
  payload_left_ = header_.length;
  if (payload_left_ == 0) header_filled_ = 0;
  return true;
}

FrameGuard::FrameGuard(Options options)
    : options_(options), budget_(options.frames_at_once) {}

const std::string& FrameGuard::OnReceived(absl::string_view bytes,
                                          Instant now) {
  if (!flood_.empty()) return flood_;
  Refill(now);
  if (budget_ < 0) flood_ = Flood();
  if (!SkipPreface(&bytes)) return flood_;
  while (!bytes.empty() && flood_.empty()) {
    absl::string_view payload;
    if (received_.Take(&bytes, &payload)) OnReceivedHeader(received_.header());
    const FrameReader::Header& header = received_.header();
    if (!payload.empty()) OnPayload(header, payload);
    if (received_.is_at_end_of_frame()) OnEndOfFrame(header);
    if (budget_ < 0 && flood_.empty()) flood_ = Flood();
  }
  return flood_;
}

// False if nothing is left, or if this is not HTTP/2: gRPC ends it then.
bool FrameGuard::SkipPreface(absl::string_view* bytes) {
  if (preface_seen_ < kPreface.size() && is_http2_) {
    const absl::string_view rest = kPreface.substr(preface_seen_);
    const size_t count = std::min(rest.size(), bytes->size());
    is_http2_ = bytes->substr(0, count) == rest.substr(0, count);
    preface_seen_ += count;
    bytes->remove_prefix(count);
  }
  return is_http2_ && !bytes->empty();
}

void FrameGuard::OnReceivedHeader(const FrameReader::Header& header) {
  ++frames_by_type_[std::min<size_t>(header.type, kUnknownType)];
  budget_ -= 1;
  switch (header.type) {
    case kData:
      return;
    case kHeaders:
    case kContinuation:
      return OnHeaderBlock(header);
    case kReset:
      streams_.erase(header.stream);
      return;
    default:
      return;
  }
}

void FrameGuard::OnPayload(const FrameReader::Header& header,
                           absl::string_view payload) {
  switch (header.type) {
    case kData:
      return OnData(header.stream, payload);
    case kHeaders:
    case kContinuation:
      return;  // bounded in OnHeaderBlock
    default:
      control_bytes_ += static_cast<int64_t>(payload.size());
      budget_ -= control_bytes_ / kControlBytesForOne;
      control_bytes_ %= kControlBytesForOne;
  }
}

void FrameGuard::OnHeaderBlock(const FrameReader::Header& header) {
  if (header.type == kHeaders) header_block_bytes_ = 0;
  header_block_bytes_ += header.length;
  if (header_block_bytes_ > options_.max_header_bytes) {
    flood_ = absl::StrCat("a header block of ", header_block_bytes_,
                          " bytes or more; at most ", options_.max_header_bytes,
                          " are read");
    return;
  }
  if (header.type != kHeaders || header.stream <= last_stream_) return;
  last_stream_ = header.stream;
  if (streams_.size() < kMostStreams)
    streams_.emplace(header.stream, Message());
  Grant(kGrantForCallOrMessage);
}

void FrameGuard::OnData(uint32_t stream, absl::string_view payload) {
  data_bytes_ += static_cast<int64_t>(payload.size());
  Grant(data_bytes_ / kDataBytesForOne);
  data_bytes_ %= kDataBytesForOne;
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  Message& message = found->second;
  while (!payload.empty()) {
    if (message.prefix_bytes < kMessagePrefixBytes) {
      // The flag falls out of the four bytes.
      message.length =
          message.length << 8 | static_cast<uint8_t>(payload.front());
      message.left = message.length;
      payload.remove_prefix(1);
      ++message.prefix_bytes;
    } else {
      const size_t take = std::min<size_t>(payload.size(), message.left);
      payload.remove_prefix(take);
      message.left -= static_cast<uint32_t>(take);
    }
    if (message.prefix_bytes == kMessagePrefixBytes && message.left == 0) {
      Grant(kGrantForCallOrMessage);
      message = Message();
    }
  }
}

void FrameGuard::OnEndOfFrame(const FrameReader::Header& header) {
  if ((header.type == kData || header.type == kHeaders) &&
      (header.flags & kEndStream) != 0)
    streams_.erase(header.stream);
}

void FrameGuard::OnTlsRecord() {
  ++frames_by_type_[kTlsRecord];
  budget_ -= kTlsRecordCost;
}

void FrameGuard::OnSent(absl::string_view bytes) {
  while (!bytes.empty()) {
    absl::string_view payload;
    if (sent_.Take(&bytes, &payload)) OnSentHeader(sent_.header());
  }
}

void FrameGuard::OnSentHeader(const FrameReader::Header& header) {
  switch (header.type) {
    case kData:
    case kHeaders:
      return Grant(kGrantForCallOrMessage + header.length / kSentBytesForOne);
    case kReset:
      streams_.erase(header.stream);
      return;
    case kSettings:
    case kPing:
      // An acknowledgement of a frame of the peer allows no other frame.
      if ((header.flags & kAck) == 0) Grant(1);
      return;
    case kWindowUpdate:
      return Grant(1);
    default:
      return;
  }
}

void FrameGuard::Grant(int64_t frames) {
  budget_ = std::min(budget_ + frames, options_.max_budget);
}

void FrameGuard::Refill(Instant now) {
  if (!has_begun_) refilled_ = now;
  has_begun_ = true;
  const int64_t due =
      static_cast<int64_t>(absl::ToDoubleSeconds(now - refilled_) *
                           static_cast<double>(options_.frames_per_second));
  if (due <= 0) return;
  refilled_ = now;
  if (budget_ < options_.frames_at_once)
    budget_ = std::min(budget_ + due, options_.frames_at_once);
}

std::string FrameGuard::Flood() const {
  const auto most =
      std::max_element(frames_by_type_.begin(), frames_by_type_.end());
  return absl::StrCat("more frames than its calls and messages explain; ",
                      *most, " of its frames were of type ",
                      kNames[most - frames_by_type_.begin()]);
}

}  // namespace weft::net
