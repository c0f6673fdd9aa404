// LoggedTables: what a server's log of tables says, once all of its records
// have been read in order.
//
// A partition is a copy of its rows and the entries of the log after it. It is
// void where the log does not have all of it: the server was being filled, had
// no part in it, or stopped having one.
//
// Bytes of the log are not trusted: what does not fit is kDataLoss.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_PS_REPLICATED_LOGGED_TABLES_H_
#define WEFT_PS_REPLICATED_LOGGED_TABLES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/bytes.h"
#include "weft/proto/ps.pb.h"
#include "weft/proto/ps_log.pb.h"
#include "weft/ps/core/replication/open_clients.h"
#include "weft/ps/core/replication/replication.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::ps {

struct LoggedPartition {
  bool is_void = false;
  std::vector<Bytes> pieces;  // of the copy, Aligned; none: it was empty
  uint64_t n = 0;             // its position
  Marks marks;                // its
  std::vector<OpenClients::Opening> openings;  // with a staleness: its
  std::vector<LogEntry> entries;

  // Of one whose rows are elsewhere now; is_void stays.
  void FreeRows() {
    pieces = {};
    entries = {};
  }
};

struct LoggedTable {
  uint32_t number = 0;
  v1::TableSpec spec;
  uint64_t generation = 0;
  bool is_logged = false;
  bool begins_void = false;
  std::map<int, LoggedPartition> partitions;  // of which there are records
  bool IsVoid(int partition) const;
};

class LoggedTables {
 public:
  absl::Status Add(const v1::TableLogRecord& record);

  // The servers that wrote it, earlier incarnations of one.
  const std::set<WorkerKey>& owners() const { return owners_; }
  uint64_t birth() const { return birth_; }  // 0: nobody wrote it
  // Where two have one name, the first counts: it is dropped once the other one
  // is whole.
  const std::map<uint32_t, LoggedTable>& tables() const { return tables_; }
  std::map<uint32_t, LoggedTable>& mutable_tables() { return tables_; }
  uint32_t last_table() const { return last_table_; }  // highest number

 private:
  absl::Status AddTable(const v1::TableLogRecord::Table& table);
  absl::Status AddEntry(const v1::TableLogRecord::Entry& entry);
  absl::Status AddCopy(const v1::TableLogRecord::Copy& copy);
  // Null: there is no such table, or it has no such partition.
  LoggedPartition* Find(uint32_t table, uint32_t partition);

  std::set<WorkerKey> owners_;
  uint64_t birth_ = 0;
  uint32_t last_table_ = 0;
  std::map<uint32_t, LoggedTable> tables_;  // by number
  std::set<uint32_t> dropped_;              // numbers
  // Pieces of a copy of which not all have come.
  std::vector<Bytes> pieces_;
};

v1::TableLogRecord OwnerRecord(WorkerKey server, uint64_t birth);

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_LOGGED_TABLES_H_
