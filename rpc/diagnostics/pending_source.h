// PendingSource: who has calls that have not ended.

#ifndef WEFT_RPC_DIAGNOSTICS_PENDING_SOURCE_H_
#define WEFT_RPC_DIAGNOSTICS_PENDING_SOURCE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "weft/rpc/diagnostics/waits_for.h"

namespace weft::rpc {

// Calls that have not ended, by number.
struct ActiveCalls {
  size_t made = 0;
  size_t served = 0;
  size_t served_async = 0;  // of them, by a Future that is to come
};

// Each call of an agent is pending at one source for each of its ends: a
// session, the calls without one, an ordered queue, or the pauses of a retry.
//
// Thread-safety: thread-safe.
class PendingSource {
 public:
  virtual ~PendingSource() = default;

  // Adds each call.
  virtual void AddPending(std::vector<PendingCall>* calls) = 0;
  virtual void AddActive(ActiveCalls* active) = 0;
  // Adds what keeps an agent from ending, for people: "2 calls to ps0".
  virtual void AddOpen(std::vector<std::string>* open) = 0;
};

// Adds what a session with `peer` has open, `way` being "to" or "of". What a
// stream calls beside its own call is not a user's: it is named only where it
// is all that is left.
void AddOpenCalls(size_t calls, size_t parts_of_streams, const char* way,
                  const std::string& peer, std::vector<std::string>* open);

}  // namespace weft::rpc

#endif  // WEFT_RPC_DIAGNOSTICS_PENDING_SOURCE_H_
