#include <algorithm>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/member.h"
#include "weft/rpc/agent/agent_state.h"
#include "weft/rpc/session/session_hook.h"

namespace weft::rpc {
namespace {

// Time for a stranger to introduce itself, and to read why it was refused.
constexpr absl::Duration kHelloTimeout = absl::Seconds(10);

// Sessions of one name, with keys that the directory does not know, that are
// kept while nobody uses them.
constexpr int64_t kStrangersOfAName = 16;

// What the bodies may take that a peer within `limits` announces at a time: as
// much for nested calls as for the others, and beside its bytes what each
// costs, twice: calls that were given up may still be on their way.
int64_t MostAssembling(const Limits& limits) {
  return 2 * (limits.bytes +
              (limits.calls + limits.nested_calls) * Link::kBodyOverheadBytes);
}

}  // namespace

// A connection that somebody opened: a stranger until the Hello.
class AgentState::PendingPeer final : public LinkOwner {
 public:
  PendingPeer(std::weak_ptr<AgentState> state, Proof proof)
      : state_(std::move(state)), proof_(std::move(proof)) {}

  absl::Status OnFrame(Link& link, Frame&& frame) override {
    if (inbound_ != nullptr) return inbound_->OnFrame(link, std::move(frame));
    if (refused_) return absl::OkStatus();  // it gets the reason first
    const auto* hello = std::get_if<Hello>(&frame);
    if (hello == nullptr) {
      return absl::InvalidArgumentError("the first frame is not a Hello");
    }
    const auto state = state_.lock();
    if (state == nullptr) return absl::UnavailableError("the agent has ended");
    inbound_ = state->Admit(link, *hello, proof_);
    refused_ = inbound_ == nullptr;
    is_stranger_ = refused_;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> WantsBody(Link&, const Frame& frame) override {
    if (inbound_ == nullptr) {
      return absl::InvalidArgumentError(
          "wanted a Hello, and to admit its sender, before any body");
    }
    if (std::holds_alternative<ReplyFrame>(frame)) {
      return absl::InvalidArgumentError(absl::StrCat(
          inbound_->peer().name, " sent a body that only a callee sends"));
    }
    return true;
  }

  bool is_stranger() const { return is_stranger_; }

  void OnLinkClosed(Link& link, absl::Status) override {
    if (inbound_ != nullptr) inbound_->OnLinkClosed(link);
  }

 private:
  const std::weak_ptr<AgentState> state_;
  const Proof proof_;
  std::shared_ptr<Inbound> inbound_;
  bool refused_ = false;
  std::atomic<bool> is_stranger_{true};
};

std::shared_ptr<transport::ConnectionObserver> AgentState::AcceptConnection(
    std::unique_ptr<transport::Connection> connection) {
  auto pending = std::make_shared<PendingPeer>(
      weak_from_this(),
      Proof{connection->ProvenName(), connection->ProvenRole()});
  auto link = std::make_shared<Link>(pending, transport().clock(),
                                     MostAssembling(options_.limits));
  link->Attach(std::move(connection));
  transport().RunAt(transport().clock().Now() + kHelloTimeout,
                    [who = std::weak_ptr<PendingPeer>(pending),
                     link = std::weak_ptr<Link>(link)] {
                      const auto pending = who.lock();
                      const auto open = link.lock();
                      if (pending == nullptr || open == nullptr) return;
                      if (!pending->is_stranger()) return;
                      open->End(absl::DeadlineExceededError(absl::StrCat(
                          "no Hello, or none that was accepted, within ",
                          absl::FormatDuration(kHelloTimeout))));
                    });
  return link;
}

std::shared_ptr<Inbound> AgentState::Admit(Link& link, const Hello& hello,
                                           const Proof& proof) {
  HelloOutcome outcome;
  {
    MutexLock lock(mu_);
    if (options_.hook != nullptr) {
      Hello hooked = hello;
      options_.hook->OnHello(options_.key, &hooked);
      DecideWelcome(hooked, proof, &outcome);
    } else {
      DecideWelcome(hello, proof, &outcome);
    }
  }
  auto& [welcome, inbound, ended] = outcome;
  for (const auto& old : ended) {
    old->PeerGone(absl::AbortedError("the caller has begun another session"));
    SessionEnded(old->peer());
  }
  if (inbound == nullptr) {
    // A forgotten peer may come back, and a Hello of an earlier generation may
    // be late.
    if (!welcome.forgotten && !absl::IsAborted(welcome.status)) {
      refusal_log_.Refused("name", hello.name.substr(0, 64), "to call",
                           welcome.status.message());
    }
    link.Append(std::make_unique<Welcome>(welcome));
    link.End(welcome.status, /*after_writing=*/true);
    return nullptr;
  }
  if (hello.registry != welcome.registry) {
    welcome.functions = access_.TableFor(inbound->peer());
  }
  link.Append(std::make_unique<Welcome>(welcome));  // before any reply
  inbound->Attach(link);
  return std::move(inbound);
}

// Objects of a member belong to its incarnation, and stay. A stranger is
// identified by its session only.
void AgentState::SessionEnded(const Worker& peer) {
  parts_.streams.RemoveAll(peer.key);
  const absl::StatusOr<Worker> member = options_.directory->Find(peer.key);
  if (member.ok() && member->name == peer.name) return;
  parts_.objects.SessionEnded(peer.key);
}

absl::Status AgentState::CheckHello(const Hello& hello, const Proof& proof) {
  if (hello.magic != kMagic) {
    return absl::InvalidArgumentError("the caller is not a Weft worker");
  }
  if (hello.min_version > kProtocolVersion ||
      hello.max_version < kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.name, " (build ", options_.build, ") speaks protocol version ",
        kProtocolVersion, ", ", hello.name, " (build ", hello.build,
        ") versions ", hello.min_version, " to ", hello.max_version));
  }
  if (hello.job != options_.job) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.name, " belongs to the job '", options_.job, "', ", hello.name,
        " to '", hello.job, "': two jobs use one address"));
  }
  if (!proof.name.empty() && proof.name != hello.name) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the certificate is of ", proof.name, ", who says to be ", hello.name));
  }
  WEFT_RETURN_IF_ERROR(rendezvous::ValidateName(hello.name));
  if (!CheckNotGone(hello.name, hello.from).ok()) {
    return absl::AbortedError(absl::StrCat(
        "the incarnation ", hello.from.ToString(), " of ", hello.name,
        " was declared gone: start it again to join anew"));
  }
  const auto known = inbounds_.find(hello.from);
  const bool returns = known != inbounds_.end() && hello.resumes &&
                       known->second->generation() == hello.generation;
  if (!(is_draining_ && returns)) WEFT_RETURN_IF_ERROR(ended_);
  return CheckKey(hello, proof);
}

// A name is proven by a certificate; whose key it is, the directory knows.
// Until it does, the key is of who came first.
absl::Status AgentState::CheckKey(const Hello& hello, const Proof& proof) {
  const absl::StatusOr<Worker> owner = options_.directory->Find(hello.from);
  const auto known = inbounds_.find(hello.from);
  std::string of = owner.ok() ? owner->name : hello.name;
  if (!owner.ok() && known != inbounds_.end()) of = known->second->peer().name;
  if (of != hello.name) {
    return absl::PermissionDeniedError(
        absl::StrCat("the key ", hello.from.ToString(), " is of ", of,
                     ", not of ", hello.name));
  }
  const bool resumes = known != inbounds_.end() &&
                       known->second->peer().name == hello.name &&
                       known->second->generation() == hello.generation;
  if (resumes && known->second->peer().role != proof.role) {
    return absl::PermissionDeniedError(
        absl::StrCat("the session of ", hello.name,
                     " was begun with another proof of who it is"));
  }
  return absl::OkStatus();
}

absl::Status AgentState::CheckNotGone(const std::string& name,
                                      WorkerKey key) const {
  if (!gone_.Has(key)) return absl::OkStatus();
  return internal::NameFailure(
      internal::MarkFailure(
          absl::UnavailableError(absl::StrCat(
              "the incarnation ", key.ToString(), " of ", name, " is gone")),
          Phase::kQueue, Reason::kPeerGone),
      name, "", Phase::kQueue);
}

void AgentState::DecideWelcome(const Hello& hello, const Proof& proof,
                               HelloOutcome* outcome) {
  auto& [welcome, inbound, ended] = *outcome;
  welcome.build = options_.build;
  welcome.registry = registry_.Digest();
  welcome.limits = options_.limits;
  welcome.status = CheckHello(hello, proof);
  welcome.replaced = ReasonOf(welcome.status) == Reason::kPeerGone;
  if (!welcome.status.ok()) return;
  if (hello.to != options_.key) {
    welcome.replaced = true;
    welcome.status = absl::UnavailableError(absl::StrCat(
        "this is the incarnation ", options_.key.ToString(), " of ",
        options_.name, "; the call was for ", hello.to.ToString()));
    return;
  }
  const auto it = inbounds_.find(hello.from);
  auto known = it == inbounds_.end() ? nullptr : it->second;
  if (known != nullptr && known->peer().name != hello.name) {
    ended.push_back(std::move(known));  // the directory knows better
    inbounds_.erase(it);
    known = nullptr;
  }
  if (known != nullptr && known->generation() > hello.generation) {
    welcome.status = absl::AbortedError(absl::StrCat(
        hello.name, " has begun a later generation of its session"));
    return;
  }
  if (known == nullptr || known->generation() < hello.generation) {
    if (hello.resumes) {
      welcome.forgotten = true;
      welcome.status = absl::UnavailableError("the session was forgotten");
      return;
    }
    if (known != nullptr) {
      ended.push_back(known);
      inbounds_.erase(it);  // it makes room
    } else {
      shared_->progress.Note(transport().clock().Now());
    }
    ForgetIdle(hello.name, outcome);
    known = std::make_shared<Inbound>(
        Worker{hello.name, hello.from, "", proof.role}, ++inbounds_begun_,
        hello.generation, options_.limits, transport(), shared_from_this(),
        shared_->traffic.Of(hello.name));
    inbounds_[hello.from] = known;
  }
  inbound = std::move(known);
}

// Only idle peers are forgotten, the longest begun first. A peer with a new key
// for each connection, as of a tool in a watch, leaves a session behind
// each time: few are kept of one name. A worker that the directory knows may be
// between two connections, and is forgotten last.
void AgentState::ForgetIdle(const std::string& name, HelloOutcome* outcome) {
  const int64_t too_many =
      static_cast<int64_t>(inbounds_.size()) + 1 - options_.limits.sessions;
  std::vector<Inbound*> idle;     // inbounds_ has them
  std::vector<Inbound*> workers;  // idle too
  int64_t of_name = 1;            // the one that comes
  for (const auto& [key, inbound] : inbounds_) {
    const bool has_name = inbound->peer().name == name;
    if ((too_many <= 0 && !has_name) || !inbound->is_idle()) continue;
    idle.push_back(inbound.get());
    if (has_name) ++of_name;
  }
  if (too_many <= 0 && of_name <= kStrangersOfAName) return;
  std::sort(idle.begin(), idle.end(), [](const Inbound* a, const Inbound* b) {
    return a->number() < b->number();
  });
  int64_t forgotten = 0;
  const auto forget =
      [&](const Inbound& inbound) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        telemetry_.recorder().Record("rpc.forgets", inbound.peer().name);
        const auto it = inbounds_.find(inbound.peer().key);
        outcome->ended.push_back(std::move(it->second));
        inbounds_.erase(it);
        ++forgotten;
      };
  for (Inbound* const inbound : idle) {
    const bool has_name = inbound->peer().name == name;
    const bool is_crowd = has_name && of_name > kStrangersOfAName;
    if (!is_crowd && forgotten >= too_many) continue;
    // Asked of few: it may take the directory long.
    if (options_.directory->Find(inbound->peer().key).ok()) {
      workers.push_back(inbound);
      continue;
    }
    if (has_name) --of_name;
    forget(*inbound);
  }
  for (Inbound* const worker : workers) {
    if (forgotten >= too_many) break;
    // It reports the outcomes that are missing when it comes back.
    if (!worker->has_open_attachments()) forget(*worker);
  }
}

}  // namespace weft::rpc
