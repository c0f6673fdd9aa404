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

constexpr uint32_t kMagic = 0x57465432;  // "WFT2"
// What is read of one content before others have their turn: a millisecond, in
// which callers that begin a transfer wait.
constexpr int64_t kMostAtOnce = int64_t{4} << 20;
// What follows the header of a content that is to be read.
constexpr int64_t kReadTrailer = 1;

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

absl::Status IsOther(const Transfer& transfer, int from, DType dtype,
                     int64_t elements) {
  return absl::InvalidArgumentError(absl::StrCat(
      "wants ", Name(transfer.dtype), "[", transfer.block.elements, "], rank ",
      from, " sent ", Name(dtype), "[", elements, "]"));
}

}  // namespace

HostTransfers::HostTransfers(HostSegment& segment, const PeerMemory& peers,
                             int64_t least_read_bytes,
                             int64_t max_unasked_bytes)
    : segment_(segment),
      peers_(peers),
      least_read_bytes_(least_read_bytes),
      max_unasked_bytes_(max_unasked_bytes),
      sending_(segment.size()),
      incoming_(segment.size()) {
  segment_.ControlOf(segment_.rank())
      .reads_peers.store(peers_.reads_all() ? 1 : 0, std::memory_order_release);
}

void HostTransfers::WithdrawSends() {
  segment_.ControlOf(segment_.rank())
      .has_withdrawn.store(1, std::memory_order_seq_cst);
}

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
  has_read_ = true;
  return n;
}

bool HostTransfers::HasUnread(int to) const {
  const RingHead& head = segment_.RingOf(segment_.rank(), to).head;
  return head.written.load(std::memory_order_relaxed) !=
         head.read.load(std::memory_order_acquire);
}

bool HostTransfers::HasBytes(int from) const {
  const RingHead& head = segment_.RingOf(from, segment_.rank()).head;
  return head.written.load(std::memory_order_acquire) !=
         head.read.load(std::memory_order_relaxed);
}

bool HostTransfers::IsRead(const Transfer& transfer) const {
  const int64_t bytes = transfer.block.elements * ItemSize(transfer.dtype);
  return bytes > 0 && bytes >= least_read_bytes_ && peers_.reads_all() &&
         segment_.ControlOf(transfer.peer)
                 .reads_peers.load(std::memory_order_acquire) != 0;
}

// Messages to one rank go one after the other: another waits until the one that
// is half sent is whole.
absl::StatusOr<bool> HostTransfers::Send(Transfer& transfer) {
  Outgoing& out = sending_[transfer.peer];
  if (out.transfer != nullptr && out.transfer != &transfer) return false;
  const int64_t before = transfer.moved_bytes;
  constexpr int64_t kHeader = sizeof(Header);
  if (before == 0) out.is_read = IsRead(transfer);
  const bool is_read = out.is_read;
  const std::byte trailer{};
  const std::byte* const content = is_read ? &trailer : transfer.block.memory;
  const int64_t content_bytes =
      is_read ? kReadTrailer
              : transfer.block.elements * ItemSize(transfer.dtype);
  if (transfer.moved_bytes < kHeader) {
    const Header header = {
        transfer.tag, static_cast<uint64_t>(transfer.block.elements),
        is_read ? reinterpret_cast<uint64_t>(transfer.block.memory) : 0,
        static_cast<uint32_t>(transfer.dtype), kMagic};
    WEFT_ASSIGN_OR_RETURN(
        const int64_t n, WriteSome(transfer.peer,
                                   reinterpret_cast<const std::byte*>(&header) +
                                       transfer.moved_bytes,
                                   kHeader - transfer.moved_bytes));
    transfer.moved_bytes += n;
  }
  if (transfer.moved_bytes >= kHeader &&
      transfer.moved_bytes < kHeader + content_bytes) {
    const int64_t sent = transfer.moved_bytes - kHeader;
    WEFT_ASSIGN_OR_RETURN(
        const int64_t n,
        WriteSome(transfer.peer, content + sent, content_bytes - sent));
    transfer.moved_bytes += n;
  }
  if (transfer.moved_bytes != before) Ring(transfer.peer);
  // Nothing is written behind a content that is to be read.
  const bool is_whole = transfer.moved_bytes == kHeader + content_bytes &&
                        (!is_read || !HasUnread(transfer.peer));
  const bool is_half_sent = !is_whole && transfer.moved_bytes > 0;
  out.transfer = is_half_sent ? &transfer : nullptr;
  return is_whole;
}

absl::StatusOr<bool> HostTransfers::ReceiveHeader(int from) {
  Incoming& in = incoming_[from];
  constexpr int64_t kHeader = sizeof(Header);
  if (in.header_bytes == kHeader) return true;
  WEFT_ASSIGN_OR_RETURN(
      const int64_t n,
      ReadSome(from, reinterpret_cast<std::byte*>(&in.header) + in.header_bytes,
               kHeader - in.header_bytes));
  in.header_bytes += n;
  if (in.header_bytes < kHeader) return false;
  const bool is_good =
      in.header.magic == kMagic && in.header.dtype < 64 &&
      ItemSize(static_cast<DType>(in.header.dtype)) > 0 &&
      in.header.elements <= static_cast<uint64_t>(kMaxTensorBytes) / 8;
  if (!is_good) return Damaged(from);
  in.content_bytes = 0;
  in.receive = nullptr;
  return true;
}

// A content that is not in the ring is read as a whole; then the byte in the
// ring that stands for it is taken, and counts as its last byte.
absl::Status HostTransfers::ReadContent(int from, std::byte* to,
                                        int64_t bytes) {
  Incoming& in = incoming_[from];
  if (in.header.address == 0) {
    WEFT_ASSIGN_OR_RETURN(const int64_t n, ReadSome(from, to + in.content_bytes,
                                                    bytes - in.content_bytes));
    in.content_bytes += n;
    return absl::OkStatus();
  }
  if (!HasBytes(from)) return absl::OkStatus();  // the byte is on its way
  const int64_t n = std::min(bytes - in.content_bytes, kMostAtOnce);
  WEFT_RETURN_IF_ERROR(peers_.Read(
      from, in.header.address + static_cast<uint64_t>(in.content_bytes), n,
      to + in.content_bytes));
  // Who gives up a message says so before it gives up its memory.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  WEFT_RETURN_IF_ERROR(segment_.abort_status());
  if (segment_.ControlOf(from).has_withdrawn.load(std::memory_order_seq_cst)) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", segment_.NumberOf(from),
        " left the group before what it was sending had been read"));
  }
  in.content_bytes += n;
  if (in.content_bytes < bytes) {
    Ring(segment_.rank());  // there is more to read
    return absl::OkStatus();
  }
  std::byte trailer;
  return ReadSome(from, &trailer, kReadTrailer).status();
}

absl::StatusOr<bool> HostTransfers::ReceiveContent(Transfer& transfer,
                                                   int from) {
  Incoming& in = incoming_[from];
  const DType dtype = static_cast<DType>(in.header.dtype);
  const int64_t elements = static_cast<int64_t>(in.header.elements);
  const int64_t bytes = elements * ItemSize(dtype);
  if (in.content_bytes == 0 && in.receive == nullptr && in.kept.empty()) {
    const bool is_asked = in.header.tag == transfer.tag &&
                          dtype == transfer.dtype &&
                          elements == transfer.block.elements;
    if (is_asked) {
      in.receive = &transfer;
      transfer.peer = from;
    } else {
      in.kept.resize(bytes);
    }
  }
  // What has begun to come for another Receive comes by that one's turns.
  if (in.receive != nullptr && in.receive != &transfer) return false;
  std::byte* const to =
      in.receive == nullptr ? in.kept.data() : transfer.block.memory;
  if (bytes > 0) WEFT_RETURN_IF_ERROR(ReadContent(from, to, bytes));
  if (in.receive != nullptr) {
    transfer.moved_bytes = sizeof(Header) + in.content_bytes;
  }
  if (in.content_bytes < bytes) return false;
  if (in.receive == nullptr) {
    in.complete_bytes += KeptBytes(in.kept);
    in.complete.push_back({in.header, std::move(in.kept)});
  }
  in.kept = {};
  in.header_bytes = in.content_bytes = 0;
  return true;
}

absl::StatusOr<bool> HostTransfers::TakeKept(Transfer& transfer, int from) {
  Incoming& in = incoming_[from];
  const auto it = std::find_if(in.complete.begin(), in.complete.end(),
                               [&](const Message& message) {
                                 return message.header.tag == transfer.tag;
                               });
  if (it == in.complete.end()) return false;
  const Message message = std::move(*it);
  in.complete.erase(it);
  in.complete_bytes -= KeptBytes(message.bytes);
  transfer.peer = from;
  const DType dtype = static_cast<DType>(message.header.dtype);
  const int64_t elements = static_cast<int64_t>(message.header.elements);
  if (dtype != transfer.dtype || elements != transfer.block.elements) {
    return IsOther(transfer, from, dtype, elements);
  }
  if (elements > 0) {
    memcpy(transfer.block.memory, message.bytes.data(), message.bytes.size());
  }
  return true;
}

absl::StatusOr<bool> HostTransfers::Receive(Transfer& transfer, int from) {
  has_read_ = false;
  const absl::StatusOr<bool> received = ReceiveAll(transfer, from);
  if (has_read_) Ring(from);
  return received;
}

absl::StatusOr<bool> HostTransfers::ReceiveAll(Transfer& transfer, int from) {
  Incoming& in = incoming_[from];
  const bool may_be_any = transfer.peer < 0;
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const bool is_taken, TakeKept(transfer, from));
    if (is_taken) return true;
    if (in.header_bytes == 0 && in.complete_bytes >= max_unasked_bytes_) {
      if (may_be_any) return false;
      return TooMuchUnasked(from, in.complete_bytes,
                            in.complete.front().header.tag);
    }
    WEFT_ASSIGN_OR_RETURN(const bool has_header, ReceiveHeader(from));
    if (!has_header) return false;
    WEFT_ASSIGN_OR_RETURN(const bool is_whole, ReceiveContent(transfer, from));
    if (!is_whole) return false;
    if (std::exchange(in.receive, nullptr) != nullptr) return true;
  }
}

absl::StatusOr<bool> HostTransfers::Advance(Transfer& transfer) {
  if (transfer.is_send) return Send(transfer);
  const int first = transfer.peer < 0 ? 0 : transfer.peer;
  const int last = transfer.peer < 0 ? segment_.size() - 1 : transfer.peer;
  for (int from = first; from <= last; ++from) {
    if (from == segment_.rank()) continue;
    WEFT_ASSIGN_OR_RETURN(const bool taken, Receive(transfer, from));
    if (taken) return true;
    if (transfer.moved_bytes > 0) return false;  // it comes from this one
  }
  return false;
}

}  // namespace weft::collectives
