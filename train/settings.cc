// Settings: see the header.

#include "weft/train/settings.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/store.h"
#include "weft/rendezvous/view.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

constexpr char kBetween[] = "\n";
// How often a trainer that waits for another looks whether that one lives.
constexpr absl::Duration kLookEvery = absl::Seconds(1);

std::string KeyOf(absl::string_view trainer) {
  return absl::StrCat("trainers/settings/", trainer);
}

absl::Status CompareWith(rendezvous::Membership& membership,
                         const std::string& other, const Settings::Values& own,
                         absl::Duration timeout) {
  const Instant deadline = SteadyClock().Now() + timeout;
  uint64_t seen = 0;  // a version of another incarnation
  while (SteadyClock().Now() < deadline) {
    const auto view = membership.view();
    const rendezvous::Member* const member = view->Find(other);
    if (member == nullptr) return absl::OkStatus();  // dead, or not back yet
    const absl::StatusOr<rendezvous::StoreEntry> entry =
        membership.store().Wait(KeyOf(other), seen,
                                std::min(kLookEvery, timeout));
    WEFT_RETURN_IF_ERROR(membership.status());
    if (absl::IsDeadlineExceeded(entry.status())) continue;
    WEFT_RETURN_IF_ERROR(entry.status());
    absl::string_view text = entry->value;
    if (absl::ConsumePrefix(&text, absl::StrCat(member->incarnation, "\n"))) {
      return CompareSettings(membership.self().name, own, other,
                             ParseSettings(text));
    }
    seen = entry->version;
  }
  return absl::DeadlineExceededError(absl::StrCat(
      other, " has not said within ", absl::FormatDuration(timeout),
      " with which settings it trains"));
}

}  // namespace

Settings::Values Settings::All() const {
  Values all = fixed;
  all.insert(common.begin(), common.end());
  return all;
}

std::string FormatSettings(const Settings::Values& settings) {
  return absl::StrJoin(settings, kBetween, absl::PairFormatter("="));
}

Settings::Values ParseSettings(absl::string_view text) {
  Settings::Values settings;
  for (const absl::string_view line : absl::StrSplit(text, kBetween)) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (parts.size() != 2) return {};
    settings.emplace(parts[0], parts[1]);
  }
  return settings;
}

absl::Status CompareSettings(const std::string& self,
                             const Settings::Values& own,
                             const std::string& other,
                             const Settings::Values& others) {
  std::vector<std::string> differences;
  for (const auto& [name, value] : own) {
    const auto found = others.find(name);
    const std::string theirs =
        found == others.end() ? "not there" : found->second;
    if (theirs == value) continue;
    differences.push_back(absl::StrCat(name, " is ", value, " at ", self,
                                       " and ", theirs, " at ", other));
  }
  for (const auto& [name, theirs] : others) {
    if (own.count(name) != 0) continue;
    differences.push_back(absl::StrCat(name, " is not there at ", self, " and ",
                                       theirs, " at ", other));
  }
  if (differences.empty()) return absl::OkStatus();
  return worker::WithExitCode(absl::FailedPreconditionError(absl::StrCat(
                                  "all trainers of a job must train the same: ",
                                  absl::StrJoin(differences, "; "),
                                  "; start them with the same flags and data")),
                              worker::ExitCode::kConfig);
}

absl::Status AgreeOnSettings(rendezvous::Membership& membership, int rank,
                             int trainers, const Settings::Values& own,
                             absl::Duration timeout) {
  const rendezvous::Member& self = membership.self();
  // With the incarnation, as an earlier incarnation may have left its settings.
  WEFT_RETURN_IF_ERROR(
      membership.store()
          .Set(KeyOf(self.name),
               absl::StrCat(self.incarnation, "\n", FormatSettings(own)),
               timeout)
          .status());
  for (int other = 0; other < trainers; ++other) {
    if (other == rank) continue;
    WEFT_RETURN_IF_ERROR(
        CompareWith(membership, absl::StrCat("trainer", other), own, timeout));
  }
  return absl::OkStatus();
}

}  // namespace weft::train
