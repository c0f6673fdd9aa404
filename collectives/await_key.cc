#include "weft/collectives/await_key.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {
namespace {

constexpr absl::Duration kLeastWait = absl::Milliseconds(100);
constexpr absl::Duration kMostWait = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::string> AwaitKey(
    rendezvous::Store& store, const std::string& key, Instant deadline,
    const std::function<absl::Status()>& check) {
  const Instant begin = SteadyClock().Now();
  while (true) {
    if (check != nullptr) WEFT_RETURN_IF_ERROR(check());
    const Instant now = SteadyClock().Now();
    const absl::Duration left = std::max(deadline - now, absl::ZeroDuration());
    const absl::Duration wait =
        std::min(std::max((now - begin) / 4, kLeastWait), kMostWait);
    const bool is_last = check == nullptr || left <= wait;
    absl::StatusOr<rendezvous::StoreEntry> entry =
        store.Wait(key, 0, is_last ? left : wait);
    if (entry.ok()) return std::move(entry->value);
    if (is_last || !absl::IsDeadlineExceeded(entry.status())) {
      return entry.status();
    }
  }
}

}  // namespace weft::collectives
