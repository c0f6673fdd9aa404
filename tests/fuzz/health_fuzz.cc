// health: no message harms what answers health checks.

#include "weft/net/health.h"
#include "weft/proto/health.pb.h"
#include "weft/tests/fuzz/fuzz_target.h"
#include "weft/tests/fuzz/stream_reader.h"

namespace weft::testing {
namespace {

std::vector<std::string> Seeds() {
  grpc::health::v1::HealthCheckRequest request;
  const std::string all = request.SerializeAsString();
  request.set_service("weft.rpc.v1.Worker");
  return {all, request.SerializeAsString()};
}

void Run(absl::string_view input) {
  net::Health health;
  health.SetServices({"weft.rpc.v1.Worker"});
  health.SetServing(true);
  auto acceptor = health.WatchAcceptor();
  TellStream<grpc::health::v1::HealthCheckResponse>(acceptor, input);
}

WEFT_FUZZ_TARGET(health, Seeds, NoWords, Run);

}  // namespace
}  // namespace weft::testing
