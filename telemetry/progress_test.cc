#include "weft/telemetry/progress.h"

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/base/fake_clock.h"

namespace weft::telemetry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Style = Progress::Style;

class ProgressTest : public ::testing::Test {
 protected:
  Progress::Options With(Style style) {
    Progress::Options options;
    options.style = style;
    options.output = &out_;
    options.clock = &clock_;
    options.color = false;
    options.width = 80;
    return options;
  }
  std::vector<std::string> Lines() const {
    return absl::StrSplit(out_.str(), '\n', absl::SkipEmpty());
  }

  std::ostringstream out_;
  FakeClock clock_;
};

TEST_F(ProgressTest, WritesALineEveryTenSecondsWithRateEtaAndLoss) {
  Progress progress(With(Style::kLines));
  for (int second = 0; second <= 25; ++second) {
    progress.Update(second * 100, 6000, 0.5);
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_THAT(
      Lines(),
      ElementsAre(
          "training   0% 0/6000 samples  loss 0.5000",
          "training  16% 1000/6000 samples  100 samples/s  ETA 50s  loss "
          "0.5000",
          "training  33% 2000/6000 samples  100 samples/s  ETA 40s  loss "
          "0.5000"));
}

TEST_F(ProgressTest, ShowsTheShareOfCommunicationThatWasNotHidden) {
  Progress progress(With(Style::kLines));
  progress.SetExposedShare(0.25);
  progress.Update(1, 10, 0.5);
  EXPECT_THAT(Lines(), ElementsAre("training  10% 1/10 samples  loss 0.5000  "
                                   "communication not hidden 25 %"));
  out_.str("");
  Progress json(With(Style::kJson));
  json.SetExposedShare(0.25);
  json.Update(1, 10);
  EXPECT_THAT(Lines(),
              ElementsAre(::testing::HasSubstr("\"exposed_share\":0.25")));
}

TEST_F(ProgressTest, FinishShowsTheLastUpdateOnce) {
  Progress progress(With(Style::kLines));
  progress.Update(0, 10);
  clock_.Advance(absl::Seconds(1));
  progress.Update(10, 10);
  progress.Finish();
  progress.Finish();
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("  0%"), HasSubstr("100%")));
}

TEST_F(ProgressTest, RenewsOneLineOfATerminal) {
  {
    Progress progress(With(Style::kTerminal));
    progress.Update(0, 100, 12345.678);
    clock_.Advance(absl::Milliseconds(50));
    progress.Update(1, 100);  // too soon
    clock_.Advance(absl::Milliseconds(50));
    progress.Update(2, 100, 1.0);
  }
  const std::vector<std::string> shown = absl::StrSplit(out_.str(), '\r');
  ASSERT_THAT(shown, SizeIs(3));
  EXPECT_THAT(shown[1], HasSubstr("  0% 0/100"));
  EXPECT_THAT(shown[2], HasSubstr("  2% 2/100"));
  EXPECT_THAT(out_.str(), ::testing::EndsWith("\n"));
}

TEST_F(ProgressTest, ClearsTheRestOfALongerLine) {
  Progress progress(With(Style::kTerminal));
  progress.Update(0, 0, 12345.678);
  const size_t first = out_.str().size();
  clock_.Advance(absl::Seconds(1));
  progress.Update(0, 0, 1.0);
  EXPECT_EQ(out_.str().size(), 2 * first);
}

TEST_F(ProgressTest, CutsALineThatWouldWrap) {
  Progress::Options options = With(Style::kTerminal);
  options.width = 20;
  Progress progress(options);
  progress.Update(123456789, 1234567890, 0.5);
  EXPECT_EQ(out_.str(), "\rtraining  10% 12345");
}

TEST_F(ProgressTest, ColoursUnlessNoColorIsSet) {
  Progress::Options options = With(Style::kTerminal);
  options.color.reset();
  setenv("NO_COLOR", "1", /*overwrite=*/1);
  Progress(options).Update(1, 2);
  EXPECT_THAT(out_.str(), Not(HasSubstr("\x1b")));
  unsetenv("NO_COLOR");
  Progress(options).Update(1, 2);
  EXPECT_THAT(out_.str(), HasSubstr("\x1b[32m"));
}

TEST_F(ProgressTest, AnUnknownTotalHasNoEta) {
  Progress progress(With(Style::kLines));
  progress.Update(0, 0);
  clock_.Advance(absl::Seconds(10));
  progress.Update(50, 0);
  EXPECT_EQ(Lines()[1], "training 50 samples  5 samples/s");
}

TEST_F(ProgressTest, RatesHaveNoExponents) {
  Progress progress(With(Style::kLines));
  progress.Update(0, 0);
  clock_.Advance(absl::Seconds(10));
  progress.Update(123456, 0);
  EXPECT_EQ(Lines()[1], "training 123456 samples  12346 samples/s");
}

TEST_F(ProgressTest, AResumedRunIsNotCreditedWithTheEarlierOne) {
  Progress progress(With(Style::kLines));
  progress.Update(5000, 6000);
  clock_.Advance(absl::Seconds(10));
  progress.Update(5100, 6000);
  EXPECT_THAT(Lines()[1], HasSubstr("10 samples/s  ETA 1m30s"));
}

TEST_F(ProgressTest, RateForgetsOldSteps) {
  Progress progress(With(Style::kLines));
  int64_t done = 0;
  for (int second = 0; second < 100; ++second) {
    progress.Update(done, 1000000);
    done += second < 50 ? 1000 : 10;
    clock_.Advance(absl::Seconds(1));
  }
  progress.Finish();
  EXPECT_THAT(Lines().back(), HasSubstr("  10 samples/s"));
}

TEST_F(ProgressTest, BeginsAnewWhenTheWorkDoes) {
  Progress progress(With(Style::kLines));
  progress.Update(1000, 1000);
  clock_.Advance(absl::Seconds(10));
  progress.Update(0, 1000);
  EXPECT_EQ(Lines()[1], "training   0% 0/1000 samples");
}

TEST_F(ProgressTest, WritesJson) {
  Progress progress(With(Style::kJson));
  progress.Update(0, 1000);
  clock_.Advance(absl::Seconds(10));
  progress.Update(500, 1000, 0.25);
  ASSERT_THAT(Lines(), SizeIs(2));
  EXPECT_EQ(nlohmann::json::parse(Lines()[1]),
            nlohmann::json({{"progress", "training"},
                            {"done", 500},
                            {"total", 1000},
                            {"unit", "samples"},
                            {"rate_per_s", 50.0},
                            {"eta_s", 10.0},
                            {"loss", 0.25}}));
}

TEST_F(ProgressTest, QuietIsQuiet) {
  Progress progress(With(Style::kQuiet));
  progress.Update(1, 2);
  progress.Finish();
  EXPECT_EQ(out_.str(), "");
}

}  // namespace
}  // namespace weft::telemetry
