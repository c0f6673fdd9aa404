// certificate: no certificate harms its reader, and who it names is an
// identity.

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/net/tls/certificates.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

// The certificate of ps0 of a job "job", signed by itself: the bytes within
// PEM's base64.
constexpr char kCertificate[] =
    "308201b73082015da003020102021416b374397d43ff4795f888c2fbeae15a459c393730"
    "0a06082a8648ce3d040302301c310c300a060355040a0c036a6f62310c300a0603550403"
    "0c03707330301e170d3236313132313133343933395a170d323631323231313334393339"
    "5a301c310c300a060355040a0c036a6f62310c300a06035504030c037073303059301306"
    "072a8648ce3d020106082a8648ce3d030107034200047770bc8f1bfc2451b2e793c526da"
    "a335ec9d145c46c01cb333a07dc15ac9d36e4544e76d048e080da154175e2794ea31c2f1"
    "7c5039412a9c818a6bfbe6bb096da37d307b301d0603551d0e04160414df99cb1a472d28"
    "0fd840fef4685175a8e3063fbf301f0603551d23041830168014df99cb1a472d280fd840"
    "fef4685175a8e3063fbf300f0603551d130101ff040530030101ff30280603551d110421"
    "301f860f776566743a2f2f6a6f622f70732f30820c7073302e6a6f622e77656674300a06"
    "082a8648ce3d0403020348003045022100ef22a719d869eb639058646dcac31950da1a8c"
    "6188cdcabf43404b1bb74cbad0022048ac53d2133b4306bbabac1c9f4f8afedc9b897a21"
    "fc29e9e9abf380bf2132cb";

std::vector<std::string> Seeds() {
  return {absl::HexStringToBytes(kCertificate)};
}

std::vector<std::string> Words() {
  using std::string_literals::operator""s;
  return {"\x86\x0fweft://job/ps/0", "\x30\x80", "\x30\x84\xff\xff\xff\xff",
          "\x82\x01\x00"s, "weft://"};
}

void Run(absl::string_view input) {
  (void)net::ReadCertificate(std::string(input));
  const auto facts = net::ReadCertificate(
      absl::StrCat("-----BEGIN CERTIFICATE-----\n", absl::Base64Escape(input),
                   "\n-----END CERTIFICATE-----\n"));
  Hold(!facts.ok() || net::ValidateIdentity(facts->identity).ok());
}

WEFT_FUZZ_TARGET(certificate, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
