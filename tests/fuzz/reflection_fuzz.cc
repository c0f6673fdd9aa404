// reflection: no message harms what tells gRPC tools of the services.

#include "weft/net/reflection.h"
#include "weft/proto/reflection.pb.h"
#include "weft/tests/fuzz/fuzz_target.h"
#include "weft/tests/fuzz/stream_reader.h"

namespace weft::testing {
namespace {

using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

std::vector<std::string> Seeds() {
  std::vector<ServerReflectionRequest> requests(3);
  requests[0].set_list_services("*");
  requests[1].set_file_by_filename("weft/proto/tensor.proto");
  requests[2].set_file_containing_symbol("weft.tensor.v1.Tensor");
  requests[2].set_host("ps0");
  std::vector<std::string> seeds;
  for (const auto& request : requests) {
    seeds.push_back(request.SerializeAsString());
  }
  return seeds;
}

std::vector<std::string> Words() {
  return {"weft.rpc.v1", "weft/proto/rpc.proto", "..", "\x2a\x03", "\x32\x01"};
}

void Run(absl::string_view input) {
  auto acceptor = net::ReflectionAcceptor(
      [] { return std::set<std::string>{"weft.rpc.v1.Worker"}; });
  TellStream<ServerReflectionResponse>(acceptor, input);
}

WEFT_FUZZ_TARGET(reflection, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
