// RefWorld: agents with their reference tables, and an adversary between them,
// one step at a time. The exploration and the random simulation both walk it.
//
// Agent 0 owns all objects. Calls are modelled by what rpc promises: a message
// is delivered once while both incarnations live, in any order; who gives a
// creating call up learns whether it came to its callee; a message with a token
// is read or refused, and its sender learns which. A creation is used and
// passed on as soon as its call has left, before it has come.

#ifndef WEFT_RREF_CORE_REF_WORLD_H_
#define WEFT_RREF_CORE_REF_WORLD_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/rref/core/owner_table.h"
#include "weft/rref/core/user_table.h"

namespace weft::rref {

// Faults planted into the world, each of which a walk must find. The letters
// are those of docs/rref_protocol.md.
enum class Fault {
  kNone,
  kCreationNotFenced,      // a: a creation that was given up runs all the same
  kRepeatedRequest,        // b: a fork request is delivered twice
  kRefusalNotReported,     // c, i: no refusal of a message is reported
  kParentNotKept,          // d: a fork may end before its children settle
  kSameIncarnation,        // e: a restarted agent keeps its key
  kSettlementLost,         // f: the confirmation of a child is lost
  kUseNotCounted,          // g: a request keeps no handle
  kFailedCreationUnknown,  // h: the owner's table gets no event of a failure
  kEarlyDeleteLost,        // k: a delete is lost if it comes before Made
  kCreatorNotAsked,        // l: who waits for an unknown object waits on
};

struct RefWorldOptions {
  int agents = 3;
  int max_objects = 1;
  Fault fault = Fault::kNone;
  // What may still happen, each so many times.
  int shares = 2;
  int fetches = 0;
  int refusals = 0;  // of messages with tokens
  int failures = 0;  // of creating calls
  int give_ups = 0;  // of creating calls, by their creators
  int crashes = 0;
  int restarts = 0;
};

// Copyable, so that a walk can branch.
class RefWorld {
 public:
  explicit RefWorld(const RefWorldOptions& options);

  // What can happen next, as text such as "drop 1 fork 1 of 1@0.1".
  std::vector<std::string> Moves() const;
  void Apply(const std::string& move);
  // The same, where "deliver KIND FROM TO" and "refuse KIND FROM TO" name the
  // first such message, KIND as in "fork_request". What can happen instead, if
  // that cannot; else "".
  std::string Do(const std::string& move);

  // Delivers everything, drops every handle, and checks that nothing is left.
  // The world is of no use afterwards.
  void Settle();

  // What went wrong; empty if nothing did.
  const std::string& violation() const { return violation_; }
  std::string Fingerprint() const;
  // How often each kind of move and each action of the tables happened.
  const std::map<std::string, int64_t>& counts() const { return counts_; }

 private:
  enum class Kind {
    kCreate,
    kCreated,
    kCancelCreate,
    kFenced,     // the answer to kCancelCreate: whether the call had come
    kCreateEnd,  // of the creating call, at the owner
    kToken,
    kSettled,
    kForkRequest,
    kForkAnswer,
    kDelete,
    kDeleteAnswer,
    kFetch,
    kFetched,
    kAskCreator,  // whether its creating call may still come
    kAnswerOwner,
  };
  struct Message {
    Kind kind;
    int from = 0;
    int to = 0;
    Token token;
    bool ok = true;           // of an answer; of a kToken: registered
    bool registered = false;  // of a kSettled: the owner had counted the fork
  };
  struct Agent {
    WorkerKey key;
    bool is_alive = true;
    uint64_t next_fork = 1;
    uint64_t next_call = 1;
    std::set<int> knows_gone;
    OwnerTable owner{100};
    UserTable user;
  };
  enum class Creation { kSent, kRunning, kRan, kNever };

  void Tell(int agent, const OwnerTable::Event& event);
  void Tell(int agent, const UserTable::Event& event);
  void OnReady(int agent, const UserTable::Ready& ready);
  void Send(Message message);
  void Create(int creator);
  void Share(int from, int to, const ForkId& fork);
  void Fetch(int agent, const ForkId& fork);
  void GiveUp(int creator, const ObjectId& object);
  void Deliver(size_t index, bool accept);
  void DeliverCreate(const Message& message, bool succeeds);
  void DeliverCreateEnd(const Message& message);
  void DeliverCancel(const Message& message);
  void DeliverFenced(const Message& message);
  void DeliverForkRequest(const Message& message);
  void DeliverDelete(const Message& message);
  void DeliverToken(const Message& message, bool accept);
  void DeliverSettled(const Message& message);
  void DeliverFetch(const Message& message);
  void Crash(int agent);
  void Restart(int agent);
  void LearnGone(int agent, int gone);
  void EndFetchesOf(int agent);
  void AddHandleMoves(int agent, std::vector<std::string>* moves) const;
  bool CanDeliver(const Message& message) const;
  bool MayCome(const ObjectId& object) const;
  bool KnowsGone(int agent, WorkerKey key) const;
  const Token* TokenOf(int agent, const ForkId& fork) const;
  int IndexOf(WorkerKey key) const;
  void Check();
  void CheckFork(int agent, const Token& token, UserTable::State state);
  void CheckEmpty();
  void Fail(const std::string& what);

  RefWorldOptions options_;
  std::vector<Agent> agents_;
  std::vector<Message> network_;
  std::map<ObjectId, Creation> creations_;
  std::map<ObjectId, ForkId> roots_;  // the creator's fork of each object
  std::set<ObjectId> given_up_;
  std::set<ObjectId> ended_;  // whose creators know how their calls have ended
  // Tokens that were sent and have not settled: who sent them, and whether the
  // owner had counted them.
  struct OpenShare {
    int from;
    int to;
    bool registered;
  };
  std::map<ForkId, OpenShare> shares_;
  std::multiset<std::pair<int, ForkId>> fetches_;  // by which agent
  int created_ = 0;
  bool crashed_ = false;
  std::map<std::string, int64_t> counts_;
  std::string violation_;
};

}  // namespace weft::rref

#endif  // WEFT_RREF_CORE_REF_WORLD_H_
