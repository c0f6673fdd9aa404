#include "weft/rpc/session/directory.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/view.h"

namespace weft::rpc {

absl::StatusOr<std::vector<Worker>> Directory::Select(
    absl::string_view selector) const {
  return absl::UnimplementedError(absl::StrCat(
      "this directory knows no labels, so none is chosen by '", selector, "'"));
}

void FixedDirectory::Put(Worker worker,
                         std::map<std::string, std::string> labels) {
  labels["name"] = worker.name;
  MutexLock lock(mu_);
  Entry* entry = nullptr;
  for (Entry& known : workers_) {
    if (known.worker.name == worker.name) entry = &known;
  }
  if (entry == nullptr) entry = &workers_.emplace_back();
  *entry = Entry{std::move(worker), std::move(labels)};
  version_.fetch_add(1);
}

void FixedDirectory::Remove(absl::string_view name) {
  MutexLock lock(mu_);
  workers_.erase(std::remove_if(workers_.begin(), workers_.end(),
                                [name](const Entry& entry) {
                                  return entry.worker.name == name;
                                }),
                 workers_.end());
  version_.fetch_add(1);
}

std::string FixedDirectory::Known() const {
  return absl::StrJoin(workers_, ", ",
                       [](std::string* out, const Entry& entry) {
                         out->append(entry.worker.name);
                       });
}

absl::StatusOr<Worker> FixedDirectory::Find(absl::string_view name) const {
  MutexLock lock(mu_);
  for (const Entry& entry : workers_) {
    if (entry.worker.name == name) return entry.worker;
  }
  return absl::NotFoundError(
      absl::StrCat("no worker is named ", name, "; known are ", Known()));
}

absl::StatusOr<Worker> FixedDirectory::Find(WorkerKey key) const {
  MutexLock lock(mu_);
  for (const Entry& entry : workers_) {
    if (entry.worker.key == key) return entry.worker;
  }
  return absl::NotFoundError(absl::StrCat("no living worker has the key ",
                                          key.ToString(), "; known are ",
                                          Known()));
}

absl::StatusOr<std::vector<Worker>> FixedDirectory::Select(
    absl::string_view selector) const {
  WEFT_ASSIGN_OR_RETURN(const auto wanted, rendezvous::ParseSelector(selector));
  std::vector<Worker> matching;
  MutexLock lock(mu_);
  for (const Entry& entry : workers_) {
    bool matches = true;
    for (const auto& [label, value] : wanted) {
      const auto it = entry.labels.find(label);
      matches &= it != entry.labels.end() && it->second == value;
    }
    if (matches) matching.push_back(entry.worker);
  }
  if (!matching.empty()) return matching;
  return absl::NotFoundError(
      absl::StrCat("no worker matches '", selector, "'; known are ", Known()));
}

}  // namespace weft::rpc
