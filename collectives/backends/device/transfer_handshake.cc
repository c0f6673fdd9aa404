#include "weft/collectives/backends/device/transfer_handshake.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace weft::collectives {
namespace {

constexpr uint64_t kHeaderMagic = 0x31726468'6c63636eULL;  // "ncclhdr1"
// Offers that are withdrawn before they were asked for: each has a header that
// takes more memory than it.
constexpr size_t kMostWithdrawn = size_t{1} << 20;

template <typename T>
void Append(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
T At(absl::string_view bytes, size_t at) {
  T value;
  memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

absl::Status NotUnderstood(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(
      "it sent what no rank of a group over devices sends: ", what));
}

}  // namespace

std::string Encode(const TransferHeader& header) {
  std::string bytes;
  Append(bytes, kHeaderMagic);
  Append(bytes, header.id);
  Append(bytes, header.elements);
  Append(bytes, static_cast<uint32_t>(header.dtype));
  Append(bytes, uint32_t{header.is_offer});
  return bytes;
}

absl::StatusOr<TransferHeader> DecodeTransferHeader(absl::string_view bytes) {
  if (bytes.size() != kTransferHeaderBytes ||
      At<uint64_t>(bytes, 0) != kHeaderMagic) {
    return NotUnderstood("no header of a message");
  }
  TransferHeader header;
  header.id = At<uint64_t>(bytes, 8);
  header.elements = At<int64_t>(bytes, 16);
  const auto dtype = At<uint32_t>(bytes, 24);
  const auto flags = At<uint32_t>(bytes, 28);
  header.dtype = static_cast<DType>(dtype);
  header.is_offer = flags == 1;
  const int64_t item = dtype < 64 ? ItemSize(header.dtype) : 0;
  if (item <= 0 || flags > 1 || header.elements < 0 ||
      header.elements > std::numeric_limits<int64_t>::max() / item) {
    return NotUnderstood(absl::StrCat("a message of ", header.elements,
                                      " elements of dtype ", dtype));
  }
  return header;
}

std::string Encode(const TransferNotice& notice) {
  std::string bytes;
  Append(bytes, static_cast<uint64_t>(notice.kind));
  Append(bytes, notice.id);
  Append(bytes, notice.unique);
  return bytes;
}

absl::StatusOr<TransferNotice> DecodeTransferNotice(absl::string_view bytes) {
  if (bytes.size() != kTransferNoticeBytes) return NotUnderstood("no notice");
  const auto kind = At<uint64_t>(bytes, 0);
  if (kind < static_cast<uint64_t>(TransferNotice::Kind::kAccept) ||
      kind > static_cast<uint64_t>(TransferNotice::Kind::kConnect)) {
    return NotUnderstood(absl::StrCat("a notice of kind ", kind));
  }
  TransferNotice notice;
  notice.kind = static_cast<TransferNotice::Kind>(kind);
  notice.id = At<uint64_t>(bytes, 8);
  notice.unique = At<CommunicatorId>(bytes, 16);
  return notice;
}

uint64_t TransferHandshake::Offer() {
  const uint64_t id = next_++;
  sent_.stages[id] = Stage::kOffered;
  return id;
}

bool TransferHandshake::MayGiveUp(bool is_send, uint64_t id) const {
  const Stage stage = StageOf(is_send, id);
  return stage != Stage::kAgreed && stage != Stage::kAccepted;
}

bool TransferHandshake::GiveUp(bool is_send, uint64_t id) {
  if (!MayGiveUp(is_send, id)) return false;
  if (!is_send) return true;  // the sender knows
  if (StageOf(true, id) == Stage::kOffered) {
    outbox_.push_back({TransferNotice::Kind::kWithdraw, id});
  }
  sent_.stages.erase(id);
  return true;
}

void TransferHandshake::Accept(uint64_t id) {
  if (withdrawn_.erase(id) > 0) return;
  received_.stages[id] = Stage::kAccepted;
  outbox_.push_back({TransferNotice::Kind::kAccept, id});
}

void TransferHandshake::Refuse(uint64_t id) {
  if (withdrawn_.erase(id) > 0) return;
  received_.stages[id] = Stage::kRefused;  // until the sender's kWithdraw
  outbox_.push_back({TransferNotice::Kind::kRefuse, id});
}

TransferHandshake::Stage TransferHandshake::StageOf(bool is_send,
                                                    uint64_t id) const {
  const auto found = side(is_send).stages.find(id);
  return found == side(is_send).stages.end() ? Stage::kWithdrawn
                                             : found->second;
}

bool TransferHandshake::IsNext(bool is_send, uint64_t id) const {
  const Side& one = side(is_send);
  return !one.order.empty() && one.order.front() == id;
}

void TransferHandshake::Forget(bool is_send, uint64_t id) {
  Side& one = is_send ? sent_ : received_;
  one.stages.erase(id);
  one.order.erase(std::remove(one.order.begin(), one.order.end(), id),
                  one.order.end());
}

std::string TransferHandshake::Describe() const {
  std::string text;
  for (const Side* const one : {&sent_, &received_}) {
    absl::StrAppend(&text, one == &sent_ ? "sent" : "; received");
    for (const auto& [id, stage] : one->stages) {
      absl::StrAppend(&text, " ", id, ":", static_cast<int>(stage));
    }
    for (const uint64_t id : one->order) absl::StrAppend(&text, " next ", id);
  }
  for (const uint64_t id : withdrawn_) {
    absl::StrAppend(&text, "; withdrawn ", id);
  }
  return text;
}

absl::Status TransferHandshake::OnNotice(const TransferNotice& notice) {
  using Kind = TransferNotice::Kind;
  const uint64_t id = notice.id;
  switch (notice.kind) {
    case Kind::kAccept:
    case Kind::kRefuse: {
      if (id >= next_) break;
      const auto sent = sent_.stages.find(id);
      // It was withdrawn, which the other had not heard.
      if (sent == sent_.stages.end()) return absl::OkStatus();
      if (sent->second != Stage::kOffered) break;
      if (notice.kind == Kind::kRefuse) {
        sent->second = Stage::kRefused;
        outbox_.push_back({Kind::kWithdraw, id});
        return absl::OkStatus();
      }
      sent->second = Stage::kAgreed;
      sent_.order.push_back(id);
      outbox_.push_back({Kind::kGo, id});
      return absl::OkStatus();
    }
    case Kind::kWithdraw: {
      const auto received = received_.stages.find(id);
      if (received == received_.stages.end()) {
        if (withdrawn_.size() >= kMostWithdrawn) break;
        withdrawn_.insert(id);
        return absl::OkStatus();
      }
      if (received->second == Stage::kAgreed) break;
      received_.stages.erase(received);
      return absl::OkStatus();
    }
    case Kind::kGo: {
      const auto received = received_.stages.find(id);
      if (received == received_.stages.end() ||
          received->second != Stage::kAccepted) {
        break;
      }
      received->second = Stage::kAgreed;
      received_.order.push_back(id);
      return absl::OkStatus();
    }
    case Kind::kConnect:
      if (connect_.has_value()) break;
      connect_ = notice.unique;
      return absl::OkStatus();
  }
  return NotUnderstood(absl::StrCat("a notice of kind ",
                                    static_cast<int>(notice.kind),
                                    " about offer ", id, ", out of turn"));
}

}  // namespace weft::collectives
