// Certificates: the authority of one job and the certificates of its members,
// as `weft certs init` makes them.
//
//   DIR/ca.pem       the authority; every member trusts what it signed
//   DIR/ca-key.pem   its key, mode 0600: keep it off the workers
//   DIR/<name>/      ca.pem, cert.pem, key.pem (0600) of one member: copy it to
//   its host
//
//   crl.pem          what the authority took back, if anything; in each folder
//
// EC P-256; a member's certificate carries weft://<job>/<role>/<rank> and
// <name>.<job>.weft in its SAN and serves for both ends of a connection.

#ifndef WEFT_NET_TLS_CERTIFICATES_H_
#define WEFT_NET_TLS_CERTIFICATES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/net/tls/identity.h"

namespace weft::net {

// Where they lie in a folder: DIR, or a member's.
struct CertificateFiles {
  explicit CertificateFiles(const std::string& folder);

  std::string ca;
  std::string ca_key;       // only in DIR
  std::string certificate;  // only in a member's, as is its key
  std::string key;
  std::string revoked;
};
// The folder of member `name` (trainer1) below `directory`, which is DIR.
std::string MemberFolder(const std::string& directory, const std::string& name);
// Whether all that MakeCertificates makes of the member is there.
bool HasMember(const std::string& directory, const Identity& member);
// The folders below `directory` that hold a member's certificate: "ps0".
std::vector<std::string> MembersIn(const std::string& directory);

struct CertificatesOptions {
  std::string directory;
  std::string job;
  std::vector<Identity> members;  // `job` is filled in where empty
  // IP numbers and DNS names, into every SAN.
  std::vector<std::string> extra_hosts;
  absl::Duration validity = absl::Hours(24 * 30);
  bool renew = false;  // in place of those that are there
};

// Makes what is absent below `directory` and keeps an authority that is there,
// so that members can be added later. kFailedPrecondition if the authority
// there is of another job, or is absent while its members are there;
// kInvalidArgument if it ends before `validity` does, or if a name cannot be;
// kAlreadyExists if a member is there.
absl::Status MakeCertificates(const CertificatesOptions& options);

// The same in memory, for tests and launchers.
struct Authority {
  std::string certificate;  // PEM
  std::string key;          // PEM
};
struct MemberCertificate {
  std::string certificate;  // PEM
  std::string key;          // PEM
};
struct Validity {
  absl::Time from;
  absl::Time until;
};
absl::StatusOr<Authority> MakeAuthority(const std::string& job,
                                        Validity validity);
absl::StatusOr<MemberCertificate> MakeMemberCertificate(
    const Authority& authority, const Identity& identity,
    const std::vector<std::string>& extra_hosts, Validity validity);

// A list (PEM) by which `authority` takes back `certificates` (PEM), in force
// within `validity`.
absl::StatusOr<std::string> MakeRevocationList(
    const Authority& authority, const std::vector<std::string>& certificates,
    Validity validity);

// Takes back the certificates of `members` (ps0), beside those taken back
// before, and leaves the list as crl.pem below `directory` and in each member's
// folder: copy it to its host. kNotFound if there is no such member.
absl::Status RevokeCertificates(const std::string& directory,
                                const std::vector<std::string>& members);

// What a certificate says of its holder.
struct CertificateFacts {
  Identity identity;
  Validity validity;
};
absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& pem);

// Ok if `key` is the private key of `certificate`; else kInvalidArgument.
absl::Status CheckKeyFits(const std::string& certificate,
                          const std::string& key);

}  // namespace weft::net

#endif  // WEFT_NET_TLS_CERTIFICATES_H_
