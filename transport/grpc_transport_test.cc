// gRPC transports conform: with rings at both ends, at one and at none, and
// over TCP.

#include "weft/transport/grpc_transport.h"

#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/base/clock.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/certificates.h"
#include "weft/net/tls/credentials.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/testing/transport_conformance.h"

namespace weft::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::kPatience;
using ::weft::testing::TempDir;

// One process's part: a loop, an endpoint, a transport.
class Node {
 public:
  Node(const TempDir& directory, const std::string& name, int memories)
      : Node(name, absl::StrCat("unix:", directory.path(), "/", name),
             net::LoopOptions(), Options(memories, "")) {}
  // Over TCP, as the one that the certificate names.
  Node(const net::Credentials& credentials, const std::string& memory_directory)
      : Node(credentials.identity()->Name(), "127.0.0.1:0",
             net::LoopOptions{credentials}, Options(64, memory_directory)) {}

  Transport& transport() { return *transport_; }
  Destination destination() const {
    return {name_, endpoint_->address(), transport_->memory_socket()};
  }

 private:
  Node(std::string name, const std::string& listen, net::LoopOptions loop,
       const GrpcTransportOptions& transport)
      : name_(std::move(name)), loop_(*net::Loop::Create(std::move(loop))) {
    net::EndpointOptions options;
    options.name = name_;
    options.listen = listen;
    options.probe_every = absl::ZeroDuration();
    endpoint_ = *net::Endpoint::Open(*loop_, options);
    transport_ = MakeGrpcTransport(*loop_, *endpoint_, transport);
    RegisterTestPurposes(*transport_);
    const absl::Status started = endpoint_->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
  }
  static GrpcTransportOptions Options(int memories,
                                      const std::string& memory_directory) {
    GrpcTransportOptions options;
    options.max_shared_memories = memories;
    options.memory_directory = memory_directory;
    return options;
  }

  const std::string name_;
  const std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::unique_ptr<Transport> transport_;
};

class GrpcPair final : public TransportPair {
 public:
  GrpcPair(int memories_a, int memories_b)
      : a_(directory_, "a", memories_a), b_(directory_, "b", memories_b) {}
  Transport& a() override { return a_.transport(); }
  Transport& b() override { return b_.transport(); }
  Destination b_destination() const override { return b_.destination(); }

 private:
  TempDir directory_;
  Node a_;
  Node b_;
};

MakeTransportPair Pair(int memories_a, int memories_b) {
  return [=] { return std::make_unique<GrpcPair>(memories_a, memories_b); };
}

INSTANTIATE_TEST_SUITE_P(Grpc, TransportConformance,
                         ::testing::Values(Pair(64, 64)));
INSTANTIATE_TEST_SUITE_P(GrpcWithoutSharedMemory, TransportConformance,
                         ::testing::Values(Pair(0, 0), Pair(64, 0),
                                           Pair(0, 64)));

// ------------------------------------------------------- TCP on one host

// The certificates of a job, and its directory of sockets.
class Job {
 public:
  Job() {
    net::CertificatesOptions options;
    options.directory = certificates_.path();
    options.job = "job";
    for (int r = 0; r < 3; ++r) options.members.push_back({"", "trainer", r});
    options.extra_hosts = {"127.0.0.1"};
    WEFT_CHECK(net::MakeCertificates(options).ok());
    WEFT_CHECK_EQ(chmod(sockets_.path().c_str(), 0700), 0);
  }
  net::Credentials As(int rank) const {
    return *net::Credentials::ForMember(certificates_.path(),
                                        absl::StrCat("trainer", rank));
  }
  const std::string& sockets() const { return sockets_.path(); }

 private:
  TempDir certificates_;
  TempDir sockets_;
};

class TlsPair final : public TransportPair {
 public:
  explicit TlsPair(bool shares_memory)
      : a_(job_.As(0), shares_memory ? job_.sockets() : ""),
        b_(job_.As(1), shares_memory ? job_.sockets() : "") {}
  Transport& a() override { return a_.transport(); }
  Transport& b() override { return b_.transport(); }
  Destination b_destination() const override { return b_.destination(); }

 private:
  Job job_;
  Node a_;
  Node b_;
};

INSTANTIATE_TEST_SUITE_P(
    GrpcOverTls, TransportConformance,
    ::testing::Values([] { return std::make_unique<TlsPair>(true); },
                      [] { return std::make_unique<TlsPair>(false); }));

// The rings that this process has mapped: two for a connection within it.
int MappedRings() {
  std::ifstream maps("/proc/self/maps");
  int mapped = 0;
  for (std::string line; std::getline(maps, line);) {
    mapped += line.find("memfd:weft-rings") != line.npos ? 1 : 0;
  }
  return mapped;
}

class MemoryOverTcp : public ::testing::Test {
 protected:
  ~MemoryOverTcp() override { Accept(nullptr); }

  void Accept(Transport::Acceptor acceptor) {
    for (Node* node : {&b_, &c_}) {
      node->transport().Accept(FirstPurpose(), acceptor);
    }
  }
  // Sends `text` from a, and back; how the connection ended if it does not
  // come.
  absl::Status SendAndReceive(Node& from, const Destination& to,
                              const std::string& text) {
    const auto there =
        std::make_shared<HearingObserver>(from.transport().driver());
    Accept([this, there](std::unique_ptr<Connection> connection) {
      names_.push_back(connection->ProvenName());
      there->echo = std::move(connection);
      return there;
    });
    const auto here =
        std::make_shared<HearingObserver>(from.transport().driver());
    const auto connection = from.transport().Connect(FirstPurpose(), to, here);
    (void)connection->Write({Bytes::Copy(text)});
    const Instant deadline = SteadyClock().Now() + kPatience;
    while (!here->got().IsReady() && !here->closed().IsReady()) {
      if (SteadyClock().Now() > deadline) {
        return absl::DeadlineExceededError("no echo");
      }
      (void)here->got().Wait(absl::Milliseconds(10));
    }
    rings_ = MappedRings();
    const bool has_echo = here->texts() == std::vector<std::string>{text};
    const absl::Status end =
        has_echo ? absl::OkStatus() : here->closed().Wait(kPatience);
    connection->Close(absl::AbortedError("enough"));
    (void)here->closed().Wait(kPatience);
    if (has_echo) (void)there->closed().Wait(kPatience);
    return end;
  }

  Job job_;
  Node a_{job_.As(0), job_.sockets()};
  Node b_{job_.As(1), job_.sockets()};
  Node c_{job_.As(2), job_.sockets()};
  std::vector<std::string> names_;  // that callers have proven
  int rings_ = 0;                   // while the last connection was open
};

TEST_F(MemoryOverTcp, PairOfOneHostUsesRingsAndProvesItsNames) {
  EXPECT_EQ(b_.destination().memory_socket,
            absl::StrCat(job_.sockets(), "/trainer1.mem"));
  EXPECT_THAT(SendAndReceive(a_, b_.destination(), "hello"), IsOk());
  EXPECT_EQ(rings_, 2);
  EXPECT_THAT(names_, ElementsAre("trainer0"));
}

TEST_F(MemoryOverTcp, PeerWithAnotherCertificateThanItsNameGetsNoMessage) {
  // c answers where b is expected; the memory socket is its own.
  Destination wrong = c_.destination();
  wrong.name = "trainer1";
  EXPECT_FALSE(SendAndReceive(a_, wrong, "for b alone").ok());
  EXPECT_THAT(names_, IsEmpty());
}

TEST_F(MemoryOverTcp, SocketOfAnotherMemberSharesNothingAndTheStreamServes) {
  // b names the socket of c, to which the memory is then sent; b cannot take
  // it.
  Destination lies = b_.destination();
  lies.memory_socket = c_.destination().memory_socket;
  EXPECT_THAT(SendAndReceive(a_, lies, "hello"), IsOk());
  EXPECT_EQ(rings_, 0);
  EXPECT_THAT(names_, ElementsAre("trainer0"));
}

TEST_F(MemoryOverTcp, SocketOutsideOfTheJobsDirectoryIsNotUsed) {
  // As of another user, another container or another host.
  TempDir elsewhere;
  ASSERT_EQ(chmod(elsewhere.path().c_str(), 0700), 0);
  for (const std::string& socket :
       {elsewhere.Path("trainer1.mem"),
        absl::StrCat(job_.sockets(), "/x/y.mem"),
        absl::StrCat(job_.sockets(), "/../trainer1.mem"),
        absl::StrCat(job_.sockets(), "/absent.mem"),
        absl::StrCat(job_.sockets(), "/trainer1"),
        std::string("trainer1.mem")}) {
    Destination to = b_.destination();
    to.memory_socket = socket;
    EXPECT_THAT(SendAndReceive(a_, to, "hello"), IsOk()) << socket;
    EXPECT_EQ(rings_, 0) << socket;
  }
}

TEST_F(MemoryOverTcp, WorkersOfDifferentDirectoriesUseTheStream) {
  TempDir other;
  ASSERT_EQ(chmod(other.path().c_str(), 0700), 0);
  Node d(job_.As(0), other.path());
  EXPECT_THAT(SendAndReceive(d, b_.destination(), "hello"), IsOk());
  EXPECT_EQ(rings_, 0);
}

TEST_F(MemoryOverTcp, DirectoryOpenToOthersIsNotUsed) {
  TempDir open;
  ASSERT_EQ(chmod(open.path().c_str(), 0755), 0);
  Node d(job_.As(0), open.path());
  EXPECT_EQ(d.destination().memory_socket, "");
  EXPECT_THAT(SendAndReceive(d, b_.destination(), "hello"), IsOk());
}

TEST_F(MemoryOverTcp, SecondOfANameHasASocketOfItsOwn) {
  Node again(job_.As(1), job_.sockets());
  EXPECT_NE(again.destination().memory_socket, b_.destination().memory_socket);
  again.transport().Accept(FirstPurpose(), nullptr);
  EXPECT_THAT(SendAndReceive(a_, b_.destination(), "hello"), IsOk());
  EXPECT_EQ(rings_, 2);
}

}  // namespace
}  // namespace weft::transport
