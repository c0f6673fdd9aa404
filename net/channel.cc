#include "weft/net/channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/net/address.h"
#include "weft/net/call/client_call.h"
#include "weft/net/loop/loop_core.h"

namespace weft::net {
namespace {

// One attempt to connect, handshake included.
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);

int Milliseconds(absl::Duration d) {
  return static_cast<int>(absl::ToInt64Milliseconds(d));
}

// ps0.job.weft: the name in the peer's certificate, which over TLS is the
// authority too, since gRPC checks that.
std::string CertificateName(const Credentials& credentials,
                            const std::string& name) {
  return absl::StrCat(name, ".", credentials.identity()->job, ".weft");
}

grpc::ChannelArguments ArgumentsOf(const LoopOptions& loop,
                                   const ChannelOptions& options, bool tls) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(loop.max_message_bytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(loop.max_message_bytes));
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE,
                   static_cast<int>(loop.max_metadata_bytes));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // gRPC grows towards it while reads are full. From a least chunk of that size
  // each read of a small reply would pass dozens of empty slices.
  arguments.SetInt(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, loop.read_chunk_bytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                   Milliseconds(loop.keepalive_interval));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   Milliseconds(loop.keepalive_timeout));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   Milliseconds(kFirstPause));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   Milliseconds(kConnectTimeout));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   Milliseconds(options.max_reconnect_pause));
  if (!options.name.empty()) {
    if (tls) {
      arguments.SetSslTargetNameOverride(
          CertificateName(loop.credentials, options.name));
    } else {
      arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, options.name);
    }
  }
  return arguments;
}

}  // namespace

struct Channel::State {
  Target target;
};

absl::StatusOr<std::unique_ptr<Channel>> Channel::Create(
    Loop& loop, absl::string_view address, ChannelOptions options) {
  return Create(loop.core(), address, std::move(options));
}

absl::StatusOr<std::unique_ptr<Channel>> Channel::Create(
    Loop::Core& core, absl::string_view address, ChannelOptions options) {
  WEFT_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  const LoopOptions& loop_options = core.options();
  const bool is_tcp = parsed.kind == Address::Kind::kTcp;
  if (is_tcp && !loop_options.credentials.secure() &&
      !loop_options.credentials.insecure()) {
    return CertificatesError(absl::StrCat("wanted to connect to ", address,
                                          ": TCP needs certificates; ",
                                          kHowToGetCertificates));
  }
  auto state = std::make_shared<State>();
  state->target.name = options.name;
  state->target.address = parsed.ToString();
  state->target.wait_for_ready = options.wait_for_ready;
  const bool tls = is_tcp && loop_options.credentials.secure();
  state->target.channel = grpc::CreateCustomChannel(
      parsed.ToString(), core.ChannelCredentialsFor(parsed),
      ArgumentsOf(loop_options, options, tls));
  state->target.core = core.shared_from_this();
  return std::unique_ptr<Channel>(new Channel(std::move(state)));
}

Channel::Channel(std::shared_ptr<State> state) : state_(std::move(state)) {}

Channel::~Channel() {
  state_->target.core->AbortCalls(
      state_.get(),
      absl::CancelledError(
          absl::StrCat(state_->target.ToString(), ": the channel was closed")));
}

Future<Slices> Channel::UnaryCall(absl::string_view method, Slices request,
                                  absl::Duration timeout,
                                  const Metadata& metadata) {
  return ClientUnary::Start(state_.get(), state_->target, std::string(method),
                            std::move(request), timeout, metadata);
}

std::unique_ptr<Stream> Channel::OpenStream(
    absl::string_view method, std::shared_ptr<StreamObserver> observer,
    const Metadata& metadata) {
  return ClientStream::Open(state_.get(), state_->target, std::string(method),
                            std::move(observer), metadata);
}

const std::string& Channel::address() const { return state_->target.address; }

}  // namespace weft::net
