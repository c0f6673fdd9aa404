// Sends and receives over a mesh.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/stream/mesh.h"

namespace weft::collectives {
namespace {

constexpr int64_t kChunkBytes = Inbox::kChunkBytes;

}  // namespace

bool Mesh::SendTransfer(Transfer& transfer) {
  Peer& p = peers_[transfer.peer];
  const int64_t total = transfer.block.elements * ItemSize(transfer.dtype);
  if (p.sending != nullptr && p.sending != &transfer) return false;
  if (p.sending == nullptr) {
    if (!core_.TakeTransferRoom(transfer.peer, total)) return false;
    p.sending = &transfer;
  }
  while (p.outbox.size() < kMostQueued) {
    const int64_t n = std::min(kChunkBytes, total - transfer.moved_bytes);
    Frame frame;
    frame.code = static_cast<uint32_t>(transfer.dtype);
    frame.tag = transfer.tag;
    frame.total = static_cast<uint64_t>(total);
    frame.offset = static_cast<uint64_t>(transfer.moved_bytes);
    frame.content = CopyOf(transfer.block.memory + transfer.moved_bytes, n);
    core_.SendTransfer(transfer.peer, std::move(frame));
    Act();
    transfer.moved_bytes += n;
    if (transfer.moved_bytes < total) continue;
    p.sending = nullptr;
    return true;
  }
  return false;
}

absl::StatusOr<bool> Mesh::Advance(Transfer& transfer) {
  absl::StatusOr<bool> result = false;
  std::optional<Message> message;
  int from = transfer.peer;
  {
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(core_.Health());
    // Before the attempt: what a rank sent before its end is still received.
    const absl::Status gone = core_.CheckTransferPeer(transfer.peer);
    if (transfer.is_send) {
      result = gone.ok() ? absl::StatusOr<bool>(SendTransfer(transfer)) : gone;
    } else {
      const int first = transfer.peer < 0 ? 0 : transfer.peer;
      const int last = transfer.peer < 0 ? size() - 1 : transfer.peer;
      for (from = first; from <= last && !message.has_value(); ++from) {
        if (from == rank()) continue;
        WEFT_ASSIGN_OR_RETURN(
            message, core_.TakeTransfer(from, transfer.tag,
                                        /*is_only_source=*/transfer.peer >= 0));
      }
      --from;
      if (!message.has_value() && !gone.ok()) result = gone;
      Act();
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

void Mesh::AskPeer(int peer) {
  {
    MutexLock lock(mu_);
    core_.AskPeer(peer);
    Act();
  }
  Flush();
}

std::string Mesh::DescribePeer(int peer, absl::string_view lacks,
                               Instant since) const {
  MutexLock lock(mu_);
  return core_.DescribePeer(peer, lacks, since);
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
