// Groups whose processes end right after their last operation, over gRPC.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/stream/stream_backend.h"
#include "weft/collectives/backends/stream/streams.h"
#include "weft/collectives/process_group.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/credentials.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/grpc_transport.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;

// What a process has.
class Process {
 public:
  explicit Process(int rank) : name_(absl::StrCat("rank", rank)) {
    net::LoopOptions loop;
    loop.credentials = net::Credentials::Insecure();
    loop_ = net::Loop::Create(loop).value();
    net::EndpointOptions endpoint;
    endpoint.name = name_;
    endpoint.listen = "127.0.0.1:0";
    endpoint_ = net::Endpoint::Open(*loop_, endpoint).value();
    transport_ = transport::MakeGrpcTransport(*loop_, *endpoint_, {});
    streams_ = std::make_unique<Streams>(*transport_);
    WEFT_EXPECT_OK(endpoint_->Start());
  }

  transport::Destination destination() const {
    return {name_, endpoint_->address()};
  }
  Streams& streams() { return *streams_; }

 private:
  const std::string name_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<Streams> streams_;
};

TEST(Leave, RankThatEndsAfterABarrierHasDeliveredItsPart) {
  constexpr int kRanks = 3;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<Process>> processes;
    std::vector<transport::Destination> destinations;
    for (int r = 0; r < kRanks; ++r) {
      processes.push_back(std::make_unique<Process>(r));
      destinations.push_back(processes[r]->destination());
    }
    const auto statuses = RunRanks(kRanks, [&](int rank) -> absl::Status {
      const std::unique_ptr<Process> process = std::move(processes[rank]);
      StreamOptions options;
      options.streams = &process->streams();
      options.rank = rank;
      options.ranks = destinations;
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                            StreamBackend::Connect(options));
      const auto group = ProcessGroup::Create(std::move(backend));
      return group->Barrier();
    });
    ASSERT_THAT(statuses, Each(IsOk())) << "round " << round;
  }
}

}  // namespace
}  // namespace weft::collectives
