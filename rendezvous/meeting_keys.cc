#include "weft/rendezvous/meeting_keys.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"

namespace weft::rendezvous {

absl::Status LeaveMeeting(Store& store, absl::string_view name, int ranks,
                          const std::vector<std::string>& keys,
                          absl::Duration timeout) {
  const Instant deadline = SteadyClock().Now() + timeout;
  const std::string count = absl::StrCat(name, "/left");
  WEFT_ASSIGN_OR_RETURN(const int64_t left, store.Add(count, 1, timeout));
  if (left < ranks) return absl::OkStatus();
  for (const std::string& key : keys) {
    WEFT_RETURN_IF_ERROR(
        store.Delete(key, deadline - SteadyClock().Now()).status());
  }
  return store.Delete(count, deadline - SteadyClock().Now()).status();
}

}  // namespace weft::rendezvous
