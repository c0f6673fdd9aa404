#include "weft/worker/join_group.h"

#include <sys/stat.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/net/tls/certificates.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/test_workers.h"

namespace weft::worker {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;

TEST(JoinGroup, WorkersOfARoleReduceTogether) {
  TestWorkers::Options options;
  options.servers = 1;
  options.trainers = 3;
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    Worker& worker = (*workers)->Get(absl::StrCat("trainer", rank));
    for (const char* name : {"world", "second"}) {
      JoinGroupOptions join;
      join.name = name;
      join.arena_bytes = 1 << 20;
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> group,
                            JoinGroup(worker, join));
      const Tensor tensor = Tensor::Full({1000}, rank);
      WEFT_RETURN_IF_ERROR(group->AllReduce(tensor));
      if (group->rank() != rank || tensor.data<float>()[999] != 3) {
        return absl::InternalError("wrong rank or sum");
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

// Four trainers as if on two hosts, over TCP with mutual TLS.
TEST(JoinGroup, WorkersOfTwoHostsReduceOverTls) {
  weft::testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  net::CertificatesOptions certificates;
  certificates.directory = directory.Path("certs");
  certificates.job = "tls";
  for (int r = 0; r < 4; ++r) {
    certificates.members.push_back({"", "trainer", r});
  }
  certificates.extra_hosts = {"127.0.0.1"};
  WEFT_ASSERT_OK(net::MakeCertificates(certificates));
  TestWorkers::Options options;
  options.trainers = 4;
  options.configure = [&](Options& one) {
    one.job = "tls";
    one.certs = certificates.directory;
    one.coordinator = "";
    one.init = "file://" + directory.Path("job");
    one.listen = "127.0.0.1:0";
    WEFT_EXPECT_OK(one.Resolve());
  };
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  const auto statuses = testing::RunRanks(4, [&](int rank) -> absl::Status {
    Worker& worker = (*workers)->Get(absl::StrCat("trainer", rank));
    JoinGroupOptions join;
    join.arena_bytes = 1 << 20;
    join.host_id = absl::StrCat("host", rank / 2);
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> group,
                          JoinGroup(worker, join));
    for (const int64_t count : {1, 1000, 1'000'000}) {
      const Tensor tensor = Tensor::Full({count}, rank);
      WEFT_RETURN_IF_ERROR(group->AllReduce(tensor));
      if (tensor.data<float>()[count - 1] != 6) {
        return absl::InternalError("wrong sum");
      }
    }
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> odd,
                          group->Split(rank % 2));
    const Tensor ranks = Tensor::Zeros({2}, DType::kI64);
    WEFT_RETURN_IF_ERROR(odd->AllGather(Tensor::Scalar<int64_t>(rank), ranks));
    return ranks.data<int64_t>()[1] == 2 + rank % 2
               ? group->Barrier()
               : absl::InternalError("wrong ranks");
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

}  // namespace
}  // namespace weft::worker
