#include "weft/rpc/client.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/net/channel.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/gateway/description.h"
#include "weft/rpc/object_table.h"
#include "weft/transport/grpc_transport.h"

namespace weft::rpc {
namespace {

// The incarnation of a client: chosen at random, so that a session is not taken
// for another's.
WorkerKey NewKey() {
  std::random_device random;
  return {kClientId, uint64_t{random()} << 32 | random()};
}

absl::StatusOr<v1::DescribeReply> Describe(net::Loop& loop,
                                           absl::string_view address,
                                           const ClientOptions& options) {
  net::ChannelOptions channel_options;
  channel_options.name = options.worker;
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<net::Channel> channel,
                        net::Channel::Create(loop, address, channel_options));
  WEFT_ASSIGN_OR_RETURN(const Slices answer,
                        channel
                            ->UnaryCall("/weft.rpc.v1.Worker/Describe", {},
                                        options.connect_timeout)
                            .Wait(options.connect_timeout + absl::Seconds(1)));
  WEFT_ASSIGN_OR_RETURN(const v1::DescribeReply reply,
                        ParseDescription(address, Flatten(answer).view()));
  if (options.job.empty() || reply.job() == options.job) return reply;
  return absl::FailedPreconditionError(
      absl::StrCat("wanted a worker of job \"", options.job, "\" at ", address,
                   ", found ", reply.name(), " of job \"", reply.job(), "\""));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(
    absl::string_view address, ClientOptions options) {
  std::unique_ptr<Client> client(new Client());
  WEFT_RETURN_IF_ERROR(client->Open(address, std::move(options)));
  return client;
}

Client::~Client() = default;

absl::Status Client::Open(absl::string_view address, ClientOptions options) {
  net::LoopOptions loop;
  loop.credentials = options.credentials;
  WEFT_ASSIGN_OR_RETURN(loop_, net::Loop::Create(std::move(loop)));
  WEFT_ASSIGN_OR_RETURN(const v1::DescribeReply reply,
                        Describe(*loop_, address, options));
  worker_ = {reply.name(),
             {reply.key().id(), reply.key().epoch()},
             std::string(address)};
  transport_ = transport::MakeGrpcTransport(*loop_);
  directory_ = std::make_unique<FixedDirectory>(std::vector<Worker>{worker_});
  AgentOptions agent;
  agent.job = reply.job();
  agent.key = NewKey();
  const auto& identity = options.credentials.identity();
  agent.name = identity.has_value()
                   ? identity->Name()
                   : absl::StrCat("client-", absl::Hex(agent.key.epoch));
  agent.transport = transport_.get();
  agent.directory = directory_.get();
  agent.threads = 1;  // that serve, which nobody asks of it
  agent.default_timeout = options.call_timeout;
  agent.registry = options.registry;
  WEFT_ASSIGN_OR_RETURN(agent_, Agent::Create(std::move(agent)));
  return absl::OkStatus();
}

Target Client::To(std::optional<absl::Duration> timeout) {
  return agent_->To(worker_.key, timeout);
}

}  // namespace weft::rpc
