// Etcd: an etcd of a test's own, at a unix socket in the test's directory, or
// on a TCP port with TLS.

#ifndef WEFT_TESTS_SUPPORT_ETCD_H_
#define WEFT_TESTS_SUPPORT_ETCD_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/tests/support/spawn.h"

namespace weft::testing {

// Thread-safety: one thread at a time.
class Etcd {
 public:
  // Without it tests of etcd are skipped; tools/setup.sh installs it.
  static bool IsInstalled();

  // Keeps its data in `directory`, which must outlive it, so that another may
  // go on from there. Returns once it serves, or what it wrote.
  static absl::StatusOr<std::unique_ptr<Etcd>> Start(
      const std::string& directory);

  // The same on a port of 127.0.0.1, with the certificate, key and authority of
  // `certificates` (cert.pem, key.pem, ca.pem). Clients must show a certificate
  // of that authority.
  static absl::StatusOr<std::unique_ptr<Etcd>> StartWithTls(
      const std::string& directory, const std::string& certificates);

  const std::string& address() const { return address_; }  // unix:/...
  std::string url() const { return "etcd+unix://" + address_.substr(5); }

 private:
  Etcd(std::string address, std::unique_ptr<Process> process)
      : address_(std::move(address)), process_(std::move(process)) {}

  const std::string address_;
  const std::unique_ptr<Process> process_;
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_SUPPORT_ETCD_H_
