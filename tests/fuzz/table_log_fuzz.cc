// table_log: no bytes harm who reads a server's log of tables, and what it says
// fits its tables.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "weft/base/io/record_frames.h"
#include "weft/proto/ps_log.pb.h"
#include "weft/ps/replicated/logged_tables.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

ps::v1::TableLogBatch Batch() {
  ps::v1::TableLogBatch batch;
  *batch.add_records() = ps::OwnerRecord({1, 1}, 7);
  auto* const table = batch.add_records()->mutable_table();
  table->set_number(1);
  table->mutable_spec()->set_name("t");
  table->mutable_spec()->set_partitions(4);
  table->set_is_logged(true);
  for (int n = 1; n <= 3; ++n) {
    auto* const entry = batch.add_records()->mutable_entry();
    entry->set_table(1);
    entry->set_n(n == 3 ? 9 : n);
    entry->set_payload("x");
  }
  for (int piece = 0; piece < 2; ++piece) {
    auto* const copy = batch.add_records()->mutable_copy();
    copy->set_table(1);
    copy->set_partition(1);
    copy->set_piece(piece);
    copy->set_pieces(2);
    copy->set_n(5);
    copy->set_rows("rows");
    copy->add_marks()->set_client(3);
  }
  auto* const drop = batch.add_records()->mutable_drop();
  drop->set_table(1);
  drop->set_partition(2);
  batch.add_records()->mutable_drop()->set_table(1);
  *batch.add_records() = batch.records(2);
  *batch.add_records() = batch.records(5);
  *batch.add_records() = batch.records(6);
  *batch.add_records() = batch.records(7);
  return batch;
}

std::vector<std::string> Seeds() {
  const ps::v1::TableLogBatch batch = Batch();
  std::vector<std::string> seeds = {batch.SerializeAsString()};
  ps::v1::TableLogBatch begun = batch;
  begun.mutable_records()->DeleteSubrange(8, begun.records_size() - 8);
  seeds.push_back(begun.SerializeAsString());
  *begun.add_records() = ps::OwnerRecord({2, 1}, 7);
  seeds.push_back(begun.SerializeAsString());
  std::string frames;
  for (const std::string& seed : std::vector<std::string>(seeds)) {
    AppendFrame(seed, &frames);
  }
  seeds.push_back(frames);
  return seeds;
}

std::vector<std::string> Words() { return {"\x0a\x02", "\x5a"}; }

void Read(absl::string_view bytes, ps::LoggedTables& tables) {
  ps::v1::TableLogBatch batch;
  if (!batch.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return;
  }
  for (const ps::v1::TableLogRecord& record : batch.records()) {
    if (!tables.Add(record).ok()) break;
  }
  for (const auto& [number, table] : tables.tables()) {
    Hold(number == table.number && number <= tables.last_table());
    for (const auto& [partition, found] : table.partitions) {
      Hold(partition >= 0 && partition < table.spec.partitions());
      Hold(found.is_void == table.IsVoid(partition));
      uint64_t n = found.n;
      for (const ps::LogEntry& entry : found.entries) {
        Hold(entry.lsn.n == ++n);
      }
    }
  }
}

// Takes the input as frames of batches, and as one batch.
void Run(absl::string_view input) {
  ps::LoggedTables framed;
  absl::string_view rest = input;
  absl::string_view record;
  for (;;) {
    const auto taken = TakeFrame(&rest, 1 << 20, &record);
    if (!taken.ok() || !*taken) break;
    Hold(rest.size() < input.size());
    Read(record, framed);
  }
  ps::LoggedTables plain;
  Read(input, plain);
}

WEFT_FUZZ_TARGET(table_log, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
