#include "weft/train/saving/last_save.h"

#include <algorithm>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using worker::ExitCode;

class LastSaveTest : public ::testing::Test {
 protected:
  LastSaveTest() {
    options_.directory = "/saved";
    options_.retry_for = absl::Seconds(60);
    options_.first_pause = absl::Milliseconds(1);
  }

  // The attempts after the first end with `answers` in turn, the last for ever.
  absl::Status Retry(const absl::Status& first,
                     const std::vector<absl::Status>& answers) {
    return RetryLastSave(
        first,
        [&] {
          const size_t n = static_cast<size_t>(attempts_++);
          return answers[std::min(n, answers.size() - 1)];
        },
        options_, telemetry::OrSilent(nullptr).logger());
  }

  LastSaveOptions options_;
  int attempts_ = 0;
};

const absl::Status& Full() {
  static const absl::Status full =
      absl::ResourceExhaustedError("cannot write /saved/x: no space");
  return full;
}

TEST_F(LastSaveTest, FullDiskIsTriedAgainUntilItHasRoom) {
  EXPECT_THAT(Retry(Full(), {Full(), Full(), absl::OkStatus()}), IsOk());
  EXPECT_EQ(attempts_, 3);
}

TEST_F(LastSaveTest, AttemptsEndWithTheirTimeAndNothingStartsThemAgain) {
  // A pause of the machine before the first attempt is no longer than that.
  options_.retry_for = absl::Seconds(5);
  options_.first_pause = absl::Milliseconds(100);
  const absl::Status end = Retry(Full(), {Full()});
  EXPECT_GE(attempts_, 1);
  EXPECT_LE(attempts_, 6);  // pauses double: 0.1, 0.2, 0.4, 0.8, 1.6 s
  EXPECT_THAT(end, StatusIs(absl::StatusCode::kResourceExhausted, "/saved"));
  EXPECT_EQ(worker::ExitCodeFor(end), ExitCode::kInternal);
  EXPECT_TRUE(worker::IsFinal(end));
}

TEST_F(LastSaveTest, DirectoryOfOthersIsNotTriedAgain) {
  const absl::Status end =
      Retry(absl::PermissionDeniedError("read-only"), {absl::OkStatus()});
  EXPECT_EQ(attempts_, 0);
  EXPECT_THAT(end, StatusIs(absl::StatusCode::kPermissionDenied,
                            "no checkpoint was saved in /saved: read-only"));
  EXPECT_EQ(worker::ExitCodeFor(end), ExitCode::kInternal);
  EXPECT_TRUE(worker::IsFinal(end));
}

TEST_F(LastSaveTest, LostServerIsTriedAgainWhereAnotherTakesItsPlace) {
  const absl::Status lost = absl::UnavailableError("ps1 died");
  EXPECT_EQ(Retry(lost, {absl::OkStatus()}), lost);
  EXPECT_EQ(attempts_, 0);
  options_.outlives_servers = true;
  EXPECT_THAT(Retry(lost, {lost, absl::OkStatus()}), IsOk());
  EXPECT_EQ(attempts_, 2);
}

TEST_F(LastSaveTest, OneThatIsAskedToStopTriesNoMore) {
  options_.asked_to_stop = [] { return true; };
  EXPECT_TRUE(worker::IsFinal(Retry(Full(), {absl::OkStatus()})));
  EXPECT_EQ(attempts_, 0);
}

TEST_F(LastSaveTest, AnErrorWithAnExitCodeOfItsOwnKeepsIt) {
  const absl::Status other =
      NotSaved(absl::AlreadyExistsError("saved by another run"), "/saved");
  EXPECT_EQ(worker::ExitCodeFor(other), ExitCode::kConfig);
  EXPECT_EQ(other.message(), "saved by another run");
  EXPECT_TRUE(worker::IsFinal(other));
  // A restart may find the server again.
  const absl::Status lost = NotSaved(absl::UnavailableError("ps0 died"), "/s");
  EXPECT_EQ(worker::ExitCodeFor(lost), ExitCode::kPeerLost);
  EXPECT_FALSE(worker::IsFinal(lost));
}

}  // namespace
}  // namespace weft::train
