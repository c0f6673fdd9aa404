// References: the references of one agent: those that it holds, and those that
// others hold to its objects.
//
// It drives the two tables of rref/core over rpc. A reference is sent as an
// attachment of a request or reply (rpc/attachment.h), so its sender learns
// whether it was delivered. A call that makes an object carries the creator's
// token as an attachment, and a call through a reference whose object may not
// be made yet names that object in one, so that the owner makes it wait. The
// other messages are calls of functions that every worker with a References
// serves. docs/rref_protocol.md has the messages.
//
// A worker::Worker opens and closes the references of its agent. A program with
// an Agent and no Worker does it:
//
//   auto references = rref::References::Open(agent);   // once for each agent
//   ...
//   references->Close(absl::Seconds(10));              // before the agent ends

#ifndef WEFT_RREF_REFERENCES_H_
#define WEFT_RREF_REFERENCES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/extension/library.h"
#include "weft/rpc/extension/tasks.h"
#include "weft/rpc/object_table.h"
#include "weft/rref/core/owner_table.h"
#include "weft/rref/core/token.h"
#include "weft/rref/core/user_table.h"
#include "weft/telemetry/field.h"

namespace weft::rref {

class Reference;

struct ReferencesOptions {
  // How many references to objects of this agent one other worker may hold.
  int64_t max_forks_per_holder = int64_t{1} << 20;
};

// Thread-safety: thread-safe. Handles may outlive Close() and the agent: calls
// through them fail with kFailedPrecondition, and dropping one does nothing.
class References final : public rpc::extension::Library,
                         public std::enable_shared_from_this<References> {
 public:
  // The kinds of attachments: of a message with references, of a call that
  // makes an object, and of one that waits until an object is made.
  static constexpr absl::string_view kKind = "weft.rref";
  static constexpr absl::string_view kCreationKind = "weft.rref.creation";
  static constexpr absl::string_view kAwaitKind = "weft.rref.await";

  // Opens the references of `agent`. Call it before peers may send references:
  // messages with references are refused before. kAlreadyExists if they are
  // open.
  static absl::StatusOr<std::shared_ptr<References>> Open(
      rpc::Agent& agent, const ReferencesOptions& options = {});
  // The References of `agent`; kFailedPrecondition, with advice, if there is
  // none.
  static absl::StatusOr<std::shared_ptr<References>> Of(
      const rpc::Agent& agent);

  // Releases every reference that is still held here, and waits until their
  // owners know. kDeadlineExceeded names those that were left. Handles are
  // invalid afterwards: kFailedPrecondition.
  absl::Status Close(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether Close() was called, or the agent has ended.
  bool is_closed() const { return is_closed_.load(); }
  // kFailedPrecondition, naming the worker, if so.
  absl::Status CheckOpen() const;

  // Waits until no worker for which `is_of` is true holds a reference to an
  // object here. kDeadlineExceeded names the workers that still do.
  absl::Status AwaitNoHolder(
      const std::function<bool(const std::string& holder)>& is_of,
      absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Counts of open state: all are 0 once no reference exists.
  struct Counts {
    int64_t held = 0;           // references that this agent holds
    int64_t open_children = 0;  // passed on, and not confirmed yet
    int64_t owned = 0;          // objects here that are shared
    int64_t waiting = 0;        // requests about objects not known yet
    int64_t creating = 0;  // objects that are being made, here or from here
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mu_);

  // The references to objects of this agent, for reports.
  struct Holding {
    rpc::ObjectId object;
    std::string function;  // that made it: "Embedding::new"
    std::string holder;    // its name, or its key if it has gone
    absl::Duration age;
  };
  std::vector<Holding> Holdings() const ABSL_LOCKS_EXCLUDED(mu_);
  // The holders of objects, with ages, as text, longest first: "object 1@1/3
  // (Embedding::new) of this worker is held by w2 for 3.1s", "object 2@1/7 of
  // w2 is held here for 3s: passed on to w3, which has not confirmed it yet".
  // At most `most` of each kind, then "and 5 more". Empty if nothing is open.
  std::vector<std::string> ExplainLeaks(size_t most = 100) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // For a status page: counts(), and ExplainLeaks().
  telemetry::Fields Describe() const;

  // ---- For rref.h.

  // Shares an object that `agent` has made at `owner` by rpc::Make or Remote,
  // whose Handle is invalid from now on.
  std::shared_ptr<Reference> Adopt(const rpc::Target& owner,
                                   const rpc::ObjectId& object)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A call that will make an object is about to be written: what it carries, of
  // kind kCreationKind, for the reference `fork`.
  struct Creation {
    ForkId fork;
    std::unique_ptr<rpc::Attachment> attachment;
  };
  Creation PrepareCreation() ABSL_LOCKS_EXCLUDED(mu_);
  // The creating call has left, and makes `object`. Returns the reference that
  // its creator holds. `made` is how the call ends.
  std::shared_ptr<Reference> BeginCreation(const ForkId& fork,
                                           const rpc::ObjectId& object,
                                           const Future<void>& made)
      ABSL_LOCKS_EXCLUDED(mu_);
  // An attachment of kind kAwaitKind: the call that carries it runs once
  // `object` is made.
  static std::unique_ptr<rpc::Attachment> AwaitObject(
      const rpc::ObjectId& object);
  // Keeps `object` here, shared.
  absl::StatusOr<std::shared_ptr<Reference>> Keep(
      rpc::ObjectTable::Object object) ABSL_LOCKS_EXCLUDED(mu_);
  // Puts a child of `reference` into the message that `encoder` writes.
  void Encode(const Reference& reference, rpc::Encoder& encoder)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The reference that a value of a message names.
  static absl::StatusOr<std::shared_ptr<Reference>> Decode(
      rpc::Decoder& decoder);

  // ---- For Reference, and for the functions that peers call.

  void Drop(const ForkId& fork) ABSL_LOCKS_EXCLUDED(mu_);
  // The error of a confirmed fork that is no longer valid; else OK.
  absl::Status FailureOf(const ForkId& fork) const ABSL_LOCKS_EXCLUDED(mu_);
  Future<void> ServeAdopt(const rpc::Worker& creator, const Token& token)
      ABSL_LOCKS_EXCLUDED(mu_);
  Future<void> ServeRegister(const rpc::Worker& from, const Token& token)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ServeDelete(const rpc::Worker& from, const rpc::ObjectId& object,
                           const ForkId& fork) ABSL_LOCKS_EXCLUDED(mu_);
  // Ready once the call of this agent that makes `object` has ended, and its
  // owner has it or never will.
  Future<void> ServeAskCreator(const rpc::Worker& owner,
                               const rpc::ObjectId& object)
      ABSL_LOCKS_EXCLUDED(mu_);

  References(rpc::Agent& agent, const ReferencesOptions& options);

 private:
  class Staged;
  class Receipt;
  class CreationStaged;  // creations.cc has these
  class CreationReceipt;
  class AwaitReceipt;
  using Tasks = rpc::extension::Tasks;
  using WeakAgent = rpc::extension::WeakAgent;
  struct Fork {
    std::string holder;
    Instant since;
    std::string function;
  };
  // Which fork of which object: a peer may give one number to forks of several.
  using ForkOf = std::pair<rpc::ObjectId, ForkId>;
  // A holder that asks for a fork, and is not answered yet.
  struct Waiting {
    rpc::WorkerKey from;
    Promise<void> promise;
  };
  // Forks that this agent deletes at one owner. One message is out at a time;
  // what comes meanwhile goes with the next.
  struct Deletions {
    bool is_out = false;
    std::vector<UserTable::SendDelete> waiting;
  };

  // A creating call of this agent, until it has ended and it is known whether
  // its callee has seen it.
  struct OpenCreation {
    uint64_t secret = 0;
    bool has_begun = false;
    rpc::ObjectId object;  // once it has
    bool has_ended = false;
    bool has_failed = false;
    bool is_settled = false;
    rpc::AttachmentOutcome outcome = rpc::AttachmentOutcome::kRefused;
    std::vector<Promise<void>> asked;  // by the owner
  };
  // A call that waits for an object.
  struct Awaiting {
    uint64_t number = 0;
    Promise<void> promise;
  };

  absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> Take(
      absl::string_view kind, const rpc::CodecContext& message,
      const Bytes& bytes) override;
  void OnPeerGone(const rpc::Agent::GonePeer& peer) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnAgentEnd() override ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> TakeReferences(
      const rpc::CodecContext& context, const Bytes& bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> TakeCreation(
      const rpc::CodecContext& context, const Bytes& bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> TakeAwait(
      const rpc::CodecContext& context, const Bytes& bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  void CreationSettled(const ForkId& fork, uint64_t call,
                       rpc::AttachmentOutcome outcome) ABSL_LOCKS_EXCLUDED(mu_);
  void CreationEnded(const ForkId& fork, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  void EndCreation(const ForkId& fork, Tasks* tasks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // At the owner: the creating call of token.object has ended.
  void CreatingCallEnded(const Token& token) ABSL_LOCKS_EXCLUDED(mu_);
  void AskCreator(const rpc::ObjectId& object) ABSL_LOCKS_EXCLUDED(mu_);
  void CreatorAnswered(const rpc::ObjectId& object) ABSL_LOCKS_EXCLUDED(mu_);
  // `found`: the object, to be dropped without the lock: its destructor is user
  // code.
  bool IsMade(const rpc::ObjectId& object,
              rpc::ObjectTable::Object* found) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndAwaiting(const rpc::ObjectId& object, const absl::Status& status,
                   Tasks* tasks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropAwaiting(const rpc::ObjectId& object, uint64_t number)
      ABSL_LOCKS_EXCLUDED(mu_);

  // One event for a table, and what follows from it.
  void Tell(const UserTable::Event& event, Tasks* tasks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(const OwnerTable::Event& event, Tasks* tasks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  template <typename Event>
  void TellAndRun(const Event& event) ABSL_LOCKS_EXCLUDED(mu_);
  void Do(const UserTable::Action& action, Tasks* tasks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Do(const OwnerTable::Action& action, Tasks* tasks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetReady(const UserTable::Ready& ready, Tasks* tasks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetAnswer(const OwnerTable::Answer& answer, Tasks* tasks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::vector<Holding> HoldingsLocked() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendDeletions(rpc::WorkerKey owner, Tasks* tasks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Deleted(rpc::WorkerKey owner,
               const std::vector<UserTable::SendDelete>& forks)
      ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetAges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<std::string> ExplainHeld(size_t most) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<std::string> ExplainOwned(size_t most) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Register(const Token& token, const std::string& holder)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static uint64_t NewSecret();
  ForkId NewFork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Reference> MakeReference(const Token& token)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Future<void> WhenReady(const ForkId& fork) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `registered`: this agent is the owner, and has counted it.
  absl::StatusOr<Token> StageChild(const Reference& parent, rpc::WorkerKey to,
                                   bool* registered) ABSL_LOCKS_EXCLUDED(mu_);
  void SettleChild(const Token& child, rpc::WorkerKey to,
                   rpc::AttachmentOutcome outcome) ABSL_LOCKS_EXCLUDED(mu_);
  static absl::Status CheckToken(const Token& token);
  rpc::Target OwnerOf(const rpc::ObjectId& object);

  Driver& driver_;                      // of the Futures that users wait for
  std::atomic<bool> is_closed_{false};  // written under mu_
  mutable Mutex mu_;
  CondVar changed_;
  UserTable user_ ABSL_GUARDED_BY(mu_);
  OwnerTable owner_ ABSL_GUARDED_BY(mu_);
  uint64_t forks_made_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t objects_kept_ ABSL_GUARDED_BY(mu_) = 0;
  // Promises for forks that are not confirmed yet, and answers to requests that
  // wait here.
  absl::flat_hash_map<ForkId, Promise<void>> ready_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ForkOf, Waiting> answers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ForkOf, Fork> registered_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<rpc::WorkerKey, Deletions> deletions_
      ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ForkId, OpenCreation> creations_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<rpc::ObjectId, ForkId> creation_of_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<rpc::ObjectId, std::vector<Awaiting>> awaiting_
      ABSL_GUARDED_BY(mu_);
  uint64_t awaits_ ABSL_GUARDED_BY(mu_) = 0;
  // The errors of forks that failed after they were confirmed. May have forks
  // that are not held any more.
  absl::flat_hash_map<ForkId, absl::Status> failures_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> has_failures_{false};
  // When each fork that is held here came. May have forks that are not held any
  // more.
  absl::flat_hash_map<ForkId, Instant> held_since_ ABSL_GUARDED_BY(mu_);
};

// What the copies of an RRef share: one fork, given up when the last is gone.
//
// Thread-safety: thread-safe.
class Reference {
 public:
  Reference(std::shared_ptr<References> references, const Token& token,
            rpc::Target owner, Future<void> ready)
      : references_(std::move(references)),
        token_(token),
        owner_(std::move(owner)),
        ready_(std::move(ready)) {}
  ~Reference() { references_->Drop(token_.fork); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  const Token& token() const { return token_; }
  const rpc::Target& owner() const { return owner_; }
  References& references() const { return *references_; }
  // Ready once the owner knows this reference, or with why it never will.
  const Future<void>& ready() const { return ready_; }
  // Not OK once the reference is invalid.
  absl::Status status() const;

 private:
  const std::shared_ptr<References> references_;
  const Token token_;
  const rpc::Target owner_;
  const Future<void> ready_;
};

}  // namespace weft::rref

#endif  // WEFT_RREF_REFERENCES_H_
