#include "weft/rpc/object_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::rpc {

absl::Status ObjectTable::Add(const ObjectId& id, const Worker& holder,
                              Object object) {
  if (id.call == 0) {
    return absl::FailedPreconditionError(
        "a call without a session cannot keep an object");
  }
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(CheckHolder(holder));
  const auto [it, is_new] = objects_.try_emplace(id);
  if (!is_new) {
    return absl::AlreadyExistsError(
        absl::StrCat("object ", id.ToString(), " exists"));
  }
  absl::Status held = AddHolding(id, holder, &it->second);
  if (!held.ok()) {
    objects_.erase(it);
    return held;
  }
  it->second.object = std::move(object);
  return absl::OkStatus();
}

absl::Status ObjectTable::Hold(const ObjectId& id, const Worker& holder) {
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(CheckHolder(holder));
  const auto it = objects_.find(id);
  if (it == objects_.end()) return NoObject(id);
  return AddHolding(id, holder, &it->second);
}

absl::Status ObjectTable::Release(const ObjectId& id, WorkerKey holder) {
  Ended ended;
  MutexLock lock(mu_);
  const auto of = holders_.find(holder);
  if (of == holders_.end()) return NoObject(id);
  auto& times = of->second.times;
  const auto held = times.find(id);
  if (held == times.end()) return NoObject(id);
  if (--held->second > 0) return absl::OkStatus();
  times.erase(held);
  if (times.empty()) holders_.erase(of);
  DropHolding(id, &ended);
  return absl::OkStatus();
}

absl::StatusOr<ObjectTable::Object> ObjectTable::Find(const ObjectId& id,
                                                      WorkerKey holder,
                                                      const void* type) const {
  MutexLock lock(mu_);
  const auto of = holders_.find(holder);
  if (of == holders_.end() || !of->second.times.contains(id)) {
    return NoObject(id);
  }
  const Object& object = objects_.at(id).object;
  if (type == nullptr || object.type == type) return object;
  return absl::InvalidArgumentError(
      absl::StrCat("object ", id.ToString(), " is of another type"));
}

void ObjectTable::HolderGone(WorkerKey key, bool left) {
  Ended ended;
  MutexLock lock(mu_);
  if (key.id == kClientId) {
    const auto it = holders_.find(key);
    if (it != holders_.end()) DropHolder(it, left, &ended);
    return;
  }
  uint64_t& gone = gone_[key.id];
  gone = std::max(gone, key.epoch);
  for (auto it = holders_.lower_bound(WorkerKey{key.id, 0});
       it != holders_.end() && !(key < it->first);) {
    it = DropHolder(it, left && it->first == key, &ended);
  }
}

void ObjectTable::SessionEnded(WorkerKey client) {
  Ended ended;
  MutexLock lock(mu_);
  const auto it = holders_.find(client);
  if (it != holders_.end()) DropHolder(it, /*left=*/false, &ended);
}

void ObjectTable::Clear() {
  absl::flat_hash_map<ObjectId, Entry> ended;
  MutexLock lock(mu_);
  ended.swap(objects_);
  holders_.clear();
}

int64_t ObjectTable::size() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(objects_.size());
}

void ObjectTable::AddTo(LeakList* list) const {
  MutexLock lock(mu_);
  for (const auto& [key, holder] : holders_) {
    if (key != owner_) AddTo(list, holder);
  }
  list->Add(left_);
}

void ObjectTable::AddTo(LeakList* list, const Holder& holder) const {
  for (const auto& [id, times] : holder.times) {
    list->Add({false, true, holder.name,
               std::string(objects_.at(id).object.function)},
              id.call);
  }
}

absl::Status ObjectTable::CheckHolder(const Worker& holder) const {
  const auto gone = gone_.find(holder.key.id);
  if (gone == gone_.end() || holder.key.epoch > gone->second) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("the incarnation ", holder.key.ToString(), " of ",
                   holder.name, " is gone and holds nothing any more"));
}

absl::Status ObjectTable::AddHolding(const ObjectId& id, const Worker& holder,
                                     Entry* entry) {
  Holder& of = holders_[holder.key];
  const auto held = of.times.find(id);
  if (held != of.times.end()) {
    ++held->second;
    return absl::OkStatus();
  }
  if (static_cast<int64_t>(of.times.size()) >= most_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        holder.name, " (", holder.key.ToString(), ") holds ", of.times.size(),
        " objects here, which is the limit of one holder; release some, or "
        "raise it there by --limits=rpc_objects=VALUE"));
  }
  of.name = holder.name;
  of.times.emplace(id, 1);
  ++entry->holders;
  return absl::OkStatus();
}

void ObjectTable::DropHolding(const ObjectId& id, Ended* ended) {
  const auto it = objects_.find(id);
  if (--it->second.holders > 0) return;
  ended->push_back(std::move(it->second.object));
  objects_.erase(it);
}

ObjectTable::Holders::iterator ObjectTable::DropHolder(Holders::iterator it,
                                                       bool left,
                                                       Ended* ended) {
  if (left) AddTo(&left_, it->second);
  for (const auto& [id, times] : it->second.times) DropHolding(id, ended);
  return holders_.erase(it);
}

absl::Status ObjectTable::NoObject(const ObjectId& id) const {
  return absl::NotFoundError(absl::StrCat(
      "there is no object ", id.ToString(), " for this caller",
      id.owner == owner_ ? ": it was released, or its making failed"
                         : absl::StrCat("; this is ", owner_.ToString())));
}

}  // namespace weft::rpc
