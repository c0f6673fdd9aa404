#include "weft/dist_autograd/context_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft::dist_autograd {

std::shared_ptr<Context> ContextTable::Create() {
  MutexLock lock(mu_);
  const ContextId id{self_, ++last_context_};
  auto context = std::make_shared<Context>(id, self_, most_intervals_);
  if (is_closed_) {
    // It counts as released: no thread would run its passes.
    context->Close();
    released_.Add({id.creator, id.number});
    return context;
  }
  contexts_[id] = context;
  return context;
}

absl::StatusOr<std::shared_ptr<Context>> ContextTable::Find(
    ContextId id) const {
  MutexLock lock(mu_);
  return FindLocked(id);
}

absl::StatusOr<std::shared_ptr<Context>> ContextTable::FindLocked(
    ContextId id) const {
  const auto it = contexts_.find(id);
  if (it != contexts_.end()) return it->second;
  const bool released = released_.Contains({id.creator, id.number});
  return absl::Status(
      released ? absl::StatusCode::kFailedPrecondition
               : absl::StatusCode::kNotFound,
      absl::StrCat(id.ToString(), released ? " was released" : " has no part",
                   " at worker ", name_));
}

absl::StatusOr<std::shared_ptr<Context>> ContextTable::FindOrAdd(ContextId id,
                                                                 bool* is_new) {
  MutexLock lock(mu_);
  absl::StatusOr<std::shared_ptr<Context>> found = FindLocked(id);
  if (found.status().code() != absl::StatusCode::kNotFound) return found;
  if (id.creator == self_) return found;  // it was never created
  if (IsGoneLocked(id.creator)) {
    return absl::FailedPreconditionError(
        absl::StrCat(id.ToString(), " ended with worker ",
                     id.creator.ToString(), ", which is gone"));
  }
  if (is_closed_) {
    return absl::FailedPreconditionError(
        absl::StrCat(id.ToString(), " came to worker ", name_,
                     " after it had closed its contexts"));
  }
  auto context = std::make_shared<Context>(id, self_, most_intervals_);
  contexts_[id] = context;
  *is_new = true;
  return context;
}

std::shared_ptr<Context> ContextTable::End(ContextId id) {
  MutexLock lock(mu_);
  // Also if the context has no part here yet: a recorded call may be on its
  // way, and must not make the context again.
  released_.Add({id.creator, id.number});
  const auto it = contexts_.find(id);
  if (it == contexts_.end()) return nullptr;
  std::shared_ptr<Context> context = std::move(it->second);
  contexts_.erase(it);
  context->Close();
  return context;
}

std::vector<ContextId> ContextTable::Open() const {
  MutexLock lock(mu_);
  std::vector<ContextId> open;
  for (const auto& [id, context] : contexts_) open.push_back(id);
  return open;
}

void ContextTable::Close() {
  MutexLock lock(mu_);
  is_closed_ = true;
}

std::vector<ContextId> ContextTable::PeerGone(WorkerKey last) {
  MutexLock lock(mu_);
  rendezvous::Epoch& epoch = gone_[last.id];
  epoch = std::max(epoch, last.epoch);
  std::vector<ContextId> orphans;
  for (const auto& [id, context] : contexts_) {
    if (IsGoneLocked(id.creator)) orphans.push_back(id);
  }
  return orphans;
}

bool ContextTable::IsGone(WorkerKey worker) const {
  MutexLock lock(mu_);
  return IsGoneLocked(worker);
}

bool ContextTable::IsGoneLocked(WorkerKey worker) const {
  const auto it = gone_.find(worker.id);
  return it != gone_.end() && worker.epoch <= it->second;
}

void ContextTable::CallBegan(const Call& call, Served served) {
  MutexLock lock(mu_);
  served_[call] = std::move(served);
}

void ContextTable::CallEnded(const Call& call) {
  Served ended;  // ends without the lock
  MutexLock lock(mu_);
  const auto it = served_.find(call);
  if (it == served_.end()) return;
  ended = std::move(it->second);
  served_.erase(it);
}

ContextTable::Served ContextTable::FindCall(const Call& call) const {
  MutexLock lock(mu_);
  const auto it = served_.find(call);
  return it == served_.end() ? Served() : it->second;
}

}  // namespace weft::dist_autograd
