// VersionedMap: see the header.

#include "weft/rendezvous/core/versioned_map.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::rendezvous {
namespace {

int64_t SizeOf(const std::string& key, const std::string& value) {
  return VersionedMap::kEntryBytes +
         static_cast<int64_t>(key.size() + value.size());
}

absl::StatusOr<std::string> Sum(const std::string& key,
                                const VersionedMap::Entry* entry,
                                int64_t delta) {
  int64_t number = 0;
  if (entry != nullptr && !absl::SimpleAtoi(entry->value, &number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("store: ADD to key \"", key,
                     "\": wanted a decimal number there, found \"",
                     entry->value.substr(0, 32), "\""));
  }
  if (__builtin_add_overflow(number, delta, &number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("store: ADD to key \"", key, "\": the sum overflows"));
  }
  return absl::StrCat(number);
}

}  // namespace

const VersionedMap::Entry* VersionedMap::Find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

int64_t VersionedMap::CountKeys(const std::string& prefix) const {
  if (prefix.empty()) return static_cast<int64_t>(entries_.size());
  int64_t count = 0;
  for (auto it = entries_.lower_bound(prefix);
       it != entries_.end() && absl::StartsWith(it->first, prefix); ++it) {
    ++count;
  }
  return count;
}

v1::StoreReply VersionedMap::Look(const std::string& key) const {
  v1::StoreReply reply;
  if (const Entry* entry = Find(key)) {
    reply.set_found(true);
    reply.set_value(entry->value);
    reply.set_version(entry->version);
  }
  return reply;
}

absl::Status VersionedMap::CheckRoom(const std::string& key,
                                     const std::string& value,
                                     const std::string& owner) const {
  const int64_t value_bytes = static_cast<int64_t>(value.size());
  if (value_bytes > limits_.max_value_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("store: key \"", key, "\": the value has ", value_bytes,
                     " bytes, the limit is ", limits_.max_value_bytes));
  }
  const Entry* entry = Find(key);
  const int64_t freed = entry == nullptr ? 0 : SizeOf(key, entry->value);
  const int64_t size = SizeOf(key, value);
  const auto own = owner_bytes_.find(owner);
  const int64_t used = own == owner_bytes_.end() ? 0 : own->second;
  const bool frees_own = entry != nullptr && entry->owner == owner;
  // A change that takes no more than before is allowed without room, too.
  if (size <= freed && frees_own) return absl::OkStatus();
  if (used - (frees_own ? freed : 0) + size > limits_.max_owner_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "store: no room for key \"", key, "\": what ",
        owner.empty() ? "callers without a name" : owner, " wrote takes ", used,
        " of ", limits_.max_owner_bytes, " bytes: delete some of it"));
  }
  if (size > freed && total_bytes_ - freed + size > limits_.max_total_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("store: no room for key \"", key, "\": ", total_bytes_,
                     " of ", limits_.max_total_bytes, " bytes are in use"));
  }
  return absl::OkStatus();
}

absl::StatusOr<VersionedMap::Plan> VersionedMap::Prepare(
    const v1::StoreRequest& request, const std::string& owner) const {
  const std::string& key = request.key();
  const Entry* entry = Find(key);
  const uint64_t version = entry == nullptr ? 0 : entry->version;
  Plan plan;
  std::string value = request.value();
  switch (request.operation()) {
    case v1::StoreRequest::ADD: {
      WEFT_ASSIGN_OR_RETURN(value, Sum(key, entry, request.delta()));
      break;
    }
    case v1::StoreRequest::COMPARE_SET:
      if (version != request.version()) {
        plan.reply = Look(key);
        return plan;
      }
      break;
    case v1::StoreRequest::DELETE:
      plan.reply = Look(key);
      if (entry == nullptr ||
          (request.version() != 0 && request.version() != version)) {
        return plan;
      }
      plan.reply.set_applied(true);
      plan.change.set_key(key);
      plan.change.set_version(last_version_ + 1);
      plan.change.set_deleted(true);
      return plan;
    default:
      break;
  }
  WEFT_RETURN_IF_ERROR(CheckRoom(key, value, owner));
  plan.change.set_key(key);
  plan.change.set_owner(owner);
  plan.change.set_value(value);
  plan.change.set_version(last_version_ + 1);
  plan.reply.set_found(true);
  plan.reply.set_value(std::move(value));
  plan.reply.set_version(last_version_ + 1);
  plan.reply.set_applied(true);
  return plan;
}

void VersionedMap::Count(const std::string& key, const Entry& entry, int sign) {
  const int64_t bytes = sign * SizeOf(key, entry.value);
  total_bytes_ += bytes;
  int64_t& own = owner_bytes_[entry.owner];
  own += bytes;
  if (own == 0) owner_bytes_.erase(entry.owner);
}

void VersionedMap::Apply(const v1::LogRecord::StoreChange& change) {
  last_version_ = std::max(last_version_, change.version());
  const auto found = entries_.find(change.key());
  if (found != entries_.end()) Count(found->first, found->second, -1);
  if (change.deleted()) {
    if (found != entries_.end()) entries_.erase(found);
    return;
  }
  Entry& entry = entries_[change.key()];
  entry = {change.value(), change.version(), change.owner()};
  Count(change.key(), entry, 1);
}

}  // namespace weft::rendezvous
