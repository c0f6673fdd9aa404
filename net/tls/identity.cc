#include "weft/net/tls/identity.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "weft/base/status_macros.h"

namespace weft::net {
namespace {

constexpr absl::string_view kScheme = "weft://";
constexpr int kMaxRank = 1'000'000;

bool IsLabel(absl::string_view text) {
  if (text.empty() || text.size() > 63 || text.front() == '-' ||
      text.back() == '-')
    return false;
  for (char c : text) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-')
      return false;
  }
  return true;
}

absl::Status Refuse(absl::string_view what, absl::string_view found,
                    absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(
      "identity: ", what, " is \"", absl::CHexEscape(found.substr(0, 200)),
      "\", wanted ", wanted));
}

}  // namespace

std::string Identity::Name() const { return absl::StrCat(role, rank); }
std::string Identity::Uri() const {
  return absl::StrCat(kScheme, job, "/", role, "/", rank);
}
std::string Identity::DnsName() const {
  return absl::StrCat(Name(), ".", job, ".weft");
}

absl::Status ValidateJob(absl::string_view job) {
  if (IsLabel(job)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "job name \"", absl::CHexEscape(job.substr(0, 80)),
      "\": wanted 1 to 63 of [a-z0-9-], the first and the last not '-'"));
}

absl::Status ValidateIdentity(const Identity& identity) {
  WEFT_RETURN_IF_ERROR(ValidateJob(identity.job));
  if (!IsLabel(identity.role) || absl::ascii_isdigit(identity.role.back()) ||
      identity.role.size() > 56) {
    return Refuse("the role", identity.role,
                  "1 to 56 of [a-z0-9-], the last not a digit");
  }
  if (identity.rank < 0 || identity.rank > kMaxRank) {
    return Refuse("the rank", absl::StrCat(identity.rank),
                  absl::StrCat("0 to ", kMaxRank));
  }
  return absl::OkStatus();
}

absl::StatusOr<Identity> ParseIdentity(absl::string_view uri) {
  const std::string wanted = "weft://<job>/<role>/<rank>";
  absl::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, kScheme))
    return Refuse("the URI", uri, wanted);
  const std::vector<absl::string_view> parts =
      absl::StrSplit(rest, absl::MaxSplits('/', 3));
  Identity identity;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[2], &identity.rank))
    return Refuse("the URI", uri, wanted);
  identity.job = std::string(parts[0]);
  identity.role = std::string(parts[1]);
  WEFT_RETURN_IF_ERROR(ValidateIdentity(identity));
  // One spelling only: no sign, no leading zeros, no spaces.
  if (identity.Uri() != uri) return Refuse("the URI", uri, wanted);
  return identity;
}

}  // namespace weft::net
