// Admission: how many calls, and how many bytes of requests, one endpoint holds
// at a time, in all and of each peer.

#ifndef WEFT_NET_ADMISSION_H_
#define WEFT_NET_ADMISSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/mutex.h"
#include "weft/net/endpoint.h"

namespace weft::net {

// Thread-safety: thread-safe.
class Admission : public std::enable_shared_from_this<Admission> {
 public:
  // One call's place; gives it up when destroyed. One thread at a time.
  class Ticket {
   public:
    Ticket(std::shared_ptr<Admission> admission, std::string peer)
        : admission_(std::move(admission)), peer_(std::move(peer)) {}
    ~Ticket() { admission_->Leave(peer_, bytes_); }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    // Makes room for a request that has come. kResourceExhausted if there is
    // none.
    absl::Status AddBytes(int64_t bytes);

   private:
    const std::shared_ptr<Admission> admission_;
    const std::string peer_;
    int64_t bytes_ = 0;
  };

  explicit Admission(AdmissionLimits limits) : limits_(limits) {}

  // kResourceExhausted says which limit was reached, see LimitOf. An empty
  // `peer` counts towards the total alone.
  absl::StatusOr<std::unique_ptr<Ticket>> Enter(const std::string& peer)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Load {
    int64_t calls = 0;
    int64_t bytes = 0;
  };

  absl::Status AddBytes(const std::string& peer, int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(const std::string& peer, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  const AdmissionLimits limits_;
  Mutex mu_;
  Load all_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Load> peers_ ABSL_GUARDED_BY(mu_);
};

// The option that names the limit of a refusal, "max_calls"; else empty.
std::string LimitOf(const absl::Status& refusal);

}  // namespace weft::net

#endif  // WEFT_NET_ADMISSION_H_
