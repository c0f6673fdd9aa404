// Requests and answers of the versioned map, for stores that keep one.

#ifndef WEFT_RENDEZVOUS_STORE_REQUESTS_H_
#define WEFT_RENDEZVOUS_STORE_REQUESTS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/store.h"

namespace weft::rendezvous {

inline v1::StoreRequest MakeStoreRequest(v1::StoreRequest::Operation operation,
                                         absl::string_view key) {
  v1::StoreRequest request;
  request.set_operation(operation);
  request.set_key(std::string(key));
  return request;
}

inline StoreEntry EntryOf(v1::StoreReply reply) {
  return {std::move(*reply.mutable_value()), reply.version()};
}

inline absl::Status NoSuchKey(absl::string_view key) {
  return absl::NotFoundError(
      absl::StrCat("store: there is no key \"", key, "\""));
}

inline absl::Status DidNotChange(absl::string_view key, uint64_t after,
                                 absl::Duration timeout) {
  return absl::DeadlineExceededError(
      absl::StrCat("store: key \"", key, "\" did not change from version ",
                   after, " within ", absl::FormatDuration(timeout)));
}

// The operations of a Store in terms of `Change(request) -> reply`, which makes
// a change.
template <typename Change>
absl::StatusOr<uint64_t> SetBy(Change change, absl::string_view key,
                               absl::string_view value) {
  v1::StoreRequest request = MakeStoreRequest(v1::StoreRequest::SET, key);
  request.set_value(std::string(value));
  const absl::StatusOr<v1::StoreReply> reply = change(request);
  if (!reply.ok()) return reply.status();
  return reply->version();
}

template <typename Change>
absl::StatusOr<int64_t> AddBy(Change change, absl::string_view key,
                              int64_t delta) {
  v1::StoreRequest request = MakeStoreRequest(v1::StoreRequest::ADD, key);
  request.set_delta(delta);
  const absl::StatusOr<v1::StoreReply> reply = change(request);
  if (!reply.ok()) return reply.status();
  int64_t sum = 0;
  if (absl::SimpleAtoi(reply->value(), &sum)) return sum;
  return absl::InternalError(
      absl::StrCat("store: the sum at key \"", key, "\" is no number"));
}

template <typename Change>
absl::StatusOr<Store::Swap> CompareSetBy(Change change, absl::string_view key,
                                         uint64_t expected_version,
                                         absl::string_view value) {
  v1::StoreRequest request =
      MakeStoreRequest(v1::StoreRequest::COMPARE_SET, key);
  request.set_version(expected_version);
  request.set_value(std::string(value));
  absl::StatusOr<v1::StoreReply> reply = change(request);
  if (!reply.ok()) return reply.status();
  const bool applied = reply->applied();
  return Store::Swap{applied, EntryOf(*std::move(reply))};
}

template <typename Change>
absl::StatusOr<bool> DeleteBy(Change change, absl::string_view key) {
  const absl::StatusOr<v1::StoreReply> reply =
      change(MakeStoreRequest(v1::StoreRequest::DELETE, key));
  if (!reply.ok()) return reply.status();
  return reply->applied();
}

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_STORE_REQUESTS_H_
