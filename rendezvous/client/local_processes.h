// LocalProcesses: sees the processes of a job end that run on this host, sooner
// than by their silence: that which hosts the coordinator, and once it has
// ended the others.

#ifndef WEFT_RENDEZVOUS_CLIENT_LOCAL_PROCESSES_H_
#define WEFT_RENDEZVOUS_CLIENT_LOCAL_PROCESSES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/core/member_core.h"
#include "weft/rendezvous/process_watch.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::rendezvous {

// Thread-safety: one thread at a time.
class LocalProcesses {
 public:
  // Takes the host of the coordinator from `view`; true if it is another one
  // than before. The other members are no longer watched then.
  bool Follow(const v1::View& view);

  // Whether there is a process to look at.
  bool is_watching() const {
    return host_process_.has_value() || !members_.empty();
  }

  // What has happened since the last look, for the core of `self`. Once the
  // host has ended no coordinator sees members end: those of the view in which
  // it still was are watched here, until there is another host.
  std::vector<MemberCore::Event> Look(const MemberCore& core, WorkerKey self);

 private:
  std::string host_;
  uint64_t host_incarnation_ = 0;
  // Nothing: it is of another host, or has ended.
  std::optional<ProcessWatch> host_process_;
  std::map<WorkerKey, ProcessWatch> members_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CLIENT_LOCAL_PROCESSES_H_
