// ProcessWatch: sees that a process of this host has ended, without a word from
// it or from whoever started it.

#ifndef WEFT_RENDEZVOUS_PROCESS_WATCH_H_
#define WEFT_RENDEZVOUS_PROCESS_WATCH_H_

#include <optional>
#include <utility>

#include "weft/net/edge/descriptor.h"
#include "weft/proto/coordinator.pb.h"

namespace weft::rendezvous {

// Nothing where /proc does not tell.
std::optional<v1::Process> ThisProcess();

// Thread-safety: one thread at a time.
class ProcessWatch {
 public:
  // Nothing: it is of another host or pid namespace, or is this one, or may not
  // be looked at.
  static std::optional<ProcessWatch> Of(const v1::Process& process);

  // Never waits. Also if it had ended before the watch began.
  bool HasEnded() const;

 private:
  explicit ProcessWatch(net::Descriptor pidfd) : pidfd_(std::move(pidfd)) {}

  net::Descriptor pidfd_;  // -1: it has ended
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_PROCESS_WATCH_H_
