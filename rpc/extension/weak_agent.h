// WeakAgent: an agent as it is held by what may outlive it.
//
// An object that a library has handed out (a reference, a pass) may still be
// used or dropped when its agent has ended. It holds a WeakAgent, and touches
// the agent within a Use only:
//
//   const WeakAgent::Use agent(*weak_agent_);
//   if (!agent) return absl::CancelledError("the agent has ended");
//   rpc::CallAsync(agent->To(owner), Release, id);

#ifndef WEFT_RPC_EXTENSION_WEAK_AGENT_H_
#define WEFT_RPC_EXTENSION_WEAK_AGENT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"

namespace weft::rpc::extension {

// Thread-safety: thread-safe.
class WeakAgent : public std::enable_shared_from_this<WeakAgent> {
 public:
  explicit WeakAgent(Agent& agent)
      : agent_(agent), key_(agent.key()), name_(agent.name()) {}

  // While one lives, the agent does. False if the agent has ended. The end of
  // the agent waits for it: it lasts as long as one function.
  class Use {
   public:
    explicit Use(const WeakAgent& agent)
        : agent_(agent.BeginUse() ? &agent : nullptr) {}
    ~Use() {
      if (agent_ != nullptr) agent_->EndUse();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    explicit operator bool() const { return agent_ != nullptr; }
    Agent* operator->() const { return &agent_->agent_; }

   private:
    const WeakAgent* const agent_;
  };

  // REQUIRES: the agent lives: within a Use, in a function that it serves, and
  // where the caller promises so.
  Agent& agent() const { return agent_; }
  // The name and key of the agent, also after its end.
  WorkerKey key() const { return key_; }
  const std::string& name() const { return name_; }
  bool has_ended() const { return has_ended_.load(); }
  // "ps0"; its key where this worker does not know the name.
  std::string NameOf(WorkerKey worker) const ABSL_LOCKS_EXCLUDED(mu_);

  // As CallAsync; kCancelled, and nothing is sent, after the agent's end.
  template <typename F, typename... A>
  auto CallOnce(WorkerKey to, absl::Duration timeout, F function,
                const A&... arguments) const {
    using Reply = decltype(CallAsync(agent_.To(to), function, arguments...));
    const Use agent(*this);
    if (!agent) return Reply(MakeReady<typename Reply::value_type>(Ended()));
    return CallAsync(agent->To(to, timeout), function, arguments...);
  }

  // A control call: `function`, which is idempotent, is called at `to` again
  // and again, each time for at most `attempt`, until it has answered, or that
  // incarnation or this agent is gone; then done(result) runs once. A partition
  // outlasts a call, which the session gives up after
  // AgentOptions::give_up_after; a connection that is silent at one end keeps a
  // call without a deadline for ever. An infinite `attempt` is for functions
  // that answer late, since the end of an attempt cancels the function. One of
  // less than a millisecond, which would be over before the call has left,
  // takes a millisecond.
  template <typename F, typename Done, typename... A>
  void CallUntilAnswered(WorkerKey to, absl::Duration attempt, F function,
                         Done done, const A&... arguments) const {
    using Reply = decltype(CallAsync(agent_.To(to), function, arguments...));
    using Answer = Result<typename Reply::value_type>;
    const Use agent(*this);
    if (!agent) return done(Answer(Ended()));
    CallAsync(Repeated(agent->To(to, std::max(attempt, kLeastAttempt))),
              function, arguments...)
        .OnReady([self = shared_from_this(), to, attempt, function, done,
                  arguments...](const Answer& answer) {
          if (!MayComeLater(weft::internal::StatusOf(answer))) {
            return done(answer);
          }
          self->CallUntilAnswered(to, attempt, function, done, arguments...);
        });
  }

  // The agent ends: from now on there is no Use. Waits for those there are.
  void End() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A call that ends as it begins would be repeated on one thread's stack.
  static constexpr absl::Duration kLeastAttempt = absl::Milliseconds(1);

  bool BeginUse() const ABSL_LOCKS_EXCLUDED(mu_);
  void EndUse() const ABSL_LOCKS_EXCLUDED(mu_);
  static absl::Status Ended();
  static Target Repeated(const Target& target);
  // Whether the callee, which has not answered, may do so if it is called
  // again.
  static bool MayComeLater(const absl::Status& answer);

  Agent& agent_;
  const WorkerKey key_;
  const std::string name_;
  std::atomic<bool> has_ended_{false};  // written under mu_
  mutable Mutex mu_;
  mutable CondVar unused_;
  mutable int64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace weft::rpc::extension

#endif  // WEFT_RPC_EXTENSION_WEAK_AGENT_H_
