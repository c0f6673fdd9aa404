#include "weft/rref/core/user_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"

namespace weft::rref {

void UserTable::OnEvent(const Event& event, std::vector<Action>* actions) {
  std::visit([&](const auto& e) { On(e, actions); }, event);
}

void UserTable::On(const Creating& event, std::vector<Action>*) {
  forks_[event.token.fork].token = event.token;
}

void UserTable::On(const Created& event, std::vector<Action>* actions) {
  EndWait(event.fork, event.status, actions);
}

void UserTable::On(const Received& event, std::vector<Action>* actions) {
  const ForkId& id = event.token.fork;
  if (forks_.count(id) > 0) {
    // Two tokens of one fork: a peer that does not keep to the protocol.
    actions->push_back(Ready{
        event.token,
        absl::AlreadyExistsError(absl::StrCat(
            id.ToString(), " came a second time; a fork has one holder"))});
    return;
  }
  Fork& fork = forks_[id];
  fork.token = event.token;
  if (!event.registered) {
    actions->push_back(SendForkRequest{event.token});
    return;
  }
  fork.state = State::kConfirmed;
  actions->push_back(Ready{event.token, absl::OkStatus()});
}

void UserTable::On(const Registered& event, std::vector<Action>* actions) {
  EndWait(event.fork, event.status, actions);
}

void UserTable::EndWait(const ForkId& id, const absl::Status& status,
                        std::vector<Action>* actions) {
  const auto it = forks_.find(id);
  // It has failed already if the event of its owner's end came first.
  if (it == forks_.end() || it->second.state != State::kPending) return;
  it->second.state = status.ok() ? State::kConfirmed : State::kFailed;
  actions->push_back(Ready{it->second.token, status});
  EndIfUnused(it, actions);
}

void UserTable::On(const Dropped& event, std::vector<Action>* actions) {
  const auto it = forks_.find(event.fork);
  WEFT_CHECK(it != forks_.end()) << event.fork.ToString();
  it->second.has_handle = false;
  EndIfUnused(it, actions);
}

void UserTable::On(const Shared& event, std::vector<Action>*) {
  const auto it = forks_.find(event.fork);
  WEFT_CHECK(it != forks_.end() && it->second.has_handle)
      << event.fork.ToString();
  it->second.children.emplace(event.child, event.to);
  parents_.emplace(event.child, event.fork);
}

void UserTable::On(const ChildSettled& event, std::vector<Action>* actions) {
  const auto parent = parents_.find(event.child);
  if (parent == parents_.end()) return;  // settled by the end of its receiver
  const auto it = forks_.find(parent->second);
  parents_.erase(parent);
  it->second.children.erase(event.child);
  EndIfUnused(it, actions);
}

void UserTable::On(const Deleted& event, std::vector<Action>*) {
  const auto it = forks_.find(event.fork);
  if (it != forks_.end() && it->second.state == State::kDeleting) {
    forks_.erase(it);
  }
}

void UserTable::EndIfUnused(Forks::iterator it, std::vector<Action>* actions) {
  Fork& fork = it->second;
  if (fork.has_handle || !fork.children.empty()) return;
  if (fork.state == State::kFailed) {
    forks_.erase(it);  // the owner does not know it
  } else if (fork.state == State::kConfirmed) {
    fork.state = State::kDeleting;
    actions->push_back(SendDelete{fork.token.object, fork.token.fork});
  }
}

void UserTable::On(const PeerGone& event, std::vector<Action>* actions) {
  FailForksOf(event.peer, event.why, actions);
  SettleChildrenAt(event.peer, actions);
}

void UserTable::FailForksOf(WorkerKey owner, const absl::Status& why,
                            std::vector<Action>* actions) {
  std::vector<ForkId> lost;
  for (auto& [id, fork] : forks_) {
    if (fork.token.object.owner != owner) continue;
    if (fork.state != State::kFailed && fork.state != State::kDeleting) {
      actions->push_back(Ready{fork.token, why});
    }
    fork.state = State::kFailed;
    lost.push_back(id);
  }
  for (const ForkId& id : lost) EndIfUnused(forks_.find(id), actions);
}

void UserTable::SettleChildrenAt(WorkerKey peer, std::vector<Action>* actions) {
  std::vector<ForkId> settled;
  for (const auto& [id, fork] : forks_) {
    for (const auto& [child, to] : fork.children) {
      if (to == peer) settled.push_back(child);
    }
  }
  for (const ForkId& child : settled) On(ChildSettled{child}, actions);
}

UserTable::State UserTable::StateOf(const ForkId& fork) const {
  const auto it = forks_.find(fork);
  return it == forks_.end() ? State::kUnknown : it->second.state;
}

bool UserTable::HasHandle(const ForkId& fork) const {
  const auto it = forks_.find(fork);
  return it != forks_.end() && it->second.has_handle;
}

std::string UserTable::Fingerprint() const {
  std::string text;
  for (const auto& [id, fork] : forks_) {
    absl::StrAppend(&text, id.ToString(), " of ", fork.token.object.ToString(),
                    static_cast<int>(fork.state), fork.has_handle, "[");
    for (const auto& [child, to] : fork.children) {
      absl::StrAppend(&text, child.ToString(), ">", to.ToString(), ",");
    }
    absl::StrAppend(&text, "]");
  }
  return text;
}

}  // namespace weft::rref
