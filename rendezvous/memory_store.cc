#include "weft/rendezvous/memory_store.h"

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/rendezvous/core/versioned_map.h"
#include "weft/rendezvous/store_requests.h"

namespace weft::rendezvous {
namespace {

VersionedMap::Limits LimitsOfOne() {
  VersionedMap::Limits limits;
  limits.max_owner_bytes = limits.max_total_bytes;  // all of it is one's
  return limits;
}

}  // namespace

class MemoryStore::State {
 public:
  absl::StatusOr<v1::StoreReply> Change(const v1::StoreRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    WEFT_ASSIGN_OR_RETURN(VersionedMap::Plan plan, map_.Prepare(request, ""));
    if (!plan.change.key().empty()) map_.Apply(plan.change);
    changed_.NotifyAll();
    return std::move(plan.reply);
  }
  v1::StoreReply Look(absl::string_view key) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return map_.Look(std::string(key));
  }
  int64_t Count(absl::string_view prefix) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return map_.CountKeys(std::string(prefix));
  }
  v1::StoreReply Wait(absl::string_view key, uint64_t after,
                      absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto deadline = SteadyDeadline(timeout);
    MutexLock lock(mu_);
    while (true) {
      v1::StoreReply reply = map_.Look(std::string(key));
      if (reply.version() > after || !changed_.WaitUntil(mu_, deadline)) {
        return reply;
      }
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  VersionedMap map_ ABSL_GUARDED_BY(mu_){LimitsOfOne()};
};

MemoryStore::MemoryStore() : state_(std::make_unique<State>()) {}
MemoryStore::~MemoryStore() = default;

absl::StatusOr<uint64_t> MemoryStore::Set(absl::string_view key,
                                          absl::string_view value,
                                          absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
  return SetBy([&](const auto& request) { return state_->Change(request); },
               key, value);
}

absl::StatusOr<StoreEntry> MemoryStore::Get(absl::string_view key,
                                            absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
  v1::StoreReply reply = state_->Look(key);
  if (!reply.found()) return NoSuchKey(key);
  return EntryOf(std::move(reply));
}

absl::StatusOr<StoreEntry> MemoryStore::Wait(absl::string_view key,
                                             uint64_t after,
                                             absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
  v1::StoreReply reply = state_->Wait(key, after, timeout);
  if (reply.version() <= after) return DidNotChange(key, after, timeout);
  return EntryOf(std::move(reply));
}

absl::StatusOr<int64_t> MemoryStore::Add(absl::string_view key, int64_t delta,
                                         absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
  return AddBy([&](const auto& request) { return state_->Change(request); },
               key, delta);
}

absl::StatusOr<Store::Swap> MemoryStore::CompareSet(absl::string_view key,
                                                    uint64_t expected_version,
                                                    absl::string_view value,
                                                    absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
  return CompareSetBy(
      [&](const auto& request) { return state_->Change(request); }, key,
      expected_version, value);
}

absl::StatusOr<bool> MemoryStore::Delete(absl::string_view key,
                                         absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
  return DeleteBy([&](const auto& request) { return state_->Change(request); },
                  key);
}

absl::StatusOr<int64_t> MemoryStore::CountKeys(absl::string_view prefix,
                                               absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckTimeout(prefix, timeout));
  return state_->Count(prefix);
}

}  // namespace weft::rendezvous
