// handshake: no bytes of the other rank harm a transfer over NCCL: what is read
// is said again in the same bytes, and notices in any order end in no stage
// that both ranks do not reach.

#include <cstdint>

#include "weft/collectives/backends/nccl/nccl_handshake.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using collectives::kNcclHeaderBytes;
using collectives::kNcclNoticeBytes;
using collectives::NcclHandshake;
using collectives::NcclHeader;
using collectives::NcclNotice;

std::string Said(NcclNotice::Kind kind, uint64_t id) {
  NcclNotice notice;
  notice.kind = kind;
  notice.id = id;
  return collectives::Encode(notice);
}

std::vector<std::string> Seeds() {
  NcclHeader offer;
  offer.is_offer = true;
  offer.elements = 12;
  NcclHeader plain;
  plain.dtype = DType::kBF16;
  using Kind = NcclNotice::Kind;
  return {collectives::Encode(offer) + Said(Kind::kAccept, 0) +
              Said(Kind::kConnect, 0) + Said(Kind::kGo, 5),
          collectives::Encode(plain) + Said(Kind::kRefuse, 1) +
              Said(Kind::kWithdraw, 5) + Said(Kind::kWithdraw, 9)};
}

// A header, and notices behind it, to a rank that has offered two tensors and
// accepted one.
void Run(absl::string_view bytes) {
  const auto header =
      collectives::DecodeNcclHeader(bytes.substr(0, kNcclHeaderBytes));
  if (header.ok()) {
    Hold(collectives::Encode(*header) == bytes.substr(0, kNcclHeaderBytes));
    Hold(header->elements >= 0);
    bytes.remove_prefix(kNcclHeaderBytes);
  }
  NcclHandshake handshake;
  handshake.Offer();
  handshake.Offer();
  handshake.Accept(5);
  while (!bytes.empty()) {
    const auto notice =
        collectives::DecodeNcclNotice(bytes.substr(0, kNcclNoticeBytes));
    if (!notice.ok()) return;
    Hold(collectives::Encode(*notice) == bytes.substr(0, kNcclNoticeBytes));
    if (!handshake.OnNotice(*notice).ok()) return;
    for (const bool is_send : {true, false}) {
      for (const uint64_t id : {0, 1, 5}) {
        const bool is_next = handshake.IsNext(is_send, id);
        Hold(!is_next ||
             handshake.StageOf(is_send, id) == NcclHandshake::Stage::kAgreed);
      }
    }
    Hold(handshake.outbox().size() <= 3);  // the answer to each
    bytes.remove_prefix(kNcclNoticeBytes);
  }
}

WEFT_FUZZ_TARGET(handshake, Seeds, NoWords, Run);

}  // namespace
}  // namespace weft::testing
