// identity: no URI of a certificate passes for another than the one it is.

#include "weft/net/tls/identity.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::vector<std::string> Seeds() {
  return {"weft://job/ps/0", "weft://a-job-7/trainer/2147483647",
          "weft://j/admin/10"};
}

std::vector<std::string> Words() {
  return {"weft://", "/", "//", "-", "0", "+1", "%2f", " ", "A"};
}

void Run(absl::string_view uri) {
  const auto identity = net::ParseIdentity(uri);
  if (!identity.ok()) return;
  Hold(identity->Uri() == uri);
  Hold(identity->rank >= 0);
  Hold(identity->job.find('/') == std::string::npos);
}

WEFT_FUZZ_TARGET(identity, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
