#include "weft/train/job_outcome.h"

#include <signal.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_workers.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using worker::ExitCode;
using worker::ExitCodeFor;

absl::Status Damaged() {
  return worker::WithExitCode(absl::DataLossError("every one is damaged"),
                              ExitCode::kBadCheckpoint);
}

TEST(FailureText, FormattedFailureIsReadWithCodeExitCodeAndMessage) {
  const absl::Status read = ParseFailure(FormatFailure(Damaged()));
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(read.message(), "every one is damaged");
  EXPECT_EQ(ExitCodeFor(read), ExitCode::kBadCheckpoint);
}

TEST(FailureText, OtherTextIsAnInternalError) {
  for (const char* text : {"", "x", "14", "14 10", "0 10 fine", "x 10 y"}) {
    EXPECT_THAT(ParseFailure(text), StatusIs(absl::StatusCode::kInternal))
        << text;
  }
}

// A job of one server and two trainers.
class JobOutcomeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker::TestWorkers::Options options;
    options.servers = 1;
    options.trainers = 2;
    auto started = worker::TestWorkers::Start(options);
    ASSERT_THAT(started, IsOk());
    workers_ = *std::move(started);
  }

  JobOutcome OutcomeAt(const std::string& name) {
    return JobOutcome(workers_->Get(name).membership(), 2);
  }
  void Leave(const std::string& name) {
    ASSERT_THAT(workers_->Get(name).membership().Leave(absl::Seconds(10)),
                IsOk());
  }
  // The outcome that the server sees once both trainers have gone.
  absl::Status OfTheJob() {
    auto& membership = workers_->Get("ps0").membership();
    const auto view = membership.WaitFor(
        [](const rendezvous::View& v) {
          return v.Find("trainer0") == nullptr && v.Find("trainer1") == nullptr;
        },
        absl::Seconds(30));
    if (!view.ok()) return view.status();
    return OutcomeAt("ps0").Of(**view);
  }

  std::unique_ptr<worker::TestWorkers> workers_;
};

TEST_F(JobOutcomeTest, TrainersThatLeaveWithoutAReportHaveCompletedTheJob) {
  Leave("trainer0");
  Leave("trainer1");
  EXPECT_THAT(OfTheJob(), IsOk());
}

TEST_F(JobOutcomeTest, TheCauseIsReportedInPlaceOfALostPeer) {
  OutcomeAt("trainer1").Report(absl::UnavailableError("ps1: is gone"));
  OutcomeAt("trainer0").Report(Damaged());
  const absl::Status own = absl::UnavailableError("trainer0 is gone");
  EXPECT_EQ(ExitCodeFor(OutcomeAt("trainer1").CauseOf(own)),
            ExitCode::kBadCheckpoint);
  Leave("trainer1");
  Leave("trainer0");
  const absl::Status outcome = OfTheJob();
  EXPECT_EQ(ExitCodeFor(outcome), ExitCode::kBadCheckpoint);
  EXPECT_THAT(outcome.message(), HasSubstr("trainer0: every one is damaged"));
}

TEST_F(JobOutcomeTest, OwnErrorThatIsNotOfAPeerStays) {
  OutcomeAt("trainer0").Report(Damaged());
  const absl::Status own = absl::ResourceExhaustedError("no room");
  EXPECT_EQ(OutcomeAt("trainer1").CauseOf(own), own);
}

TEST_F(JobOutcomeTest, TrainersThatLostAPeerHaveFailedTheJob) {
  for (const char* trainer : {"trainer0", "trainer1"}) {
    OutcomeAt(trainer).Report(absl::UnavailableError("ps1: is gone"));
    Leave(trainer);
  }
  EXPECT_EQ(ExitCodeFor(OfTheJob()), ExitCode::kPeerLost);
}

TEST_F(JobOutcomeTest, TrainerThatCompletesAfterAnotherDiedIsEnough) {
  workers_->Kill("trainer0");
  Leave("trainer1");
  EXPECT_THAT(OfTheJob(), IsOk());
}

TEST_F(JobOutcomeTest, JobWhoseTrainersDiedOrWereStoppedHasLostThem) {
  workers_->Kill("trainer0");
  OutcomeAt("trainer1").Report(worker::EndedBySignal(SIGTERM, "asked"));
  Leave("trainer1");
  const absl::Status outcome = OfTheJob();
  EXPECT_EQ(ExitCodeFor(outcome), ExitCode::kPeerLost);
  EXPECT_THAT(outcome.message(), HasSubstr("trainers died: trainer0"));
}

TEST_F(JobOutcomeTest, StoppedTrainersStopTheJobUnlessOneHasCompletedIt) {
  OutcomeAt("trainer0").Report(worker::EndedBySignal(SIGTERM, "asked"));
  OutcomeAt("trainer1").Report(worker::EndedBySignal(SIGTERM, "asked"));
  Leave("trainer0");
  Leave("trainer1");
  EXPECT_EQ(worker::SignalOf(OfTheJob()), SIGTERM);
}

TEST_F(JobOutcomeTest, OneTrainerThatCompletesAfterAnotherWasStoppedIsEnough) {
  OutcomeAt("trainer0").Report(worker::EndedBySignal(SIGINT, "asked"));
  Leave("trainer0");
  Leave("trainer1");
  EXPECT_THAT(OfTheJob(), IsOk());
}

// A report that cannot be read is not one that was never made: the other server
// would end as if a training that has failed were complete.
TEST_F(JobOutcomeTest, OutcomeIsUnknownWhereTheCoordinatorDoesNotAnswer) {
  OutcomeAt("trainer0").Report(Damaged());
  Leave("trainer0");
  Leave("trainer1");
  EXPECT_EQ(ExitCodeFor(OfTheJob()), ExitCode::kBadCheckpoint);
  const auto view = workers_->Get("ps0").membership().view();
  Leave("ps0");
  const absl::Status outcome = OutcomeAt("ps0").Of(*view);
  EXPECT_THAT(outcome, StatusIs(absl::StatusCode::kUnavailable,
                                "trainer0 has left, and the coordinator does "
                                "not answer"));
  EXPECT_EQ(ExitCodeFor(outcome), ExitCode::kPeerLost);
}

TEST_F(JobOutcomeTest, CompletedElasticTrainingIsCounted) {
  EXPECT_EQ(OutcomeAt("ps0").CountCompleted(), 0u);
  OutcomeAt("trainer1").ReportCompleted();
  Leave("trainer1");
  EXPECT_EQ(OutcomeAt("ps0").CountCompleted(), 1u);
}

}  // namespace
}  // namespace weft::train
