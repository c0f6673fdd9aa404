// AgreeOnSettings: see the header.

#include "weft/launch/agree_on_settings.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/store.h"
#include "weft/rendezvous/view.h"

namespace weft::launch {
namespace {

// How often a trainer that waits for another looks whether that one lives.
constexpr absl::Duration kLookEvery = absl::Seconds(1);

std::string KeyOf(absl::string_view trainer) {
  return absl::StrCat("trainers/settings/", trainer);
}

absl::Status CompareWith(rendezvous::Membership& membership,
                         const std::string& other, const Settings& own,
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

absl::Status AgreeOnSettings(rendezvous::Membership& membership, int rank,
                             int trainers, const Settings& own,
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

}  // namespace weft::launch
