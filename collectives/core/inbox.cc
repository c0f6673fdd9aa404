#include "weft/collectives/core/inbox.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/tensor.h"

namespace weft::collectives {
namespace {

// Bytes after which an ack is sent: a part of the window, since acks of less
// would be many.
constexpr int64_t kAckBytes = Inbox::kPartWindow / 4;

uint64_t SizeOf(const Slices& content) {
  uint64_t bytes = 0;
  for (const Bytes& slice : content) bytes += slice.size();
  return bytes;
}

void Append(Slices& content, Message& message) {
  message.arrived += SizeOf(content);
  for (Bytes& slice : content) message.content.push_back(std::move(slice));
}

}  // namespace

int64_t KeptBytes(uint64_t content) {
  return static_cast<int64_t>(content) + 64;
}

absl::Status Inbox::CheckChunk(const Frame& frame) const {
  const uint64_t bytes = SizeOf(frame.content);
  const uint64_t wanted =
      std::min(static_cast<uint64_t>(chunk_bytes_), frame.total - frame.offset);
  if (bytes == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a frame has ", bytes, " bytes at ", frame.offset, " of ",
                   frame.total, ", wanted ", wanted));
}

absl::Status Inbox::AddPart(Frame& frame, uint64_t current) {
  WEFT_RETURN_IF_ERROR(CheckChunk(frame));
  const uint64_t bytes =
      SizeOf(frame.content) + (frame.offset == 0 ? kMessageBytes : 0);
  parts_held_ += static_cast<int64_t>(bytes);
  if (parts_held_ > kPartWindow) {
    return absl::InvalidArgumentError(
        absl::StrCat("more arrives than may be under way: ", parts_held_,
                     " bytes in ", parts_.size(), " messages"));
  }
  const bool goes_on = !parts_.empty() && frame.offset > 0 &&
                       parts_.back().sequence == frame.sequence &&
                       parts_.back().tag == frame.tag &&
                       parts_.back().arrived == frame.offset;
  if (frame.sequence < current || (frame.offset > 0 && !goes_on)) {
    Free(bytes);  // of a refused operation
    return absl::OkStatus();
  }
  if (!goes_on) {
    Message message;
    message.sequence = frame.sequence;
    message.fingerprint = frame.fingerprint;
    message.tag = frame.tag;
    message.total = frame.total;
    parts_.push_back(std::move(message));
  }
  if (parts_.back().total != frame.total) {
    return absl::InvalidArgumentError("a message has changed its size");
  }
  Append(frame.content, parts_.back());
  return absl::OkStatus();
}

Message* Inbox::NextPart(uint64_t sequence) {
  // Messages of operations that a rank refused may be left.
  while (!parts_.empty() && parts_.front().sequence < sequence) {
    Free(parts_.front().arrived - parts_.front().taken + kMessageBytes);
    parts_.pop_front();
  }
  if (parts_.empty() || parts_.front().sequence != sequence) return nullptr;
  return &parts_.front();
}

bool Inbox::TookOfPart(uint64_t bytes) {
  Message& message = parts_.front();
  message.taken += bytes;
  const bool is_whole = message.taken == message.total;
  if (is_whole) parts_.pop_front();
  Free(bytes + (is_whole ? kMessageBytes : 0));
  return is_whole;
}

void Inbox::Free(uint64_t bytes) {
  parts_held_ -= static_cast<int64_t>(bytes);
  parts_freed_ += static_cast<int64_t>(bytes);
}

int64_t Inbox::TakeDueAck() {
  return parts_freed_ < kAckBytes ? 0 : std::exchange(parts_freed_, 0);
}

absl::Status Inbox::AddTransfer(Frame& frame) {
  WEFT_RETURN_IF_ERROR(CheckChunk(frame));
  const int64_t item =
      frame.code < 64 ? ItemSize(static_cast<DType>(frame.code)) : 0;
  if (item <= 0 || frame.total > static_cast<uint64_t>(kMaxTensorBytes) ||
      frame.total % static_cast<uint64_t>(item) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", frame.total,
                     " bytes is no tensor of dtype ", frame.code));
  }
  if (frame.offset == 0) {
    const bool is_cut = !transfers_.empty() && !transfers_.back().is_whole();
    if (is_cut || kept_bytes_ >= most_kept_) {
      return absl::InvalidArgumentError(
          is_cut ? "a message begins before the last one has ended"
                 : "more messages arrive than may be under way");
    }
    Message message;
    message.sequence = frame.sequence;
    message.tag = frame.tag;
    message.dtype = static_cast<DType>(frame.code);
    message.total = frame.total;
    transfers_.push_back(std::move(message));
  }
  if (transfers_.empty() || transfers_.back().sequence != frame.sequence ||
      transfers_.back().arrived != frame.offset ||
      transfers_.back().total != frame.total) {
    return absl::InvalidArgumentError("a message's parts do not fit");
  }
  Append(frame.content, transfers_.back());
  if (transfers_.back().is_whole()) kept_bytes_ += KeptBytes(frame.total);
  return absl::OkStatus();
}

std::optional<Message> Inbox::TakeTransfer(uint64_t tag) {
  const auto it =
      std::find_if(transfers_.begin(), transfers_.end(),
                   [&](const Message& message) { return message.tag == tag; });
  if (it == transfers_.end() || !it->is_whole()) return std::nullopt;
  std::optional<Message> message = std::move(*it);
  transfers_.erase(it);
  kept_bytes_ -= KeptBytes(message->total);
  return message;
}

bool Inbox::LacksTransfer(uint64_t tag) const {
  return std::none_of(
      transfers_.begin(), transfers_.end(),
      [&](const Message& message) { return message.tag == tag; });
}

std::string Inbox::Snapshot() const {
  std::string text =
      absl::StrCat(parts_held_, " ", parts_freed_, " ", kept_bytes_);
  for (const auto* messages : {&parts_, &transfers_}) {
    absl::StrAppend(&text, messages == &parts_ ? " parts" : " transfers");
    for (const Message& message : *messages) {
      absl::StrAppend(&text, " (", message.sequence, " ", message.fingerprint,
                      " ", message.tag, " ", message.total, " ",
                      message.arrived, " ", message.taken, ")");
    }
  }
  return text;
}

}  // namespace weft::collectives
