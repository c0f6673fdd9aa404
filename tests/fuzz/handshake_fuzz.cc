// handshake: no bytes of the other rank harm a transfer over NCCL: what is read
// is said again in the same bytes, and notices in any order end in no stage
// that both ranks do not reach.

#include <cstdint>

#include "weft/collectives/backends/device/transfer_handshake.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using collectives::kTransferHeaderBytes;
using collectives::kTransferNoticeBytes;
using collectives::TransferHandshake;
using collectives::TransferHeader;
using collectives::TransferNotice;

std::string Said(TransferNotice::Kind kind, uint64_t id) {
  TransferNotice notice;
  notice.kind = kind;
  notice.id = id;
  return collectives::Encode(notice);
}

std::vector<std::string> Seeds() {
  TransferHeader offer;
  offer.is_offer = true;
  offer.elements = 12;
  TransferHeader plain;
  plain.dtype = DType::kBF16;
  using Kind = TransferNotice::Kind;
  return {collectives::Encode(offer) + Said(Kind::kAccept, 0) +
              Said(Kind::kConnect, 0) + Said(Kind::kGo, 5),
          collectives::Encode(plain) + Said(Kind::kRefuse, 1) +
              Said(Kind::kWithdraw, 5) + Said(Kind::kWithdraw, 9)};
}

// A header, and notices behind it, to a rank that has offered two tensors and
// accepted one.
void Run(absl::string_view bytes) {
  const auto header =
      collectives::DecodeTransferHeader(bytes.substr(0, kTransferHeaderBytes));
  if (header.ok()) {
    Hold(collectives::Encode(*header) == bytes.substr(0, kTransferHeaderBytes));
    Hold(header->elements >= 0);
    bytes.remove_prefix(kTransferHeaderBytes);
  }
  TransferHandshake handshake;
  handshake.Offer();
  handshake.Offer();
  handshake.Accept(5);
  while (!bytes.empty()) {
    const auto notice = collectives::DecodeTransferNotice(
        bytes.substr(0, kTransferNoticeBytes));
    if (!notice.ok()) return;
    Hold(collectives::Encode(*notice) == bytes.substr(0, kTransferNoticeBytes));
    if (!handshake.OnNotice(*notice).ok()) return;
    for (const bool is_send : {true, false}) {
      for (const uint64_t id : {0, 1, 5}) {
        const bool is_next = handshake.IsNext(is_send, id);
        Hold(!is_next || handshake.StageOf(is_send, id) ==
                             TransferHandshake::Stage::kAgreed);
      }
    }
    Hold(handshake.outbox().size() <= 3);  // the answer to each
    bytes.remove_prefix(kTransferNoticeBytes);
  }
}

WEFT_FUZZ_TARGET(handshake, Seeds, NoWords, Run);

}  // namespace
}  // namespace weft::testing
