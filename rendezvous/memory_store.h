// MemoryStore: a Store for the ranks of one process.

#ifndef WEFT_RENDEZVOUS_MEMORY_STORE_H_
#define WEFT_RENDEZVOUS_MEMORY_STORE_H_

#include <memory>
#include <string>

#include "weft/rendezvous/store.h"

namespace weft::rendezvous {

// Has the limits that store.h states. Does not wait but in Wait.
//
// Thread-safety: thread-safe.
class MemoryStore final : public Store {
 public:
  MemoryStore();
  ~MemoryStore() override;

  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration timeout) override;
  absl::StatusOr<StoreEntry> Get(absl::string_view key,
                                 absl::Duration timeout) override;
  absl::StatusOr<StoreEntry> Wait(absl::string_view key, uint64_t after,
                                  absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                              absl::Duration timeout) override;
  absl::StatusOr<Swap> CompareSet(absl::string_view key,
                                  uint64_t expected_version,
                                  absl::string_view value,
                                  absl::Duration timeout) override;
  absl::StatusOr<bool> Delete(absl::string_view key,
                              absl::Duration timeout) override;
  absl::StatusOr<int64_t> CountKeys(absl::string_view prefix,
                                    absl::Duration timeout) override;

 private:
  class State;
  const std::unique_ptr<State> state_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_MEMORY_STORE_H_
