// EtcdJournal: a coordinator's records in etcd, and where the job meets.
//
//   PREFIX/JOB/host             the Meeting, under a lease of the host
//   PREFIX/JOB/head             the JournalHead
//   PREFIX/JOB/log/GEN/NUMBER   pieces of the framed records
//
// Opening waits until no other host holds the lease, then writes the head.
// Each later change compares the head's revision, so a host that lost its place
// without knowing cannot write. The lease is for who is to open it; the
// comparison alone keeps one from harming another.

#ifndef WEFT_RENDEZVOUS_JOURNAL_ETCD_JOURNAL_H_
#define WEFT_RENDEZVOUS_JOURNAL_ETCD_JOURNAL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/base/future.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/journal/journal.h"

namespace weft::rendezvous {

struct EtcdJournalOptions {
  std::string prefix = "weft";
  std::string job;
  std::string address;  // where the coordinator will be reached
  // The time after which a host that was killed is no longer waited for; etcd
  // rounds it up to 2 s.
  absl::Duration lease = absl::Seconds(2);
  // How long Open waits for etcd to be there and answer. Another host's lease
  // is waited for as long as it takes to end if nobody renews it.
  absl::Duration patience = absl::Seconds(20);
  // Open waits until no other host holds the lease, however long that is, for
  // etcd as well; `cancel` ends that wait, with its reason.
  bool stands_by = false;
  CancelToken cancel;
  // The same for Append and Rewrite, which give up sooner: their callers wait,
  // and may call again.
  absl::Duration append_patience = absl::Milliseconds(500);
};

// `etcd` carries the methods of etcd's v3 API ("KV/Range"). Waits in Open,
// Append and Rewrite. `timers` must outlive it.
//   kFailedPrecondition  another host holds the job's lease, and renews it
//   kDataLoss            what is there is no journal
//   kUnavailable         etcd is not there
//   kAborted             in Append, Rewrite and status: another host has taken
//                        the journal over
absl::StatusOr<std::unique_ptr<Journal>> OpenEtcdJournal(
    TimerSource& timers, std::shared_ptr<CoordinatorLink> etcd,
    EtcdJournalOptions options);

// The address that a job's host has left in etcd. kNotFound: there is none now.
Future<std::string> FindByEtcd(CoordinatorLink& etcd, const std::string& prefix,
                               const std::string& job);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_JOURNAL_ETCD_JOURNAL_H_
