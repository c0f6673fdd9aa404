#include "weft/train/step_table.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/proto/ps.pb.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_workers.h"

namespace weft::train {
namespace {

using ::weft::testing::StatusIs;

ps::v1::TableSpec Rows(int shards) {
  ps::v1::TableSpec spec;
  spec.set_name("rows");
  spec.set_dim(4);
  spec.set_shards(shards);
  return spec;
}

// What fits no job is refused before anybody is waited for.
TEST(StepTable, OpenRefusesWhatNoTrainingHas) {
  worker::TestWorkers::Options options;
  options.trainers = 1;
  const auto workers = worker::TestWorkers::Start(options).value();
  worker::Worker& trainer = workers->Get("trainer0");
  for (const int shards : {0, -1, 3, 1 << 30}) {
    const absl::Status status = StepTable::Open(trainer, Rows(shards)).status();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wanted TableSpec::shards to be the number of virtual "
                         "shards of the training"));
    EXPECT_EQ(worker::ExitCodeFor(status), worker::ExitCode::kConfig);
  }
  ps::v1::TableSpec dense = Rows(8);
  dense.set_kind(ps::v1::TableSpec::DENSE);
  EXPECT_THAT(
      StepTable::Open(trainer, dense).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "wanted a sparse table"));
  EXPECT_THAT(StepTable::Open(trainer, Rows(8)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "wanted at least 2 servers and --replicas=2"));
}

}  // namespace
}  // namespace weft::train
