#include "weft/ps/replicated/batch.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/replicated/frame.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::shared_ptr<const TableIdentity> Table(const std::string& name,
                                           uint64_t generation) {
  TableIdentity table;
  table.spec.set_name(name);
  table.generation = generation;
  return std::make_shared<const TableIdentity>(table);
}

// Messages of two tables: entries of three partitions, an acknowledgement and a
// copy.
std::deque<Envelope> Envelopes() {
  const auto a = Table("a", 4);
  const auto b = Table("b", 0);
  std::deque<Envelope> all;
  for (int partition = 0; partition < 3; ++partition) {
    Envelope append;
    append.table = a;
    append.partition = partition;
    append.message.kind = ReplicaMessage::Kind::kAppend;
    append.message.map_epoch = 5;
    append.message.epoch = 3;
    append.message.fill = 2;
    for (uint64_t n = 1; n <= static_cast<uint64_t>(partition); ++n) {
      append.message.entries.push_back(
          {{3, n}, {~uint64_t{0}, n + 7, n}, Bytes::Copy("payload")});
    }
    all.push_back(append);
  }
  Envelope ack;
  ack.table = b;
  ack.partition = 1023;
  ack.message.kind = ReplicaMessage::Kind::kAck;
  ack.message.epoch = 9;
  ack.message.n = 77;
  all.push_back(ack);
  Envelope fill;
  fill.table = a;
  fill.partition = 6;
  fill.message.kind = ReplicaMessage::Kind::kFill;
  fill.message.piece = 3;
  fill.message.pieces = 8;
  fill.message.marks[9].SkipTo(3);
  fill.copy = Bytes::Copy("copy");
  fill.openings = {{{1, 2}, 3, 4}};
  all.push_back(fill);
  return all;
}

TEST(Batch, ComesBack) {
  const std::deque<Envelope> sent = Envelopes();
  const EncodedBatch encoded = EncodeBatch(sent);
  EXPECT_EQ(encoded.payloads.size(), 4u);
  const auto runs = DecodeBatch(encoded.batch, encoded.payloads);
  ASSERT_THAT(runs, IsOk());
  ASSERT_EQ(runs->size(), 3u) << "one for each change of the table";
  EXPECT_EQ((*runs)[0].generation, 4u);
  size_t next = 0;
  for (const ReceivedRun& run : *runs) {
    for (const Received& received : run.messages) {
      const Envelope& was = sent[next++];
      EXPECT_EQ(run.table, was.table->spec.name());
      EXPECT_EQ(received.partition, was.partition);
      const ReplicaMessage& message = received.message;
      EXPECT_EQ(message.kind, was.message.kind);
      EXPECT_EQ(message.map_epoch, was.message.map_epoch);
      EXPECT_EQ(message.epoch, was.message.epoch);
      EXPECT_EQ(message.fill, was.message.fill);
      EXPECT_EQ(message.n, was.message.n);
      EXPECT_EQ(message.piece, was.message.piece);
      EXPECT_EQ(message.pieces, was.message.pieces);
      EXPECT_EQ(message.marks, was.message.marks);
      EXPECT_EQ(received.copy, was.copy);
      ASSERT_EQ(message.entries.size(), was.message.entries.size());
      for (size_t i = 0; i < message.entries.size(); ++i) {
        EXPECT_EQ(message.entries[i].lsn.n, was.message.entries[i].lsn.n);
        EXPECT_EQ(message.entries[i].mark.client, ~uint64_t{0});
        EXPECT_EQ(message.entries[i].mark.sequence,
                  was.message.entries[i].mark.sequence);
        EXPECT_EQ(message.entries[i].mark.first,
                  was.message.entries[i].mark.first);
        EXPECT_EQ(message.entries[i].payload.view(), "payload");
      }
    }
  }
  EXPECT_EQ(next, sent.size());
  const v1::ReplicaCopy& said = *(*runs)[2].messages[0].said;
  ASSERT_EQ(said.openings_size(), 1);
  EXPECT_EQ(said.openings(0).opened_at(), 4u);
  EXPECT_EQ(said.spec().name(), "a");
}

TEST(Batch, ColumnsThatDoNotFitAreRefused) {
  const EncodedBatch encoded = EncodeBatch(Envelopes());
  const auto refuses = [&](const auto& spoil, absl::string_view why) {
    v1::ReplicaBatch batch = encoded.batch;
    spoil(*batch.mutable_runs(0));
    EXPECT_THAT(DecodeBatch(batch, encoded.payloads).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, std::string(why)));
  };
  refuses([](v1::ReplicaRun& run) { run.add_partitions(1); }, "wanted 4");
  refuses([](v1::ReplicaRun& run) { run.mutable_ns()->RemoveLast(); },
          "found 2");
  refuses([](v1::ReplicaRun& run) { run.set_entries(0, 1); }, "wanted 4 entr");
  refuses([](v1::ReplicaRun& run) { run.set_entries(1, 0xffffffff); },
          "wanted 4294967297 entr");
  refuses([](v1::ReplicaRun& run) { run.mutable_clients()->RemoveLast(); },
          "found 2");
  refuses([](v1::ReplicaRun& run) { run.set_kinds(0, 4); }, "unknown kind 4");
  refuses([](v1::ReplicaRun& run) { run.set_kinds(0, 0); }, "wanted 1 copies");
  refuses([](v1::ReplicaRun& run) { run.set_partitions(0, ~0u); },
          "no partition");
  for (const int payloads : {0, 3, 5}) {
    EXPECT_THAT(DecodeBatch(encoded.batch, std::vector<Bytes>(payloads)),
                StatusIs(absl::StatusCode::kInvalidArgument, "4 payloads"));
  }
}

}  // namespace
}  // namespace weft::ps
