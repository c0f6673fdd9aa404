// Trust: whose certificates are believed at this moment, and why not others.
//
// Both ends ask it in each handshake, so that what an authority takes back, and
// an authority that is replaced, count from the next connection on.

#ifndef WEFT_NET_TLS_TRUST_H_
#define WEFT_NET_TLS_TRUST_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/mutex.h"

namespace weft::net {

// Thread-safety: thread-safe.
class Trust {
 public:
  // PEM texts: one or more authorities, and the revocation lists that they have
  // signed, if any. kInvalidArgument says what cannot be read.
  static absl::StatusOr<std::unique_ptr<Trust>> Create(
      const std::string& authorities, const std::string& revoked);

  // Believes these from now on. On an error, what was believed stays.
  absl::Status Replace(const std::string& authorities,
                       const std::string& revoked) ABSL_LOCKS_EXCLUDED(mu_);

  // A certificate (PEM) that a peer has shown, with the `chain` it sent along.
  // kUnauthenticated says why it is not believed. A server's must also be for
  // `host`, a name or a number.
  absl::Status CheckClient(const std::string& certificate,
                           const std::string& chain) const
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckServer(const std::string& certificate,
                           const std::string& chain,
                           const std::string& host) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Store;
  Trust() = default;

  absl::Status Check(const std::string& certificate, const std::string& chain,
                     const std::string* host) const ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  std::shared_ptr<const Store> store_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::net

#endif  // WEFT_NET_TLS_TRUST_H_
