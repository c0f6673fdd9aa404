// Clients that are no workers: typed by Client, and plain as any language may.

#include "weft/rpc/client.h"

#include <signal.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/base/failpoint.h"
#include "weft/base/parker.h"
#include "weft/base/thread_pool.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/net/channel.h"
#include "weft/net/endpoint.h"
#include "weft/net/tls/certificates.h"
#include "weft/proto/reflection.pb.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/gateway/untyped_call_service.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/outcome.h"
#include "weft/tensor/codec.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/grpc_transport.h"

namespace weft::rpc {

// What the worker of these tests has.
Tensor ScaleForClients(const Tensor& x, double k) {
  Tensor y = x.Clone();
  for (int64_t i = 0; i < y.numel(); ++i) {
    y.data<float>()[i] *= static_cast<float>(k);
  }
  return y;
}
WEFT_RPC(ScaleForClients);

std::string CallerForClients(CallContext& context) {
  return context.peer().name;
}
WEFT_RPC(CallerForClients);
WEFT_RPC_ROLES(CallerForClients, "client");

// A tensor of a device of the worker.
Tensor OnDeviceForClients(CallContext& context) {
  auto* devices = context.Local<device::testing::SimulatedDevices>();
  return Tensor::Ones({3}, DType::kF32, Device(devices->context(), 0));
}
WEFT_RPC(OnDeviceForClients);

struct Parked {
  Promise<void> arrived;
  Promise<void> given_up;
  Promise<void> never;
};

// Ends when its caller has given it up.
Future<void> ParkForClients(CallContext& context) {
  auto* parked = context.Local<Parked>();
  parked->never.OnCancel([parked](const absl::Status&) {
    parked->given_up.Set(absl::OkStatus());
  });
  parked->arrived.Set(absl::OkStatus());
  return parked->never.future();
}
WEFT_RPC(ParkForClients);

// Seconds that are left to it.
double PatienceForClients(CallContext& context) {
  return absl::ToDoubleSeconds(context.Remaining());
}
WEFT_RPC(PatienceForClients);

absl::Status FailForClients() {
  return absl::DataLossError("as it was asked to");
}
WEFT_RPC(FailForClients);

struct OwnType {};
template <>
struct Codec<OwnType> {
  static std::string TypeName() { return "example.Own"; }
  static void Encode(const OwnType&, Encoder&) {}
  static absl::Status Decode(Decoder&, OwnType&) { return absl::OkStatus(); }
};
void OwnForClients(const OwnType&) {}
WEFT_RPC(OwnForClients);

// One whose reader throws at 13.
struct Fragile {
  int64_t value = 0;
};
template <>
struct Codec<Fragile> {
  static std::string TypeName() { return "example.Fragile"; }
  static void Encode(const Fragile& x, Encoder& e) { e.Write(x.value); }
  static absl::Status Decode(Decoder& d, Fragile& x) {
    WEFT_RETURN_IF_ERROR(d.Read(x.value));
    if (x.value == 13) throw std::runtime_error("broke it");
    return absl::OkStatus();
  }
};
Fragile FragileForClients(int64_t value) { return Fragile{value}; }
WEFT_RPC(FragileForClients);

namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::Not;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr absl::Duration kLong = absl::Seconds(30);

// The programs that dial in must not share names with the worker's rank.
constexpr uint64_t kEpoch = 5;

// A worker as worker::Worker makes it, without a job.
class Served {
 public:
  explicit Served(std::string listen,
                  net::Credentials credentials = net::Credentials::LocalOnly(),
                  WorkerKey key = {0, kEpoch}) {
    auto pool = ThreadPool::Create({.name = "handlers", .threads = 2});
    WEFT_CHECK(pool.ok()) << pool.status().ToString();
    pool_ = *std::move(pool);
    net::LoopOptions loop;
    loop.credentials = std::move(credentials);
    auto made = net::Loop::Create(std::move(loop));
    WEFT_CHECK(made.ok()) << made.status().ToString();
    loop_ = *std::move(made);
    net::EndpointOptions endpoint;
    endpoint.name = "ps0";
    endpoint.listen = std::move(listen);
    auto opened = net::Endpoint::Open(*loop_, std::move(endpoint));
    WEFT_CHECK(opened.ok()) << opened.status().ToString();
    endpoint_ = *std::move(opened);
    transport_ = transport::MakeGrpcTransport(*loop_, *endpoint_);
    transport_->Register(ConnectionPurpose());
    plain_ = std::make_unique<UntypedCallService>(*endpoint_, *pool_);
    const absl::Status started = endpoint_->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
    AgentOptions agent;
    agent.job = "job";
    agent.name = "ps0";
    agent.key = key;
    agent.build = "b1";
    agent.transport = transport_.get();
    agent.directory = &directory_;
    agent.executor = pool_.get();
    auto served = Agent::Create(std::move(agent));
    WEFT_CHECK(served.ok()) << served.status().ToString();
    agent_ = *std::move(served);
    agent_->SetLocal(&parked_);
    plain_->Serve(*agent_);
  }

  const std::string& address() const { return endpoint_->address(); }
  Agent& agent() { return *agent_; }
  Parked& parked() { return parked_; }
  void EndAgent() { agent_.reset(); }

  // After the caller's deadline, which may pass before the call has come.
  void ExpectGivenUpIfArrived() {
    EXPECT_THAT(agent_->AwaitIdle(kLong), IsOk());
    if (!parked_.arrived.future().IsReady()) return;
    EXPECT_THAT(parked_.given_up.future().Wait(kLong), IsOk());
  }

 private:
  Parked parked_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<UntypedCallService> plain_;
  FixedDirectory directory_;
  std::unique_ptr<Agent> agent_;
};

class ClientTest : public ::testing::Test {
 protected:
  std::string Socket() const { return absl::StrCat("unix:", dir_.Path("ps0")); }

  // The credentials of ps0 or client3: the first call makes the certificates.
  net::Credentials CredentialsOf(const std::string& name) {
    net::CertificatesOptions options;
    options.directory = dir_.Path("certs");
    options.job = "job";
    options.members = {{"job", "ps", 0}, {"job", "client", 3}};
    if (!made_certificates_) {
      const absl::Status made = net::MakeCertificates(options);
      WEFT_CHECK(made.ok()) << made.ToString();
      made_certificates_ = true;
    }
    auto read = net::Credentials::ForMember(options.directory, name);
    WEFT_CHECK(read.ok()) << read.status().ToString();
    return *std::move(read);
  }

  // The reply of the worker at `address` to a Describe with `credentials`.
  static absl::StatusOr<v1::DescribeReply> DescribeTo(
      net::Credentials credentials, const std::string& address) {
    net::LoopOptions options;
    options.credentials = std::move(credentials);
    WEFT_ASSIGN_OR_RETURN(const auto loop, net::Loop::Create(options));
    net::ChannelOptions to_ps0;
    to_ps0.name = "ps0";
    WEFT_ASSIGN_OR_RETURN(const auto channel,
                          net::Channel::Create(*loop, address, to_ps0));
    WEFT_ASSIGN_OR_RETURN(
        const Slices answer,
        channel->UnaryCall("/weft.rpc.v1.Worker/Describe", {}, kLong)
            .Wait(kLong));
    v1::DescribeReply reply;
    if (reply.ParseFromString(std::string(Flatten(answer).view()))) {
      return reply;
    }
    return absl::DataLossError("no DescribeReply");
  }

  TempDir dir_;
  bool made_certificates_ = false;
};

TEST_F(ClientTest, CallsAWorkerWithoutJoiningIt) {
  const Served served(Socket());
  WEFT_ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect(Socket()));
  EXPECT_EQ(client->worker().name, "ps0");
  EXPECT_EQ(client->worker().key, (WorkerKey{0, kEpoch}));
  const auto y = Call(client->To(kLong), ScaleForClients,
                      Tensor::FromVector<float>({1, 2}), 2.0);
  ASSERT_THAT(y, IsOk());
  EXPECT_THAT(y->span<float>(), ElementsAre(2, 4));
}

TEST_F(ClientTest, ErrorsCarryTheWorkersName) {
  const Served served(Socket());
  WEFT_ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect(Socket()));
  EXPECT_THAT(Call(client->To(kLong), FailForClients),
              StatusIs(absl::StatusCode::kDataLoss,
                       "FailForClients: as it was asked to"));
}

TEST_F(ClientTest, TwoClientsAreTwoCallers) {
  const Served served(Socket());
  WEFT_ASSERT_OK_AND_ASSIGN(const auto a, Client::Connect(Socket()));
  WEFT_ASSERT_OK_AND_ASSIGN(const auto b, Client::Connect(Socket()));
  const auto name_a = Call(a->To(kLong), CallerForClients);
  const auto name_b = Call(b->To(kLong), CallerForClients);
  ASSERT_THAT(name_a, IsOk());
  ASSERT_THAT(name_b, IsOk());
  EXPECT_THAT(*name_a, ::testing::StartsWith("client-"));
  EXPECT_NE(*name_a, *name_b);
}

TEST_F(ClientTest, ACancelledCallIsCancelledAtTheWorker) {
  Served served(Socket());
  WEFT_ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect(Socket()));
  Future<void> parked = CallAsync(client->To(kLong), ParkForClients);
  ASSERT_THAT(served.parked().arrived.future().Wait(kLong), IsOk());
  parked.Cancel(absl::CancelledError("no longer wanted"));
  EXPECT_THAT(parked.Wait(kLong), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(served.parked().given_up.future().Wait(kLong), IsOk());
}

class VanishedClientTest : public ClientTest {
 protected:
  // The call of a client that has gone is cancelled, and nothing of it is left
  // to keep the worker from ending.
  void ExpectGivenUp(Served& served) {
    EXPECT_THAT(served.parked().given_up.future().Wait(kLong), IsOk());
    EXPECT_TRUE(Becomes(
        [&] { return served.agent().Metrics().server_active_calls == 0; }));
    EXPECT_THAT(served.agent().Shutdown(kLong), IsOk());
  }
};

TEST_F(VanishedClientTest, OneThatIsDestroyedHasItsCallsCancelled) {
  Served served(Socket());
  WEFT_ASSERT_OK_AND_ASSIGN(auto client, Client::Connect(Socket()));
  const auto parked =
      CallAsync(client->To(absl::InfiniteDuration()), ParkForClients);
  ASSERT_THAT(served.parked().arrived.future().Wait(kLong), IsOk());
  client.reset();
  ExpectGivenUp(served);
}

TEST_F(VanishedClientTest, OneThatIsKilledHasItsCallsCancelled) {
  Served served(Socket());
  auto client = testing::Process::Start(
      {{testing::RunfilePath("rpc/client_host"), Socket()}, /*env=*/{}});
  ASSERT_THAT(client, IsOk());
  ASSERT_THAT(served.parked().arrived.future().Wait(kLong), IsOk())
      << (*client)->output();
  (*client)->Signal(SIGKILL);
  ExpectGivenUp(served);
}

TEST_F(ClientTest, DeadlinesPassAtBothEnds) {
  Served served(Socket());
  WEFT_ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect(Socket()));
  ASSERT_THAT(Call(client->To(kLong), CallerForClients), IsOk());
  // A time-out of Wait alone has no such word in its message.
  EXPECT_THAT(CallAsync(client->To(absl::Milliseconds(100)), ParkForClients)
                  .Wait(kLong),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
  served.ExpectGivenUpIfArrived();
}

TEST_F(ClientTest, AResultThatCannotBeReadEndsNoOtherCall) {
  const Served served(Socket());
  WEFT_ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect(Socket()));
  const Target worker = client->To(kLong);
  const auto bad = CallAsync(worker, FragileForClients, 13);
  const auto next = CallAsync(worker, FragileForClients, 1);
  EXPECT_THAT(
      bad.Wait(kLong),
      StatusIs(absl::StatusCode::kInternal,
               "FragileForClients: its result cannot be read: exception: "
               "broke it"));
  EXPECT_EQ(PhaseOf(bad.Wait(kLong).status()), Phase::kDecode);
  EXPECT_THAT(next.Wait(kLong), IsOkAndHolds(Field(&Fragile::value, 1)));
  EXPECT_THAT(Call(worker, FragileForClients, 2),
              IsOkAndHolds(Field(&Fragile::value, 2)));
}

TEST_F(ClientTest, ARestartedWorkerIsAnother) {
  auto served = std::make_unique<Served>(Socket());
  WEFT_ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect(Socket()));
  ASSERT_THAT(Call(client->To(kLong), CallerForClients), IsOk());
  served = nullptr;
  served = std::make_unique<Served>(Socket(), net::Credentials::LocalOnly(),
                                    WorkerKey{0, kEpoch + 1});
  EXPECT_THAT(Call(client->To(kLong), CallerForClients),
              StatusIs(absl::StatusCode::kUnavailable));
  WEFT_ASSERT_OK_AND_ASSIGN(const auto anew, Client::Connect(Socket()));
  EXPECT_THAT(Call(anew->To(kLong), CallerForClients), IsOk());
}

TEST_F(ClientTest, UnreachableOrForeignWorkerIsNamed) {
  EXPECT_THAT(Client::Connect(Socket()),
              StatusIs(absl::StatusCode::kUnavailable, Socket()));
  EXPECT_THAT(Client::Connect("nonsense"),
              StatusIs(absl::StatusCode::kInvalidArgument, "nonsense"));
  EXPECT_THAT(Client::Connect("127.0.0.1:1"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "TCP needs certificates"));
  const Served served(Socket());
  ClientOptions other;
  other.job = "other";
  EXPECT_THAT(Client::Connect(Socket(), other),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "wanted a worker of job \"other\""));
}

TEST_F(ClientTest, HasTheNameOfItsCertificateOverTls) {
  const Served served("127.0.0.1:0", CredentialsOf("ps0"));
  ClientOptions options;
  options.credentials = CredentialsOf("client3");
  options.worker = "ps0";
  WEFT_ASSERT_OK_AND_ASSIGN(const auto client,
                            Client::Connect(served.address(), options));
  EXPECT_THAT(Call(client->To(kLong), CallerForClients),
              IsOkAndHolds("client3"));
  // That one is for members, however it is called.
  EXPECT_THAT(Call(client->To(kLong), FailForClients),
              StatusIs(absl::StatusCode::kPermissionDenied, "client3"));
  net::LoopOptions secure;
  secure.credentials = CredentialsOf("client3");
  WEFT_ASSERT_OK_AND_ASSIGN(const auto loop, net::Loop::Create(secure));
  net::ChannelOptions to_ps0;
  to_ps0.name = "ps0";
  WEFT_ASSERT_OK_AND_ASSIGN(
      const auto channel,
      net::Channel::Create(*loop, served.address(), to_ps0));
  v1::CallRequest plain;
  plain.set_function("weft::rpc::FailForClients");
  EXPECT_THAT(channel
                  ->UnaryCall("/weft.rpc.v1.Worker/Call",
                              {Bytes::Own(plain.SerializeAsString())}, kLong)
                  .Wait(kLong),
              StatusIs(absl::StatusCode::kPermissionDenied, "client3"));
  options.worker = "ps1";
  EXPECT_THAT(Client::Connect(served.address(), options),
              StatusIs(absl::StatusCode::kUnauthenticated, "ps1"));
}

TEST_F(ClientTest, LearnsOnlyTheFunctionsOfItsRole) {
  const Served served("127.0.0.1:0", CredentialsOf("ps0"));
  const auto names = [&](const char* who) {
    std::vector<std::string> names;
    const auto reply = DescribeTo(CredentialsOf(who), served.address());
    EXPECT_THAT(reply, IsOk());
    if (reply.ok()) {
      for (const auto& function : reply->functions()) {
        names.push_back(function.name());
      }
    }
    return names;
  };
  const std::string for_clients = "weft::rpc::CallerForClients";
  const std::string for_members = "weft::rpc::FailForClients";
  EXPECT_THAT(names("client3"),
              AllOf(Contains(for_clients), Not(Contains(for_members))));
  EXPECT_THAT(names("ps0"),
              AllOf(Contains(for_members), Not(Contains(for_clients))));
}

// ------------------------------------------------------------ in any language

class UntypedCallTest : public ClientTest {
 protected:
  UntypedCallTest() : served_(std::make_unique<Served>(Socket())) {
    auto loop = net::Loop::Create();
    WEFT_CHECK(loop.ok()) << loop.status().ToString();
    loop_ = *std::move(loop);
    auto channel = net::Channel::Create(*loop_, Socket());
    WEFT_CHECK(channel.ok()) << channel.status().ToString();
    channel_ = *std::move(channel);
  }

  Future<Slices> Start(const std::string& request,
                       absl::Duration timeout = kLong) {
    return channel_->UnaryCall("/weft.rpc.v1.Worker/Call",
                               {Bytes::Copy(request)}, timeout);
  }

  absl::StatusOr<v1::CallReply> CallUntyped(const v1::CallRequest& request) {
    auto answer = Start(request.SerializeAsString()).Wait(kLong);
    if (!answer.ok()) return answer.status();
    v1::CallReply reply;
    EXPECT_TRUE(reply.ParseFromString(std::string(Flatten(*answer).view())));
    return reply;
  }

  static v1::CallRequest To(const std::string& function) {
    v1::CallRequest request;
    request.set_function(absl::StrCat("weft::rpc::", function));
    return request;
  }

  device::testing::SimulatedDevices devices_{1};
  const std::unique_ptr<Served> served_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Channel> channel_;
};

TEST_F(UntypedCallTest, TakesAndReturnsValues) {
  v1::CallRequest request = To("ScaleForClients");
  *request.add_arguments()->mutable_tensor() =
      EncodeTensor(Tensor::FromVector<float>({1, 2, 3}));
  request.add_arguments()->set_real(0.5);
  const auto reply = CallUntyped(request);
  ASSERT_THAT(reply, IsOk());
  const auto y = DecodeTensor(reply->result().tensor());
  ASSERT_THAT(y, IsOk());
  EXPECT_THAT(y->span<float>(), ElementsAre(0.5, 1, 1.5));
}

// A client has no device map, whether the worker has devices or not.
TEST_F(UntypedCallTest, ResultOnADeviceIsRefusedAndTensorsOfTheCpuPass) {
  served_->agent().SetLocal(&devices_);
  v1::CallRequest scale = To("ScaleForClients");
  *scale.add_arguments()->mutable_tensor() =
      EncodeTensor(Tensor::FromVector<float>({1, 2, 3}));
  scale.add_arguments()->set_real(0.5);
  DeviceOptions options;
  options.devices = {Device(devices_.context(), 0)};
  for (const bool has_devices : {false, true}) {
    SCOPED_TRACE(has_devices);
    if (has_devices) {
      ASSERT_THAT(served_->agent().SetDevices(options), IsOk());
    }
    EXPECT_THAT(
        CallUntyped(To("OnDeviceForClients")),
        AllOf(StatusIs(absl::StatusCode::kInvalidArgument, "OnDeviceForClient"),
              StatusIs(absl::StatusCode::kInvalidArgument, "simulated:0")));
    const auto reply = CallUntyped(scale);
    ASSERT_THAT(reply, IsOk());
    const auto y = DecodeTensor(reply->result().tensor());
    ASSERT_THAT(y, IsOk());
    EXPECT_THAT(y->ToVector<float>(), ElementsAre(0.5, 1, 1.5));
  }
}

TEST_F(UntypedCallTest, BadCallsAreNamed) {
  EXPECT_THAT(CallUntyped(To("Nowhere")),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "ps0: no function weft::rpc::Nowhere in build b1"));
  EXPECT_THAT(CallUntyped(To("ScaleForClients")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "ps0: weft::rpc::ScaleForClients: wanted 2 arguments, "
                       "found 0; it is tensor(tensor, f64)"));
  v1::CallRequest wrong = To("ScaleForClients");
  wrong.add_arguments()->set_text("x");
  wrong.add_arguments()->set_real(1);
  EXPECT_THAT(CallUntyped(wrong),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "argument 1: wanted tensor, found a text"));
  wrong.mutable_arguments(0)->mutable_tensor()->set_elements("abc");
  EXPECT_THAT(CallUntyped(wrong), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CallUntyped(To("OwnForClients")),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "example.Own has no untyped form"));
  EXPECT_THAT(
      Start("\xff\xff").Wait(kLong),
      StatusIs(absl::StatusCode::kInvalidArgument, "not a CallRequest"));
}

// protobuf has a line of its own for each.
TEST_F(UntypedCallTest, BadTextIsNoLineOfTheLog) {
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(
      CallUntyped(To("\xff")),
      StatusIs(absl::StatusCode::kInvalidArgument, "not a CallRequest"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(UntypedCallTest, IsPendingAndCountedAsAnyCall) {
  Future<Slices> call = Start(To("ParkForClients").SerializeAsString());
  EXPECT_THAT(served_->parked().arrived.future().Wait(kLong), IsOk());
  const auto pending = served_->agent().Pending();
  ASSERT_EQ(pending.size(), 1u);
  EXPECT_TRUE(pending[0].is_served);
  EXPECT_EQ(pending[0].peer, "client");
  EXPECT_EQ(pending[0].function, "weft::rpc::ParkForClients");
  EXPECT_EQ(served_->agent().Metrics().server_active_calls, 1);
  EXPECT_EQ(served_->agent().Metrics().client_active_calls, 0);
  call.Cancel();
  EXPECT_THAT(served_->parked().given_up.future().Wait(kLong), IsOk());
  EXPECT_THAT(CallUntyped(To("FailForClients")), ::testing::Not(IsOk()));
  const Traffic::Counts with = served_->agent().Metrics().peers.at("client");
  EXPECT_EQ(with.served, 2);
  EXPECT_GE(with.served_errors, 1);
  EXPECT_EQ(with.calls, 0);
}

TEST_F(UntypedCallTest, ErrorsOfTheFunctionAreTheCalls) {
  EXPECT_THAT(CallUntyped(To("FailForClients")),
              StatusIs(absl::StatusCode::kDataLoss,
                       "FailForClients: as it was asked to"));
}

TEST_F(UntypedCallTest, CancellationReachesTheFunction) {
  Future<Slices> call = Start(To("ParkForClients").SerializeAsString());
  ASSERT_THAT(served_->parked().arrived.future().Wait(kLong), IsOk());
  call.Cancel(absl::CancelledError("no longer wanted"));
  EXPECT_THAT(served_->parked().given_up.future().Wait(kLong), IsOk());
}

TEST_F(UntypedCallTest, TheDeadlineReachesTheFunction) {
  ASSERT_THAT(CallUntyped(To("PatienceForClients")), IsOk());
  EXPECT_THAT(
      Start(To("ParkForClients").SerializeAsString(), absl::Milliseconds(200))
          .Wait(kLong),
      StatusIs(absl::StatusCode::kDeadlineExceeded));
  served_->ExpectGivenUpIfArrived();
}

TEST_F(UntypedCallTest, CallWithoutADeadlineGetsOne) {
  const auto patience = [&](absl::Duration timeout) {
    const auto answer =
        Start(To("PatienceForClients").SerializeAsString(), timeout)
            .Wait(kLong);
    EXPECT_THAT(answer, IsOk());
    v1::CallReply reply;
    EXPECT_TRUE(answer.ok() &&
                reply.ParseFromString(std::string(Flatten(*answer).view())));
    return absl::Seconds(reply.result().real());
  };
  EXPECT_LT(patience(kLong), kUntypedTimeout / 2 + absl::Seconds(1));
  EXPECT_LE(patience(absl::InfiniteDuration()), kUntypedTimeout);
  EXPECT_GT(patience(absl::InfiniteDuration()), kUntypedTimeout / 2);
  EXPECT_LE(patience(absl::Hours(24)), kMaxUntypedTimeout);
  EXPECT_GT(patience(absl::Hours(24)), kMaxUntypedTimeout / 2);
}

TEST_F(UntypedCallTest, EndsWithTheAgent) {
  Future<Slices> call = Start(To("ParkForClients").SerializeAsString());
  ASSERT_THAT(served_->parked().arrived.future().Wait(kLong), IsOk());
  served_->EndAgent();
  EXPECT_THAT(call.Wait(kLong), StatusIs(absl::StatusCode::kCancelled, "ps0"));
  EXPECT_THAT(CallUntyped(To("FailForClients")),
              StatusIs(absl::StatusCode::kUnavailable));
}

// It has not run, and may be tried at another worker.
TEST_F(UntypedCallTest, CallDuringShutdownIsUnavailable) {
  const ScopedFailpoint stopped("rpc/stopped", "block");
  std::thread end([&] { served_->EndAgent(); });
  EXPECT_TRUE(Becomes([&] { return stopped.hits() == 1; }));
  EXPECT_THAT(
      CallUntyped(To("FailForClients")),
      StatusIs(absl::StatusCode::kUnavailable, "the agent of ps0 has ended"));
  DisarmFailpoint("rpc/stopped");
  end.join();
}

TEST_F(UntypedCallTest, DescribesItself) {
  const auto answer =
      channel_->UnaryCall("/weft.rpc.v1.Worker/Describe", {}, kLong)
          .Wait(kLong);
  ASSERT_THAT(answer, IsOk());
  v1::DescribeReply reply;
  ASSERT_TRUE(reply.ParseFromString(std::string(Flatten(*answer).view())));
  EXPECT_EQ(reply.job(), "job");
  EXPECT_EQ(reply.name(), "ps0");
  EXPECT_EQ(reply.key().epoch(), kEpoch);
  bool found = false;
  for (const v1::Function& function : reply.functions()) {
    if (function.name() != "weft::rpc::ScaleForClients") continue;
    found = true;
    EXPECT_EQ(function.signature(), "tensor(tensor, f64)");
  }
  EXPECT_TRUE(found);
}

// Takes one answer.
class OneAnswer final : public net::StreamObserver {
 public:
  void OnMessage(Slices message) override { answer.Set(std::move(message)); }
  void OnClosed(absl::Status status) override {
    answer.Set(status.ok() ? absl::UnknownError("closed") : status);
  }
  Promise<Slices> answer;
};

TEST_F(UntypedCallTest, ReflectionKnowsItsMessages) {
  auto heard = std::make_shared<OneAnswer>();
  const auto stream = channel_->OpenStream(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", heard);
  grpc::reflection::v1alpha::ServerReflectionRequest request;
  request.set_file_containing_symbol("weft.rpc.v1.Worker");
  ASSERT_TRUE(stream->Write({Bytes::Own(request.SerializeAsString())}));
  const auto answer = heard->answer.future().Wait(kLong);
  ASSERT_THAT(answer, IsOk());
  grpc::reflection::v1alpha::ServerReflectionResponse response;
  ASSERT_TRUE(response.ParseFromString(std::string(Flatten(*answer).view())));
  // rpc.proto and tensor.proto, which it imports.
  EXPECT_EQ(response.file_descriptor_response().file_descriptor_proto_size(),
            2);
}

}  // namespace
}  // namespace weft::rpc
