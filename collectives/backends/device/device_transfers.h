// DeviceTransfers: Send and Receive of a group whose tensors a DeviceMover
// moves.
//
// What a rank sends from its device, more than `host_bytes` of it, goes by it:
// the two ranks agree on it over the group of the host (transfer_handshake.h),
// so that a receive that does not come, or wants another tensor, is told there.
// All else is a message of the host's group, behind a header.
//
//   the tensors                                 move
//   device, and the receiver's is on its own    from device to device
//   device, and the receiver's is elsewhere     the same, into device memory of
//                                               the receiver, and to the host
//   host or few bytes                           over the host, and to the
//                                               receiver's device
//
// A Send from device to device is over once it was received. Each rank has a
// communicator of two ranks, and a stream, for each rank that it sends such
// tensors to, and for each that it receives them from, made by the first.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_TRANSFERS_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_TRANSFERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/device/device_mover.h"
#include "weft/collectives/backends/device/device_streams.h"
#include "weft/collectives/backends/device/transfer_handshake.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// Thread-safety: thread-safe; nobody else calls Advance of `host`.
class DeviceTransfers {
 public:
  // The tag of what the ranks say besides: no Send or Receive has it.
  static constexpr uint64_t kNoticeTag = std::numeric_limits<uint64_t>::max();

  // `host` must outlive it, and it the transfers.
  DeviceTransfers(Backend& host, std::shared_ptr<DeviceMover> mover,
                  std::shared_ptr<DeviceStreams> streams);
  // Waits as the ends of its communicators do, and at most 10 s for copies to
  // the device whose Receive was given up.
  ~DeviceTransfers();

  absl::Status Start();

  // Whether the tensor of such an operation may stay on the device; then all
  // that is done with it has been done once this stream has run.
  bool Takes(const Operation& operation) const;
  device::Stream stream() const { return after_all_; }

  // As Backend::Advance. An error of the mover or of the device breaks the
  // group; so does the end of a transfer's `state` once both ranks have agreed
  // on it, before it is complete.
  absl::StatusOr<bool> Advance(Transfer& transfer) ABSL_LOCKS_EXCLUDED(mu_);
  // This rank leaves the group: what is given up from now on does not end it.
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether some transfer waits for the device, which wakes nobody.
  bool awaits_device() const { return on_device_.load() > 0; }

 private:
  struct One;   // transfer
  struct Lane;  // of all from one rank to another
  struct Peer;
  // The pinned source of a copy to the device whose Receive was given up.
  struct GivenUp {
    device::Event copied;
    std::byte* pinned;
  };

  absl::StatusOr<bool> Send(Transfer& transfer, One& one)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<bool> Receive(Transfer& transfer, One& one)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The steps of the two.
  absl::StatusOr<bool> TakeHeader(Transfer& transfer, One& one)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AnswerOffer(Transfer& transfer, One& one)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<bool> TakePayload(Transfer& transfer, One& one)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<bool> MoveOnDevice(Transfer& transfer, One& one)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Launch(Transfer& transfer, One& one, Lane& lane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status EndLaunch(One& one, Lane& lane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the lane's communicator is there; the first call makes it.
  absl::StatusOr<bool> IsConnected(Peer& peer, bool is_send)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Peer& PeerOf(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends and takes notices. An error breaks the group.
  absl::Status Talk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Tell(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Hear(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // OK, or why what is on the device is to end.
  absl::Status CheckDevice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Breaks the group, and ends what runs; returns why.
  absl::Status Break(const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is on the lane's stream may still use blocks that were given up: they
  // are not handed out before that has run.
  void FollowLane(const Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether an offered transfer may be given up without ending the group.
  bool MayGiveUp(const One& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives up one that was offered and not launched.
  void GiveUp(One& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The transfer is over, or given up.
  void End(One& one) ABSL_LOCKS_EXCLUDED(mu_);
  void FreeGivenUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Backend& host_;
  const std::shared_ptr<DeviceMover> mover_;
  const std::shared_ptr<DeviceStreams> streams_;
  device::Stream after_all_;  // set by Start
  std::atomic<int> on_device_{0};

  Mutex mu_;
  bool is_leaving_ ABSL_GUARDED_BY(mu_) = false;
  std::map<int, std::unique_ptr<Peer>> peers_ ABSL_GUARDED_BY(mu_);
  // Headers, by sender and tag, whose Receive was given up before it took the
  // elements that follow: they are for the next Receive.
  std::map<std::pair<int, uint64_t>, std::deque<TransferHeader>> untaken_
      ABSL_GUARDED_BY(mu_);
  device::Stream copies_ ABSL_GUARDED_BY(mu_);  // to the device
  std::vector<GivenUp> given_up_ ABSL_GUARDED_BY(mu_);
  Instant check_ranks_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_TRANSFERS_H_
