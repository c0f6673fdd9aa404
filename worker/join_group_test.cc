#include "weft/worker/join_group.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
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

}  // namespace
}  // namespace weft::worker
