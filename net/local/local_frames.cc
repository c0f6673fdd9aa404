#include "weft/net/local/local_frames.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"

namespace weft::net {
namespace {

constexpr size_t kMaxStatusBytes = 2000;
constexpr size_t kMaxClosingBytes = 4 + kMaxStatusBytes;

// The first piece of a body, and the later ones of a large body: a peer that
// announces much and sends little holds little.
constexpr size_t kFirstPieceBytes = 16 << 10;
constexpr size_t kPieceBytes = 256 << 10;

void AppendNumber(uint32_t number, std::string* to) {
  for (int i = 0; i < 4; ++i) to->push_back(static_cast<char>(number >> 8 * i));
}

void AppendText(absl::string_view text, std::string* to) {
  AppendNumber(static_cast<uint32_t>(text.size()), to);
  absl::StrAppend(to, text);
}

uint32_t NumberAt(const uint8_t* bytes) {
  uint32_t number = 0;
  for (int i = 0; i < 4; ++i) number |= uint32_t{bytes[i]} << 8 * i;
  return number;
}

// Each takes its part off the front; false: it is not there.
bool TakeNumber(absl::string_view* from, uint32_t* number) {
  if (from->size() < 4) return false;
  *number = NumberAt(reinterpret_cast<const uint8_t*>(from->data()));
  from->remove_prefix(4);
  return true;
}

bool TakeText(absl::string_view* from, std::string* text) {
  uint32_t size = 0;
  if (!TakeNumber(from, &size) || size > from->size()) return false;
  *text = std::string(from->substr(0, size));
  from->remove_prefix(size);
  return true;
}

bool IsText(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c));
  });
}

bool IsKey(absl::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-' ||
           c == '_' || c == '.';
  });
}

absl::Status CheckOpening(const Opening& opening) {
  const auto wanted = [](absl::string_view what, absl::string_view found) {
    return absl::InvalidArgumentError(
        absl::StrCat("an opening of a stream: wanted ", what, ", found \"",
                     absl::CHexEscape(found.substr(0, 80)), "\""));
  };
  if (!IsText(opening.endpoint))
    return wanted("the name of an endpoint", opening.endpoint);
  if (!IsText(opening.method) || !absl::StartsWith(opening.method, "/"))
    return wanted("a method like /Service/Method", opening.method);
  for (const auto& [key, value] : opening.metadata) {
    if (!IsKey(key)) return wanted("a key of metadata of [a-z0-9._-]", key);
    if (!absl::EndsWith(key, "-bin") && !IsText(value))
      return wanted("a value of metadata that can be printed", value);
  }
  return absl::OkStatus();
}

}  // namespace

FrameHeader HeaderOf(FrameKind kind, size_t body_bytes) {
  WEFT_CHECK(body_bytes <= UINT32_MAX) << body_bytes;
  FrameHeader header = {static_cast<uint8_t>(kind), 0, 0, 0};
  for (int i = 0; i < 4; ++i)
    header[4 + i] = static_cast<uint8_t>(body_bytes >> 8 * i);
  return header;
}

absl::StatusOr<std::string> ToBody(const Opening& opening, size_t max_bytes) {
  WEFT_RETURN_IF_ERROR(CheckOpening(opening));
  std::string body;
  AppendText(opening.endpoint, &body);
  AppendText(opening.method, &body);
  AppendNumber(static_cast<uint32_t>(opening.metadata.size()), &body);
  for (const auto& [key, value] : opening.metadata) {
    AppendText(key, &body);
    AppendText(value, &body);
  }
  if (body.size() <= max_bytes) return body;
  return absl::ResourceExhaustedError(
      absl::StrCat("what opens a stream has ", body.size(),
                   " bytes, metadata included, and at most ", max_bytes,
                   " are sent; raise it by --limits=max_metadata_bytes=VALUE"));
}

absl::StatusOr<Opening> ParseOpening(absl::string_view body) {
  const absl::Status broken =
      absl::InvalidArgumentError("an opening of a stream that is cut short");
  Opening opening;
  uint32_t count = 0;
  if (!TakeText(&body, &opening.endpoint) ||
      !TakeText(&body, &opening.method) || !TakeNumber(&body, &count)) {
    return broken;
  }
  // Ends with the bytes, whatever the count says.
  for (; count > 0; --count) {
    auto& [key, value] = opening.metadata.emplace_back();
    if (!TakeText(&body, &key) || !TakeText(&body, &value)) return broken;
  }
  if (!body.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an opening of a stream with ", body.size(), " bytes behind its end"));
  }
  WEFT_RETURN_IF_ERROR(CheckOpening(opening));
  return opening;
}

std::string ToClosingBody(const absl::Status& status) {
  std::string body;
  AppendNumber(static_cast<uint32_t>(status.code()), &body);
  absl::StrAppend(&body, status.message().substr(0, kMaxStatusBytes));
  return body;
}

absl::Status ParseClosing(absl::string_view body, absl::Status* said) {
  uint32_t code = 0;
  if (!TakeNumber(&body, &code) || body.size() > kMaxStatusBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a closing: wanted a code and at most ", kMaxStatusBytes,
        " bytes of message, found ", body.size(), " bytes in all"));
  }
  if (code == 0) {
    *said = absl::OkStatus();
    return absl::OkStatus();
  }
  const bool known =
      code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  *said = absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
      body);
  return absl::OkStatus();
}

LocalFrameReader::LocalFrameReader(End end, const Limits& limits)
    : end_(end),
      limits_(limits),
      stage_(end == End::kCallee ? Stage::kPreface : Stage::kOpen) {
  static_assert(kLocalPreface.size() <= 16 && kFrameHeaderBytes <= 16);
}

absl::StatusOr<size_t> LocalFrameReader::Take(absl::Span<const uint8_t> bytes) {
  WEFT_RETURN_IF_ERROR(failed_);
  WEFT_CHECK(!is_whole_) << "the frame before was not taken";
  size_t taken = 0;
  while (taken < bytes.size() && !is_whole_) {
    const size_t left = bytes.size() - taken;
    size_t some;
    if (in_body_) {
      const absl::Span<uint8_t> room = Room();
      some = std::min(left, room.size());
      memcpy(room.data(), bytes.data() + taken, some);
      Filled(some);
    } else {
      const size_t whole =
          stage_ == Stage::kPreface ? kLocalPreface.size() : kFrameHeaderBytes;
      some = std::min(left, whole - head_size_);
      memcpy(head_.data() + head_size_, bytes.data() + taken, some);
      head_size_ += some;
      if (head_size_ == whole) {
        failed_ = stage_ == Stage::kPreface ? CheckPreface() : BeginFrame();
        WEFT_RETURN_IF_ERROR(failed_);
      }
    }
    taken += some;
  }
  return taken;
}

absl::Status LocalFrameReader::CheckPreface() {
  const absl::string_view found(reinterpret_cast<const char*>(head_.data()),
                                kLocalPreface.size());
  if (!absl::StartsWith(found, kLocalProtocol)) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted ", kLocalProtocol, ", found \"",
                     absl::CHexEscape(found), "\""));
  }
  if (found != kLocalPreface) {
    return absl::UnimplementedError(absl::StrCat(
        "wanted ", absl::StripAsciiWhitespace(kLocalPreface), ", found \"",
        absl::CHexEscape(found), "\": the caller is of another build"));
  }
  head_size_ = 0;
  stage_ = Stage::kOpening;
  return absl::OkStatus();
}

absl::Status LocalFrameReader::CheckOrder(uint8_t kind) const {
  const auto is = [kind](FrameKind one) {
    return kind == static_cast<uint8_t>(one);
  };
  const bool is_open = stage_ == Stage::kOpen;
  bool fits = false;
  if (is(FrameKind::kOpening)) fits = stage_ == Stage::kOpening;
  if (is(FrameKind::kMessage)) fits = is_open;
  if (is(FrameKind::kHalfClose)) fits = is_open && end_ == End::kCallee;
  if (is(FrameKind::kClosing)) fits = is_open && end_ == End::kCaller;
  if (is(FrameKind::kPing) || is(FrameKind::kPong))
    fits = is_open || stage_ == Stage::kHalfClosed;
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a frame of kind ", kind, " where none of it may come"));
}

absl::Status LocalFrameReader::CheckSize(FrameKind kind, uint64_t size) const {
  uint64_t most = 0;
  absl::string_view limit = "";
  if (kind == FrameKind::kMessage) {
    most = limits_.max_message_bytes;
    limit = "; max_message_bytes says so";
  }
  if (kind == FrameKind::kOpening) {
    most = limits_.max_opening_bytes;
    limit = "; max_metadata_bytes and 1 KiB beside it";
  }
  if (kind == FrameKind::kClosing) most = kMaxClosingBytes;
  if (size <= most) return absl::OkStatus();
  const std::string text =
      absl::StrCat("a frame of kind ", static_cast<int>(kind),
                   " larger than max (", size, " bytes for ", most, ")", limit);
  return limit.empty() ? absl::InvalidArgumentError(text)
                       : absl::ResourceExhaustedError(text);
}

absl::Status LocalFrameReader::BeginFrame() {
  WEFT_RETURN_IF_ERROR(CheckOrder(head_[0]));
  if (head_[1] != 0 || head_[2] != 0 || head_[3] != 0) {
    return absl::InvalidArgumentError("a frame whose header has no zeros");
  }
  const auto kind = static_cast<FrameKind>(head_[0]);
  const uint64_t size = NumberAt(head_.data() + 4);
  WEFT_RETURN_IF_ERROR(CheckSize(kind, size));
  if (kind == FrameKind::kOpening) stage_ = Stage::kOpen;
  if (kind == FrameKind::kHalfClose) stage_ = Stage::kHalfClosed;
  if (kind == FrameKind::kClosing) stage_ = Stage::kClosed;
  frame_.kind = kind;
  missing_ = size;
  in_body_ = true;
  EndFrameIfWhole();
  return absl::OkStatus();
}

absl::Span<uint8_t> LocalFrameReader::Room() {
  if (!in_body_ || is_whole_) return {};
  if (piece_ == nullptr) MakePiece();
  return {piece_.get() + piece_filled_, piece_size_ - piece_filled_};
}

void LocalFrameReader::MakePiece() {
  const size_t most = held_ == 0 ? kFirstPieceBytes : kPieceBytes;
  piece_size_ = static_cast<size_t>(std::min<uint64_t>(missing_, most));
  piece_ = std::shared_ptr<uint8_t[]>(new uint8_t[piece_size_]);
  piece_filled_ = 0;
  held_ += piece_size_;
}

void LocalFrameReader::Filled(size_t bytes) {
  piece_filled_ += bytes;
  missing_ -= bytes;
  if (piece_filled_ < piece_size_) return;
  EndPiece();
  EndFrameIfWhole();
}

void LocalFrameReader::EndPiece() {
  const uint8_t* const begin = piece_.get();
  frame_.body.push_back(Bytes::Wrap(begin, piece_size_, std::move(piece_)));
  piece_ = nullptr;
}

void LocalFrameReader::EndFrameIfWhole() {
  if (missing_ > 0) return;
  is_whole_ = true;
  in_body_ = false;
  held_ = 0;
}

std::optional<Frame> LocalFrameReader::TakeFrame() {
  if (!is_whole_) return std::nullopt;
  is_whole_ = false;
  head_size_ = 0;
  return Frame{frame_.kind, std::exchange(frame_.body, {})};
}

}  // namespace weft::net
