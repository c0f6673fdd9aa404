// What one server's part of a table counts. What holds between servers, the
// tests of ps/ show.

#include "weft/ps/replicated/replicated_table.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/telemetry/metrics.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;

const WorkerKey kSelf = {0, 1};
constexpr int kPartitions = 4;
constexpr ClientId kFirst = 101;
constexpr ClientId kSecond = 102;

// A server whose leases last for ever; what it is to send is dropped.
class FakeHost final : public ReplicaHost {
 public:
  FakeHost() {
    Leases leases({absl::Hours(1), absl::Hours(1)});
    const Instant now = SteadyClock().Now();
    leases.Watch({Leases::kCoordinator}, now);
    for (const Leases::Out& out : leases.OnTick(1, now)) {
      leases.OnAnswer(out.to, {out.ping.number, 1}, 1, now);
    }
    leases_ = std::make_shared<const Leases>(leases);
  }
  std::shared_ptr<const Leases> leases() override { return leases_; }
  void Enqueue(WorkerKey, Envelope) override {}
  void Flush() override {}
  void Propose(const MapChange&) override {}
  void LearnMap() override {}

 private:
  std::shared_ptr<const Leases> leases_;
};

class ReplicatedTableTest : public ::testing::Test {
 protected:
  // All partitions have their only copy here.
  void Make(v1::TableSpec::Mode mode) {
    v1::TableSpec spec;
    spec.set_name("t");
    spec.set_kind(v1::TableSpec::SPARSE);
    spec.set_dim(2);
    spec.set_mode(mode);
    if (mode == v1::TableSpec::SYNC) spec.set_shards(1);
    spec.set_partitions(kPartitions);
    spec.mutable_rule()->mutable_sgd()->set_lr(1);
    map_ =
        *PartitionMap::Assign(1, {{kSelf, 0, PartitionMap::State::kLive}}, 2);
    ReplicatedTable::Options options;
    options.spec = spec;
    options.self = kSelf;
    options.host = &host_;
    auto made = ReplicatedTable::Create(std::move(options), map_);
    ASSERT_THAT(made.status(), IsOk());
    table_ = *std::move(made);
  }

  uint64_t KeyIn(int partition) const {
    uint64_t key = 0;
    while (placement_.PartitionOfKey(key) != partition) ++key;
    return key;
  }
  v1::PushRequest RequestOf() const {
    v1::PushRequest request;
    request.set_table("t");
    request.mutable_to()->set_id(kSelf.id);
    request.mutable_to()->set_epoch(kSelf.epoch);
    return request;
  }
  // Adds a span, and its payload: a gradient of one row.
  void AddSpan(v1::PushRequest& request, int partition, ClientId client,
               uint64_t sequence) {
    v1::PushSpan* span = request.add_spans();
    span->set_partition(partition);
    span->set_epoch(map_.entry(0).epoch);
    span->set_client(client);
    span->set_sequence(sequence);
    payloads_.push_back(sequence == 0
                            ? Bytes()
                            : EncodeRows(Frame::Kind::kGradient,
                                         {KeyIn(partition)}, {1.0f, 2.0f}));
  }
  std::vector<int> Push(const v1::PushRequest& request) {
    auto pushed = table_->Push(Caller{}, request, std::exchange(payloads_, {}));
    std::vector<int> codes;
    const auto reply = pushed.Wait(absl::ZeroDuration());
    EXPECT_THAT(reply.status(), IsOk());
    if (!reply.ok()) return codes;
    for (const v1::SpanAnswer& span : reply->spans()) {
      EXPECT_EQ(span.status(), 0) << span.message();
      codes.push_back(span.code());
    }
    return codes;
  }
  // To partitions 0 and 1.
  std::vector<int> PushBoth(ClientId client, uint64_t sequence) {
    v1::PushRequest request = RequestOf();
    AddSpan(request, 0, client, sequence);
    AddSpan(request, 1, client, sequence);
    return Push(request);
  }
  void PullBoth(ClientId client, uint64_t through = 0) {
    v1::PullRequest request;
    request.set_table("t");
    request.mutable_to()->set_id(kSelf.id);
    request.mutable_to()->set_epoch(kSelf.epoch);
    std::vector<Bytes> keys;
    for (const int partition : {0, 1}) {
      v1::PullSpan* span = request.add_spans();
      span->set_partition(partition);
      span->set_epoch(map_.entry(0).epoch);
      span->set_client(client);
      span->set_through(through);
      keys.push_back(EncodeKeys({KeyIn(partition)}));
    }
    const auto pulled = table_->Pull(request, keys, Instant::Infinite())
                            .Wait(absl::ZeroDuration());
    ASSERT_THAT(pulled.status(), IsOk());
    EXPECT_EQ(pulled->values.size(), 2u);
  }

  // The value of the series `name`; -1: there is none.
  double ValueOf(const std::string& name) {
    table_->metrics().Export(metrics_, "t");
    const std::string page = metrics_.Text();
    for (const absl::string_view line : absl::StrSplit(page, '\n')) {
      double value = 0;
      if (absl::StartsWith(line, absl::StrCat(name, "{")) &&
          absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
        return value;
      }
    }
    return -1;
  }
  FakeHost host_;
  PartitionMap map_;
  std::unique_ptr<ReplicatedTable> table_;
  const Placement placement_{"t", kPartitions, 1};
  std::vector<Bytes> payloads_;
  telemetry::Metrics metrics_{{}};
};

constexpr int kOk = static_cast<int>(Code::kOk);
constexpr int kStale = static_cast<int>(Code::kStale);

TEST_F(ReplicatedTableTest, CountsPushesPullsLockWaitsAndRepetitionsExactly) {
  Make(v1::TableSpec::ASYNC);
  // Two gradients with kind, count, key and two floats.
  constexpr double kPushBytes = 2 * (16 + 8 + 8);
  constexpr double kPullBytes = 2 * (8 + 8);
  EXPECT_THAT(PushBoth(kFirst, 1), ElementsAre(kOk, kOk));
  EXPECT_EQ(ValueOf("weft_ps_push_bytes_count"), 1);
  EXPECT_EQ(ValueOf("weft_ps_push_bytes_sum"), kPushBytes);
  EXPECT_EQ(ValueOf("weft_ps_lock_wait_seconds_count"), 1);
  EXPECT_EQ(ValueOf("weft_ps_repeated_pushes_total"), 0);
  PullBoth(kFirst);
  EXPECT_EQ(ValueOf("weft_ps_pull_bytes_count"), 1);
  EXPECT_EQ(ValueOf("weft_ps_pull_bytes_sum"), kPullBytes);
  EXPECT_EQ(ValueOf("weft_ps_lock_wait_seconds_count"), 2);

  // The same again, of which one span is new.
  v1::PushRequest again = RequestOf();
  AddSpan(again, 0, kFirst, 1);
  AddSpan(again, 1, kFirst, 1);
  AddSpan(again, 2, kFirst, 1);
  EXPECT_THAT(Push(again), ElementsAre(kOk, kOk, kOk));
  EXPECT_EQ(ValueOf("weft_ps_repeated_pushes_total"), 2);
  // One that is refused is no repetition, and asking what is stable no push.
  v1::PushRequest late = RequestOf();
  AddSpan(late, 0, kFirst, 1);
  late.mutable_spans(0)->set_epoch(map_.entry(0).epoch + 1);
  EXPECT_THAT(Push(late), ElementsAre(kStale));
  v1::PushRequest asks = RequestOf();
  AddSpan(asks, 0, kFirst, 0);
  EXPECT_THAT(Push(asks), ElementsAre(kOk));
  EXPECT_EQ(ValueOf("weft_ps_repeated_pushes_total"), 2);
  EXPECT_EQ(ValueOf("weft_ps_push_bytes_count"), 3);
  EXPECT_EQ(ValueOf("weft_ps_lock_wait_seconds_count"), 4);
}

TEST_F(ReplicatedTableTest, StalenessIsInPushesToThisServerSinceThePull) {
  Make(v1::TableSpec::ASYNC);
  PushBoth(kFirst, 1);  // has not pulled: does not count
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_count"), -1);
  PullBoth(kFirst);
  PullBoth(kSecond);
  PushBoth(kFirst, 2);   // 0
  PushBoth(kFirst, 3);   // 1
  PushBoth(kFirst, 3);   // again: none
  PushBoth(kSecond, 1);  // 2
  // Rates are in the log, and change no gradient.
  v1::PushRequest rate = RequestOf();
  AddSpan(rate, 0, 9, 1);
  payloads_[0] = EncodeRate(-1, 0.5);
  EXPECT_THAT(Push(rate), ElementsAre(kOk));
  PushBoth(kSecond, 2);  // 3
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_count"), 4);
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_sum"), 6);
}

TEST_F(ReplicatedTableTest, PartOfARoundThatIsSentAgainIsARepetition) {
  Make(v1::TableSpec::SYNC);
  const auto give = [&](uint64_t round) {
    v1::PushRequest request = RequestOf();
    request.set_opening(1);
    AddSpan(request, 0, kRounds, round + 1);
    return Push(request);
  };
  EXPECT_THAT(give(1), ElementsAre(kOk));  // ahead of the open one
  EXPECT_EQ(ValueOf("weft_ps_repeated_pushes_total"), 0);
  EXPECT_THAT(give(1), ElementsAre(kOk));
  EXPECT_EQ(ValueOf("weft_ps_repeated_pushes_total"), 1);
  EXPECT_THAT(give(0), ElementsAre(kOk));
  EXPECT_EQ(ValueOf("weft_ps_repeated_pushes_total"), 1);
  EXPECT_THAT(give(0), ElementsAre(kOk));  // is closed
  EXPECT_EQ(ValueOf("weft_ps_repeated_pushes_total"), 2);
  EXPECT_EQ(ValueOf("weft_ps_push_bytes_count"), 4);
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_count"), -1);
}

}  // namespace
}  // namespace weft::ps
