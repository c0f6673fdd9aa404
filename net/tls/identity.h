// Identity: who a certificate says its holder is, `weft://<job>/<role>/<rank>`.

#ifndef WEFT_NET_TLS_IDENTITY_H_
#define WEFT_NET_TLS_IDENTITY_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::net {

// `job` and `role` are DNS labels: 1 to 63 of [a-z0-9-], not at the ends a '-'.
// `role` does not end in a digit, so that `<role><rank>` reads back.
struct Identity {
  std::string job;
  std::string role;
  int rank = 0;

  std::string Name() const;     // trainer1
  std::string Uri() const;      // weft://job/trainer/1
  std::string DnsName() const;  // trainer1.job.weft

  friend bool operator==(const Identity& a, const Identity& b) {
    return a.job == b.job && a.role == b.role && a.rank == b.rank;
  }
};

// kInvalidArgument if it is not as above. The one rule for names of jobs.
absl::Status ValidateJob(absl::string_view job);

// kInvalidArgument if a part is not as above.
absl::Status ValidateIdentity(const Identity& identity);

// Reads what Uri() writes, and nothing else.
absl::StatusOr<Identity> ParseIdentity(absl::string_view uri);

}  // namespace weft::net

#endif  // WEFT_NET_TLS_IDENTITY_H_
