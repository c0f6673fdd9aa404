// address: no text harms the parser of addresses, and what it takes it writes
// again.

#include "weft/net/address.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::vector<std::string> Seeds() {
  return {"unix:/run/weft/ps0.sock", "127.0.0.1:7000", "[::1]:0",
          "node1.example.org:65535", "localhost:1"};
}

std::vector<std::string> Words() {
  return {"unix:", "/", ":", "[", "]", "::", "65536", "-1", "..", "%"};
}

void Run(absl::string_view input) {
  const auto address = net::ParseAddress(input);
  if (!address.ok()) return;
  (void)address->IsLocal();
  const auto again = net::ParseAddress(address->ToString());
  Hold(again.ok() && again->ToString() == address->ToString());
}

WEFT_FUZZ_TARGET(address, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
