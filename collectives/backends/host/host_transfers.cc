#include "weft/collectives/backends/host/host_transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/futex.h"
#include "weft/collectives/diagnosis.h"

namespace weft::collectives {
namespace {

constexpr uint32_t kMagic = 0x57465431;  // "WFT1"

// Bytes [at, at + bytes) of a ring, which may go around its end.
void CopyIn(const TransferRing& ring, uint64_t at, const std::byte* from,
            int64_t bytes) {
  const uint64_t begin = at % TransferRing::kBytes;
  const int64_t first = std::min<int64_t>(bytes, TransferRing::kBytes - begin);
  memcpy(ring.content + begin, from, first);
  memcpy(ring.content, from + first, bytes - first);
}

void CopyOut(const TransferRing& ring, uint64_t at, std::byte* to,
             int64_t bytes) {
  const uint64_t begin = at % TransferRing::kBytes;
  const int64_t first = std::min<int64_t>(bytes, TransferRing::kBytes - begin);
  memcpy(to, ring.content + begin, first);
  memcpy(to + first, ring.content, bytes - first);
}

// The bytes of a message that is kept, with an allowance for what it takes
// beside its content.
int64_t KeptBytes(const std::vector<std::byte>& content) {
  return static_cast<int64_t>(content.size()) + 64;
}

absl::Status Damaged(int from) {
  return absl::InternalError(
      absl::StrCat("what rank ", from, " wrote into its ring makes no sense"));
}

}  // namespace

HostTransfers::HostTransfers(HostSegment& segment, int64_t max_unasked_bytes)
    : segment_(segment),
      max_unasked_bytes_(max_unasked_bytes),
      sending_(segment.size()),
      incoming_(segment.size()) {}

uint64_t HostTransfers::events() const {
  return segment_.ControlOf(segment_.rank())
      .transfer_bell.load(std::memory_order_seq_cst);
}

void HostTransfers::Ring(int rank) const {
  RankControl& control = segment_.ControlOf(rank);
  control.transfer_bell.fetch_add(1, std::memory_order_seq_cst);
  if (control.transfer_sleepers.load(std::memory_order_seq_cst) > 0) {
    FutexWake(control.transfer_bell);
  }
}

void HostTransfers::WakeAll() const {
  for (int r = 0; r < segment_.size(); ++r) Ring(r);
}

void HostTransfers::AwaitEvent(uint64_t seen, Instant until) const {
  RankControl& own = segment_.ControlOf(segment_.rank());
  own.transfer_sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (events() == seen) {
    FutexWait(own.transfer_bell, static_cast<uint32_t>(seen),
              until - SteadyClock().Now());
  }
  own.transfer_sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

absl::StatusOr<int64_t> HostTransfers::WriteSome(int to, const std::byte* from,
                                                 int64_t bytes) {
  const TransferRing ring = segment_.RingOf(segment_.rank(), to);
  const uint64_t written = ring.head.written.load(std::memory_order_relaxed);
  const uint64_t used =
      written - ring.head.read.load(std::memory_order_acquire);
  if (used > TransferRing::kBytes) return 0;  // the receiver is damaged
  const int64_t n = std::min<int64_t>(bytes, TransferRing::kBytes - used);
  if (n == 0) return 0;
  if (written == 0) WEFT_RETURN_IF_ERROR(segment_.AllocateRing(to));
  CopyIn(ring, written, from, n);
  ring.head.written.store(written + n, std::memory_order_release);
  return n;
}

absl::StatusOr<int64_t> HostTransfers::ReadSome(int from, std::byte* to,
                                                int64_t bytes) {
  const TransferRing ring = segment_.RingOf(from, segment_.rank());
  const uint64_t read = ring.head.read.load(std::memory_order_relaxed);
  const uint64_t there =
      ring.head.written.load(std::memory_order_acquire) - read;
  if (there > TransferRing::kBytes) return Damaged(from);
  const int64_t n = std::min<int64_t>(bytes, there);
  if (n == 0) return 0;
  CopyOut(ring, read, to, n);
  ring.head.read.store(read + n, std::memory_order_release);
  return n;
}

// Messages to one rank go one after the other: another waits until the one that
// is half sent is whole.
absl::StatusOr<bool> HostTransfers::Send(Transfer& transfer) {
  const Transfer*& current = sending_[transfer.peer];
  if (current != nullptr && current != &transfer) return false;
  const int64_t content = transfer.block.elements * ItemSize(transfer.dtype);
  const int64_t before = transfer.moved_bytes;
  constexpr int64_t kHeader = sizeof(Header);
  if (transfer.moved_bytes < kHeader) {
    const Header header = {transfer.tag,
                           static_cast<uint64_t>(transfer.block.elements),
                           static_cast<uint32_t>(transfer.dtype), kMagic};
    WEFT_ASSIGN_OR_RETURN(
        const int64_t n, WriteSome(transfer.peer,
                                   reinterpret_cast<const std::byte*>(&header) +
                                       transfer.moved_bytes,
                                   kHeader - transfer.moved_bytes));
    transfer.moved_bytes += n;
  }
  if (transfer.moved_bytes >= kHeader &&
      transfer.moved_bytes < kHeader + content) {
    const int64_t sent = transfer.moved_bytes - kHeader;
    WEFT_ASSIGN_OR_RETURN(
        const int64_t n,
        WriteSome(transfer.peer, transfer.block.memory + sent, content - sent));
    transfer.moved_bytes += n;
  }
  if (transfer.moved_bytes != before) Ring(transfer.peer);
  const bool is_whole = transfer.moved_bytes == kHeader + content;
  current = is_whole || transfer.moved_bytes == 0 ? nullptr : &transfer;
  return is_whole;
}

absl::Status HostTransfers::ReceiveAll(int from) {
  Incoming& in = incoming_[from];
  bool has_moved = false;
  while (in.header_bytes > 0 || in.kept_bytes < max_unasked_bytes_) {
    if (in.header_bytes < static_cast<int64_t>(sizeof(Header))) {
      WEFT_ASSIGN_OR_RETURN(
          const int64_t n,
          ReadSome(from,
                   reinterpret_cast<std::byte*>(&in.header) + in.header_bytes,
                   sizeof(Header) - in.header_bytes));
      in.header_bytes += n;
      has_moved |= n > 0;
      if (in.header_bytes < static_cast<int64_t>(sizeof(Header))) break;
      const bool is_good =
          in.header.magic == kMagic && in.header.dtype < 64 &&
          ItemSize(static_cast<DType>(in.header.dtype)) > 0 &&
          in.header.elements <= static_cast<uint64_t>(kMaxTensorBytes) / 8;
      if (!is_good) return Damaged(from);
      in.bytes.resize(in.header.elements *
                      ItemSize(static_cast<DType>(in.header.dtype)));
    }
    WEFT_ASSIGN_OR_RETURN(const int64_t n,
                          ReadSome(from, in.bytes.data() + in.content_bytes,
                                   in.bytes.size() - in.content_bytes));
    in.content_bytes += n;
    has_moved |= n > 0;
    if (in.content_bytes < static_cast<int64_t>(in.bytes.size())) break;
    in.kept_bytes += KeptBytes(in.bytes);
    in.complete.push_back({in.header, std::move(in.bytes)});
    in.bytes = {};
    in.header_bytes = in.content_bytes = 0;
  }
  if (has_moved) Ring(from);
  return absl::OkStatus();
}

absl::StatusOr<bool> HostTransfers::Take(Transfer& transfer, int from) {
  WEFT_RETURN_IF_ERROR(ReceiveAll(from));
  std::deque<Message>& complete = incoming_[from].complete;
  const auto it = std::find_if(complete.begin(), complete.end(),
                               [&](const Message& message) {
                                 return message.header.tag == transfer.tag;
                               });
  if (it == complete.end()) {
    const int64_t kept = incoming_[from].kept_bytes;
    if (kept < max_unasked_bytes_ || transfer.peer < 0) return false;
    return TooMuchUnasked(from, kept, complete.front().header.tag);
  }
  const Message message = std::move(*it);
  complete.erase(it);
  incoming_[from].kept_bytes -= KeptBytes(message.bytes);
  transfer.peer = from;
  const DType dtype = static_cast<DType>(message.header.dtype);
  const int64_t elements = static_cast<int64_t>(message.header.elements);
  if (dtype != transfer.dtype || elements != transfer.block.elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wants ", Name(transfer.dtype), "[", transfer.block.elements,
        "], rank ", from, " sent ", Name(dtype), "[", elements, "]"));
  }
  if (elements > 0) {
    memcpy(transfer.block.memory, message.bytes.data(), message.bytes.size());
  }
  return true;
}

absl::StatusOr<bool> HostTransfers::Advance(Transfer& transfer) {
  if (transfer.is_send) return Send(transfer);
  const int first = transfer.peer < 0 ? 0 : transfer.peer;
  const int last = transfer.peer < 0 ? segment_.size() - 1 : transfer.peer;
  for (int from = first; from <= last; ++from) {
    if (from == segment_.rank()) continue;
    WEFT_ASSIGN_OR_RETURN(const bool taken, Take(transfer, from));
    if (taken) return true;
  }
  return false;
}

}  // namespace weft::collectives
