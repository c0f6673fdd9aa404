// SessionHook: what may stand between the sessions of an agent and what happens
// to them, to count it or to break it; for simulations.

#ifndef WEFT_RPC_SESSION_SESSION_HOOK_H_
#define WEFT_RPC_SESSION_SESSION_HOOK_H_

#include <vector>

#include "weft/base/clock.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/rpc/session/session.h"

namespace weft::rpc {

struct Hello;

// Thread-safety: as its implementation says; called under the locks of the
// agents that have it.
class SessionHook {
 public:
  virtual ~SessionHook() = default;

  // Must give `event` to the session.
  virtual void OnEvent(CallerSession& session,
                       const CallerSession::Event& event, Instant now,
                       std::vector<CallerSession::Action>* actions) = 0;
  virtual void OnEvent(CalleeSession& session,
                       const CalleeSession::Event& event, Instant now,
                       std::vector<CalleeSession::Action>* actions) = 0;
  // A caller presents itself to the incarnation `self`.
  virtual void OnHello(rendezvous::WorkerKey /*self*/, Hello* /*hello*/) {}
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_SESSION_HOOK_H_
