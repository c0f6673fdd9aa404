// client_host ADDRESS: a client in a process of its own, for a test to kill. It
// calls ParkForClients at ADDRESS, which never answers, with no deadline.

#include <cstdio>

#include "weft/base/future.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/rpc/function.h"

namespace weft::rpc {

// Only its name and signature are used: client_test has the function.
Future<void> ParkForClients(CallContext&) {
  return MakeReady<void>(absl::OkStatus());
}
WEFT_RPC(ParkForClients);

}  // namespace weft::rpc

int main(int argc, char** argv) {
  using namespace weft;
  if (argc != 2) return 2;
  auto client = rpc::Client::Connect(argv[1]);
  if (!client.ok()) {
    std::puts(client.status().ToString().c_str());
    return 1;
  }
  const absl::Status status =
      rpc::CallAsync((*client)->To(absl::InfiniteDuration()),
                     rpc::ParkForClients)
          .Wait(absl::InfiniteDuration());
  std::puts(status.ToString().c_str());
}
