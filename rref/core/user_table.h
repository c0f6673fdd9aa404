// UserTable: the holder's half of reference counting: the forks that one agent
// holds, of its own objects too, and those that it has passed on.
// docs/rref_protocol.md has the protocol, its guarantees and the test of each.
//
//   U1  A fork from the owner, or of a creation that has ended, is confirmed:
//       the owner knows it. Any other asks the owner first, and whatever
//       needs it waits for the answer.
//   U2  A fork is deleted at the owner once: after its last handle was
//       dropped, it is confirmed, and each fork that was made from it has
//       settled. So the owner always knows an ancestor of a fork that it does
//       not know yet. (A request that uses a fork keeps a handle of it.)
//   U3  When the owner's incarnation ends, each fork of it fails.
//
// No threads, clocks or I/O: OnEvent appends what is to be done. Messages
// between two incarnations are delivered once (rpc::Session), in any order.

#ifndef WEFT_RREF_CORE_USER_TABLE_H_
#define WEFT_RREF_CORE_USER_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "weft/rref/core/token.h"

namespace weft::rref {

// Thread-safety: one thread at a time.
class UserTable {
 public:
  // ---- Events.
  // A creating call is about to leave; its fork is used and shared at once.
  struct Creating {
    Token token;
  };
  // The creating call has ended. If `status` is not OK, no object is left; the
  // caller has made sure of that.
  struct Created {
    ForkId fork;
    absl::Status status;
  };
  // A message of another agent brought the token. `registered`: that agent is
  // the owner, which has counted the fork.
  struct Received {
    Token token;
    bool registered = false;
  };
  // The owner's answer to SendForkRequest.
  struct Registered {
    ForkId fork;
    absl::Status status;
  };
  // The last handle of the fork is gone.
  struct Dropped {
    ForkId fork;
  };
  // `child`, made from `fork`, goes into a message to `to`.
  struct Shared {
    ForkId fork;
    ForkId child;
    WorkerKey to;
  };
  // The receiver has confirmed the child, or will never hold it.
  struct ChildSettled {
    ForkId child;
  };
  // The owner has answered SendDelete.
  struct Deleted {
    ForkId fork;
  };
  struct PeerGone {
    WorkerKey peer;
    absl::Status why;
  };
  using Event = std::variant<Creating, Created, Received, Registered, Dropped,
                             Shared, ChildSettled, Deleted, PeerGone>;

  // ---- Actions.
  struct SendForkRequest {
    Token token;
  };
  struct SendDelete {
    ObjectId object;
    ForkId fork;
  };
  // The fork is confirmed (OK), or of no use and why. Once for each fork, and
  // once more, not OK, if it fails after it was confirmed.
  struct Ready {
    Token token;
    absl::Status status;
  };
  using Action = std::variant<SendForkRequest, SendDelete, Ready>;

  enum class State { kUnknown, kPending, kConfirmed, kFailed, kDeleting };

  void OnEvent(const Event& event, std::vector<Action>* actions);

  State StateOf(const ForkId& fork) const;
  bool HasHandle(const ForkId& fork) const;
  size_t forks() const { return forks_.size(); }
  size_t open_children() const { return parents_.size(); }
  template <typename Fn>  // fn(const Token&, State)
  void ForEachFork(Fn fn) const {
    for (const auto& [id, fork] : forks_) fn(fork.token, fork.state);
  }

  template <typename Fn>  // fn(const Token& parent, const ForkId& child,
                          // WorkerKey to)
  void ForEachOpenChild(Fn fn) const {
    for (const auto& [id, fork] : forks_) {
      for (const auto& [child, to] : fork.children) fn(fork.token, child, to);
    }
  }

  // All state as text: equal tables have equal ones.
  std::string Fingerprint() const;

 private:
  struct Fork {
    Token token;
    State state = State::kPending;
    bool has_handle = true;
    std::map<ForkId, WorkerKey> children;  // not settled, with their users
  };
  using Forks = std::map<ForkId, Fork>;

  void On(const Creating& event, std::vector<Action>* actions);
  void On(const Created& event, std::vector<Action>* actions);
  void On(const Received& event, std::vector<Action>* actions);
  void On(const Registered& event, std::vector<Action>* actions);
  void On(const Dropped& event, std::vector<Action>* actions);
  void On(const Shared& event, std::vector<Action>* actions);
  void On(const ChildSettled& event, std::vector<Action>* actions);
  void On(const Deleted& event, std::vector<Action>* actions);
  void On(const PeerGone& event, std::vector<Action>* actions);

  void EndWait(const ForkId& fork, const absl::Status& status,
               std::vector<Action>* actions);
  // Deletes or forgets the fork if nothing needs it any more.
  void EndIfUnused(Forks::iterator it, std::vector<Action>* actions);
  void FailForksOf(WorkerKey owner, const absl::Status& why,
                   std::vector<Action>* actions);
  void SettleChildrenAt(WorkerKey peer, std::vector<Action>* actions);

  Forks forks_;
  std::map<ForkId, ForkId> parents_;  // of each child that has not settled
};

}  // namespace weft::rref

#endif  // WEFT_RREF_CORE_USER_TABLE_H_
