#include "weft/ps/core/replication/open_clients.h"

#include "weft/ps/core/openings.h"

namespace weft::ps {

bool OpenClients::Open(const Opening& opening) {
  OfWorker& worker = workers_[opening.worker];
  const std::pair<uint64_t, ClientId> place(opening.opened_at, opening.client);
  if (worker.open.count(place) != 0) return true;
  if (worker.closed_through.has_value() &&
      opening.opened_at <= *worker.closed_through) {
    return false;
  }
  worker.open.insert(place);
  if (worker.open.size() <= Openings::kMostOfAWorker) return true;
  const std::pair<uint64_t, ClientId> oldest = *worker.open.begin();
  worker.open.erase(worker.open.begin());
  worker.closed_through = oldest.first;
  closed_.push_back(oldest.second);
  return oldest != place;
}

void OpenClients::Forget(WorkerKey worker) {
  const auto first = workers_.lower_bound({worker.id, 0});
  const auto end = workers_.upper_bound(worker);
  for (auto it = first; it != end; ++it) {
    for (const auto& [opened_at, client] : it->second.open) {
      closed_.push_back(client);
    }
  }
  workers_.erase(first, end);
}

std::vector<OpenClients::Opening> OpenClients::All() const {
  std::vector<Opening> all;
  for (const auto& [worker, its] : workers_) {
    for (const auto& [opened_at, client] : its.open) {
      all.push_back({worker, client, opened_at});
    }
  }
  return all;
}

size_t OpenClients::size() const {
  size_t size = 0;
  for (const auto& [worker, its] : workers_) size += its.open.size();
  return size;
}

}  // namespace weft::ps
