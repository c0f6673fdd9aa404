// TransferHandshake: what two ranks say to each other before a tensor is moved
// from the device of one to that of the other, so that neither hangs in a
// kernel that the other does not run. A pure state machine: no threads, clocks
// or I/O.
//
//   sender                              receiver
//   TransferHeader (dtype, count)  ------>  with the message's tag
//                              <------  kAccept, or kRefuse: of another kind
//   kGo, and launches it       ------>  launches it
//
// Between kAccept and kGo nothing is launched, so a sender that gives up before
// it is accepted says kWithdraw, and both go on. A kRefuse is answered by
// kWithdraw, unless one is on its way, so that the receiver keeps nothing of
// the offer. The transfers from one rank to another are launched in the order
// of their kGo: as a Send there, as a Receive here. They have a communicator
// and a stream of their own for each of the two directions, which makes this
// order enough: no transfer waits for one to, or from, another rank, nor for a
// collective operation.
//
// What was agreed on, or accepted, is not given up on one side alone: the other
// would wait for it, and so would all that come behind it. MayGiveUp says so,
// and GiveUp: its caller ends the group where that is false.
//
// Guarantees, checked in transfer_handshake_exploration_test.cc in every order
// of arrival:
//   H1  both ranks launch the same transfers in the same order
//   H2  a transfer that was withdrawn is launched on neither
//   H3  what no rank sends is kFailedPrecondition, and ends no process
//       (transfer_handshake_test.cc)
//   H4  once all messages have come, no transfer waits whose other rank has
//       come to it too, unless GiveUp was false for one
//   H5  once all messages have come, nothing is kept of transfers that are over

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_TRANSFER_HANDSHAKE_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_TRANSFER_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "weft/collectives/backends/device/communicator_id.h"
#include "weft/tensor/dtype.h"

namespace weft::collectives {

// The header that precedes each message of Send.
struct TransferHeader {
  // Whether the elements go from device to device; else they come behind the
  // header.
  bool is_offer = false;
  uint64_t id = 0;  // of the offer, among those of its sender
  DType dtype = DType::kU8;
  int64_t elements = 0;
};
inline constexpr size_t kTransferHeaderBytes = 32;
std::string Encode(const TransferHeader& header);  // kTransferHeaderBytes
// kFailedPrecondition for anything that Encode does not write.
absl::StatusOr<TransferHeader> DecodeTransferHeader(absl::string_view bytes);

// The other messages of the two ranks, on a tag that no Send has.
struct TransferNotice {
  enum class Kind : uint8_t { kAccept = 1, kRefuse, kWithdraw, kGo, kConnect };

  Kind kind = Kind::kAccept;
  uint64_t id = 0;             // of the offer; kConnect: 0
  CommunicatorId unique = {};  // kConnect: of the communicator to be made
};
inline constexpr size_t kTransferNoticeBytes = 16 + sizeof(CommunicatorId);
std::string Encode(const TransferNotice& notice);  // kTransferNoticeBytes
absl::StatusOr<TransferNotice> DecodeTransferNotice(absl::string_view bytes);

// The agreement of one rank with one other about each transfer on devices.
//
// Thread-safety: one thread at a time.
class TransferHandshake {
 public:
  enum class Stage : uint8_t {
    kOffered,    // the receiver has not answered
    kAccepted,   // the sender has not said kGo
    kAgreed,     // to be launched in its turn
    kRefused,    // by the receiver, which has dropped it
    kWithdrawn,  // by the sender, or unknown
  };

  // --- As the sender. ---
  // The id of a new offer, whose header is to be sent.
  uint64_t Offer();
  // --- As the receiver, of an offer whose header has come. ---
  void Accept(uint64_t id);
  void Refuse(uint64_t id);

  // As the sender, or as the receiver.
  Stage StageOf(bool is_send, uint64_t id) const;
  // Whether it is agreed on and the next to be launched in its direction.
  bool IsNext(bool is_send, uint64_t id) const;
  // It was launched, refused or withdrawn, or its header was not sent, and is
  // forgotten.
  void Forget(bool is_send, uint64_t id);
  // Whether this rank may give it up alone, as long as no notice comes. So as
  // the sender until it is agreed on, as the receiver until it has accepted it.
  bool MayGiveUp(bool is_send, uint64_t id) const;
  // Gives it up, and tells the other. False if MayGiveUp is: then the other
  // rank waits for it, and the group has to end.
  ABSL_MUST_USE_RESULT bool GiveUp(bool is_send, uint64_t id);

  // kFailedPrecondition for a notice that no rank sends in this state.
  absl::Status OnNotice(const TransferNotice& notice);
  // The notices to send next, in this order; the caller removes them.
  std::deque<TransferNotice>& outbox() { return outbox_; }
  // The identifier of the communicator for what the other rank sends, once it
  // has told it.
  const absl::optional<CommunicatorId>& connect() const { return connect_; }
  // All that it keeps but the outbox, as text, for tests.
  std::string Describe() const;

 private:
  struct Side {
    std::map<uint64_t, Stage> stages;
    std::deque<uint64_t> order;  // agreed on, not launched
  };
  const Side& side(bool is_send) const { return is_send ? sent_ : received_; }

  Side sent_, received_;
  uint64_t next_ = 0;             // offer
  std::set<uint64_t> withdrawn_;  // by the other, before this rank had asked
  std::deque<TransferNotice> outbox_;
  absl::optional<CommunicatorId> connect_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_TRANSFER_HANDSHAKE_H_
