#include "weft/rpc/object_table.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::rpc {

absl::Status ObjectTable::Add(Maker maker, uint64_t id, Object object) {
  MutexLock lock(mu_);
  return AddLocked(maker, id, object);
}

absl::Status ObjectTable::AddLocked(Maker maker, uint64_t id,
                                    const Object& object) {
  if (id == 0) {
    return absl::FailedPreconditionError(
        "a call without a session cannot keep an object or open a stream");
  }
  Objects& kept = objects_[maker];
  if (static_cast<int64_t>(kept.size()) >= most_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the caller keeps ", kept.size(),
        " objects here, which is the limit; release some, or raise "
        "it there by --limits=rpc_objects=VALUE"));
  }
  if (!kept.emplace(id, object).second) {
    return absl::AlreadyExistsError(absl::StrCat("object ", id, " exists"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ObjectTable::Object> ObjectTable::Find(Maker maker, uint64_t id,
                                                      const void* type) const {
  MutexLock lock(mu_);
  return FindLocked(maker, id, type);
}

absl::StatusOr<ObjectTable::Object> ObjectTable::FindLocked(
    Maker maker, uint64_t id, const void* type) const {
  const auto kept = objects_.find(maker);
  if (kept != objects_.end()) {
    if (const auto it = kept->second.find(id); it != kept->second.end()) {
      if (type == nullptr || it->second.type == type) return it->second;
      return absl::InvalidArgumentError(
          absl::StrCat("object ", id, " is of another type"));
    }
  }
  return absl::NotFoundError(
      absl::StrCat("there is no object ", id, " of ", maker.ToString(),
                   " here: it was released, or its making failed"));
}

absl::StatusOr<ObjectTable::Object> ObjectTable::FindOrAdd(
    Maker maker, uint64_t id, const void* type,
    const std::function<Object()>& make) {
  MutexLock lock(mu_);
  absl::StatusOr<Object> found = FindLocked(maker, id, type);
  if (!absl::IsNotFound(found.status())) return found;
  Object made = make();
  const absl::Status added = AddLocked(maker, id, made);
  if (!added.ok()) return added;
  return made;
}

absl::Status ObjectTable::Release(Maker maker, uint64_t id) {
  Object released;  // ends without the lock
  MutexLock lock(mu_);
  const auto kept = objects_.find(maker);
  if (kept != objects_.end()) {
    if (const auto it = kept->second.find(id); it != kept->second.end()) {
      released = std::move(it->second);
      kept->second.erase(it);
      if (kept->second.empty()) objects_.erase(kept);
      return absl::OkStatus();
    }
  }
  return absl::NotFoundError(
      absl::StrCat("there is no object ", id, " of ", maker.ToString()));
}

void ObjectTable::ReleaseAll(Maker maker, bool was_left) {
  Objects released;
  MutexLock lock(mu_);
  const auto kept = objects_.find(maker);
  if (kept == objects_.end()) return;
  if (was_left) AddTo(&left_, kept->second);
  released.swap(kept->second);
  objects_.erase(kept);
}

void ObjectTable::Clear() {
  absl::flat_hash_map<Maker, Objects> released;
  MutexLock lock(mu_);
  released.swap(objects_);
}

void ObjectTable::AddTo(LeftoverList* list, const Objects& objects) {
  for (const auto& [id, object] : objects) {
    if (object.function.empty()) continue;
    list->Add({false, true, object.maker, std::string(object.function)}, id);
  }
}

void ObjectTable::AddTo(LeftoverList* list, Maker self) const {
  MutexLock lock(mu_);
  for (const auto& [maker, kept] : objects_) {
    if (maker != self) AddTo(list, kept);
  }
  list->Add(left_);
}

int64_t ObjectTable::size() const {
  int64_t size = 0;
  MutexLock lock(mu_);
  for (const auto& [maker, kept] : objects_) size += kept.size();
  return size;
}

}  // namespace weft::rpc
