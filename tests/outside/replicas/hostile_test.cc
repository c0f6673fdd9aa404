// Peers that write what they like into the messages of tables with two
// replicas: nothing may end a server, hang, or change what others own.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/replication/replication.h"
#include "weft/ps/replicated/frame.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/replicated/service.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/rpc/call.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kOpening = 77;  // of the hostile worker
constexpr int kPartitions = 16;    // of Spec()
const absl::Duration kCall = absl::Seconds(10);

v1::Key KeyOf(WorkerKey worker) {
  v1::Key key;
  key.set_id(worker.id);
  key.set_epoch(worker.epoch);
  return key;
}

// A job with a table of which trainer 0 takes care and that trainer 1, who has
// it open too, would like to spoil.
class HostilePeer : public ::testing::Test {
 protected:
  explicit HostilePeer(absl::Duration silence = kSilence)
      : job_(2, 2, nullptr, "", 2, 0, silence) {}

  void SetUp() override {
    client_ = job_.MakeClient(0);
    table_ = *client_->Sparse(SparseSpec(v1::TableSpec::ASYNC, 1));
    Step();
    ASSERT_TRUE(job_.BecomesReplicated());
    for (const char* server : {"ps0", "ps1"}) {
      ASSERT_THAT(
          rpc::Call(To(server), &OpenReplicated,
                    SparseSpec(v1::TableSpec::ASYNC, 1), kOpening, uint64_t{1}),
          IsOk());
    }
  }
  void TearDown() override {
    // All is as trainer 0 has left it, and goes on.
    ExpectUnchanged();
    Step();
    ExpectUnchanged();
    ASSERT_TRUE(job_.BecomesReplicated());
    job_.KillServer(0);  // the other copy is no worse
    ExpectUnchanged();
  }

  void Step() {
    ASSERT_THAT(table_->Push(keys_, Tensor::Full({100, 2}, -1)).Wait(kTimeout),
                IsOk());
    ++steps_;
  }
  void ExpectUnchanged() {
    const auto rows = table_->Pull(keys_).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(steps_));
  }

  rpc::Target To(const char* server) {
    return job_.trainer(1).To(server, kCall);
  }
  PartitionMap map() { return job_.replicated(0).map(); }
  WorkerKey PrimaryOf(int partition) {
    return map().entry(map().EntryOf(partition)).primary;
  }
  rpc::Target ToPrimary(int partition) {
    return To(PrimaryOf(partition).id == 0 ? "ps0" : "ps1");
  }

  // A key that trainer 0 does not use.
  uint64_t KeyIn(int partition) const {
    for (uint64_t key = 1000;; ++key) {
      if (placement_.PartitionOfKey(key) == partition) return key;
    }
  }
  Bytes FrameOf(std::vector<uint64_t> keys) const {
    const std::vector<float> values(2 * keys.size(), -1000);
    return EncodeRows(Frame::Kind::kGradient, keys, values);
  }

  // A push of the hostile worker that is as it should be.
  v1::PushRequest GoodPush(int partition, uint64_t sequence) {
    v1::PushRequest request;
    request.set_table("t");
    *request.mutable_to() = KeyOf(PrimaryOf(partition));
    request.set_opening(kOpening);
    v1::PushSpan* span = request.add_spans();
    span->set_partition(partition);
    span->set_epoch(map().entry(map().EntryOf(partition)).epoch);
    span->set_client(ClientIdOf(job_.trainer(1).key(), kOpening));
    span->set_sequence(sequence);
    span->set_first(1);
    return request;
  }
  v1::PullRequest GoodPull(int partition) {
    v1::PullRequest request;
    request.set_table("t");
    *request.mutable_to() = KeyOf(PrimaryOf(partition));
    v1::PullSpan* span = request.add_spans();
    span->set_partition(partition);
    span->set_epoch(map().entry(map().EntryOf(partition)).epoch);
    span->set_client(ClientIdOf(job_.trainer(1).key(), kOpening));
    return request;
  }
  absl::StatusOr<v1::PushReply> Push(int partition,
                                     const v1::PushRequest& request,
                                     const std::vector<Bytes>& payloads) {
    return rpc::Call(ToPrimary(partition), &PushSpans, request, payloads);
  }
  // An error of the call or of its only span.
  absl::Status Outcome(const absl::StatusOr<v1::PushReply>& reply) {
    if (!reply.ok()) return reply.status();
    if (reply->spans_size() != 1) return absl::OkStatus();
    const v1::SpanAnswer& answer = reply->spans(0);
    if (answer.status() != 0) {
      return absl::Status(static_cast<absl::StatusCode>(answer.status()),
                          answer.message());
    }
    if (answer.code() != static_cast<int>(Code::kOk)) {
      return absl::InternalError(absl::StrCat("code ", answer.code()));
    }
    return absl::OkStatus();
  }

  TestJob job_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<SparseTable> table_;
  const Tensor keys_ = Tensor::Arange(100, DType::kI64);
  const Placement placement_{"t", kPartitions, 1};
  int steps_ = 0;
};

TEST_F(HostilePeer, GoodPushOfItsOwnIsApplied) {
  const uint64_t key = KeyIn(3);
  ASSERT_THAT(Outcome(Push(3, GoodPush(3, 1), {FrameOf({key})})), IsOk());
  // It is applied once, however often it comes.
  ASSERT_THAT(Outcome(Push(3, GoodPush(3, 1), {FrameOf({key})})), IsOk());
  const auto rows =
      table_->Pull(Tensor::FromVector<int64_t>({static_cast<int64_t>(key)}))
          .Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(1000));
}

TEST_F(HostilePeer, PushesThatDoNotFitAreRefusedWithWhatWasWanted) {
  const std::vector<Bytes> good = {FrameOf({KeyIn(3)})};
  const auto push = [&](const std::function<void(v1::PushRequest&)>& spoil,
                        const std::vector<Bytes>& payloads) {
    v1::PushRequest request = GoodPush(3, 1);
    spoil(request);
    const absl::Status status = Outcome(Push(3, request, payloads));
    EXPECT_THAT(status, Not(StatusIs(absl::StatusCode::kDeadlineExceeded, "")))
        << request.ShortDebugString();
    EXPECT_FALSE(status.message().empty()) << request.ShortDebugString();
    return status;
  };
  const auto same = [](v1::PushRequest&) {};
  EXPECT_THAT(push(same, {}), StatusIs(absl::StatusCode::kInvalidArgument, ""));
  EXPECT_THAT(push(same, {good[0], good[0]}),
              StatusIs(absl::StatusCode::kInvalidArgument, ""));
  EXPECT_THAT(push([](auto& r) { r.set_table("nothing"); }, good), Not(IsOk()));
  EXPECT_THAT(push([](auto& r) { r.set_table(""); }, good), Not(IsOk()));
  EXPECT_THAT(push([](auto& r) { r.set_opening(kOpening + 1); }, good),
              Not(IsOk()));
  for (const uint32_t partition : {16u, 1024u, 0x80000000u, 0xffffffffu}) {
    EXPECT_THAT(
        push([&](auto& r) { r.mutable_spans(0)->set_partition(partition); },
             good),
        StatusIs(absl::StatusCode::kInvalidArgument, ""))
        << partition;
  }
  EXPECT_THAT(push([](auto& r) { r.mutable_to()->set_epoch(kHuge); }, good),
              Not(IsOk()));
  EXPECT_THAT(push([](auto& r) { r.clear_to(); }, good), Not(IsOk()));
  for (const uint64_t epoch : {uint64_t{0}, uint64_t{99}, kHuge}) {
    EXPECT_THAT(
        push([&](auto& r) { r.mutable_spans(0)->set_epoch(epoch); }, good),
        Not(IsOk()))
        << epoch;
  }
  for (const uint64_t sequence : {uint64_t{66}, uint64_t{1} << 40, kHuge}) {
    EXPECT_THAT(
        push([&](auto& r) { r.mutable_spans(0)->set_sequence(sequence); },
             good),
        Not(IsOk()))
        << sequence;
  }
  // The table's kind has no rounds.
  EXPECT_THAT(push([](auto& r) { r.mutable_spans(0)->set_client(0); }, good),
              Not(IsOk()));
}

TEST_F(HostilePeer, FramesThatAreCutOrOfOtherPartitionsAreRefused) {
  const Bytes frame = FrameOf({KeyIn(3)});
  for (size_t size = 0; size < frame.size(); ++size) {
    EXPECT_THAT(Outcome(Push(3, GoodPush(3, 1),
                             {Bytes::Copy(frame.view().substr(0, size))})),
                StatusIs(absl::StatusCode::kInvalidArgument, ""))
        << size;
  }
  const uint64_t key = KeyIn(3);
  for (const auto& keys : std::vector<std::vector<uint64_t>>{
           {KeyIn(4)}, {key, key}, {key, KeyIn(4)}, {0, 1, 2, 3, 4, 5}}) {
    EXPECT_THAT(Outcome(Push(3, GoodPush(3, 1), {FrameOf(keys)})),
                StatusIs(absl::StatusCode::kInvalidArgument, ""));
  }
  std::string longer(frame.view());
  longer.append(64, 'x');
  EXPECT_THAT(Outcome(Push(3, GoodPush(3, 1), {Bytes::Own(longer)})),
              StatusIs(absl::StatusCode::kInvalidArgument, ""));
  // A count that no memory holds.
  std::string huge(frame.view());
  for (int i = 8; i < 16; ++i) huge[i] = '\xff';
  EXPECT_THAT(Outcome(Push(3, GoodPush(3, 1), {Bytes::Own(huge)})),
              StatusIs(absl::StatusCode::kInvalidArgument, ""));
}

TEST_F(HostilePeer, RatesThatDoNotFitAreRefused) {
  uint64_t sequence = 0;
  for (const Bytes& rate :
       {EncodeRate(5, 0.5), EncodeRate(-1, -1.0),
        EncodeRate(-1, std::numeric_limits<double>::quiet_NaN()),
        EncodeRate(-1, std::numeric_limits<double>::infinity())}) {
    EXPECT_THAT(Outcome(Push(3, GoodPush(3, ++sequence), {rate})), Not(IsOk()))
        << sequence;
  }
}

// proto/ps.proto: the caller's client alone; docs/parameter_server.md: "the
// worker cannot push, pull, initialize or change a rate as another's client".
TEST_F(HostilePeer, PushAsAnothersClientIsRefusedAndTakesNoNumberOfIt) {
  for (const uint64_t opening : {uint64_t{1}, uint64_t{0}, uint64_t{1000}}) {
    for (uint64_t sequence = 1; sequence <= 40; ++sequence) {
      v1::PushRequest request = GoodPush(3, sequence);
      request.mutable_spans(0)->set_client(
          ClientIdOf(job_.trainer(0).key(), opening));
      EXPECT_THAT(Outcome(Push(3, request, {FrameOf({KeyIn(3)})})), Not(IsOk()))
          << opening << " " << sequence;
      request.set_opening(opening);
      EXPECT_THAT(Outcome(Push(3, request, {FrameOf({KeyIn(3)})})), Not(IsOk()))
          << opening << " " << sequence;
    }
  }
}

TEST_F(HostilePeer, QuestionsAndHugeFirstsOfItsOwnHarmNobody) {
  v1::PushRequest question = GoodPush(3, 0);
  const auto reply = Push(3, question, {});
  const auto with_payload = Push(3, question, {Bytes()});
  EXPECT_TRUE(reply.ok() || with_payload.ok())
      << reply.status() << with_payload.status();
  v1::PushRequest request = GoodPush(3, 1);
  request.mutable_spans(0)->set_first(kHuge);
  const auto huge = Push(3, request, {FrameOf({KeyIn(3)})});
  EXPECT_THAT(huge.status(),
              Not(StatusIs(absl::StatusCode::kDeadlineExceeded, "")));
  // The same partition many times over.
  v1::PushRequest many = GoodPush(3, 1);
  std::vector<Bytes> payloads = {FrameOf({KeyIn(3)})};
  for (int i = 0; i < 3000; ++i) {
    *many.add_spans() = many.spans(0);
    payloads.push_back(payloads[0]);
  }
  const auto answered = Push(3, many, payloads);
  EXPECT_THAT(answered.status(),
              Not(StatusIs(absl::StatusCode::kDeadlineExceeded, "")));
}

TEST_F(HostilePeer, PullsThatDoNotFitAreRefused) {
  const Bytes keys = EncodeKeys({KeyIn(3)});
  const auto pull = [&](const std::function<void(v1::PullRequest&)>& spoil,
                        const std::vector<Bytes>& payloads) -> absl::Status {
    v1::PullRequest request = GoodPull(3);
    spoil(request);
    const auto reply =
        rpc::Call(job_.trainer(1).To(PrimaryOf(3).id == 0 ? "ps0" : "ps1",
                                     absl::Seconds(3)),
                  &PullSpans, request, payloads);
    if (!reply.ok()) return reply.status();
    const v1::PullReply& said = std::get<0>(*reply);
    if (said.spans_size() != 1) return absl::OkStatus();
    if (said.spans(0).status() != 0) {
      return absl::Status(static_cast<absl::StatusCode>(said.spans(0).status()),
                          said.spans(0).message());
    }
    if (said.spans(0).code() != static_cast<int>(Code::kOk)) {
      return absl::InternalError(absl::StrCat("code ", said.spans(0).code()));
    }
    return absl::OkStatus();
  };
  const auto same = [](v1::PullRequest&) {};
  EXPECT_THAT(pull(same, {keys}), IsOk());
  EXPECT_THAT(pull(same, {}), StatusIs(absl::StatusCode::kInvalidArgument, ""));
  EXPECT_THAT(pull(same, {keys, keys}),
              StatusIs(absl::StatusCode::kInvalidArgument, ""));
  EXPECT_THAT(pull(same, {EncodeKeys({KeyIn(4)})}),
              StatusIs(absl::StatusCode::kInvalidArgument, ""));
  EXPECT_THAT(pull(same, {EncodeKeys({KeyIn(3), KeyIn(3)})}),
              StatusIs(absl::StatusCode::kInvalidArgument, ""));
  for (size_t size = 1; size < keys.size(); ++size) {
    EXPECT_THAT(pull(same, {Bytes::Copy(keys.view().substr(0, size))}),
                StatusIs(absl::StatusCode::kInvalidArgument, ""))
        << size;
  }
  EXPECT_THAT(
      pull([](auto& r) { r.mutable_spans(0)->set_partition(0xffffffffu); },
           {keys}),
      StatusIs(absl::StatusCode::kInvalidArgument, ""));
  EXPECT_THAT(pull([](auto& r) { r.set_table("nothing"); }, {keys}),
              Not(IsOk()));
  EXPECT_THAT(pull([](auto& r) { r.clear_to(); }, {keys}), Not(IsOk()));
  EXPECT_THAT(
      pull([](auto& r) { r.mutable_spans(0)->set_through(kHuge); }, {keys}),
      Not(IsOk()));
  EXPECT_THAT(
      pull([](auto& r) { r.mutable_spans(0)->set_epoch(kHuge); }, {keys}),
      Not(IsOk()));
}

TEST_F(HostilePeer, ForgedMessagesOfReplicasChangeNothing) {
  for (const char* server : {"ps0", "ps1"}) {
    for (const uint64_t map_epoch : {uint64_t{0}, map().epoch(), kHuge}) {
      for (int kind = -1; kind < 6; ++kind) {
        for (const uint32_t partition : {0u, 3u, 0xffffffffu}) {
          v1::ReplicaBatch batch;
          v1::ReplicaRun* run = batch.add_runs();
          run->set_table("t");
          run->set_generation(kind % 2 == 0 ? 0 : 1);
          run->add_partitions(partition);
          run->add_kinds(static_cast<uint32_t>(kind));
          run->add_map_epochs(map_epoch);
          run->add_epochs(map_epoch);
          run->add_fills(kHuge);
          run->add_ns(kHuge);
          run->add_piece(0);
          run->add_pieces(0);
          run->add_entries(1);
          run->add_entry_epochs(kHuge);
          run->add_entry_ns(kHuge);
          run->add_clients(0);
          run->add_sequences(kHuge);
          run->add_firsts(0);
          const bool is_copy =
              kind == static_cast<int>(ReplicaMessage::Kind::kFill);
          if (is_copy) {
            v1::ReplicaCopy* copy = run->add_copies();
            *copy->mutable_spec() = SparseSpec(v1::TableSpec::ASYNC, 1);
            v1::ClientMark* mark = copy->add_marks();
            mark->set_client(kHuge);
            mark->set_high(kHuge);
            mark->set_mask(kHuge);
          }
          const std::vector<Bytes> payloads(is_copy ? 2 : 1,
                                            FrameOf({KeyIn(3)}));
          const absl::Status status =
              rpc::Call(To(server), &Replicate, batch, payloads);
          EXPECT_THAT(status,
                      Not(StatusIs(absl::StatusCode::kDeadlineExceeded, "")));
          // Too many and none.
          std::vector<Bytes> more = payloads;
          more.resize(payloads.size() + 1);
          EXPECT_THAT(rpc::Call(To(server), &Replicate, batch, more),
                      Not(IsOk()));
          if (!payloads.empty()) {
            EXPECT_THAT(
                rpc::Call(To(server), &Replicate, batch, std::vector<Bytes>()),
                Not(IsOk()));
          }
        }
      }
    }
  }
  const auto stats = client_->Describe();
  ASSERT_THAT(stats, IsOk());
}

TEST_F(HostilePeer, ForgedCopyMakesNoTable) {
  for (const char* server : {"ps0", "ps1"}) {
    for (int partition = 0; partition < kPartitions; ++partition) {
      v1::ReplicaBatch batch;
      v1::ReplicaRun* run = batch.add_runs();
      run->set_table("forged");
      run->set_generation(1);
      run->add_partitions(partition);
      run->add_kinds(static_cast<uint32_t>(ReplicaMessage::Kind::kFill));
      run->add_map_epochs(map().epoch());
      run->add_epochs(map().entry(map().EntryOf(partition)).epoch);
      run->add_fills(1);
      run->add_ns(0);
      run->add_piece(0);
      run->add_pieces(1);
      run->add_entries(0);
      v1::TableSpec* spec = run->add_copies()->mutable_spec();
      *spec = SparseSpec(v1::TableSpec::ASYNC, 1);
      spec->set_name("forged");
      const Bytes copy = EncodeCopy(PartitionImage(), RateChanges());
      (void)rpc::Call(To(server), &Replicate, batch, std::vector<Bytes>{copy});
    }
  }
  const auto stats = client_->Describe();
  ASSERT_THAT(stats, IsOk());
  for (const v1::ServerStats& server : *stats) {
    EXPECT_EQ(server.tables_size(), 1) << server.ShortDebugString();
  }
}

// Servers that take each other for gone after two seconds.
class HostilePings : public HostilePeer {
 protected:
  HostilePings() : HostilePeer(absl::Seconds(2)) {}

  void SendPings() {
    for (int i = 0; i < 100; ++i) {
      v1::LeasePing ping;
      ping.set_number(i % 3 == 0 ? kHuge : i);
      ping.set_map_epoch(i % 2 == 0 ? kHuge : 0);
      const auto answer =
          rpc::Call(To(i % 4 < 2 ? "ps0" : "ps1"), &PingServer, ping);
      EXPECT_THAT(answer.status(),
                  Not(StatusIs(absl::StatusCode::kDeadlineExceeded, "")));
      if (i % 10 == 0) Step();
    }
  }
};

TEST_F(HostilePings, ThatAreForgedStopNobody) {
  // Again where a role was lost: the machine may have paused for so long.
  bool has_changed = true;
  for (int attempt = 0; attempt < 4 && has_changed; ++attempt) {
    ASSERT_TRUE(job_.BecomesReplicated());
    const uint64_t epoch = map().epoch();
    SendPings();
    absl::SleepFor(absl::Seconds(4));  // longer than silence and leases
    Step();
    has_changed = map().epoch() != epoch;
  }
  EXPECT_FALSE(has_changed) << map().Summary();
}

TEST_F(HostilePeer, HostileSpecsAreRefused) {
  const auto open = [&](const std::function<void(v1::TableSpec&)>& spoil) {
    v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 1);
    spec.set_name("hostile");
    spoil(spec);
    return rpc::Call(To("ps0"), &OpenReplicated, spec, 5, 1).status();
  };
  const auto is_invalid = StatusIs(absl::StatusCode::kInvalidArgument, "");
  EXPECT_THAT(open([](auto& s) { s.set_name(""); }), is_invalid);
  EXPECT_THAT(open([](auto& s) { s.set_name("a b"); }), is_invalid);
  EXPECT_THAT(open([](auto& s) { s.set_name(std::string(300, 'x')); }),
              is_invalid);
  EXPECT_THAT(open([](auto& s) { s.set_dim(-1); }), is_invalid);
  EXPECT_THAT(open([](auto& s) { s.set_dim(int64_t{1} << 60); }), is_invalid);
  EXPECT_THAT(open([](auto& s) { s.set_partitions(3); }), is_invalid);
  EXPECT_THAT(open([](auto& s) { s.set_partitions(1 << 30); }), is_invalid);
  EXPECT_THAT(open([](auto& s) { s.clear_rule(); }), is_invalid);
  EXPECT_THAT(open([](auto& s) { s.clear_mode(); }), is_invalid);
  EXPECT_THAT(open([](auto& s) {
                s.set_mode(v1::TableSpec::SYNC);
                s.set_durability(v1::TableSpec::NONE);
              }),
              is_invalid);
  EXPECT_THAT(open([](auto& s) {
                s.set_kind(v1::TableSpec::DENSE);
                s.clear_dim();
                s.set_elements(int64_t{1} << 62);
              }),
              is_invalid);
  // Another spec of a table that is there.
  EXPECT_THAT(open([](auto& s) {
                s.set_name("t");
                s.set_dim(3);
              }),
              StatusIs(absl::StatusCode::kFailedPrecondition, ""));
}

TEST_F(HostilePeer, SaveAndRestoreByAWrongMapAreRefused) {
  EXPECT_THAT(rpc::Call(To("ps0"), &RestoreReplicated, "/nowhere", "ckpt-1",
                        kHuge, kHuge),
              Not(IsOk()));
  EXPECT_THAT(rpc::Call(To("ps0"), &RestoreReplicated, "", "", uint64_t{0},
                        map().epoch()),
              Not(IsOk()));
  v1::SaveRequest save;
  save.set_directory("/nowhere");
  save.set_map_epoch(kHuge);
  EXPECT_THAT(rpc::Call(To("ps0"), &Save, save), Not(IsOk()));
  // What is for tables without replicas.
  EXPECT_THAT(rpc::Call(To("ps0"), &Restore, "/nowhere", "ckpt-1"),
              Not(IsOk()));
}

}  // namespace
}  // namespace weft::ps
