#include "weft/rref/core/owner_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"

namespace weft::rref {

void OwnerTable::OnEvent(const Event& event, std::vector<Action>* actions) {
  std::visit([&](const auto& e) { On(e, actions); }, event);
}

void OwnerTable::On(const Expected& event, std::vector<Action>*) {
  expected_[event.token.object].fork = event.token.fork;
}

void OwnerTable::On(const Made& event, std::vector<Action>* actions) {
  const ObjectId& id = event.token.object;
  const auto expected = expected_.find(id);
  const bool was_deleted =
      expected != expected_.end() && expected->second.was_deleted;
  if (expected != expected_.end()) expected_.erase(expected);
  Object& object = objects_[id];
  object.secret = event.token.secret;
  AddFork(&object, event.token.fork, id.creator);
  for (const ForkRequested& request : TakeWaiting(id)) {
    AnswerRequest(request, actions);
  }
  if (was_deleted) RemoveFork(id, event.token.fork, actions);
}

void OwnerTable::On(const NotMade& event, std::vector<Action>* actions) {
  expected_.erase(event.object);
  for (const ForkRequested& request : TakeWaiting(event.object)) {
    actions->push_back(Answer{request.from, event.object, request.token.fork,
                              absl::NotFoundError(absl::StrCat(
                                  event.object.ToString(),
                                  " was not made: ", event.why.ToString()))});
  }
}

void OwnerTable::On(const ForkRequested& event, std::vector<Action>* actions) {
  const bool may_come = event.may_come || Expects(event.token.object);
  if (objects_.count(event.token.object) == 0 && may_come) {
    waiting_[event.token.object].push_back(event);
    return;
  }
  AnswerRequest(event, actions);
}

void OwnerTable::AnswerRequest(const ForkRequested& request,
                               std::vector<Action>* actions) {
  actions->push_back(Answer{request.from, request.token.object,
                            request.token.fork, Register(request)});
}

absl::Status OwnerTable::Register(const ForkRequested& request) {
  const Token& token = request.token;
  const auto it = objects_.find(token.object);
  if (it == objects_.end()) {
    return absl::NotFoundError(
        absl::StrCat("object ", token.object.ToString(),
                     " was released, or was never made: no reference to it "
                     "was left when this one was registered"));
  }
  if (it->second.secret != token.secret) {
    return absl::PermissionDeniedError(absl::StrCat(
        request.from.ToString(), " does not know the secret of object ",
        token.object.ToString(), "; no reference was given to it"));
  }
  if (it->second.forks.count(token.fork) > 0) {
    return absl::AlreadyExistsError(
        absl::StrCat(token.fork.ToString(), " of object ",
                     token.object.ToString(), " is already registered"));
  }
  const auto count = forks_of_.find(request.from);
  if (count != forks_of_.end() && count->second >= max_forks_per_holder_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        request.from.ToString(), " holds ", count->second,
        " references to objects of ", token.object.owner.ToString(), ", limit ",
        max_forks_per_holder_, ": drop some, or raise the limit (references)"));
  }
  AddFork(&it->second, token.fork, request.from);
  return absl::OkStatus();
}

void OwnerTable::On(const DeleteRequested& event,
                    std::vector<Action>* actions) {
  if (Expects(event.object, event.fork) && event.from == event.object.creator) {
    expected_[event.object].was_deleted = true;
    actions->push_back(
        Answer{event.from, event.object, event.fork, absl::OkStatus()});
    return;
  }
  absl::Status status = CheckDelete(event);
  const bool remove = status.ok();
  actions->push_back(
      Answer{event.from, event.object, event.fork, std::move(status)});
  if (remove) RemoveFork(event.object, event.fork, actions);
}

absl::Status OwnerTable::CheckDelete(const DeleteRequested& event) const {
  const auto not_held = [&event] {
    return absl::PermissionDeniedError(absl::StrCat(
        event.fork.ToString(), " of object ", event.object.ToString(),
        " is not held by ", event.from.ToString()));
  };
  // Its creator may know already that it is made.
  if (Expects(event.object, event.fork)) return not_held();
  const auto object = objects_.find(event.object);
  if (object == objects_.end() || object->second.forks.count(event.fork) == 0) {
    return absl::NotFoundError(
        absl::StrCat(event.fork.ToString(), " of object ",
                     event.object.ToString(), " is not registered"));
  }
  if (object->second.forks.at(event.fork) != event.from) return not_held();
  return absl::OkStatus();
}

void OwnerTable::On(const Shared& event, std::vector<Action>*) {
  const auto it = objects_.find(event.token.object);
  WEFT_CHECK(it != objects_.end()) << event.token.object.ToString();
  AddFork(&it->second, event.token.fork, event.to);
}

void OwnerTable::On(const ShareFailed& event, std::vector<Action>* actions) {
  // The fork is gone already if its holder's incarnation ended first.
  RemoveFork(event.object, event.fork, actions);
}

void OwnerTable::On(const PeerGone& event, std::vector<Action>* actions) {
  ForgetRequestsOf(event.peer);
  std::vector<std::pair<ObjectId, ForkId>> lost;
  ForEachFork([&](const ObjectId& id, const ForkId& fork, WorkerKey holder) {
    if (holder == event.peer) lost.emplace_back(id, fork);
  });
  for (const auto& [id, fork] : lost) RemoveFork(id, fork, actions);
  std::vector<ObjectId> never;  // its creating calls that have not ended
  for (const auto& [id, requests] : waiting_) {
    if (id.creator == event.peer) never.push_back(id);
  }
  for (const ObjectId& id : never) {
    On(NotMade{id, absl::UnavailableError("its creator is gone")}, actions);
  }
}

void OwnerTable::ForgetRequestsOf(WorkerKey peer) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    std::vector<ForkRequested> kept;
    for (ForkRequested& request : it->second) {
      if (request.from != peer) kept.push_back(std::move(request));
    }
    it->second = std::move(kept);
    it = it->second.empty() ? waiting_.erase(it) : std::next(it);
  }
}

void OwnerTable::AddFork(Object* object, const ForkId& fork, WorkerKey holder) {
  if (object->forks.emplace(fork, holder).second) ++forks_of_[holder];
}

void OwnerTable::RemoveFork(const ObjectId& id, const ForkId& fork,
                            std::vector<Action>* actions) {
  const auto object = objects_.find(id);
  if (object == objects_.end()) return;
  const auto it = object->second.forks.find(fork);
  if (it == object->second.forks.end()) return;
  const auto count = forks_of_.find(it->second);
  if (--count->second == 0) forks_of_.erase(count);
  object->second.forks.erase(it);
  if (!object->second.forks.empty()) return;
  objects_.erase(object);
  actions->push_back(Free{id});
}

std::vector<OwnerTable::ForkRequested> OwnerTable::TakeWaiting(
    const ObjectId& object) {
  const auto it = waiting_.find(object);
  if (it == waiting_.end()) return {};
  std::vector<ForkRequested> requests = std::move(it->second);
  waiting_.erase(it);
  return requests;
}

bool OwnerTable::Contains(const ObjectId& object) const {
  return objects_.count(object) > 0;
}

bool OwnerTable::Expects(const ObjectId& object) const {
  return expected_.count(object) > 0;
}

bool OwnerTable::Expects(const ObjectId& object, const ForkId& fork) const {
  const auto it = expected_.find(object);
  return it != expected_.end() && it->second.fork == fork;
}

bool OwnerTable::Holds(const ObjectId& object, const ForkId& fork,
                       WorkerKey holder) const {
  const auto it = objects_.find(object);
  if (it == objects_.end()) return false;
  const auto held = it->second.forks.find(fork);
  return held != it->second.forks.end() && held->second == holder;
}

size_t OwnerTable::waiting_requests() const {
  size_t count = 0;
  for (const auto& [id, requests] : waiting_) count += requests.size();
  return count;
}

std::string OwnerTable::Fingerprint() const {
  std::string text;
  for (const auto& [id, object] : objects_) {
    absl::StrAppend(&text, id.ToString(), "{");
    for (const auto& [fork, holder] : object.forks) {
      absl::StrAppend(&text, fork.ToString(), ">", holder.ToString(), ",");
    }
    absl::StrAppend(&text, "}");
  }
  for (const auto& [id, expected] : expected_) {
    absl::StrAppend(&text, "+", id.ToString(), expected.fork.ToString(),
                    expected.was_deleted);
  }
  for (const auto& [id, requests] : waiting_) {
    absl::StrAppend(&text, "?", id.ToString());
    for (const ForkRequested& request : requests) {
      absl::StrAppend(&text, "<", request.from.ToString(),
                      request.token.fork.ToString());
    }
  }
  return text;
}

}  // namespace weft::rref
