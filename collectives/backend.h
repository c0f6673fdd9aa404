// Backend: how the ranks of one group reach each other. ProcessGroup checks
// arguments, keeps the order and the deadlines, and hands Operations to it.

#ifndef WEFT_COLLECTIVES_BACKEND_H_
#define WEFT_COLLECTIVES_BACKEND_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/collectives/diagnosis.h"
#include "weft/collectives/operation.h"
#include "weft/device/runtime.h"
#include "weft/tensor/device.h"
#include "weft/tensor/tensor.h"

namespace weft::collectives {

// A Send or Receive under way.
struct Transfer {
  bool is_send = false;
  int peer = 0;  // -1: receive from any; then the sender, once it is known
  uint64_t tag = 0;
  DType dtype = DType::kU8;
  Block block;
  // For a block on a device, where StreamOf has said so: the event after which
  // it may be read and written. Null: it is on the host. Must outlive this.
  const device::Event* ready = nullptr;
  // The backend's: what of a message is there, so that it cannot be given up
  // without the rest; and where it keeps what it does for it.
  int64_t moved_bytes = 0;
  std::shared_ptr<void> state = nullptr;
};

// A group to be made of some ranks of another.
struct SubgroupSpec {
  // Ranks of the other group, in the order of the new ranks.
  std::vector<int> members;
  std::string name;  // which no other group made from that one has
  Instant deadline;  // how long to wait for the members
  // Called while Subgroup waits for the members, where the backend can end that
  // wait: an error ends it within 2 s, and is its result. May be null. Not
  // called once Subgroup has returned.
  std::function<absl::Status()> check_wait = nullptr;
  // How much memory Allocate may hand out on each rank, where the backend has
  // such memory; none: as much as in the other group.
  absl::optional<int64_t> arena_bytes;

  // The place of `rank` of the other group among the members.
  int PlaceOf(int rank) const {
    return static_cast<int>(std::find(members.begin(), members.end(), rank) -
                            members.begin());
  }
};

// When a Backend is destroyed this rank leaves the group: the other ranks go on
// until they wait for it.
//
// Thread-safety: Run and Refuse are called by one thread at a time, Advance by
// one thread at a time (both at once may be); all else by any.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual absl::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // How threads wait for its operations, and by which clock.
  virtual Driver& driver() { return ParkingDriver(); }

  // Takes part in `operation` and returns once this rank's part is done and its
  // blocks are no longer used. Errors:
  //   kAborted             another rank refused its arguments; the group goes
  //                        on, and health() stays OK
  //   kFailedPrecondition  the ranks called different operations; the message
  //                        names both call sites, on every rank
  //   kUnavailable         a rank is gone; the message names it
  //   kDeadlineExceeded    the message names the ranks waited for
  //   else                 what Abort was given
  // All but the first abort the group.
  virtual absl::Status Run(const Operation& operation) = 0;

  // Whether operations are begun by Enqueue, and end by an event, as a device's
  // do: then Run is not called.
  virtual bool enqueues() const { return false; }
  // Begins `operation` after those enqueued before, without waiting for it.
  // `done` is called once, with what Run would return: on any thread, perhaps
  // before this returns, and before those of earlier operations; not in Abort.
  // `operation` and its blocks live until then. Each ends at its deadline, and
  // soon once the group is aborted. Called by one thread at a time.
  using Done = absl::AnyInvocable<void(absl::Status) &&>;
  virtual void Enqueue(const Operation& operation, Done done) {
    std::move(done)(Run(operation));
  }
  // The stream on which `operation`, of tensors on `device`, runs where its
  // blocks may be memory of that device; none: they are to be on the host. For
  // the same operation, and a device that the rank was given, all ranks return
  // a stream or all return none (not so of a Send or a Receive). Any thread.
  virtual device::Stream StreamOf(const Operation& /*operation*/,
                                  Device /*device*/) const {
    return {};
  }

  // Takes the place of Run where this rank refuses its arguments: the other
  // ranks' Run of this sequence number ends in kAborted with `why`. Does not
  // wait.
  virtual void Refuse(const Operation& operation, const absl::Status& why) = 0;

  // Makes every Run and Advance of all ranks of the group fail with `why`, now
  // and from now on. The first reason stays. Does not wait.
  virtual void Abort(const absl::Status& why) = 0;
  // OK, or why the group was aborted. Any thread.
  virtual absl::Status health() const = 0;
  // The same, or kUnavailable with the rank that has ended without leaving the
  // group, as far as this one knows without asking. Any thread.
  virtual absl::Status CheckRanks() { return health(); }

  // Tells all ranks of an aborted group, without waiting, to stop making the
  // smaller group that `key` names, with the error `why`.
  virtual void EndShrink(uint64_t /*key*/, const absl::Status& /*why*/) {}
  // The error that EndShrink of any rank gave for `key`; OK if none did.
  virtual absl::Status CheckShrink(uint64_t /*key*/) const {
    return absl::OkStatus();
  }

  // Moves what can be moved without waiting. True once it is complete.
  // kInvalidArgument if what has arrived is of another dtype or count than
  // wanted: then it is dropped. kResourceExhausted where messages of that peer
  // with other tags fill what may be kept (max_unasked_bytes): no more is taken
  // from it until those are received. Whoever gives one up lets its `state` go
  // after its own last Advance, and before the next of any other. Of several
  // transfers with the same peer, tag and direction only the oldest advances,
  // until it is complete.
  virtual absl::StatusOr<bool> Advance(Transfer& transfer) = 0;
  // The caller gives up all sends that have begun, and their memory once this
  // has returned: no Receive of another rank may take that memory for a
  // message. Called once, after the last Advance.
  virtual void WithdrawSends() {}
  // Changes whenever an Advance may find more than before.
  virtual uint64_t transfer_events() const = 0;
  // Returns once transfer_events() is not `seen`, at `until`, or without cause.
  virtual void AwaitTransfers(uint64_t seen, Instant until) = 0;

  // For reports of a Send or Receive that waits. Where they go; null: nowhere.
  virtual const DiagnosisOptions* diagnosis() const { return nullptr; }
  // Asks `peer`, or all others for -1, what it does, where this backend does
  // not see that itself. Does not wait.
  virtual void AskPeer(int /*peer*/) {}
  // "rank 1 (trainer1) has not sent it and last called X", and whether that one
  // has answered since `since`, before which it was not asked. `lacks`: "has
  // not sent it".
  virtual std::string DescribePeer(int peer, absl::string_view lacks,
                                   Instant since) const;

  // Memory in which this backend's operations need no copies.
  virtual absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype) = 0;

  // A backend for `spec.members`, of which this rank is one. Called on all of
  // them with the same `spec`, and waits for them. Also of an aborted group.
  virtual absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec& spec) = 0;
};

inline std::string Backend::DescribePeer(int peer, absl::string_view lacks,
                                         Instant /*since*/) const {
  return absl::StrCat(RankText(peer, ""), " ", lacks);
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKEND_H_
