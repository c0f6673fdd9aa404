#include "weft/collectives/backends/device/device_transfers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_passage.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {
namespace {

using Stage = TransferHandshake::Stage;

// How often is looked whether all ranks live.
constexpr absl::Duration kCheckRanksInterval = absl::Milliseconds(100);

// How long the end waits for copies to the device that were given up.
constexpr absl::Duration kLongestEnd = absl::Seconds(10);

// The ranks of a lane's communicator.
constexpr int kSender = 0;
constexpr int kReceiver = 1;

Transfer MessageOf(bool is_send, int peer, uint64_t tag, std::string& bytes) {
  Transfer message;
  message.is_send = is_send;
  message.peer = peer;
  message.tag = tag;
  message.block = {reinterpret_cast<std::byte*>(bytes.data()),
                   static_cast<int64_t>(bytes.size())};
  return message;
}

int64_t BytesOf(const Transfer& transfer) {
  return transfer.block.elements * ItemSize(transfer.dtype);
}

}  // namespace

struct DeviceTransfers::Lane {
  std::unique_ptr<DeviceCommunicator> communicator;
  device::Stream stream;
  bool is_connected = false;
};

struct DeviceTransfers::Peer {
  int rank = 0;
  TransferHandshake handshake;
  Lane to, from;
  // The message under way, in each direction.
  std::string told, heard = std::string(kTransferNoticeBytes, '\0');
  Transfer telling, hearing;
  bool is_telling = false;
  absl::Status gone;  // why it says nothing any more

  Lane& lane(bool is_send) { return is_send ? to : from; }
};

// Where a transfer is; Transfer::state.
struct DeviceTransfers::One {
  enum class Phase : uint8_t {
    kHeader,
    kPayload,  // over the host
    kAnswer,   // of the other rank is awaited
    kTurn,     // agreed on, not launched
    kLaunch,   // the communicator has it
    kFlight,   // its event is awaited
    kOver,
  };

  explicit One(DeviceTransfers& all) : owner(all) {}
  ~One() { owner.End(*this); }

  void Enter(Phase next) {
    const auto is_on_device = [](Phase phase) {
      return phase >= Phase::kTurn && phase <= Phase::kFlight;
    };
    owner.on_device_ += is_on_device(next) - is_on_device(phase);
    phase = next;
  }
  bool launched() const {
    return phase == Phase::kLaunch || phase == Phase::kFlight;
  }

  DeviceTransfers& owner;
  Phase phase = Phase::kHeader;
  bool is_send = false;
  bool is_from_any = false;
  int peer = 0;
  uint64_t tag = 0;
  TransferHeader header;
  std::string bytes;  // of the header
  Transfer message;   // of the host, under way
  bool has_message = false;
  Operation operation;
  std::unique_ptr<DevicePassage> passage;
  DeviceScratch scratch;
  device::Event event;
  std::byte* pinned = nullptr;  // what came over the host for the device
};

DeviceTransfers::DeviceTransfers(Backend& host,
                                 std::shared_ptr<DeviceMover> mover,
                                 std::shared_ptr<DeviceStreams> streams)
    : host_(host), mover_(std::move(mover)), streams_(std::move(streams)) {}

DeviceTransfers::~DeviceTransfers() {
  MutexLock lock(mu_);
  const bool is_broken = !host_.health().ok();
  for (auto& [rank, peer] : peers_) {
    for (Lane* const lane : {&peer->to, &peer->from}) {
      // No rank of an aborted group answers the farewell.
      if (lane->communicator != nullptr && is_broken) {
        lane->communicator->Abort();
      }
      lane->communicator = nullptr;
      if (lane->stream.is_valid()) streams_->GiveBack(lane->stream);
    }
  }
  FreeGivenUp();
  if (copies_.is_valid()) streams_->GiveBack(copies_);
  if (after_all_.is_valid()) streams_->GiveBack(after_all_);
}

void DeviceTransfers::FreeGivenUp() {
  device::Runtime& runtime = mover_->context()->runtime();
  const Instant deadline = SteadyClock().Now() + kLongestEnd;
  for (const GivenUp& one : given_up_) {
    const absl::Duration left =
        std::max(deadline - SteadyClock().Now(), absl::ZeroDuration());
    const absl::Status ended = runtime.Synchronize(one.copied, left);
    // A device that failed copies nothing any more; one that hangs may.
    if (absl::IsDeadlineExceeded(ended)) continue;
    runtime.FreePinned(one.pinned).IgnoreError();
  }
}

absl::Status DeviceTransfers::Start() {
  WEFT_ASSIGN_OR_RETURN(after_all_, streams_->Take());
  return absl::OkStatus();
}

bool DeviceTransfers::Takes(const Operation& operation) const {
  const bool is_send = operation.verb == Verb::kSend;
  if (!is_send && operation.verb != Verb::kReceive) return false;
  const Block& block = is_send ? operation.inputs[0] : operation.outputs[0];
  return operation.BytesOf(block) > mover_->host_bytes();
}

DeviceTransfers::Peer& DeviceTransfers::PeerOf(int rank) {
  std::unique_ptr<Peer>& peer = peers_[rank];
  if (peer == nullptr) {
    peer = std::make_unique<Peer>();
    peer->rank = rank;
    peer->hearing = MessageOf(false, rank, kNoticeTag, peer->heard);
  }
  return *peer;
}

absl::StatusOr<bool> DeviceTransfers::Advance(Transfer& transfer) {
  if (transfer.tag == kNoticeTag) {
    return absl::InvalidArgumentError(
        absl::StrCat("tag ", kNoticeTag, " is the ", mover_->name(),
                     " backend's own; take another"));
  }
  MutexLock lock(mu_);
  if (transfer.state == nullptr) {
    auto made = std::make_shared<One>(*this);
    made->is_send = transfer.is_send;
    made->is_from_any = transfer.peer < 0;
    made->peer = transfer.peer;
    made->tag = transfer.tag;
    transfer.state = std::move(made);
  }
  One& one = *static_cast<One*>(transfer.state.get());
  WEFT_RETURN_IF_ERROR(Talk());
  absl::StatusOr<bool> moved =
      transfer.is_send ? Send(transfer, one) : Receive(transfer, one);
  if (moved.ok() && *moved) one.Enter(One::Phase::kOver);
  if (!one.is_send) transfer.peer = one.peer;
  const absl::Status talked = Talk();
  // The answer may have come just now.
  if (one.phase == One::Phase::kAnswer && !MayGiveUp(one)) {
    transfer.moved_bytes = 1;
  }
  return moved.ok() && !talked.ok() ? talked : moved;
}

bool DeviceTransfers::MayGiveUp(const One& one) {
  return PeerOf(one.peer).handshake.MayGiveUp(one.is_send, one.header.id);
}

void DeviceTransfers::Leave() {
  MutexLock lock(mu_);
  is_leaving_ = true;
}

absl::StatusOr<bool> DeviceTransfers::Send(Transfer& transfer, One& one) {
  if (one.phase == One::Phase::kHeader) {
    if (!one.has_message) {
      one.header.is_offer = transfer.ready != nullptr;
      one.header.dtype = transfer.dtype;
      one.header.elements = transfer.block.elements;
      if (one.header.is_offer) {
        one.header.id = PeerOf(transfer.peer).handshake.Offer();
      }
      one.bytes = Encode(one.header);
      one.message = MessageOf(true, transfer.peer, transfer.tag, one.bytes);
      one.has_message = true;
    }
    const absl::StatusOr<bool> sent = host_.Advance(one.message);
    transfer.moved_bytes = one.message.moved_bytes;
    if (!sent.ok() || !*sent) return sent;
    if (one.header.is_offer) {
      transfer.moved_bytes = 0;  // it can be withdrawn
      one.Enter(One::Phase::kAnswer);
    } else {
      one.message.dtype = transfer.dtype;
      one.message.block = transfer.block;
      one.message.moved_bytes = 0;
      one.Enter(One::Phase::kPayload);
    }
  }
  if (one.phase == One::Phase::kPayload) return host_.Advance(one.message);
  return MoveOnDevice(transfer, one);
}

absl::StatusOr<bool> DeviceTransfers::Receive(Transfer& transfer, One& one) {
  // More than one round only where an offer was withdrawn.
  while (true) {
    if (one.phase == One::Phase::kHeader) {
      const absl::StatusOr<bool> taken = TakeHeader(transfer, one);
      if (!taken.ok() || !*taken) return taken;
      if (one.header.is_offer) {
        WEFT_RETURN_IF_ERROR(AnswerOffer(transfer, one));
      }
    }
    if (one.phase == One::Phase::kPayload) return TakePayload(transfer, one);
    const absl::StatusOr<bool> moved = MoveOnDevice(transfer, one);
    if (!moved.ok() || *moved || one.phase != One::Phase::kHeader) {
      return moved;
    }
  }
}

absl::StatusOr<bool> DeviceTransfers::TakeHeader(Transfer& transfer, One& one) {
  for (auto it = untaken_.begin(); it != untaken_.end(); ++it) {
    const auto [from, tag] = it->first;
    if (tag != one.tag || (!one.is_from_any && from != one.peer)) continue;
    one.peer = from;
    one.header = it->second.front();
    it->second.pop_front();
    if (it->second.empty()) untaken_.erase(it);
    one.Enter(One::Phase::kPayload);
    break;
  }
  if (one.phase == One::Phase::kHeader) {
    if (!one.has_message) {
      one.bytes.assign(kTransferHeaderBytes, '\0');
      one.message = MessageOf(false, one.peer, one.tag, one.bytes);
      one.has_message = true;
    }
    const absl::StatusOr<bool> taken = host_.Advance(one.message);
    transfer.moved_bytes = one.message.moved_bytes;
    if (!taken.ok() || !*taken) return taken;
    one.peer = one.message.peer;
    const absl::StatusOr<TransferHeader> header =
        DecodeTransferHeader(one.bytes);
    if (!header.ok()) {
      return Break(Reworded(
          header.status(),
          absl::StrCat("rank ", one.peer, ": ", header.status().message())));
    }
    one.header = *header;
    one.has_message = false;
  }
  transfer.moved_bytes = 0;
  if (one.header.is_offer) return true;
  one.message = {};
  one.message.peer = one.peer;
  one.message.tag = one.tag;
  one.message.dtype = transfer.dtype;
  one.message.block = transfer.block;
  one.has_message = true;
  one.Enter(One::Phase::kPayload);
  return true;
}

absl::Status DeviceTransfers::AnswerOffer(Transfer& transfer, One& one) {
  const TransferHeader& offer = one.header;
  TransferHandshake& handshake = PeerOf(one.peer).handshake;
  if (offer.dtype == transfer.dtype &&
      offer.elements == transfer.block.elements) {
    handshake.Accept(offer.id);
    transfer.moved_bytes = 1;  // the other may launch it
    one.Enter(One::Phase::kAnswer);
    return absl::OkStatus();
  }
  handshake.Refuse(offer.id);
  one.Enter(One::Phase::kOver);
  return absl::InvalidArgumentError(absl::StrCat(
      "wants ", Name(transfer.dtype), "[", transfer.block.elements, "], rank ",
      one.peer, " sent ", Name(offer.dtype), "[", offer.elements, "]"));
}

absl::StatusOr<bool> DeviceTransfers::TakePayload(Transfer& transfer,
                                                  One& one) {
  const bool is_on_device = transfer.ready != nullptr;
  if (is_on_device && one.pinned == nullptr) {
    WEFT_ASSIGN_OR_RETURN(
        void* const pinned,
        mover_->context()->runtime().AllocatePinned(BytesOf(transfer)));
    one.pinned = static_cast<std::byte*>(pinned);
    one.message.block.memory = one.pinned;
  }
  const absl::StatusOr<bool> taken = host_.Advance(one.message);
  transfer.moved_bytes = one.message.moved_bytes;
  // Then it was dropped.
  if (absl::IsInvalidArgument(taken.status())) one.Enter(One::Phase::kOver);
  if (!taken.ok() || !*taken || !is_on_device) return taken;
  device::Runtime& runtime = mover_->context()->runtime();
  if (!copies_.is_valid()) {
    WEFT_ASSIGN_OR_RETURN(copies_, streams_->Take());
  }
  const auto copy = [&, copies = copies_]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(one.event, runtime.CreateEvent(copies.device()));
    WEFT_RETURN_IF_ERROR(runtime.StreamWaitEvent(copies, *transfer.ready));
    WEFT_RETURN_IF_ERROR(runtime.CopyAsync(transfer.block.memory, one.pinned,
                                           BytesOf(transfer), copies));
    WEFT_RETURN_IF_ERROR(runtime.RecordEvent(one.event, copies));
    return runtime.StreamWaitEvent(after_all_, one.event);
  };
  const absl::Status status = copy();
  if (!status.ok()) return Break(status);
  // No other Receive can take it any more: who gives up now breaks the group.
  transfer.moved_bytes = BytesOf(transfer);
  one.Enter(One::Phase::kFlight);
  return false;
}

absl::StatusOr<bool> DeviceTransfers::MoveOnDevice(Transfer& transfer,
                                                   One& one) {
  Peer& peer = PeerOf(one.peer);
  Lane& lane = peer.lane(one.is_send);
  const uint64_t id = one.header.id;
  if (one.phase == One::Phase::kAnswer) {
    switch (peer.handshake.StageOf(one.is_send, id)) {
      case Stage::kOffered:
      case Stage::kAccepted:
        return peer.gone.ok() ? absl::StatusOr<bool>(false) : peer.gone;
      case Stage::kRefused:
        peer.handshake.Forget(one.is_send, id);
        return true;
      case Stage::kWithdrawn:
        if (one.is_from_any) one.peer = -1;
        transfer.moved_bytes = 0;
        one.Enter(One::Phase::kHeader);
        return false;
      case Stage::kAgreed:
        transfer.moved_bytes = 1;
        one.Enter(One::Phase::kTurn);
    }
  }
  if (one.phase == One::Phase::kTurn) {
    if (!peer.handshake.IsNext(one.is_send, id)) {
      return peer.gone.ok() ? absl::StatusOr<bool>(false) : peer.gone;
    }
    const absl::StatusOr<bool> is_connected = IsConnected(peer, one.is_send);
    if (!is_connected.ok()) return Break(is_connected.status());
    if (!*is_connected) {
      return peer.gone.ok() ? absl::StatusOr<bool>(false) : peer.gone;
    }
    one.Enter(One::Phase::kLaunch);
    if (const absl::Status status = Launch(transfer, one, lane); !status.ok()) {
      return Break(status);
    }
  }
  if (one.phase == One::Phase::kLaunch) {
    const absl::StatusOr<bool> is_there = lane.communicator->IsReady();
    if (!is_there.ok()) return Break(is_there.status());
    if (!*is_there) return false;
    if (const absl::Status status = EndLaunch(one, lane); !status.ok()) {
      return Break(status);
    }
    peer.handshake.Forget(one.is_send, id);
    one.Enter(One::Phase::kFlight);
  }
  WEFT_RETURN_IF_ERROR(CheckDevice());
  absl::StatusOr<bool> is_over = mover_->context()->runtime().Query(one.event);
  if (!is_over.ok()) return Break(is_over.status());
  if (*is_over && lane.communicator != nullptr && one.pinned == nullptr) {
    is_over = lane.communicator->HasEnded(one.scratch);
  }
  if (*is_over && one.passage != nullptr) one.passage->Finish();
  if (!*is_over && lane.communicator != nullptr && one.pinned == nullptr) {
    const absl::Status error = lane.communicator->AsyncError();
    if (!error.ok()) return Break(error);
  }
  return *is_over;
}

absl::StatusOr<bool> DeviceTransfers::IsConnected(Peer& peer, bool is_send) {
  Lane& lane = peer.lane(is_send);
  if (lane.is_connected) return true;
  if (lane.communicator == nullptr) {
    DeviceMover::Begun made;
    if (is_send) {
      WEFT_ASSIGN_OR_RETURN(made.id, mover_->MakeId());
    } else if (!peer.handshake.connect().has_value()) {
      return false;
    } else {
      made.id = *peer.handshake.connect();
    }
    if (!lane.stream.is_valid()) {
      WEFT_ASSIGN_OR_RETURN(lane.stream, streams_->Take());
    }
    made.stream = lane.stream;
    made.rank = is_send ? kSender : kReceiver;
    made.size = 2;
    WEFT_ASSIGN_OR_RETURN(lane.communicator, mover_->Begin(made));
    if (is_send) {
      peer.handshake.outbox().push_back(
          {TransferNotice::Kind::kConnect, 0, made.id});
    }
  }
  WEFT_ASSIGN_OR_RETURN(lane.is_connected, lane.communicator->IsReady());
  return lane.is_connected;
}

absl::Status DeviceTransfers::Launch(Transfer& transfer, One& one, Lane& lane) {
  device::Runtime& runtime = lane.stream.runtime();
  WEFT_ASSIGN_OR_RETURN(one.event, runtime.CreateEvent(lane.stream.device()));
  Operation& operation = one.operation;
  operation.verb = one.is_send ? Verb::kSend : Verb::kReceive;
  operation.dtype = transfer.dtype;
  operation.root = one.is_send ? kReceiver : kSender;
  (one.is_send ? operation.inputs : operation.outputs) = {transfer.block};
  const Operation* on_device = &operation;
  if (transfer.ready != nullptr) {
    WEFT_RETURN_IF_ERROR(runtime.StreamWaitEvent(lane.stream, *transfer.ready));
  } else {
    WEFT_ASSIGN_OR_RETURN(one.passage,
                          DevicePassage::Begin(*mover_->context(), lane.stream,
                                               operation, kReceiver));
    on_device = &one.passage->operation();
  }
  return lane.communicator->Launch(*on_device, /*with_factors=*/false,
                                   one.scratch);
}

absl::Status DeviceTransfers::EndLaunch(One& one, Lane& lane) {
  if (one.passage != nullptr) WEFT_RETURN_IF_ERROR(one.passage->CopyBack());
  device::Runtime& runtime = lane.stream.runtime();
  WEFT_RETURN_IF_ERROR(runtime.RecordEvent(one.event, lane.stream));
  return runtime.StreamWaitEvent(after_all_, one.event);
}

absl::Status DeviceTransfers::Talk() {
  WEFT_RETURN_IF_ERROR(host_.health());
  for (auto& [rank, peer] : peers_) {
    if (!peer->gone.ok()) continue;
    absl::Status status = Tell(*peer);
    if (status.ok()) status = Hear(*peer);
    if (status.ok()) status = Tell(*peer);
    if (absl::IsFailedPrecondition(status)) {
      return Break(Reworded(
          status, absl::StrCat("rank ", rank, ": ", status.message())));
    }
    // What is on the device may still end.
    if (!status.ok()) peer->gone = status;
  }
  return host_.health();
}

absl::Status DeviceTransfers::Tell(Peer& peer) {
  while (peer.is_telling || !peer.handshake.outbox().empty()) {
    if (!peer.is_telling) {
      peer.told = Encode(peer.handshake.outbox().front());
      peer.handshake.outbox().pop_front();
      peer.telling = MessageOf(true, peer.rank, kNoticeTag, peer.told);
      peer.is_telling = true;
    }
    WEFT_ASSIGN_OR_RETURN(const bool is_sent, host_.Advance(peer.telling));
    if (!is_sent) return absl::OkStatus();
    peer.is_telling = false;
  }
  return absl::OkStatus();
}

absl::Status DeviceTransfers::Hear(Peer& peer) {
  while (true) {
    const absl::StatusOr<bool> has_come = host_.Advance(peer.hearing);
    // Messages that this rank does not ask for are in the way.
    if (absl::IsResourceExhausted(has_come.status())) return absl::OkStatus();
    if (absl::IsInvalidArgument(has_come.status())) {
      return absl::FailedPreconditionError(has_come.status().message());
    }
    WEFT_RETURN_IF_ERROR(has_come.status());
    if (!*has_come) return absl::OkStatus();
    peer.hearing = MessageOf(false, peer.rank, kNoticeTag, peer.heard);
    WEFT_ASSIGN_OR_RETURN(const TransferNotice notice,
                          DecodeTransferNotice(peer.heard));
    WEFT_RETURN_IF_ERROR(peer.handshake.OnNotice(notice));
  }
}

absl::Status DeviceTransfers::CheckDevice() {
  const Instant now = host_.driver().clock().Now();
  if (now < check_ranks_at_) return absl::OkStatus();
  check_ranks_at_ = now + kCheckRanksInterval;
  const absl::Status status = host_.CheckRanks();
  return status.ok() ? status : Break(status);
}

absl::Status DeviceTransfers::Break(const absl::Status& why) {
  // The mover's error may say only that CUDA has failed; the device says why.
  // Or that another rank has aborted it, as one that ends does.
  absl::Status cause = after_all_.runtime().Health(after_all_.device());
  if (cause.ok()) cause = host_.CheckRanks();
  if (cause.ok()) cause = why;
  host_.Abort(Reworded(
      cause, absl::StrCat("a Send or Receive of rank ", host_.rank(), " over ",
                          mover_->title(), " has failed: ", cause.message())));
  for (auto& [rank, peer] : peers_) {
    for (Lane* const lane : {&peer->to, &peer->from}) {
      if (lane->communicator != nullptr) lane->communicator->Abort();
    }
  }
  return host_.health();
}

void DeviceTransfers::FollowLane(const Lane& lane) {
  device::Runtime& runtime = lane.stream.runtime();
  absl::StatusOr<device::Event> event =
      runtime.CreateEvent(lane.stream.device());
  // A device that failed runs nothing any more.
  if (!event.ok() || !runtime.RecordEvent(*event, lane.stream).ok()) return;
  runtime.StreamWaitEvent(after_all_, *event).IgnoreError();
}

void DeviceTransfers::GiveUp(One& one) {
  Peer& peer = PeerOf(one.peer);
  if (peer.handshake.GiveUp(one.is_send, one.header.id)) {
    Talk().IgnoreError();
  } else if (host_.health().ok() && peer.gone.ok() && !is_leaving_) {
    // The other rank, and all that come behind it, would wait for it.
    Break(absl::CancelledError(
              absl::StrCat(one.is_send ? "a Send to" : "a Receive from",
                           " rank ", one.peer, ", tag ", one.tag,
                           ", was given up after both ranks had agreed on it")))
        .IgnoreError();
  }
}

void DeviceTransfers::End(One& one) {
  MutexLock lock(mu_);
  const One::Phase phase = one.phase;
  if (one.pinned != nullptr && phase == One::Phase::kFlight) {
    given_up_.push_back({std::move(one.event), one.pinned});
  } else if (one.pinned != nullptr) {
    mover_->context()->runtime().FreePinned(one.pinned).IgnoreError();
  }
  if (phase == One::Phase::kHeader && one.is_send && one.header.is_offer) {
    PeerOf(one.peer).handshake.Forget(true, one.header.id);
  } else if (phase == One::Phase::kAnswer || phase == One::Phase::kTurn) {
    GiveUp(one);
  } else if (phase == One::Phase::kPayload && !one.is_send &&
             one.message.moved_bytes == 0) {
    untaken_[{one.peer, one.tag}].push_front(one.header);
  } else if (one.launched() && one.pinned == nullptr) {
    // Its kernels may wait for ever.
    Lane& lane = PeerOf(one.peer).lane(one.is_send);
    if (lane.communicator != nullptr) lane.communicator->Abort();
    FollowLane(lane);
  }
  one.Enter(One::Phase::kOver);
}

}  // namespace weft::collectives
