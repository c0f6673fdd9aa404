#include "weft/rpc/directory.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::rpc {

void FixedDirectory::Put(Worker worker) {
  MutexLock lock(mu_);
  for (Worker& known : workers_) {
    if (known.name != worker.name) continue;
    known = std::move(worker);
    return;
  }
  workers_.push_back(std::move(worker));
}

absl::StatusOr<Worker> FixedDirectory::Find(absl::string_view name) const {
  MutexLock lock(mu_);
  for (const Worker& worker : workers_) {
    if (worker.name == name) return worker;
  }
  return absl::NotFoundError(absl::StrCat(
      "no worker is named ", name, "; known are ",
      absl::StrJoin(workers_, ", ", [](std::string* out, const Worker& worker) {
        out->append(worker.name);
      })));
}

absl::StatusOr<Worker> FixedDirectory::Find(WorkerKey key) const {
  MutexLock lock(mu_);
  for (const Worker& worker : workers_) {
    if (worker.key == key) return worker;
  }
  return absl::NotFoundError(
      absl::StrCat("no living worker has the key ", key.ToString()));
}

}  // namespace weft::rpc
