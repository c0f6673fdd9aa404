#include "weft/ps/core/openings.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weft::ps {

uint64_t Openings::Open(const Caller& caller, uint64_t client) {
  const auto [it, is_new] = numbers_.try_emplace(Client(caller.key, client), 0);
  if (!is_new) return it->second;
  const uint64_t number = ++last_;
  it->second = number;
  open_.insert(number);
  OfWorker& worker = workers_[caller.key];
  worker.name = std::string(caller.name);
  worker.openings.emplace_back(client, number);
  if (worker.openings.size() > kMostOfAWorker) {
    const auto [oldest, closed] = worker.openings.front();
    worker.openings.pop_front();
    numbers_.erase(Client(caller.key, oldest));
    open_.erase(closed);
    closed_.push_back(closed);
  }
  return number;
}

absl::StatusOr<uint64_t> Openings::NumberOf(const Caller& caller,
                                            uint64_t client) const {
  const auto it = numbers_.find(Client(caller.key, client));
  if (it != numbers_.end()) return it->second;
  for (const auto& [key, worker] : workers_) {
    if (numbers_.count(Client(key, client)) == 0) continue;
    return absl::PermissionDeniedError(absl::StrCat(
        caller.name, " (", caller.key.ToString(), ") calls as client ", client,
        ", which is ", worker.name, " (", key.ToString(),
        "): a worker may push and pull as a client of its own only"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      caller.name, " (", caller.key.ToString(),
      ") has not opened it as client ", client,
      ", or a checkpoint was restored since, or it has opened it more than ",
      kMostOfAWorker, " times since; open it again"));
}

void Openings::Forget(WorkerKey worker) {
  const auto first = workers_.lower_bound({worker.id, 0});
  const auto end = workers_.upper_bound(worker);
  for (auto it = first; it != end; ++it) {
    for (const auto& [client, number] : it->second.openings) {
      numbers_.erase(Client(it->first, client));
      open_.erase(number);
      closed_.push_back(number);
    }
  }
  workers_.erase(first, end);
}

void Openings::Use(uint64_t number) {
  if (open_.count(number) == 0) closed_.push_back(number);
}

}  // namespace weft::ps
