#include "weft/worker/membership_directory.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"
#include "weft/worker/options.h"

namespace weft::worker {
namespace {

// An error that says who could have been meant has no more.
constexpr size_t kMostNames = 20;

std::string NamesOf(const rendezvous::View& view) {
  const auto& members = view.members();
  const size_t shown = std::min(members.size(), kMostNames);
  std::string names = absl::StrJoin(
      members.begin(), members.begin() + shown, ", ",
      [](std::string* out, const auto& member) { out->append(member.name); });
  if (shown < members.size()) {
    absl::StrAppend(&names, " and ", members.size() - shown, " more");
  }
  return names;
}

// The status of a call that was open when its worker went.
absl::Status Gone(const rendezvous::Departed& departed) {
  return absl::UnavailableError(
      absl::StrCat(departed.name, ": the incarnation ", departed.key.ToString(),
                   " is gone: ", departed.reason));
}

rpc::Worker WorkerOf(const rendezvous::Member& member) {
  rpc::Worker worker{member.name, member.key, member.address};
  const auto socket = member.labels.find(kMemorySocketLabel);
  if (socket != member.labels.end()) worker.memory_socket = socket->second;
  return worker;
}

}  // namespace

absl::StatusOr<rpc::Worker> MembershipDirectory::Find(
    absl::string_view name) const {
  const auto view = membership_.view();
  if (const rendezvous::Member* member = view->Find(name)) {
    return WorkerOf(*member);
  }
  for (const rendezvous::Departed& departed : view->departed()) {
    if (departed.name == name) return Gone(departed);
  }
  return absl::NotFoundError(absl::StrCat(
      "there is no worker \"", name, "\" now; there are: ", NamesOf(*view)));
}

absl::StatusOr<rpc::Worker> MembershipDirectory::Find(
    rpc::WorkerKey key) const {
  const auto view = membership_.view();
  if (const rendezvous::Member* member = view->Find(key)) {
    return WorkerOf(*member);
  }
  for (const rendezvous::Departed& departed : view->departed()) {
    if (departed.key == key) return Gone(departed);
  }
  const std::string what = absl::StrCat("worker ", key.ToString());
  if (view->IsGone(key)) {
    return absl::UnavailableError(absl::StrCat(what, " is gone"));
  }
  return absl::NotFoundError(
      absl::StrCat(what, " is unknown; there are: ", NamesOf(*view)));
}

bool MembershipDirectory::Refresh(absl::Duration timeout) const {
  return membership_.Refresh(timeout).ok();
}

uint64_t MembershipDirectory::version() const {
  return membership_.view()->version();
}

absl::StatusOr<std::vector<rpc::Worker>> MembershipDirectory::Select(
    absl::string_view selector) const {
  const auto view = membership_.view();
  WEFT_ASSIGN_OR_RETURN(const auto members, view->Select(selector));
  std::vector<rpc::Worker> workers;
  for (const rendezvous::Member* member : members) {
    workers.push_back(WorkerOf(*member));
  }
  if (!workers.empty()) return workers;
  return absl::NotFoundError(absl::StrCat(
      "no worker matches \"", selector, "\" now; there are: ", NamesOf(*view)));
}

}  // namespace weft::worker
