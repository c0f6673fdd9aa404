// JoinGroup: the process group of a worker and other members of its job.
//
//   auto group = weft::worker::JoinGroup(**worker);  // all of its role
//   weft::ExitIfError(group.status());
//   weft::ExitIfError((*group)->AllReduce(gradient));
//
// In an elastic job the same call makes a group of those that are in the job
// now. When one has died, or others wait to come in, all call it again:
//
//   JoinGroupOptions join;
//   join.elastic.min = 2;
//   while (!is_trained) {
//     WEFT_ASSIGN_OR_RETURN(auto group, JoinGroup(worker, join));
//     ...  // until an operation ends with kUnavailable, or rank 0 has found
//     ...  // that somebody is MembersWaiting, and has broadcast it
//   }
//
// In a job of fixed numbers, a group of the members that are there now:
//
//   WEFT_RETURN_IF_ERROR(worker.membership().Refresh(timeout));
//   JoinGroupOptions join;
//   WEFT_ASSIGN_OR_RETURN(join.members, MembersNow(worker, "role=trainer"));
//   auto group = JoinGroup(worker, join);

#ifndef WEFT_WORKER_JOIN_GROUP_H_
#define WEFT_WORKER_JOIN_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/collectives/process_group.h"
#include "weft/rendezvous/roll_call.h"
#include "weft/worker/group_backend.h"
#include "weft/worker/worker.h"

namespace weft::worker {

// The members of a group in an elastic job. The same on all workers that are to
// be in it.
struct ElasticMembers {
  // View::Select: "role=trainer,zone=a". It must find this worker. Empty: all
  // of this worker's role.
  std::string selector;
  int min = 1;
  int max = rendezvous::kMostOnARoll;
  // Once `min` have come, how long to wait for others that are in the job; they
  // are then left out. By default for all of them, until join_timeout. With it
  // two parts of a job may make a group each, unless `min` is more than half.
  absl::Duration last_call = absl::InfiniteDuration();
};

struct JoinGroupOptions {
  // The name by which the members find each other: at one time only one group
  // of a name can be made. The name may be used again, by the same or by other
  // members, once JoinGroup has returned; a group that still lives is not
  // touched by that.
  std::string name = "world";
  // The names of its members, this worker's among them, of any roles; the rank
  // of each is its place in this list, which is the same at all of them. Empty:
  // all workers of this worker's role, by rank; in an elastic job, those of
  // `elastic`.
  std::vector<std::string> members;
  // Used in an elastic job, where `members` is empty.
  ElasticMembers elastic;
  // How long to wait for the others; 0: Options::join_timeout.
  absl::Duration join_timeout;
  // Bytes of shared memory that ProcessGroup::Allocate may hand out on this
  // worker; reserved when the group is made. Holds the buckets of ddp.
  int64_t arena_bytes = int64_t{64} << 20;
  // Timeout of an operation that has none of its own.
  absl::Duration timeout = absl::Minutes(5);
  // In place of the worker's Options::host_id.
  std::string host_id;
  // What moves its tensors. In an elastic job host, also for auto; nccl and
  // same_device are kInvalidArgument there.
  GroupBackend backend;
  // In an elastic job: ends the wait for the others, within half a second, with
  // its reason. Workers that have a group with this one by then find it gone
  // once it leaves the job.
  CancelToken cancel;
};

// Called by every member of the group, on one host or several; waits for all of
// them. The group is of the incarnations that meet here: once one is gone, its
// operations end (kUnavailable, on every rank), and a worker that comes back
// under the same name is in none of the earlier groups. To go on, the members
// call JoinGroup again: with the same options where the one that was lost comes
// back, or with `members` that are there now.
//
// Without `members`, a worker of the role that is gone is waited for: another
// may come in its place. With `members`, one that is gone is an error at once.
//
// In an elastic job, without `members`, they agree on who is in the group
// (docs/rendezvous.md, "Roll calls"): it is closed once `max` of
// ElasticMembers have come, those of the group before among them who live, or
// at least `min` and all whom its selector finds in the job at one version of
// the view; ranks are in the order of their roles and ranks there. Who comes
// later waits for the next group, which is made when the others call JoinGroup
// again: until then it is told for whom it waits, in the log. One that ends is
// waited for no more; if it ends after the group was closed and before it was
// made, the others begin again. Called again under a name, the groups of before
// go on as they are.
//
// When this worker is out of its job, the operations of the group, and of the
// groups made from it, end on every rank with kUnavailable and the reason.
//
// `worker` must outlive the group. Reports of stuck operations go into the
// worker's log. A rank of another host that is silent for Limits::dead_after is
// dead.
//   kDeadlineExceeded    names the members that did not come
//   kUnavailable         a member is gone, which is named; or as status()
//   kAborted             Membership::status(): this worker is out of its job
//   kFailedPrecondition  members of the same name wait for others than these,
//                        or have come with another `elastic`; another thread of
//                        this worker is at this name; or `elastic` is given in
//                        a job that is not
//   kInvalidArgument     `members` without this worker, or with one twice, or
//                        with `elastic`; in `elastic` a min below 1 or above
//                        max, a max above rendezvous::kMostOnARoll, a negative
//                        last_call, or a selector that is none or is of others
// those of ChooseBackend (group_backend.h), of collectives::ConnectHost,
// collectives::ConnectNccl and collectives::ConnectSameDevice.
absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> JoinGroup(
    Worker& worker, const JoinGroupOptions& options = {});

// In an elastic job: the names of the workers that wait in JoinGroup, with this
// name and selector, for a group that is yet to be made. A member of a group
// asks for it from time to time, on one rank, and tells the others: if there
// are any, all call JoinGroup again. kFailedPrecondition: the job is not
// elastic; and errors of Membership::store().
absl::StatusOr<std::vector<std::string>> MembersWaiting(
    Worker& worker, const JoinGroupOptions& options, absl::Duration timeout);
// The same once there are any, on a thread that has nothing else to do:
// kDeadlineExceeded if nobody comes in that time.
absl::StatusOr<std::vector<std::string>> AwaitMembersWaiting(
    Worker& worker, const JoinGroupOptions& options, absl::Duration timeout);

// For JoinGroupOptions::members: the names of the members that `selector`
// (View::Select) finds in the newest view, by role and rank. Workers that look
// at different views find different ones: see Membership::Refresh, and agree on
// who joins where members come and go meanwhile. kInvalidArgument as Select.
absl::StatusOr<std::vector<std::string>> MembersNow(Worker& worker,
                                                    absl::string_view selector);

}  // namespace weft::worker

#endif  // WEFT_WORKER_JOIN_GROUP_H_
