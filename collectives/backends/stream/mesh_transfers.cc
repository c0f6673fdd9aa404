// Sends and receives over a mesh.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/stream/mesh.h"

namespace weft::collectives {
namespace {

constexpr int64_t kChunkBytes = Inbox::kChunkBytes;

}  // namespace

absl::StatusOr<bool> Mesh::SendTransfer(Transfer& transfer) {
  Peer& p = peers_[transfer.peer];
  const int64_t total = transfer.block.elements * ItemSize(transfer.dtype);
  if (p.sending != nullptr && p.sending != &transfer) return false;
  if (p.sending == nullptr) {
    if (p.transfers_under_way >= options_.max_unasked_bytes) return false;
    p.transfers_under_way += KeptBytes(static_cast<uint64_t>(total));
    ++p.transfers_sent;
    p.sending = &transfer;
  }
  while (p.outbox.size() < kMostQueued) {
    const int64_t n = std::min(kChunkBytes, total - transfer.moved_bytes);
    Frame frame;
    frame.kind = Frame::kTransfer;
    frame.code = static_cast<uint32_t>(transfer.dtype);
    frame.sequence = p.transfers_sent;
    frame.tag = transfer.tag;
    frame.total = static_cast<uint64_t>(total);
    frame.offset = static_cast<uint64_t>(transfer.moved_bytes);
    frame.content = CopyOf(transfer.block.memory + transfer.moved_bytes, n);
    Post(transfer.peer, std::move(frame));
    transfer.moved_bytes += n;
    if (transfer.moved_bytes < total) continue;
    p.sending = nullptr;
    return true;
  }
  return false;
}

absl::StatusOr<std::optional<Message>> Mesh::FindTransfer(
    const Transfer& transfer, int from) {
  Inbox& inbox = peers_[from].inbox;
  std::optional<Message> message = inbox.TakeTransfer(transfer.tag);
  if (!message.has_value()) {
    const bool is_full = inbox.kept_bytes() >= options_.max_unasked_bytes;
    if (is_full && transfer.peer >= 0 && inbox.LacksTransfer(transfer.tag)) {
      return TooMuchUnasked(from, inbox.kept_bytes(), inbox.oldest_tag());
    }
    return message;
  }
  Frame ack;
  ack.kind = Frame::kTransferAck;
  ack.total = static_cast<uint64_t>(KeptBytes(message->total));
  Post(from, std::move(ack));
  return message;
}

absl::Status Mesh::CheckTransferPeers(const Transfer& transfer) const {
  int gone = 0;
  absl::Status why;
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || (transfer.peer >= 0 && r != transfer.peer)) continue;
    const Peer& p = peers_[r];
    if (!p.has_left && p.gone.ok()) continue;
    ++gone;
    why = absl::UnavailableError(absl::StrCat(
        "rank ", r, p.has_left ? " has left the group" : " has ended", "; it ",
        called_.Describe(r)));
  }
  return gone < (transfer.peer < 0 ? size() - 1 : 1) ? absl::OkStatus() : why;
}

absl::StatusOr<bool> Mesh::Advance(Transfer& transfer) {
  absl::StatusOr<bool> result = false;
  std::optional<Message> message;
  int from = transfer.peer;
  {
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(Health());
    // Before the attempt: what a rank sent before its end is still received.
    const absl::Status gone = CheckTransferPeers(transfer);
    if (transfer.is_send) {
      result = gone.ok() ? SendTransfer(transfer) : gone;
    } else {
      const int first = transfer.peer < 0 ? 0 : transfer.peer;
      const int last = transfer.peer < 0 ? size() - 1 : transfer.peer;
      for (from = first; from <= last && !message.has_value(); ++from) {
        if (from == rank()) continue;
        WEFT_ASSIGN_OR_RETURN(message, FindTransfer(transfer, from));
      }
      --from;
      if (!message.has_value() && !gone.ok()) result = gone;
    }
  }
  Flush();
  if (!message.has_value()) return result;
  transfer.peer = from;
  const int64_t elements =
      static_cast<int64_t>(message->total) / ItemSize(message->dtype);
  if (message->dtype != transfer.dtype || elements != transfer.block.elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wants ", Name(transfer.dtype), "[", transfer.block.elements,
        "], rank ", from, " sent ", Name(message->dtype), "[", elements, "]"));
  }
  std::byte* to = transfer.block.memory;
  for (const Bytes& slice : message->content) {
    memcpy(to, slice.data(), slice.size());
    to += slice.size();
  }
  return true;
}

void Mesh::AwaitTransfers(uint64_t seen, Instant until) {
  Promise<void> waker(driver_);
  Future<void> woken = waker.future();
  {
    MutexLock lock(mu_);
    if (events_.load() != seen) return;
    waiters_.push_back(std::move(waker));
  }
  woken.Wait(until - driver_.clock().Now()).IgnoreError();
}

}  // namespace weft::collectives
