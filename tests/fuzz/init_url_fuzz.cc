// init_url: no text harms the parser of init URLs, and what it takes is an
// address or a path.

#include "weft/net/address.h"
#include "weft/rendezvous/init_url.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using rendezvous::InitUrl;

std::vector<std::string> Seeds() {
  return {"env://",
          "tcp://node1:7000",
          "tcp://[::1]:7000",
          "file:///shared/job",
          "etcd://node1:2379/prefix",
          "etcd+unix:///run/etcd.sock"};
}

std::vector<std::string> Words() {
  return {"://", "env", "tcp", "file", "etcd", "+unix", "/", "..", "%00", ":0"};
}

void Run(absl::string_view text) {
  const auto url = rendezvous::ParseInitUrl(text);
  if (!url.ok()) return;
  if (url->kind == InitUrl::Kind::kTcp || url->kind == InitUrl::Kind::kEtcd) {
    Hold(net::ParseAddress(url->address).ok());
  }
  if (url->kind == InitUrl::Kind::kFile) Hold(url->path.substr(0, 1) == "/");
}

WEFT_FUZZ_TARGET(init_url, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
