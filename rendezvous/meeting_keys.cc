#include "weft/rendezvous/meeting_keys.h"

#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"

namespace weft::rendezvous {

namespace {

// How many have left.
std::string CountOf(absl::string_view name) {
  return absl::StrCat(name, "/left");
}

}  // namespace

absl::Status LeaveMeeting(Store& store, absl::string_view name, int ranks,
                          const std::vector<std::string>& keys,
                          absl::Duration timeout) {
  const Instant deadline = SteadyClock().Now() + timeout;
  const std::string count = CountOf(name);
  WEFT_ASSIGN_OR_RETURN(const int64_t left, store.Add(count, 1, timeout));
  if (left < ranks) return absl::OkStatus();
  for (const std::string& key : keys) {
    WEFT_RETURN_IF_ERROR(
        store.Delete(key, deadline - SteadyClock().Now()).status());
  }
  return store.Delete(count, deadline - SteadyClock().Now()).status();
}

void AwaitOthersLeft(Store& store, absl::string_view name, int ranks,
                     absl::Duration timeout) {
  const Instant deadline = SteadyClock().Now() + timeout;
  uint64_t seen = 0;
  for (int64_t left = 0; left < ranks - 1;) {
    const absl::StatusOr<StoreEntry> count =
        store.Wait(CountOf(name), seen, deadline - SteadyClock().Now());
    if (!count.ok() || !absl::SimpleAtoi(count->value, &left)) return;
    seen = count->version;
  }
}

}  // namespace weft::rendezvous
