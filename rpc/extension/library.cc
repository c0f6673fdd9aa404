#include "weft/rpc/extension/library.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::rpc::extension {

// What the agent owns of a library: it ends with the agent.
struct Library::Life {
  explicit Life(std::shared_ptr<Library> of) : library(std::move(of)) {}
  ~Life() { End(); }
  // Once, though it is called again.
  void End() {
    if (library->weak_agent_->has_ended()) return;
    library->weak_agent_->End();
    library->OnAgentEnd();
  }
  const std::shared_ptr<Library> library;
};

class Library::Receiver final : public AttachmentReceiver {
 public:
  Receiver(std::shared_ptr<const Life> life, absl::string_view kind)
      : life_(std::move(life)), kind_(kind) {}

  absl::StatusOr<std::unique_ptr<ReceivedAttachment>> Take(
      const CodecContext& message, const Bytes& bytes) override {
    // One that was refused for another kind stays the receiver of this one.
    if (life_->library->weak_agent_->has_ended()) {
      return absl::UnimplementedError(
          absl::StrCat("an attachment of kind '", kind_, "' came from ",
                       message.peer.ToString(),
                       "; the library that would take it has ", "ended"));
    }
    return life_->library->Take(kind_, message, bytes);
  }

 private:
  const std::shared_ptr<const Life> life_;  // shared by all kinds
  const std::string kind_;
};

absl::StatusOr<std::unique_ptr<ReceivedAttachment>> Library::Take(
    absl::string_view kind, const CodecContext& message, const Bytes&) {
  return absl::UnimplementedError(
      absl::StrCat("an attachment of kind '", kind, "' came from ",
                   message.peer.ToString(), "; this library takes none"));
}

absl::Status Library::AttachKinds(
    const std::shared_ptr<Library>& library,
    std::initializer_list<absl::string_view> kinds) {
  const auto life = std::make_shared<Life>(library);
  Agent& agent = library->agent();
  for (const absl::string_view kind : kinds) {
    const absl::Status set = agent.SetAttachmentReceiver(
        kind, std::make_shared<Receiver>(life, kind));
    if (!set.ok()) {
      life->End();  // the agent keeps it as the receiver of kinds before
      return set;
    }
  }
  library->peer_gone_ = agent.OnPeerGone(
      [weak = std::weak_ptr<Library>(library)](const Agent::GonePeer& peer) {
        const auto live = weak.lock();
        if (live == nullptr) return;
        const WeakAgent::Use use(*live->weak_agent_);
        if (use) live->OnPeerGone(peer);
      });
  return absl::OkStatus();
}

}  // namespace weft::rpc::extension
