// TableLog: what one server has of tables of durability LOGGED, on its disk.
//
// A directory of segments, 00000001.log and so on: "WEFTPTL1", then batches of
// records (proto/ps_log.proto), each batch one frame of base/record_frames.h.
// All that was appended while the disk was busy is one batch: one thread writes
// and syncs it, whatever number of partitions it is of, and then says what is
// on disk. Each process begins a segment; so does a write that has failed, with
// what had not been synced.
//
// Once it has grown by as much as copies of all partitions took the last time,
// and by `least_growth`, it is written anew: a segment begins with which tables
// there are, `copy_all` appends a copy of each partition, a file `begin` says
// that the log begins there, and what is older is removed: a process that is
// killed amid that leaves segments that no longer count.
//
// So it is where somebody has removed the segment that is written to: until
// then nothing that is appended counts as on disk.
//
// Errors name the file, and the byte where it is damaged. A full disk is tried
// again each second: until then nothing that is appended is on disk, and
// status() says why. After another error nothing is written any more.
//
// Thread-safety: thread-safe. Append... are called under locks of partitions:
// they wait for no disk.

#ifndef WEFT_PS_REPLICATED_TABLE_LOG_H_
#define WEFT_PS_REPLICATED_TABLE_LOG_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/checkpoint/file_system.h"
#include "weft/proto/ps_log.pb.h"
#include "weft/ps/core/replication/open_clients.h"
#include "weft/ps/core/replication/replication.h"
#include "weft/ps/replicated/frame.h"
#include "weft/ps/replicated/logged_tables.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::ps {

class TableLog {
 public:
  // What is on disk: of a partition all up to entry `n`. `content` is the
  // caller's, as it was appended: which copy of the partition it is of.
  struct Place {
    uint32_t table = 0;
    int partition = 0;
    uint64_t content = 0;
    uint64_t n = 0;
  };
  struct Options {
    checkpoint::FileSystem* files = &checkpoint::LocalFiles();
    std::string directory;
    // The directory is the system's: it is locked, and what is read is synced.
    bool is_local = true;
    int64_t least_growth = int64_t{64} << 20;
    absl::Duration retry_after = absl::Seconds(1);
  };
  struct Callbacks {
    // On the log's thread, without locks held: that is on disk.
    std::function<void(const std::vector<Place>&)> on_disk;
    // On a thread of the log: appends a copy of each partition that the server
    // has all of (AppendCopy), and waits between them (Await). False: not all.
    std::function<bool()> copy_all;
  };

  // Reads what is there.
  //   kFailedPrecondition  another process has it open
  //   kDataLoss            it is damaged
  //   others               what the system said
  static absl::StatusOr<std::unique_ptr<TableLog>> Open(Options options);
  ~TableLog();
  TableLog(const TableLog&) = delete;
  TableLog& operator=(const TableLog&) = delete;

  // What was there; empty after Begin with another `birth`. In memory it takes
  // what copies and the entries after them take: the file's older content is
  // not kept.
  const LoggedTables& found() const { return found_; }
  // It is the caller's, to be freed as it is used.
  LoggedTables TakeFound() { return std::exchange(found_, LoggedTables()); }

  // Once, before all that follows: `self` goes on with what was there, if that
  // is of the job whose map has that birth; else it is kept under names that
  // end with ".of-job-" and its birth, which nothing reads.
  absl::Status Begin(WorkerKey self, uint64_t birth, Callbacks callbacks)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends its threads, once all that was appended is on disk, or cannot be.
  // Callbacks do not run afterwards. Appending does nothing then.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns its number. One of that name, of which it takes the place, is to be
  // dropped after it and all of its copies were appended.
  uint32_t AddTable(const v1::TableSpec& spec, uint64_t generation,
                    bool is_logged, bool begins_void) ABSL_LOCKS_EXCLUDED(mu_);
  void DropTable(uint32_t table) ABSL_LOCKS_EXCLUDED(mu_);
  void AppendEntry(const Place& place, const LogEntry& entry)
      ABSL_LOCKS_EXCLUDED(mu_);
  // All of the partition. `openings`: with a staleness, the clients that have
  // the table open.
  void AppendCopy(const Place& place, Marks marks,
                  std::vector<OpenClients::Opening> openings,
                  std::shared_ptr<const CopyInPieces> rows)
      ABSL_LOCKS_EXCLUDED(mu_);
  void AppendDrop(const Place& place) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until what was appended is on disk; an error once it cannot be, or
  // the disk is full.
  absl::Status Await() ABSL_LOCKS_EXCLUDED(mu_);
  // kResourceExhausted: the disk is full. OK: what is appended will be on disk.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& directory() const { return options_.directory; }

 private:
  struct Item {
    v1::TableLogRecord record;
    bool has_place = false;
    Place place;
    // A copy.
    Marks marks;
    std::vector<OpenClients::Opening> openings;
    std::shared_ptr<const CopyInPieces> rows;
    // A new segment, which begins with these.
    bool begins_segment = false;
    std::vector<v1::TableLogRecord> heads;
  };
  using Items = std::deque<Item>;

  explicit TableLog(Options options) : options_(std::move(options)) {}
  absl::Status Lock();
  absl::Status Read();
  // The first segment that counts; 0: all do. kDataLoss: it is damaged.
  absl::StatusOr<uint64_t> ReadBegin() const;
  absl::Status ReadSegment(const std::string& name);
  absl::StatusOr<bool> IsCutMagic(const std::string& path,
                                  absl::string_view begun, int64_t size) const;
  absl::Status ReadFrames(const std::string& path, int64_t size);
  std::string PathOf(uint64_t segment) const;
  std::string PathOfBegin() const;
  // Nothing of a table that was dropped: others may not find it in the log.
  void Add(Item item, uint32_t table) ABSL_LOCKS_EXCLUDED(mu_);
  void AddLocked(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is there is of another job.
  absl::Status KeepAside();

  // The writing thread.
  void Write() ABSL_LOCKS_EXCLUDED(mu_);
  // False: the log ends, or has failed for good.
  bool TakeItems(Items& items) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Commit(const Items& items) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteCopy(const Item& item, v1::TableLogBatch& batch);
  absl::Status WriteBatch(v1::TableLogBatch& batch);
  absl::Status BeginSegment(const std::vector<v1::TableLogRecord>& heads);
  void Report(const Items& items) ABSL_LOCKS_EXCLUDED(mu_);
  void LookForSegment() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether to try again.
  bool Failed(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // The thread that has it written anew.
  void Renew() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteBegin(uint64_t segment);
  absl::Status RemoveBefore(uint64_t segment);

  const Options options_;
  int lock_ = -1;
  LoggedTables found_;
  Callbacks callbacks_;
  std::vector<std::string> found_segments_;  // that count
  uint64_t begin_ = 0;                       // as ReadBegin found it

  // Of the writing thread, and before it begins.
  std::unique_ptr<checkpoint::WritableFile> file_;
  bool is_torn_ = false;     // file_ ends in a write that failed
  bool has_synced_ = false;  // file_ has something that was synced
  uint64_t segment_ = 0;
  // By table and partition: what is written, and not told yet.
  std::map<std::pair<uint32_t, int>, Place> untold_;

  mutable Mutex mu_;
  mutable CondVar changed_;
  Items queue_ ABSL_GUARDED_BY(mu_);
  bool is_begun_ ABSL_GUARDED_BY(mu_) = false;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;
  bool has_failed_ ABSL_GUARDED_BY(mu_) = false;  // for good
  // Until a segment has all that there was in the one that is gone.
  bool is_removed_ ABSL_GUARDED_BY(mu_) = false;
  bool may_tell_ ABSL_GUARDED_BY(mu_) = false;  // what was held back for it
  uint64_t appended_ ABSL_GUARDED_BY(mu_) = 0;  // items
  uint64_t written_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t oldest_ ABSL_GUARDED_BY(mu_) = 0;  // segment of the last Renew
  int64_t growth_ ABSL_GUARDED_BY(mu_) = 0;   // bytes since then
  int64_t copied_ ABSL_GUARDED_BY(mu_) = 0;   // bytes of the copies
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  uint32_t last_table_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint32_t, v1::TableLogRecord> tables_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::TableLogRecord> owners_ ABSL_GUARDED_BY(mu_);

  std::thread writing_;
  std::thread renewing_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_TABLE_LOG_H_
