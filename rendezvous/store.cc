#include "weft/rendezvous/store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"

namespace weft::rendezvous {
namespace {

// The time to look at each key that may be missing, once the deadline has
// passed.
constexpr absl::Duration kLastLook = absl::Seconds(1);
// The time for one key of several that were all waited for in time.
constexpr absl::Duration kLeastLook = absl::Milliseconds(1);
constexpr size_t kMostKeyBytes = 1 << 10;

absl::Duration Left(Instant deadline) {
  return std::max(deadline - SteadyClock().Now(), absl::ZeroDuration());
}

// The keys of keys[first..] that do not exist.
std::string Missing(Store& store, const std::vector<std::string>& keys,
                    size_t first) {
  const Instant until = SteadyClock().Now() + kLastLook;
  std::vector<std::string> missing = {keys[first]};
  for (size_t i = first + 1; i < keys.size(); ++i) {
    const auto found = store.Get(keys[i], Left(until));
    if (absl::IsNotFound(found.status())) missing.push_back(keys[i]);
  }
  return absl::StrJoin(missing, ", ");
}

}  // namespace

absl::Status CheckKey(absl::string_view key) {
  if (key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "store: the key is empty, wanted 1 to ", kMostKeyBytes, " bytes"));
  }
  if (key.size() <= kMostKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("store: key \"", key.substr(0, 64), "...\" has ", key.size(),
                   " bytes, wanted 1 to ", kMostKeyBytes));
}

absl::Status CheckTimeout(absl::string_view key, absl::Duration timeout) {
  if (timeout > absl::ZeroDuration()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("store: key \"", key, "\": no time is left (a timeout of ",
                   absl::FormatDuration(timeout), ")"));
}

absl::Status CheckCall(absl::string_view key, absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckKey(key));
  return CheckTimeout(key, timeout);
}

absl::StatusOr<int64_t> Store::CountKeys(absl::string_view, absl::Duration) {
  return absl::UnimplementedError("this store does not count its keys");
}

absl::StatusOr<uint64_t> Store::Append(absl::string_view key,
                                       absl::string_view suffix,
                                       absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
  const Instant deadline = SteadyClock().Now() + timeout;
  while (true) {
    absl::StatusOr<StoreEntry> now = Get(key, Left(deadline));
    if (absl::IsNotFound(now.status())) now = StoreEntry();
    WEFT_RETURN_IF_ERROR(now.status());
    WEFT_ASSIGN_OR_RETURN(
        const Swap swap,
        CompareSet(key, now->version, absl::StrCat(now->value, suffix),
                   Left(deadline)));
    if (swap.applied) return swap.now.version;
    if (SteadyClock().Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("store: key \"", key, "\": others changed it for ",
                       absl::FormatDuration(timeout)));
    }
  }
}

absl::Status Store::WaitAll(const std::vector<std::string>& keys,
                            absl::Duration timeout) {
  return MultiGet(keys, timeout).status();
}

absl::StatusOr<std::vector<StoreEntry>> Store::MultiGet(
    const std::vector<std::string>& keys, absl::Duration timeout) {
  for (const std::string& key : keys) WEFT_RETURN_IF_ERROR(CheckKey(key));
  if (!keys.empty()) WEFT_RETURN_IF_ERROR(CheckTimeout(keys[0], timeout));
  const Instant deadline = SteadyClock().Now() + timeout;
  std::vector<StoreEntry> entries;
  for (size_t i = 0; i < keys.size(); ++i) {
    absl::StatusOr<StoreEntry> entry =
        Wait(keys[i], 0, std::max(Left(deadline), kLeastLook));
    if (absl::IsDeadlineExceeded(entry.status())) {
      return absl::DeadlineExceededError(absl::StrCat(
          "store: waited ", absl::FormatDuration(timeout), " for ", keys.size(),
          " keys; missing: ", Missing(*this, keys, i)));
    }
    WEFT_RETURN_IF_ERROR(entry.status());
    entries.push_back(*std::move(entry));
  }
  return entries;
}

}  // namespace weft::rendezvous
