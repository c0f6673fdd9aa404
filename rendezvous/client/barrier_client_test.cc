#include "weft/rendezvous/client/barrier_client.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/client/fake_link.h"
#include "weft/rendezvous/client/fake_timers.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// It is open once trainer1 and trainer2 are there.
class BarrierLink final : public FakeLink<v1::BarrierRequest> {
 public:
  using FakeLink::FakeLink;

 private:
  std::string Answer(const v1::BarrierRequest&, bool is_open) const override {
    v1::BarrierReply reply;
    reply.set_released(is_open);
    if (!is_open) {
      reply.add_missing("trainer1");
      reply.add_missing("trainer2");
      reply.set_missing_count(7);
    }
    return reply.SerializeAsString();
  }
};

class BarrierReportTest : public ::testing::Test {
 protected:
  absl::Status Meet(absl::Duration timeout, const std::string& tag = "orders") {
    Member self;
    self.name = "trainer0";
    return client_
        .Gather(self, tag, "", {"trainer0", "trainer1", "trainer2"},
                /*is_everyone=*/false, timeout)
        .status();
  }

  FakeTimers timers_;
  const std::shared_ptr<BarrierLink> link_ =
      std::make_shared<BarrierLink>(timers_);
  std::vector<std::string> said_;
  BarrierClient client_{
      timers_,
      link_,
      "job",
      std::make_shared<OpenCalls>(),
      [] { return absl::OkStatus(); },
      [this](absl::string_view text) { said_.emplace_back(text); }};
};

TEST_F(BarrierReportTest, SaysWhoIsMissingAndThatTheyHaveCome) {
  link_->open_at = timers_.now() + absl::Seconds(5);
  EXPECT_THAT(Meet(absl::Minutes(1)), IsOk());
  EXPECT_EQ(timers_.now() - Instant(), absl::Seconds(5));
  EXPECT_THAT(
      said_,
      ElementsAre("Barrier orders of the coordinator still waits after 2s: "
                  "missing trainer1, trainer2 and 5 more",
                  "Barrier orders of the coordinator still waits after 4s: "
                  "missing trainer1, trainer2 and 5 more",
                  "Barrier orders of the coordinator no longer waits, after "
                  "5s"));
}

// A report is no deadline: the arrival stands until the caller's own.
TEST_F(BarrierReportTest, ArrivalStandsForAsLongAsTheCallerWaits) {
  EXPECT_THAT(Meet(absl::Seconds(7), "at the\nend"),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "after 7s missing trainer1, trainer2 and 5 more"));
  EXPECT_EQ(timers_.now() - Instant(), absl::Seconds(7));
  EXPECT_LE(link_->asked().remaining_ms(), 3000);
  EXPECT_GT(link_->asked().remaining_ms(), 0);
  EXPECT_THAT(said_.back(),
              "Barrier at?the?end of the coordinator no longer waits, after 7s "
              "(DEADLINE_EXCEEDED)");
}

TEST_F(BarrierReportTest, SaysThatTheCoordinatorDoesNotAnswer) {
  link_->is_gone = true;
  EXPECT_THAT(Meet(absl::Seconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "missing the coordinator's answer"));
  ASSERT_THAT(said_, ::testing::SizeIs(::testing::Ge(2u)));
  EXPECT_THAT(said_[0],
              ::testing::HasSubstr("the coordinator does not answer"));
}

TEST_F(BarrierReportTest, IsNoneOfAShortWait) {
  link_->open_at = timers_.now() + absl::Seconds(1);
  EXPECT_THAT(Meet(absl::Minutes(1)), IsOk());
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace weft::rendezvous
