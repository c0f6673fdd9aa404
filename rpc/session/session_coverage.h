// SessionCoverage: counts the transitions that calls make in the state tables
// of both halves of a session.

#ifndef WEFT_RPC_SESSION_SESSION_COVERAGE_H_
#define WEFT_RPC_SESSION_SESSION_COVERAGE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "weft/rpc/session/session_hook.h"

namespace weft::rpc {

// The tables are in the .cc: which transitions there are, and where each of
// them must be seen. They are all that a session can do.
//
// Thread-safety: one thread at a time.
class SessionCoverage final : public SessionHook {
 public:
  enum class Where {
    kAlone,   // two sessions without agents, under every event but a caller's
              // death
    kAgents,  // agents under AllFaults, with calls that are cancelled, have
              // short deadlines or wait for credit, that forget all sessions
              // but one and give up who cannot be reached before a partition
              // heals
    kCalls,   // agents under AllFaults, whatever they call
  };

  void OnEvent(CallerSession& session, const CallerSession::Event& event,
               Instant now,
               std::vector<CallerSession::Action>* actions) override;
  void OnEvent(CalleeSession& session, const CalleeSession::Event& event,
               Instant now,
               std::vector<CalleeSession::Action>* actions) override;

  // Adds the counts of another run.
  void Absorb(const SessionCoverage& other);
  // How often each transition of the tables happened, a line for each.
  std::string Report(Where where) const;
  // kFailedPrecondition, naming them, if one that must be seen there was not,
  // or one was that the tables do not have.
  absl::Status CheckHits(Where where) const;

 private:
  // A transition of the caller or of the callee; states and events as integers.
  using Transition = std::tuple<int, int, int, int>;  // half, from, event, to

  // Each transition with the places where it must be seen, as bits 1 << Where.
  static const std::map<Transition, int>& Tables();
  static std::string Name(const Transition& transition);
  int64_t CountOf(const Transition& transition) const;

  std::map<Transition, int64_t> counts_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_SESSION_COVERAGE_H_
