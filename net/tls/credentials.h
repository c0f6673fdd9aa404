// Credentials: the certificate of a process over TCP, and the authority that
// must have signed those of its peers.
//
// Unix sockets need none: the directory's mode and the peer's user id decide.

#ifndef WEFT_NET_TLS_CREDENTIALS_H_
#define WEFT_NET_TLS_CREDENTIALS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/net/tls/identity.h"

namespace weft::net {

// The last words of every error for want of certificates.
inline constexpr char kHowToGetCertificates[] =
    "make them with `weft certs init --dir=DIR --job=JOB "
    "--servers=N --trainers=N` and give each program "
    "--certs=DIR, or trust the network with --insecure";

// kFailedPrecondition with that message, known as one of one's own certificates
// by IsOfCertificates().
absl::Status CertificatesError(absl::string_view message);
bool IsOfCertificates(const absl::Status& status);

// Thread-safety: a value.
class Credentials {
 public:
  // Unix sockets only: TCP is refused with the command that makes certificates.
  static Credentials LocalOnly() { return Credentials(); }

  // TCP without TLS, for whoever trusts the network. Listening logs a warning.
  static Credentials Insecure();

  // Reads ca.pem, cert.pem, key.pem and, if it is there, crl.pem: what the
  // authority took back (`weft certs revoke`). kFailedPrecondition, naming
  // `weft certs init`, if one is absent, unreadable, expired or without
  // identity, or if others may read the key.
  static absl::StatusOr<Credentials> FromDirectory(
      const std::string& directory);

  // As `weft certs init --dir=DIRECTORY` lays it out: DIRECTORY/<name> if there
  // is such a folder, else DIRECTORY itself, which must then be for `name`
  // (trainer1).
  static absl::StatusOr<Credentials> ForMember(const std::string& directory,
                                               const std::string& name);

  // From PEM texts; the dates are left to the peers.
  static absl::StatusOr<Credentials> FromPem(std::string ca,
                                             std::string certificate,
                                             std::string key,
                                             std::string revoked = "");

  // Ok if they are for a member of `job`, or for none; else
  // kFailedPrecondition, which names both.
  absl::Status CheckJob(absl::string_view job) const;

  bool insecure() const { return insecure_; }
  bool secure() const { return identity_.has_value(); }
  const std::optional<Identity>& identity() const { return identity_; }

  const std::string& ca() const { return ca_; }
  const std::string& certificate() const { return certificate_; }
  const std::string& key() const { return key_; }
  const std::string& revoked() const { return revoked_; }
  // Where they were read, for whoever looks whether they have changed. Empty if
  // from PEM texts.
  const std::string& directory() const { return directory_; }
  std::vector<std::string> files() const;

 private:
  Credentials() = default;

  bool insecure_ = false;
  std::optional<Identity> identity_;
  std::string ca_;
  std::string certificate_;
  std::string key_;
  std::string revoked_;
  std::string directory_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TLS_CREDENTIALS_H_
