// Library: what a library above rpc keeps at one agent.
//
//   class Locks final : public rpc::extension::Library { ... };
//   auto locks = std::make_shared<Locks>(agent);
//   WEFT_RETURN_IF_ERROR(Library::Attach(locks, {"my.locks"}));   // once
//   ...
//   auto found = Library::Of<Locks>(agent);   // null if there is none
//
// Attached, it is found by the functions that the agent serves, takes the
// attachments of its kinds (rpc/attachment.h), and hears of the end of peers
// and of the agent. It is a std::shared_ptr because what it hands out may be
// used after the agent's end; it touches the agent by a WeakAgent.

#ifndef WEFT_RPC_EXTENSION_LIBRARY_H_
#define WEFT_RPC_EXTENSION_LIBRARY_H_

#include <initializer_list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/mutex.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/extension/weak_agent.h"

namespace weft::rpc::extension {

// Thread-safety: thread-safe.
class Library {
 public:
  virtual ~Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Attaches `library`, a T, to its agent, until that ends. Call it once,
  // before peers may call: messages with attachments that nobody takes are
  // refused. kAlreadyExists if one of these kinds has a receiver at the agent:
  // `library` has ended then, as if the agent had. At least one kind, which is
  // the library's own: "weft.rref".
  template <typename T>
  static absl::Status Attach(const std::shared_ptr<T>& library,
                             std::initializer_list<absl::string_view> kinds) {
    absl::Status attached = AttachKinds(library, kinds);
    if (attached.ok()) library->agent().SetLocal(library);
    return attached;
  }
  // The T that is attached to `agent`, or null.
  template <typename T>
  static std::shared_ptr<T> Of(const Agent& agent) {
    return agent.Local<T>();
  }

  // REQUIRES: the agent lives.
  Agent& agent() const { return weak_agent_->agent(); }
  WorkerKey key() const { return weak_agent_->key(); }
  const std::string& name() const { return weak_agent_->name(); }

  // One U for each library, made when it is first asked for: for what stands
  // above the library. It ends with it.
  template <typename U>
  std::shared_ptr<U> OnceFor() ABSL_LOCKS_EXCLUDED(once_mu_) {
    MutexLock lock(once_mu_);
    std::shared_ptr<void>& one = once_[&internal::kTypeKey<U>];
    if (one == nullptr) one = std::make_shared<U>();
    return std::static_pointer_cast<U>(one);
  }

 protected:
  explicit Library(Agent& agent)
      : weak_agent_(std::make_shared<WeakAgent>(agent)) {}

  const std::shared_ptr<WeakAgent>& weak_agent() const { return weak_agent_; }

 private:
  struct Life;
  class Receiver;

  // An attachment of one of the kinds has come: as AttachmentReceiver::Take.
  // Refuses it, if the library sends none.
  virtual absl::StatusOr<std::unique_ptr<ReceivedAttachment>> Take(
      absl::string_view kind, const CodecContext& message, const Bytes& bytes);
  // Within a Use; else as Agent::OnPeerGone.
  virtual void OnPeerGone(const Agent::GonePeer&) {}
  // The agent has ended, and no Use is left: answer all who wait. Runs once, on
  // the thread that ends the agent.
  virtual void OnAgentEnd() {}

  static absl::Status AttachKinds(
      const std::shared_ptr<Library>& library,
      std::initializer_list<absl::string_view> kinds);

  const std::shared_ptr<WeakAgent> weak_agent_;
  Agent::PeerGoneRegistration peer_gone_;
  Mutex once_mu_;
  absl::flat_hash_map<const void*, std::shared_ptr<void>> once_
      ABSL_GUARDED_BY(once_mu_);
};

}  // namespace weft::rpc::extension

#endif  // WEFT_RPC_EXTENSION_LIBRARY_H_
