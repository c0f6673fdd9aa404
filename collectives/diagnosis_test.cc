#include "weft/collectives/diagnosis.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/collectives/abort_source.h"
#include "weft/collectives/backend.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

Operation Barrier() {
  Operation operation;
  operation.sequence = 4;
  operation.site = {"train.cc", 12};
  return operation;
}

TEST(RankList, IsWrittenAsInASentence) {
  EXPECT_EQ(RankList({}), "no rank");
  EXPECT_EQ(RankList({3}), "rank 3");
  EXPECT_EQ(RankList({3, 1}), "ranks 3 and 1");
  EXPECT_EQ(RankList({1, 2, 5}), "ranks 1, 2 and 5");
}

TEST(Announce, HasWhatTheOthersCompare) {
  const Announcement said = Announce(Barrier());
  EXPECT_EQ(said.sequence, 4u);
  EXPECT_EQ(said.fingerprint, Fingerprint(Barrier()));
  EXPECT_FALSE(said.is_refused);
  EXPECT_EQ(said.text, "Barrier #4 at train.cc:12");
}

TEST(AnnounceRefusal, HasNoFingerprintAndSaysWhy) {
  const Announcement said = AnnounceRefusal(
      Barrier(), absl::InvalidArgumentError("wanted f32, found i64"));
  EXPECT_EQ(said.sequence, 4u);
  EXPECT_EQ(said.fingerprint, 0u);
  EXPECT_TRUE(said.is_refused);
  EXPECT_EQ(said.text, "Barrier #4 at train.cc:12: wanted f32, found i64");
}

TEST(Diagnosis, ErrorsNameTheRanksAndWhatTheyDid) {
  EXPECT_THAT(Mismatch(0, "X at a.cc:1", 3, "Y at b.cc:2"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "rank 0 called X at a.cc:1, rank 3 called Y at b.cc:2"));
  EXPECT_THAT(Refused(3, "Barrier #4: no"),
              StatusIs(absl::StatusCode::kAborted,
                       "rank 3 refused its part: Barrier #4: no"));
  const absl::Status unasked = TooMuchUnasked(2, kMostUnaskedBytes, 17);
  EXPECT_THAT(unasked,
              StatusIs(absl::StatusCode::kResourceExhausted, "rank 2"));
  EXPECT_THAT(std::string(unasked.message()), HasSubstr("tag 17"));
  EXPECT_THAT(std::string(unasked.message()), HasSubstr("268435456 bytes"));
  EXPECT_THAT(std::string(unasked.message()), HasSubstr("max_unasked_bytes"));
}

TEST(Report, GoesToTheOptionsElseToStandardError) {
  std::vector<std::string> reports;
  DiagnosisOptions options;
  options.report = [&](absl::string_view text) { reports.emplace_back(text); };
  Report(options, "rank 1 waits");
  EXPECT_THAT(reports, ElementsAre("rank 1 waits"));
  ::testing::internal::CaptureStderr();
  Report({}, "rank 2 waits");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "weft: rank 2 waits\n");
  EXPECT_EQ(reports.size(), 1u);
}

// --- AbortSource. ----------------------------------------------------------

// Keeps what Abort is given; nothing else is asked of it.
class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(int rank) : rank_(rank) {}

  absl::string_view name() const override { return "fake"; }
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  absl::Status Run(const Operation&) override { return health(); }
  void Refuse(const Operation&, const absl::Status&) override {}
  void Abort(const absl::Status& why) override { aborts_.push_back(why); }
  absl::Status health() const override {
    return aborts_.empty() ? absl::OkStatus() : aborts_.front();
  }
  absl::StatusOr<bool> Advance(Transfer&) override { return false; }
  uint64_t transfer_events() const override { return 0; }
  void AwaitTransfers(uint64_t, Instant) override {}
  absl::StatusOr<Tensor> Allocate(const Shape&, DType) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec&) override {
    return absl::UnimplementedError("");
  }

  const std::vector<absl::Status>& aborts() const { return aborts_; }

 private:
  const int rank_;
  std::vector<absl::Status> aborts_;
};

TEST(AbortSource, AbortsThoseThatAreThereAndThoseThatComeLater) {
  AbortSource source;
  FakeBackend first(0), removed(1), later(2);
  EXPECT_THAT(source.reason(), IsOk());
  source.Add(first);
  source.Add(removed);
  source.Remove(removed);
  EXPECT_THAT(first.aborts(), IsEmpty());
  source.Abort(absl::UnavailableError("out of the job"));
  source.Add(later);
  EXPECT_THAT(first.aborts(),
              ElementsAre(StatusIs(absl::StatusCode::kUnavailable,
                                   "rank 0: out of the job")));
  EXPECT_THAT(later.aborts(),
              ElementsAre(StatusIs(absl::StatusCode::kUnavailable,
                                   "rank 2: out of the job")));
  EXPECT_THAT(removed.aborts(), IsEmpty());
  EXPECT_EQ(source.reason(), absl::UnavailableError("out of the job"));
}

TEST(AbortSource, OnlyTheFirstReasonCounts) {
  AbortSource source;
  FakeBackend backend(0);
  source.Add(backend);
  source.Abort(absl::UnavailableError("first"));
  source.Abort(absl::CancelledError("second"));
  EXPECT_EQ(source.reason(), absl::UnavailableError("first"));
  EXPECT_THAT(backend.aborts(),
              ElementsAre(StatusIs(absl::StatusCode::kUnavailable, "first")));
  source.Remove(backend);
  source.Remove(backend);  // of one that is not there
  source.Add(backend);
  EXPECT_EQ(backend.aborts().size(), 2u);
}

// What the reason carries for programs goes with it.
TEST(AbortSource, KeepsThePayloadsOfTheReason) {
  absl::Status reason = absl::UnavailableError("out of the job");
  reason.SetPayload("weft.test", absl::Cord("payload"));
  AbortSource source;
  FakeBackend backend(5);
  source.Add(backend);
  source.Abort(reason);
  ASSERT_EQ(backend.aborts().size(), 1u);
  EXPECT_EQ(backend.aborts()[0].GetPayload("weft.test"), absl::Cord("payload"));
}

}  // namespace
}  // namespace weft::collectives
