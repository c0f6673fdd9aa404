// StoreTable: see the header.

#include "weft/rendezvous/core/store_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::rendezvous {

absl::Status StoreTable::Check(const v1::StoreRequest& request) const {
  const int64_t key_bytes = static_cast<int64_t>(request.key().size());
  const bool may_be_empty =
      request.operation() == v1::StoreRequest::COUNT;  // of all keys
  if ((key_bytes == 0 && !may_be_empty) || key_bytes > limits_.max_key_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("store: the key has ", key_bytes, " bytes, wanted 1 to ",
                     limits_.max_key_bytes));
  }
  if (!v1::StoreRequest::Operation_IsValid(request.operation())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "store: operation ", request.operation(), " does not exist"));
  }
  return absl::OkStatus();
}

v1::StoreReply StoreTable::Count(const std::string& prefix) const {
  v1::StoreReply counted;
  counted.set_count(map_.CountKeys(prefix));
  return counted;
}

void StoreTable::Hold(Ticket ticket, const v1::StoreRequest& request,
                      Instant answer_by) {
  waits_.Hold(ticket, request.key(), answer_by,
              {request.key(), request.version()});
}

StoreTable::Result StoreTable::Change(Ticket ticket,
                                      const v1::StoreRequest& request,
                                      const std::string& owner) {
  Result result;
  const uint64_t client = request.client();
  if (const auto last = last_changes_.find(client);
      client != 0 && last != last_changes_.end() &&
      request.sequence() <= last->second.sequence) {
    if (request.sequence() == last->second.sequence) {
      result.outcomes.push_back({ticket, last->second.reply});
    } else {
      result.outcomes.push_back(
          {ticket, absl::CancelledError(
                       "store: a copy of a change that was answered")});
    }
    return result;
  }
  absl::StatusOr<VersionedMap::Plan> plan = map_.Prepare(request, owner);
  absl::StatusOr<v1::StoreReply> reply;
  if (plan.ok()) {
    reply = plan->reply;
  } else {
    reply = plan.status();
  }
  // One that was not applied may be copied too, and be applied by then.
  if (client != 0) last_changes_[client] = {request.sequence(), reply};
  result.outcomes.push_back({ticket, std::move(reply)});
  if (!plan.ok()) return result;
  if (plan->reply.applied()) {
    v1::LogRecord::Stored& stored = result.stored.emplace();
    *stored.mutable_change() = plan->change;
    if (client != 0) {
      auto* answer = stored.mutable_answer();
      answer->set_client(client);
      answer->set_sequence(request.sequence());
      *answer->mutable_reply() = plan->reply;
    }
    map_.Apply(plan->change);
  }
  if (plan->change.key().empty()) return result;
  const v1::StoreReply now = map_.Look(request.key());
  for (const auto& [woken, wait] : waits_.TakeIf(
           request.key(),
           [&](const Wait& held) { return now.version() > held.version; })) {
    result.outcomes.push_back({woken, now});
  }
  return result;
}

std::vector<StoreTable::Outcome> StoreTable::Expire(Instant now) {
  std::vector<Outcome> outcomes;
  for (const auto& [ticket, wait] : waits_.TakeExpired(now)) {
    outcomes.push_back({ticket, map_.Look(wait.key)});
  }
  return outcomes;
}

void StoreTable::Replay(const v1::LogRecord::Stored& stored) {
  map_.Apply(stored.change());
  if (!stored.has_answer()) return;
  const auto& answer = stored.answer();
  last_changes_[answer.client()] = {answer.sequence(), answer.reply()};
}

void StoreTable::Snapshot(std::vector<v1::LogRecord>* records) const {
  for (const auto& [key, entry] : map_.entries()) {
    auto* change = records->emplace_back().mutable_stored()->mutable_change();
    change->set_key(key);
    change->set_value(entry.value);
    change->set_version(entry.version);
    change->set_owner(entry.owner);
  }
  // Versions do not go back, even if the last change was a deletion.
  for (const auto& [client, last] : last_changes_) {
    auto* stored = records->emplace_back().mutable_stored();
    stored->mutable_change()->set_deleted(true);
    stored->mutable_change()->set_version(map_.last_version());
    stored->mutable_answer()->set_client(client);
    stored->mutable_answer()->set_sequence(last.sequence);
    if (last.reply.ok()) {
      *stored->mutable_answer()->mutable_reply() = *last.reply;
    } else {  // it may fail again; what came before it is not asked any more
      stored->mutable_answer()->set_sequence(
          std::max<uint64_t>(last.sequence, 1) - 1);
    }
  }
  auto* last = records->emplace_back().mutable_stored()->mutable_change();
  last->set_deleted(true);
  last->set_version(map_.last_version());
}

}  // namespace weft::rendezvous
