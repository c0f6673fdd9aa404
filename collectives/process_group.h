// ProcessGroup: an ordered set of ranks that do the same operation together.
//
//   weft::collectives::ProcessGroup& group = ...;      // on each rank
//   WEFT_RETURN_IF_ERROR(group.AllReduce(gradient));   // in place: the sum
//   Future<void> reduced = group.AllReduceAsync(bucket, ReduceOp::kAverage);
//   WEFT_RETURN_IF_ERROR(reduced.Wait(absl::Minutes(5)));
//
// Order. Every rank calls the same collective operations on a group in the same
// order; a group runs them one after the other, in the order of the calls
// (calls of several threads do not mix). Operations of two groups have no
// order. Send and Receive are matched by peer and tag, not by that order.
//
// Threads. X() runs on the calling thread, after what was called before. XAsync
// returns at once; the operation runs on a thread of the group's own, started
// by the first of them, and callbacks of its Future too, under InlineScope and,
// with tensors on a device, with the caller's stream as the current one. On a
// thread under InlineScope (the Loop's, and those callbacks) X() is
// kFailedPrecondition: call XAsync, or give Future::Then an executor. Reduction
// never runs on the Loop's thread.
//
// Tensors may have any supported dtype. One that is not contiguous is copied.
// An output that is written (all but pure inputs) must not be read or written
// elsewhere until the operation is complete; the group holds the handles until
// then. Counts of 0 are allowed everywhere. Where the result is the same for
// all ranks it has the same bits on all of them, and on every run with the same
// inputs, ranks and backend.
//
// Devices. The tensors of one call are on the CPU or on one device; those of
// other ranks may be elsewhere. On a device the call is ordered as work on the
// current stream of the calling thread: it reads what that stream has computed
// by then. Work that is put on the stream once X() has returned, or once the
// Future is ready, sees the results. XAsync does not wait for the device; X()
// and the group's thread do, until the deadline. Elements pass through pinned
// host memory, unless the backend moves them from device to device (nccl,
// same_device): the group keeps as much as was in use at one time, and the
// device's Context.
//
// Errors (each names operation, call site, group and rank):
//   kInvalidArgument     wrong tensor, root, split or reduction: at once on
//                        this rank; on the others the same operation, as far
//                        as it needs this rank, ends in kAborted with this
//                        rank's message. The group goes on.
//   kUnimplemented       "backend X lacks Y": at once, on every rank.
//   kFailedPrecondition  the ranks called different operations, both call sites
//                        are named on every rank; or the group is broken.
//   kUnavailable         a rank has ended, or is out of its job; its number is
//                        named.
//   kDeadlineExceeded    `timeout` has passed; the ranks waited for are named.
//                        After DiagnosisOptions::report_after the same is
//                        reported, and the operation goes on. Where no time is
//                        left as it is to begin (a timeout of 0 or less, too
//                        long behind others), it is not begun. (A Send or
//                        Receive without time moves what can be moved at once.)
//   kCancelled           Revoke, or the group's end on some rank.
//   kResourceExhausted   no memory for a copy, pinned memory among it: as
//                        kInvalidArgument.
//   (of a device)        kUnavailable or kInternal where it has failed,
//                        kDeadlineExceeded where inputs have not come from it:
//                        it is named on every rank.
// All but kInvalidArgument, kUnimplemented and kResourceExhausted break the
// group: on each rank one operation ends in that error, and later ones in
// kFailedPrecondition with the first reason, or again in kCancelled, until
// Shrink or Reconfigure. So it is for a rank that is still on its way into the
// group: it comes into a broken one. But a Send or Receive that passes its
// deadline leaves the group as it is. Ending a Future early (Future::Cancel)
// does not withdraw this rank's part.
//
// Differences. An operation is OK on a rank once its own part is done, and what
// it has written is what ranks that call the same give. A rank whose part needs
// nobody (the root of a Broadcast or a Scatter, the others of a Reduce or a
// Gather) may be OK, then, although another rank has called something else
// under that number, or will: however far behind that one is, both find out,
// and the next operation of each ends in kFailedPrecondition. A Barrier is OK
// only if all ranks have called the same operations up to it. A difference that
// is found when a rank has left the group, or leaves it before another
// operation, is reported there (DiagnosisOptions::report).
//
// Thread-safety: thread-safe.

#ifndef WEFT_COLLECTIVES_PROCESS_GROUP_H_
#define WEFT_COLLECTIVES_PROCESS_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "weft/base/future.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/call_options.h"
#include "weft/collectives/call_site.h"
#include "weft/collectives/group_options.h"
#include "weft/collectives/reduction.h"
#include "weft/tensor/tensor.h"

namespace weft::collectives {

class Generation;
struct Call;

// One part of an Exchange.
struct PointToPoint {
  enum Kind { kSend, kReceive } kind;
  Tensor tensor;
  int peer = 0;
  uint64_t tag = 0;
};

class ProcessGroup {
 public:
  // The group of the ranks that `backend` connects.
  static std::unique_ptr<ProcessGroup> Create(std::unique_ptr<Backend> backend,
                                              GroupOptions options = {});
  // Leaves the group: others go on until they wait for this rank
  // (kUnavailable). If operations are in flight here, they end in kCancelled on
  // all ranks. Joins the group's threads: not to be called in a callback of its
  // Futures.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const;
  int size() const;
  const std::string& name() const;
  std::string backend_name() const;
  // The timeout of an operation that has none of its own.
  absl::Duration timeout() const;
  // OK, or why the group is broken.
  absl::Status health() const;
  // The same, or kUnavailable with a rank that has ended without leaving the
  // group, as far as this one knows without asking: for a caller that waits for
  // something other than an operation, since an operation finds that out
  // itself. Any thread.
  absl::Status CheckRanks() const;

  // A tensor, not initialised, in memory that this group's operations use
  // without a copy (the host backend: shared memory). Any tensor may be used
  // in operations. kResourceExhausted: that memory is used up (a tensor without
  // elements needs none). The memory lives as long as the tensor, also after
  // the group. Always of the CPU.
  absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype);

  // --- Collective operations: called by all ranks. ---------------------------

  // Every rank's `tensor` becomes the reduction of all. Cost: at most 2(n-1)/n
  // of its bytes sent by each rank of n.
  absl::Status AllReduce(const Tensor& tensor, const Reduction& reduction = {},
                         const CallOptions& options = {},
                         CallSite site = CallSite::Here());
  Future<void> AllReduceAsync(const Tensor& tensor,
                              const Reduction& reduction = {},
                              const CallOptions& options = {},
                              CallSite site = CallSite::Here());
  // Out of place: `output` is like `input`.
  absl::Status AllReduceInto(const Tensor& input, const Tensor& output,
                             const Reduction& reduction = {},
                             const CallOptions& options = {},
                             CallSite site = CallSite::Here());
  Future<void> AllReduceIntoAsync(const Tensor& input, const Tensor& output,
                                  const Reduction& reduction = {},
                                  const CallOptions& options = {},
                                  CallSite site = CallSite::Here());
  // Each of `tensors`, which are of one dtype, as one operation: one latency
  // for all. The list is equal on all ranks.
  absl::Status AllReduceCoalesced(const std::vector<Tensor>& tensors,
                                  const Reduction& reduction = {},
                                  const CallOptions& options = {},
                                  CallSite site = CallSite::Here());
  Future<void> AllReduceCoalescedAsync(const std::vector<Tensor>& tensors,
                                       const Reduction& reduction = {},
                                       const CallOptions& options = {},
                                       CallSite site = CallSite::Here());

  // Every rank's `tensor` becomes the root's.
  absl::Status Broadcast(const Tensor& tensor, int root,
                         const CallOptions& options = {},
                         CallSite site = CallSite::Here());
  Future<void> BroadcastAsync(const Tensor& tensor, int root,
                              const CallOptions& options = {},
                              CallSite site = CallSite::Here());

  // The root's `tensor` becomes the reduction of all; the others' stays as it
  // was.
  absl::Status Reduce(const Tensor& tensor, int root,
                      const Reduction& reduction = {},
                      const CallOptions& options = {},
                      CallSite site = CallSite::Here());
  Future<void> ReduceAsync(const Tensor& tensor, int root,
                           const Reduction& reduction = {},
                           const CallOptions& options = {},
                           CallSite site = CallSite::Here());

  // `output`, of size() times as many elements, becomes the inputs of all in
  // rank order. `input` may be the part of `output` that is this rank's.
  absl::Status AllGather(const Tensor& input, const Tensor& output,
                         const CallOptions& options = {},
                         CallSite site = CallSite::Here());
  Future<void> AllGatherAsync(const Tensor& input, const Tensor& output,
                              const CallOptions& options = {},
                              CallSite site = CallSite::Here());
  // outputs[r] becomes the input of rank r. Counts may differ from rank to
  // rank; every rank gives the same list of counts.
  absl::Status AllGatherList(const Tensor& input,
                             const std::vector<Tensor>& outputs,
                             const CallOptions& options = {},
                             CallSite site = CallSite::Here());
  Future<void> AllGatherListAsync(const Tensor& input,
                                  const std::vector<Tensor>& outputs,
                                  const CallOptions& options = {},
                                  CallSite site = CallSite::Here());

  // At the root outputs[r] becomes the input of rank r, counts may differ; on
  // the other ranks `outputs` is empty.
  absl::Status Gather(const Tensor& input, const std::vector<Tensor>& outputs,
                      int root, const CallOptions& options = {},
                      CallSite site = CallSite::Here());
  Future<void> GatherAsync(const Tensor& input,
                           const std::vector<Tensor>& outputs, int root,
                           const CallOptions& options = {},
                           CallSite site = CallSite::Here());

  // `output` becomes the root's inputs[rank()], counts may differ; on the other
  // ranks `inputs` is empty.
  absl::Status Scatter(const std::vector<Tensor>& inputs, const Tensor& output,
                       int root, const CallOptions& options = {},
                       CallSite site = CallSite::Here());
  Future<void> ScatterAsync(const std::vector<Tensor>& inputs,
                            const Tensor& output, int root,
                            const CallOptions& options = {},
                            CallSite site = CallSite::Here());

  // `input` has size() times as many elements as `output`, which becomes part
  // rank() of the reduction of all inputs. It may be that part of `input`.
  absl::Status ReduceScatter(const Tensor& input, const Tensor& output,
                             const Reduction& reduction = {},
                             const CallOptions& options = {},
                             CallSite site = CallSite::Here());
  Future<void> ReduceScatterAsync(const Tensor& input, const Tensor& output,
                                  const Reduction& reduction = {},
                                  const CallOptions& options = {},
                                  CallSite site = CallSite::Here());
  // `output` becomes the reduction of all ranks' inputs[rank()]. Counts may
  // differ from one list entry to the next; the lists are alike on all ranks.
  absl::Status ReduceScatterList(const std::vector<Tensor>& inputs,
                                 const Tensor& output,
                                 const Reduction& reduction = {},
                                 const CallOptions& options = {},
                                 CallSite site = CallSite::Here());
  Future<void> ReduceScatterListAsync(const std::vector<Tensor>& inputs,
                                      const Tensor& output,
                                      const Reduction& reduction = {},
                                      const CallOptions& options = {},
                                      CallSite site = CallSite::Here());

  // Part r of `input` goes to rank r; part r of `output` comes from rank r. The
  // parts are equal.
  absl::Status AllToAll(const Tensor& input, const Tensor& output,
                        const CallOptions& options = {},
                        CallSite site = CallSite::Here());
  Future<void> AllToAllAsync(const Tensor& input, const Tensor& output,
                             const CallOptions& options = {},
                             CallSite site = CallSite::Here());
  // As AllToAll with parts of any counts: inputs[r] of this rank has as many
  // elements as outputs[rank()] of rank r.
  absl::Status AllToAllList(const std::vector<Tensor>& inputs,
                            const std::vector<Tensor>& outputs,
                            const CallOptions& options = {},
                            CallSite site = CallSite::Here());
  Future<void> AllToAllListAsync(const std::vector<Tensor>& inputs,
                                 const std::vector<Tensor>& outputs,
                                 const CallOptions& options = {},
                                 CallSite site = CallSite::Here());

  // Returns once all ranks have called it. In kDeadlineExceeded the message
  // names all ranks that have not.
  absl::Status Barrier(const CallOptions& options = {},
                       CallSite site = CallSite::Here());
  Future<void> BarrierAsync(const CallOptions& options = {},
                            CallSite site = CallSite::Here());

  // Small objects, serialised by the caller: every rank's bytes in rank order.
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(
      absl::string_view bytes, const CallOptions& options = {},
      CallSite site = CallSite::Here());
  // The root's bytes; those of the others are ignored.
  absl::StatusOr<std::string> BroadcastBytes(absl::string_view bytes, int root,
                                             const CallOptions& options = {},
                                             CallSite site = CallSite::Here());

  // --- Point to point: called by two ranks. ----------------------------------

  // Complete once the caller may write to `tensor` again, which may be before
  // it is received. kInvalidArgument for `to` == rank().
  absl::Status Send(const Tensor& tensor, int to, uint64_t tag = 0,
                    const CallOptions& options = {},
                    CallSite site = CallSite::Here());
  Future<void> SendAsync(const Tensor& tensor, int to, uint64_t tag = 0,
                         const CallOptions& options = {},
                         CallSite site = CallSite::Here());
  // The tensors of one sender with one tag arrive in the order of sending; they
  // must have the dtype and the number of elements of `tensor`, else
  // kInvalidArgument, and the group goes on.
  absl::Status Receive(const Tensor& tensor, int from, uint64_t tag = 0,
                       const CallOptions& options = {},
                       CallSite site = CallSite::Here());
  Future<void> ReceiveAsync(const Tensor& tensor, int from, uint64_t tag = 0,
                            const CallOptions& options = {},
                            CallSite site = CallSite::Here());
  // Receives from any rank; returns the sender's rank.
  absl::StatusOr<int> ReceiveAny(const Tensor& tensor, uint64_t tag = 0,
                                 const CallOptions& options = {},
                                 CallSite site = CallSite::Here());
  Future<int> ReceiveAnyAsync(const Tensor& tensor, uint64_t tag = 0,
                              const CallOptions& options = {},
                              CallSite site = CallSite::Here());
  // Runs all parts at once, in any order on any rank. What arrives for one of
  // them does not count as unasked for (GroupTerms::max_unasked_bytes), however
  // much it is. The first error is the result, as soon as it comes; the other
  // parts go on.
  absl::Status Exchange(const std::vector<PointToPoint>& parts,
                        const CallOptions& options = {},
                        CallSite site = CallSite::Here());
  Future<void> ExchangeAsync(const std::vector<PointToPoint>& parts,
                             const CallOptions& options = {},
                             CallSite site = CallSite::Here());

  // --- Groups of some of the ranks. ------------------------------------------

  // Called by all ranks: those of the same `color` form a group, ordered by
  // `key`, then by rank. Null where color < 0. kInvalidArgument on all of them
  // if they want arenas of different sizes. The Async form makes the group on
  // the thread of this group's operations, before those that are called later.
  // What ends this group's operations, Revoke and its own end among them, ends
  // the wait for members that have not come within 2 s, for the same reason.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(
      int color, int key = 0, const SubgroupOptions& options = {},
      CallSite site = CallSite::Here());
  Future<std::unique_ptr<ProcessGroup>> SplitAsync(
      int color, int key = 0, const SubgroupOptions& options = {},
      CallSite site = CallSite::Here());
  // Called by all ranks with the same list, which is compared (see Errors): a
  // group of `ranks`, in this order. Null on the others.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Subgroup(
      const std::vector<int>& ranks, const SubgroupOptions& options = {},
      CallSite site = CallSite::Here());
  Future<std::unique_ptr<ProcessGroup>> SubgroupAsync(
      const std::vector<int>& ranks, const SubgroupOptions& options = {},
      CallSite site = CallSite::Here());

  // [size()]: the rank of each in the group from which this one was made by
  // Split or Subgroup, as that group was then. In a group made by Create: the
  // rank that each had in it at first, or after the last Reconfigure. Shrink
  // keeps those of its members.
  std::vector<int> parent_ranks() const;
  // The rank here of rank `parent_rank` there; none: it is no member.
  absl::optional<int> RankOfParent(int parent_rank) const;

  // --- Recovery. -------------------------------------------------------------

  // Ends all operations in flight and queued, on every rank, with `reason`, and
  // breaks the group; the object stays, for Shrink or Reconfigure. A group that
  // is being made from this one ends so too. A Shrink that this rank has called
  // before ends on all its members; one that it calls later is not touched.
  void Revoke(const absl::Status& reason);
  // Called by `members` (current ranks) only, also of a broken group: they
  // become its ranks 0, 1, ... Operations in flight end with kCancelled.
  // kInvalidArgument, and nothing is done, for `members` that are not different
  // ranks or do not have this one.
  absl::Status Shrink(const std::vector<int>& members,
                      const CallOptions& options = {},
                      CallSite site = CallSite::Here());
  // Continues over `backend`, which has other members; operations in flight end
  // with kCancelled.
  absl::Status Reconfigure(std::unique_ptr<Backend> backend);

  class Core;

 private:
  explicit ProcessGroup(std::shared_ptr<Core> core);

  // Runs the operation of a Split, which fills `wishes`, and makes the group.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> RunSplit(
      Generation& group, Call call, const Tensor& wishes,
      const SubgroupOptions& options);
  Future<std::unique_ptr<ProcessGroup>> RunSplitAsync(
      Generation& group, Call call, const Tensor& wishes,
      const SubgroupOptions& options);
  // This rank's part of a Split, once all have told their wishes.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(
      Core& core, Generation& group, const Tensor& wishes, uint64_t number,
      absl::Duration timeout);

  const std::shared_ptr<Core> core_;
};

// OK if this binary has the backend: "local", "host", "stream", "gloo", "mpi",
// "nccl", "same_device"; else kUnimplemented, which names the backends that it
// has and how to add this one.
absl::Status IsAvailable(absl::string_view backend);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_PROCESS_GROUP_H_
