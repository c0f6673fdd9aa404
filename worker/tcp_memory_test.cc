// Workers of one host at TCP addresses share memory, each proven by its
// certificate.

#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/tls/certificates.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/test_workers.h"

namespace weft::worker {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOkAndHolds;

// The caller, as its certificate proves it.
std::string RoleOfCaller(rpc::CallContext& context) {
  return absl::StrCat(context.peer().name, " ", context.peer().role);
}
WEFT_RPC(RoleOfCaller);

int64_t SizeOf(const std::string& body) {
  return static_cast<int64_t>(body.size());
}
WEFT_RPC(SizeOf);

int MappedMemories(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int mapped = 0;
  for (std::string line; std::getline(maps, line);) {
    mapped += line.find(absl::StrCat("memfd:", name, " ")) != line.npos ? 1 : 0;
  }
  return mapped;
}

// Two trainers at TCP addresses, over mutual TLS.
absl::StatusOr<std::unique_ptr<TestWorkers>> StartOverTls(
    const std::string& directory, int shared_memories,
    int64_t shared_memory_budget = 0) {
  net::CertificatesOptions certificates;
  certificates.directory = directory + "/certs";
  // Unique, as its directory of sockets is that of all tests of this user.
  certificates.job = absl::StrCat("tcp-memory-", std::random_device()());
  certificates.members = {{"", "trainer", 0}, {"", "trainer", 1}};
  certificates.extra_hosts = {"127.0.0.1"};
  WEFT_RETURN_IF_ERROR(net::MakeCertificates(certificates));
  TestWorkers::Options options;
  options.trainers = 2;
  options.configure = [&](Options& one) {
    one.job = certificates.job;
    one.certs = certificates.directory;
    one.coordinator = "";
    one.init = absl::StrCat("file://", directory, "/job");
    one.listen = "127.0.0.1:0";
    one.shared_memories = shared_memories;
    one.shared_memory_budget = shared_memory_budget;
    EXPECT_TRUE(one.Resolve().ok());
  };
  return TestWorkers::Start(options);
}

TEST(TcpMemory, WorkersOfOneHostShareMemoryAndProveTheirNames) {
  weft::testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  auto workers = StartOverTls(directory.path(), 8);
  WEFT_ASSERT_OK(workers.status());
  Worker& trainer = (*workers)->Get("trainer0");
  EXPECT_THAT(trainer.self().labels.at(kMemorySocketLabel),
              HasSubstr("/trainer0.mem"));
  EXPECT_THAT(trainer.self().address, HasSubstr("127.0.0.1:"));
  const rpc::Target other = trainer.agent().To("trainer1");
  EXPECT_THAT(rpc::Call(other, RoleOfCaller), IsOkAndHolds("trainer0 trainer"));
  EXPECT_EQ(MappedMemories("weft-rings"), 2);  // both are of this process
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(rpc::Call(other, SizeOf, std::string(1 << 20, 'x')),
                IsOkAndHolds(1 << 20));
  }
  EXPECT_EQ(MappedMemories("weft-rings"), 2);
  EXPECT_TRUE((*workers)->Shutdown().ok());
  EXPECT_EQ(MappedMemories("weft-rings"), 0);
}

TEST(TcpMemory, WithoutSharedMemoriesNoLabelIsPublished) {
  weft::testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  auto workers = StartOverTls(directory.path(), 0);
  WEFT_ASSERT_OK(workers.status());
  Worker& trainer = (*workers)->Get("trainer0");
  EXPECT_EQ(trainer.self().labels.count(kMemorySocketLabel), 0u);
  EXPECT_THAT(rpc::Call(trainer.agent().To("trainer1"), RoleOfCaller),
              IsOkAndHolds("trainer0 trainer"));
  EXPECT_EQ(MappedMemories("weft-rings"), 0);
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

TEST(TcpMemory, ConnectionBeyondTheBudgetUsesItsStream) {
  weft::testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  auto workers = StartOverTls(directory.path(), 8, /*budget=*/64 << 10);
  WEFT_ASSERT_OK(workers.status());
  Worker& trainer = (*workers)->Get("trainer0");
  EXPECT_THAT(rpc::Call(trainer.agent().To("trainer1"), SizeOf,
                        std::string(1 << 20, 'x')),
              IsOkAndHolds(1 << 20));
  EXPECT_EQ(MappedMemories("weft-rings"), 0);
  EXPECT_EQ(trainer.memory_budget()->used_bytes(), 0);
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

TEST(TcpMemory, BodiesBeyondTheBudgetUseTheRings) {
  weft::testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  auto workers = StartOverTls(directory.path(), 8, /*budget=*/1 << 20);
  WEFT_ASSERT_OK(workers.status());
  Worker& trainer = (*workers)->Get("trainer0");
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(rpc::Call(trainer.agent().To("trainer1"), SizeOf,
                          std::string(1 << 20, 'x')),
                IsOkAndHolds(1 << 20));
  }
  EXPECT_EQ(MappedMemories("weft-rings"), 2);
  const auto budget = trainer.memory_budget();
  EXPECT_GE(budget->used_bytes(), 512 << 10);
  EXPECT_LE(budget->used_bytes(), 1 << 20);
  EXPECT_TRUE((*workers)->Shutdown().ok());
  EXPECT_EQ(budget->used_bytes(), 0);
}

}  // namespace
}  // namespace weft::worker
