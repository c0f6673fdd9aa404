// PrefixStore: the part of another Store whose keys begin with a prefix.

#ifndef WEFT_RENDEZVOUS_PREFIX_STORE_H_
#define WEFT_RENDEZVOUS_PREFIX_STORE_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/store.h"

namespace weft::rendezvous {

// Its key k is `prefix`/k there, and NumKeys counts those. May be nested.
//
// Thread-safety: thread-safe.
class PrefixStore final : public Store {
 public:
  // `store` must outlive it.
  PrefixStore(std::string prefix, Store& store)
      : prefix_(std::move(prefix)), store_(store) {}

  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return store_.Set(KeyOf(key), value, timeout);
  }
  absl::StatusOr<StoreEntry> Get(absl::string_view key,
                                 absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return store_.Get(KeyOf(key), timeout);
  }
  absl::StatusOr<StoreEntry> Wait(absl::string_view key, uint64_t after,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return store_.Wait(KeyOf(key), after, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                              absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return store_.Add(KeyOf(key), delta, timeout);
  }
  absl::StatusOr<Swap> CompareSet(absl::string_view key,
                                  uint64_t expected_version,
                                  absl::string_view value,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return store_.CompareSet(KeyOf(key), expected_version, value, timeout);
  }
  absl::StatusOr<bool> Delete(absl::string_view key,
                              absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return store_.Delete(KeyOf(key), timeout);
  }
  absl::StatusOr<uint64_t> Append(absl::string_view key,
                                  absl::string_view suffix,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(CheckCall(key, timeout));
    return store_.Append(KeyOf(key), suffix, timeout);
  }
  absl::StatusOr<int64_t> CountKeys(absl::string_view prefix,
                                    absl::Duration timeout) override {
    return store_.CountKeys(KeyOf(prefix), timeout);
  }

 private:
  std::string KeyOf(absl::string_view key) const {
    return absl::StrCat(prefix_, "/", key);
  }

  const std::string prefix_;
  Store& store_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_PREFIX_STORE_H_
