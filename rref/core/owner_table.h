// OwnerTable: the owner's half of reference counting: which forks of each of
// its objects exist, and who holds them. docs/rref_protocol.md has the
// protocol, its guarantees and the test of each.
//
//   F1  An object is freed when its last fork ends, and not before.
//   F2  A fork ends when its holder deletes it, when the message that carried
//       it was refused, or with the incarnation of its holder.
//   F3  A request about an object that is still being made waits for it, also
//       if it comes before the call that makes the object.
//   F4  Only the holder of a fork deletes it; only who knows the object's
//       secret registers one; a holder has at most `max_forks_per_holder`.
//
// The owner's own references are forks that it holds itself.
//
// No threads, clocks or I/O: OnEvent appends what is to be done. Messages
// between two incarnations are delivered once (rpc::Session), in any order.

#ifndef WEFT_RREF_CORE_OWNER_TABLE_H_
#define WEFT_RREF_CORE_OWNER_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "weft/rref/core/token.h"

namespace weft::rref {

// Thread-safety: one thread at a time.
class OwnerTable {
 public:
  // ---- Events.
  // The call that makes token.object has come; it ends with Made or NotMade.
  // Its creator may see its end, and delete token.fork, before this table
  // does: then the fork ends as soon as it is made.
  struct Expected {
    Token token;
  };
  // The call of token.object has made it; its creator holds token.fork.
  struct Made {
    Token token;
  };
  // The call that makes `object` has failed, or will never run.
  struct NotMade {
    ObjectId object;
    absl::Status why;
  };
  // `from` asks to hold token.fork. `may_come`: as far as is known the creating
  // call may still come, so that the request waits for Made or NotMade.
  struct ForkRequested {
    WorkerKey from;
    Token token;
    bool may_come = false;
  };
  // `from` gives its fork up.
  struct DeleteRequested {
    WorkerKey from;
    ObjectId object;
    ForkId fork;
  };
  // The owner puts token.fork into a message to `to`, which holds it from now.
  struct Shared {
    Token token;
    WorkerKey to;
  };
  // The message of Shared was refused, or given up before it was read.
  struct ShareFailed {
    ObjectId object;
    ForkId fork;
  };
  struct PeerGone {
    WorkerKey peer;
  };
  using Event = std::variant<Expected, Made, NotMade, ForkRequested,
                             DeleteRequested, Shared, ShareFailed, PeerGone>;

  // ---- Actions.
  // Answers ForkRequested or DeleteRequested of `to`: OK; kNotFound, the object
  // or the fork is not there; kPermissionDenied, the secret differs or the fork
  // is another's; kAlreadyExists, the fork is held; kResourceExhausted.
  struct Answer {
    WorkerKey to;
    ObjectId object;
    ForkId fork;
    absl::Status status;
  };
  // No fork is left: the object's value can be destroyed.
  struct Free {
    ObjectId object;
  };
  using Action = std::variant<Answer, Free>;

  explicit OwnerTable(int64_t max_forks_per_holder)
      : max_forks_per_holder_(max_forks_per_holder) {}

  void OnEvent(const Event& event, std::vector<Action>* actions);

  bool Contains(const ObjectId& object) const;  // it was made and is not freed
  bool Expects(const ObjectId& object) const;   // its creating call runs
  // Whether `fork` is what the creator of an object that is expected will hold.
  bool Expects(const ObjectId& object, const ForkId& fork) const;
  bool Holds(const ObjectId& object, const ForkId& fork,
             WorkerKey holder) const;
  size_t objects() const { return objects_.size(); }
  size_t expected() const { return expected_.size(); }
  size_t waiting_requests() const;
  template <typename Fn>  // fn(const ObjectId&, const ForkId&, WorkerKey
                          // holder)
  void ForEachFork(Fn fn) const {
    for (const auto& [id, object] : objects_) {
      for (const auto& [fork, holder] : object.forks) fn(id, fork, holder);
    }
  }

  // All state as text: equal tables have equal ones.
  std::string Fingerprint() const;

 private:
  struct Expectation {
    ForkId fork;               // the creator's
    bool was_deleted = false;  // by the creator, before the object was made
  };
  struct Object {
    uint64_t secret = 0;
    std::map<ForkId, WorkerKey> forks;  // the holder of each
  };

  void On(const Expected& event, std::vector<Action>* actions);
  void On(const Made& event, std::vector<Action>* actions);
  void On(const NotMade& event, std::vector<Action>* actions);
  void On(const ForkRequested& event, std::vector<Action>* actions);
  void On(const DeleteRequested& event, std::vector<Action>* actions);
  void On(const Shared& event, std::vector<Action>* actions);
  void On(const ShareFailed& event, std::vector<Action>* actions);
  void On(const PeerGone& event, std::vector<Action>* actions);

  void AnswerRequest(const ForkRequested& request,
                     std::vector<Action>* actions);
  absl::Status Register(const ForkRequested& request);
  absl::Status CheckDelete(const DeleteRequested& event) const;
  void AddFork(Object* object, const ForkId& fork, WorkerKey holder);
  void RemoveFork(const ObjectId& id, const ForkId& fork,
                  std::vector<Action>* actions);
  std::vector<ForkRequested> TakeWaiting(const ObjectId& object);
  void ForgetRequestsOf(WorkerKey peer);

  int64_t max_forks_per_holder_;
  std::map<ObjectId, Object> objects_;
  std::map<ObjectId, Expectation> expected_;
  std::map<WorkerKey, int64_t> forks_of_;  // how many each holder has
  // About objects that are not made yet.
  std::map<ObjectId, std::vector<ForkRequested>> waiting_;
};

}  // namespace weft::rref

#endif  // WEFT_RREF_CORE_OWNER_TABLE_H_
