// The references and contexts that a Worker opens and closes for its program.

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/telemetry/status.h"
#include "weft/worker/test_workers.h"

namespace weft::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::rref::RRef;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

std::atomic<int> live_cells{0};

class Cell {
 public:
  explicit Cell(int64_t value) : value_(value) { ++live_cells; }
  ~Cell() { --live_cells; }
  int64_t Get() { return value_; }

 private:
  const int64_t value_;
};
WEFT_RPC_CLASS(Cell, int64_t);
WEFT_RPC_METHOD(Cell, Get);

// All workers of this process share these.
Mutex kept_mu;
std::vector<RRef<Cell>>& Kept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(kept_mu) {
  static auto* const kept = new std::vector<RRef<Cell>>();
  return *kept;
}
void KeepCell(const RRef<Cell>& cell) {
  MutexLock lock(kept_mu);
  Kept().push_back(cell);
}
WEFT_RPC(KeepCell);

void ForgetKept() {
  std::vector<RRef<Cell>> kept;
  MutexLock lock(kept_mu);
  kept.swap(Kept());
}

class WorkerReferences : public ::testing::Test {
 protected:
  WorkerReferences() {
    TestWorkers::Options options;
    options.servers = 1;
    options.trainers = 2;
    workers_ = TestWorkers::Start(options).value();
  }
  ~WorkerReferences() override { ForgetKept(); }

  Worker& Get(const std::string& name) { return workers_->Get(name); }
  RRef<Cell> MakeCell(const std::string& by, const std::string& at) {
    return rref::Make<Cell>(Get(by).agent().To(at, absl::Seconds(60)), 7)
        .value();
  }

  std::unique_ptr<TestWorkers> workers_;
};

TEST_F(WorkerReferences, WorkerOpensThemForItsProgram) {
  EXPECT_EQ(&Get("ps0").references(),
            rref::References::Of(Get("ps0").agent()).value().get());
  EXPECT_EQ(&Get("ps0").contexts(),
            dist_autograd::Contexts::Of(Get("ps0").agent()).value().get());
  {
    const RRef<Cell> cell = MakeCell("trainer0", "ps0");
    EXPECT_THAT(rref::Call(cell, &Cell::Get), IsOkAndHolds(7));
  }
  EXPECT_TRUE(Becomes([] { return live_cells == 0; }));
  EXPECT_THAT(workers_->Shutdown(), IsOk());
}

TEST_F(WorkerReferences, ShutdownWithLiveHandlesOnAllFreesEveryObject) {
  const RRef<Cell> at_server = MakeCell("trainer0", "ps0");
  const RRef<Cell> at_trainer = MakeCell("trainer0", "trainer1");
  const RRef<Cell> own =
      rref::MakeLocal(Get("trainer0").agent(), std::make_shared<Cell>(9))
          .value();
  for (const auto* cell : {&at_server, &at_trainer, &own}) {
    ASSERT_THAT(
        rpc::Call(Get("trainer0").agent().To("trainer1"), KeepCell, *cell),
        IsOk());
  }
  // The trainers end together; the server, on its own, finds nothing left.
  ShutdownReport ends[2];
  ASSERT_THAT(workers_->Run([&](Worker& worker) {
    if (worker.self().name == "ps0") return absl::OkStatus();
    ShutdownOptions options;
    options.strict_leaks = true;
    ends[worker.self().rank] = worker.Shutdown(options);
    return ends[worker.self().rank].status();
  }),
              IsOk());
  EXPECT_THAT(ends[0].leaked_objects, IsEmpty());
  EXPECT_THAT(ends[1].leaked_objects, IsEmpty());
  ShutdownOptions strict;
  strict.strict_leaks = true;
  strict.deadline = absl::Seconds(60);
  EXPECT_THAT(Get("ps0").Shutdown(strict).status(), IsOk());
  for (const char* name : {"ps0", "trainer0", "trainer1"}) {
    const rref::References::Counts counts = Get(name).references().counts();
    EXPECT_EQ(counts.held + counts.owned + counts.open_children, 0) << name;
  }
  workers_.reset();
  EXPECT_EQ(live_cells, 0);
  EXPECT_THAT(rref::Call(at_server, &Cell::Get).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "worker trainer0 has closed its references"));
  EXPECT_THAT(own.Local().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(WorkerReferences, WorkerThatEndsBeforeItsHoldersReportsThem) {
  const RRef<Cell> cell = MakeCell("trainer0", "trainer1");
  ShutdownOptions alone;
  alone.together = "name=trainer1";
  alone.strict_leaks = true;
  alone.deadline = absl::Seconds(30);
  const ShutdownReport report = Get("trainer1").Shutdown(alone);
  EXPECT_THAT(report.status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "trainer0"));
  EXPECT_THAT(absl::StrJoin(report.leaked_objects, ";"), HasSubstr("Cell"));
}

TEST_F(WorkerReferences, StatusPageNamesObjectHolderAndAge) {
  const RRef<Cell> cell = MakeCell("trainer0", "ps0");
  ASSERT_THAT(cell.Confirmed().Wait(absl::Seconds(60)), IsOk());
  const auto page = AskStatusPage(Get("trainer1").agent().To("ps0"), false)
                        .Wait(absl::Seconds(60));
  ASSERT_THAT(page.status(), IsOk());
  EXPECT_THAT(*page, HasSubstr("references"));
  EXPECT_THAT(*page, HasSubstr("Cell"));
  EXPECT_THAT(*page, HasSubstr("of this worker is held by trainer0 for"));
  EXPECT_THAT(*page, HasSubstr("open contexts"));
  const auto held = AskStatusPage(Get("trainer1").agent().To("trainer0"), true)
                        .Wait(absl::Seconds(60));
  ASSERT_THAT(held.status(), IsOk());
  EXPECT_THAT(*held, HasSubstr("of ps0 is held here for"));
}

TEST_F(WorkerReferences, HandleDroppedAfterItsWorkerEndedDoesNothing) {
  RRef<Cell> cell = MakeCell("trainer1", "ps0");
  RRef<Cell> own =
      rref::MakeLocal(Get("trainer1").agent(), std::make_shared<Cell>(9))
          .value();
  RRef<Cell> copy = cell;
  workers_->Kill("trainer1");
  EXPECT_THAT(cell.status(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(rref::Call(cell, &Cell::Get).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  cell = RRef<Cell>();
  own = RRef<Cell>();
  workers_.reset();
  copy = RRef<Cell>();
  EXPECT_EQ(live_cells, 0);
}

}  // namespace
}  // namespace weft::worker
