// VersionedMap: see the header.

#include "weft/rendezvous/versioned_map.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::rendezvous {
namespace {

int64_t SizeOf(const std::string& key, const std::string& value) {
  return static_cast<int64_t>(key.size() + value.size());
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
                                     const std::string& value) const {
  const int64_t value_bytes = static_cast<int64_t>(value.size());
  if (value_bytes > limits_.max_value_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("store: key \"", key, "\": the value has ", value_bytes,
                     " bytes, the limit is ", limits_.max_value_bytes));
  }
  const Entry* entry = Find(key);
  const int64_t freed = entry == nullptr ? 0 : SizeOf(key, entry->value);
  if (total_bytes_ - freed + SizeOf(key, value) > limits_.max_total_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("store: no room for key \"", key, "\": ", total_bytes_,
                     " of ", limits_.max_total_bytes, " bytes are in use"));
  }
  return absl::OkStatus();
}

absl::StatusOr<VersionedMap::Plan> VersionedMap::Prepare(
    const v1::StoreRequest& request) const {
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
  WEFT_RETURN_IF_ERROR(CheckRoom(key, value));
  plan.change.set_key(key);
  plan.change.set_value(value);
  plan.change.set_version(last_version_ + 1);
  plan.reply.set_found(true);
  plan.reply.set_value(std::move(value));
  plan.reply.set_version(last_version_ + 1);
  plan.reply.set_applied(true);
  return plan;
}

void VersionedMap::Apply(const v1::LogRecord::StoreChange& change) {
  last_version_ = std::max(last_version_, change.version());
  const auto found = entries_.find(change.key());
  if (found != entries_.end()) {
    total_bytes_ -= SizeOf(found->first, found->second.value);
  }
  if (change.deleted()) {
    if (found != entries_.end()) entries_.erase(found);
    return;
  }
  total_bytes_ += SizeOf(change.key(), change.value());
  entries_[change.key()] = {change.value(), change.version()};
}

}  // namespace weft::rendezvous
