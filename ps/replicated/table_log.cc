#include "weft/ps/replicated/table_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/check.h"
#include "weft/base/io/frame_reader.h"
#include "weft/base/io/record_frames.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"

namespace weft::ps {
namespace {

constexpr absl::string_view kMagic = "WEFTPTL1";
constexpr absl::string_view kSuffix = ".log";
constexpr absl::string_view kBegin = "begin";
// A batch is about so large, or has one record.
constexpr size_t kBatchBytes = size_t{16} << 20;
constexpr uint32_t kMostBatchBytes = uint32_t{1} << 30;
// It is read in pieces of so much, or in a batch that is larger.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr absl::Duration kRenewAgainAfter = absl::Seconds(10);

constexpr absl::string_view kNotTrusted =
    "this server's copies cannot be trusted: move the directory away to begin "
    "with an empty log, which loses them";

// The number of a segment; 0: it is another file.
uint64_t SegmentOf(absl::string_view name) {
  uint64_t number = 0;
  if (!absl::EndsWith(name, kSuffix) ||
      !absl::SimpleAtoi(name.substr(0, name.size() - kSuffix.size()),
                        &number)) {
    return 0;
  }
  return number;
}

absl::Status Named(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("log of tables ", path, ": ",
                                                  status.message()));
}

absl::Status Damaged(absl::string_view why, int64_t at) {
  return absl::DataLossError(
      absl::StrCat(why, " at byte ", at, "; ", kNotTrusted));
}

size_t BytesOf(const v1::TableLogRecord& record) {
  return 64 + record.entry().payload().size() + record.copy().rows().size();
}

}  // namespace

// --- Reading -----------------------------------------------------------------

absl::StatusOr<std::unique_ptr<TableLog>> TableLog::Open(Options options) {
  std::unique_ptr<TableLog> log(new TableLog(std::move(options)));
  WEFT_RETURN_IF_ERROR(
      log->options_.files->MakeDirectories(log->options_.directory));
  WEFT_RETURN_IF_ERROR(log->Lock());
  WEFT_RETURN_IF_ERROR(log->Read());
  return log;
}

TableLog::~TableLog() {
  Shutdown();
  if (lock_ >= 0) close(lock_);
}

absl::Status TableLog::Lock() {
  if (!options_.is_local) return absl::OkStatus();
  const std::string path = options_.directory + "/lock";
  lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) return absl::ErrnoToStatus(errno, path);
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("log of tables ", options_.directory,
                   ": another server has it open; end that one, or name "
                   "another directory by --table-log-dir"));
}

std::string TableLog::PathOf(uint64_t segment) const {
  return absl::StrCat(options_.directory, "/", absl::StrFormat("%08d", segment),
                      kSuffix);
}

absl::Status TableLog::Read() {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        options_.files->List(options_.directory));
  const bool has_begin =
      std::find(names.begin(), names.end(), kBegin) != names.end();
  if (has_begin) {
    const absl::StatusOr<uint64_t> begin = ReadBegin();
    if (!begin.ok()) return Named(PathOfBegin(), begin.status());
    begin_ = *begin;
  }
  for (const std::string& name : names) {
    const uint64_t segment = SegmentOf(name);
    if (segment == 0 || segment < begin_) continue;
    const absl::Status read = ReadSegment(name);
    if (!read.ok()) return Named(options_.directory + "/" + name, read);
    found_segments_.push_back(name);
    segment_ = std::max(segment_, segment);
  }
  if (begin_ == 0 || (!found_segments_.empty() &&
                      SegmentOf(found_segments_.front()) == begin_)) {
    return absl::OkStatus();
  }
  return Named(PathOf(begin_),
               absl::DataLossError(absl::StrCat(
                   "the log begins with this segment, and it is not there; ",
                   kNotTrusted)));
}

std::string TableLog::PathOfBegin() const {
  return absl::StrCat(options_.directory, "/", kBegin);
}

absl::StatusOr<uint64_t> TableLog::ReadBegin() const {
  WEFT_ASSIGN_OR_RETURN(const std::string all,
                        options_.files->Read(PathOfBegin(), 1024));
  absl::string_view rest = all;
  absl::string_view text;
  const absl::StatusOr<bool> taken = TakeFrame(&rest, 1024, &text);
  uint64_t begin = 0;
  if (!taken.ok() || !*taken || !rest.empty() ||
      !absl::SimpleAtoi(text, &begin) || begin == 0) {
    return Damaged("wanted the number of a segment, found something else", 0);
  }
  return begin;
}

absl::Status TableLog::ReadSegment(const std::string& name) {
  const std::string path = options_.directory + "/" + name;
  if (options_.is_local) {
    // What a process that was killed had not synced is only now to last.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const bool is_synced = fd >= 0 && fsync(fd) == 0;
    const int error = errno;
    if (fd >= 0) close(fd);
    if (!is_synced) return absl::ErrnoToStatus(error, "cannot sync it");
  }
  WEFT_ASSIGN_OR_RETURN(const int64_t size, options_.files->Size(path));
  {
    MutexLock lock(mu_);
    growth_ += size;
  }
  WEFT_ASSIGN_OR_RETURN(const std::string begun,
                        options_.files->ReadAt(path, 0, kMagic.size()));
  if (begun != kMagic) {
    WEFT_ASSIGN_OR_RETURN(const bool is_cut, IsCutMagic(path, begun, size));
    if (is_cut) return absl::OkStatus();
    return Damaged("wanted a log of tables, found another beginning", 0);
  }
  return ReadFrames(path, size);
}

// The very first write may have been cut, too: some of its bytes, then zeros.
absl::StatusOr<bool> TableLog::IsCutMagic(const std::string& path,
                                          absl::string_view begun,
                                          int64_t size) const {
  const size_t last = begun.find_last_not_of('\0');
  if (!absl::StartsWith(kMagic, begun.substr(0, last + 1))) return false;
  for (int64_t at = kMagic.size(); at < size; at += kPieceBytes) {
    WEFT_ASSIGN_OR_RETURN(const std::string piece,
                          options_.files->ReadAt(path, at, kPieceBytes));
    if (piece.find_first_not_of('\0') != std::string::npos) return false;
  }
  return true;
}

absl::Status TableLog::ReadFrames(const std::string& path, int64_t size) {
  FrameReader frames(
      [&](int64_t offset, int64_t most) {
        return options_.files->ReadAt(path, offset, most);
      },
      kMagic.size(), size, kMostBatchBytes, kPieceBytes);
  absl::string_view frame;
  for (;;) {
    const int64_t at = frames.offset();
    const absl::StatusOr<bool> taken = frames.Next(&frame);
    if (absl::IsDataLoss(taken.status())) {
      return Damaged(taken.status().message(), at);
    }
    if (!taken.ok()) return taken.status();
    if (!*taken) return absl::OkStatus();
    v1::TableLogBatch batch;
    if (!batch.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
      return Damaged("no batch of records", at);
    }
    for (const v1::TableLogRecord& record : batch.records()) {
      const absl::Status added = found_.Add(record);
      if (!added.ok()) return Damaged(added.message(), at);
    }
  }
}

// --- Beginning and ending ----------------------------------------------------

absl::Status TableLog::Begin(WorkerKey self, uint64_t birth,
                             Callbacks callbacks) {
  WEFT_CHECK_GT(birth, uint64_t{0});
  const bool is_other =
      found_.birth() != birth || found_.owners().begin()->id != self.id;
  // They do not count any more.
  if (begin_ > 0) WEFT_RETURN_IF_ERROR(RemoveBefore(begin_));
  if (is_other) WEFT_RETURN_IF_ERROR(KeepAside());
  callbacks_ = std::move(callbacks);
  std::vector<v1::TableLogRecord> heads;
  {
    MutexLock lock(mu_);
    is_begun_ = true;
    if (is_other) growth_ = 0;
    for (WorkerKey owner : found_.owners()) {
      owners_.push_back(OwnerRecord(owner, birth));
    }
    heads = {OwnerRecord(self, birth)};
    owners_.push_back(heads[0]);
    for (const auto& [number, table] : found_.tables()) {
      v1::TableLogRecord::Table* const to = tables_[number].mutable_table();
      to->set_number(number);
      *to->mutable_spec() = table.spec;
      to->set_generation(table.generation);
      to->set_is_logged(table.is_logged);
    }
    last_table_ = found_.last_table();
  }
  WEFT_RETURN_IF_ERROR(BeginSegment(heads));
  WEFT_ASSIGN_OR_RETURN(writing_,
                        StartThread("the log of tables", [this] { Write(); }));
  WEFT_ASSIGN_OR_RETURN(renewing_,
                        StartThread("the log of tables", [this] { Renew(); }));
  return absl::OkStatus();
}

// It may be all that is left of that job's tables.
absl::Status TableLog::KeepAside() {
  const std::string suffix =
      absl::StrCat(".of-job-", absl::Hex(found_.birth()));
  found_ = LoggedTables();
  // First where they begin: if the rest is not done, the next process does it.
  if (begin_ > 0) {
    WEFT_RETURN_IF_ERROR(
        options_.files->Rename(PathOfBegin(), PathOfBegin() + suffix));
    WEFT_RETURN_IF_ERROR(options_.files->SyncDirectory(options_.directory));
  }
  for (const std::string& name : found_segments_) {
    const std::string path = options_.directory + "/" + name;
    WEFT_RETURN_IF_ERROR(options_.files->Rename(path, path + suffix));
  }
  return options_.files->SyncDirectory(options_.directory);
}

void TableLog::Shutdown() {
  {
    MutexLock lock(mu_);
    is_ending_ = true;
  }
  changed_.NotifyAll();
  for (std::thread* thread : {&renewing_, &writing_}) {
    if (thread->joinable()) thread->join();
  }
}

// --- Appending ---------------------------------------------------------------

void TableLog::Add(Item item, uint32_t table) {
  MutexLock lock(mu_);
  if (tables_.count(table) > 0) AddLocked(std::move(item));
}

void TableLog::AddLocked(Item item) {
  if (!is_begun_ || is_ending_ || has_failed_) return;
  ++appended_;
  queue_.push_back(std::move(item));
  changed_.NotifyAll();
}

uint32_t TableLog::AddTable(const v1::TableSpec& spec, uint64_t generation,
                            bool is_logged, bool begins_void) {
  Item item;
  v1::TableLogRecord::Table* const table = item.record.mutable_table();
  *table->mutable_spec() = spec;
  table->set_generation(generation);
  table->set_is_logged(is_logged);
  table->set_begins_void(begins_void);
  {
    MutexLock lock(mu_);
    table->set_number(++last_table_);
    tables_[table->number()] = item.record;
  }
  const uint32_t number = table->number();
  Add(std::move(item), number);
  return number;
}

void TableLog::DropTable(uint32_t table) {
  Item item;
  item.record.mutable_drop()->set_table(table);
  MutexLock lock(mu_);
  if (tables_.erase(table) > 0) AddLocked(std::move(item));
}

void TableLog::AppendEntry(const Place& place, const LogEntry& entry) {
  Item item;
  item.has_place = true;
  item.place = place;
  v1::TableLogRecord::Entry* const to = item.record.mutable_entry();
  to->set_table(place.table);
  to->set_partition(static_cast<uint32_t>(place.partition));
  to->set_epoch(entry.lsn.epoch);
  to->set_n(entry.lsn.n);
  to->set_client(entry.mark.client);
  to->set_sequence(entry.mark.sequence);
  to->set_first(entry.mark.first);
  to->set_payload(entry.payload.data(), entry.payload.size());
  Add(std::move(item), place.table);
}

void TableLog::AppendCopy(const Place& place, Marks marks,
                          std::vector<OpenClients::Opening> openings,
                          std::shared_ptr<const CopyInPieces> rows) {
  Item item;
  item.has_place = true;
  item.place = place;
  item.marks = std::move(marks);
  item.openings = std::move(openings);
  item.rows = std::move(rows);
  Add(std::move(item), place.table);
}

void TableLog::AppendDrop(const Place& place) {
  Item item;
  item.record.mutable_drop()->set_table(place.table);
  item.record.mutable_drop()->set_partition(
      static_cast<uint32_t>(place.partition));
  Add(std::move(item), place.table);
}

absl::Status TableLog::Await() {
  MutexLock lock(mu_);
  const uint64_t wanted = appended_;
  while (written_ < wanted && status_.ok() && !is_ending_) changed_.Wait(mu_);
  if (written_ >= wanted) return absl::OkStatus();
  return status_.ok() ? absl::UnavailableError("the server shuts down")
                      : status_;
}

absl::Status TableLog::status() const {
  MutexLock lock(mu_);
  return status_;
}

// --- The writing thread ------------------------------------------------------

void TableLog::Write() {
  Items items;
  while (TakeItems(items)) {
    absl::Status written = Commit(items);
    while (!written.ok() && Failed(written)) {
      is_torn_ = true;
      written = Commit(items);
    }
    if (!written.ok()) continue;  // has_failed_, or it ends
    Report(items);
  }
}

bool TableLog::TakeItems(Items& items) {
  items.clear();
  MutexLock lock(mu_);
  while (queue_.empty() && !may_tell_ && !is_ending_ && !has_failed_) {
    changed_.Wait(mu_);
  }
  if (has_failed_) return false;
  if (!std::exchange(may_tell_, false) && queue_.empty()) return false;
  for (size_t bytes = 0; !queue_.empty() && bytes < kBatchBytes;) {
    bytes += BytesOf(queue_.front().record);
    items.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return true;
}

absl::Status TableLog::Commit(const Items& items) {
  if (is_torn_) {
    WEFT_RETURN_IF_ERROR(BeginSegment({}));
    is_torn_ = false;
  }
  v1::TableLogBatch batch;
  for (const Item& item : items) {
    if (item.begins_segment) {
      WEFT_RETURN_IF_ERROR(WriteBatch(batch));
      WEFT_RETURN_IF_ERROR(file_->Sync());
      WEFT_RETURN_IF_ERROR(options_.files->MakeDirectories(options_.directory));
      WEFT_RETURN_IF_ERROR(BeginSegment(item.heads));
      MutexLock lock(mu_);
      oldest_ = segment_;
      growth_ = 0;
    } else if (item.rows != nullptr) {
      WEFT_RETURN_IF_ERROR(WriteCopy(item, batch));
    } else {
      *batch.add_records() = item.record;
    }
  }
  WEFT_RETURN_IF_ERROR(WriteBatch(batch));
  WEFT_RETURN_IF_ERROR(file_->Sync());
  has_synced_ = true;
  LookForSegment();
  return absl::OkStatus();
}

// A cleaner of old files, say. Nobody would find what is open after this
// process: it is written anew, and what is not in a file of the directory until
// then is not told to be on disk.
void TableLog::LookForSegment() {
  const absl::Status found = options_.files->Size(PathOf(segment_)).status();
  if (!absl::IsNotFound(found)) return;
  MutexLock lock(mu_);
  is_removed_ = true;
  changed_.NotifyAll();
}

absl::Status TableLog::WriteCopy(const Item& item, v1::TableLogBatch& batch) {
  size_t bytes = kBatchBytes;
  for (uint32_t piece = 0; piece < item.rows->pieces(); ++piece) {
    if (bytes >= kBatchBytes) {
      WEFT_RETURN_IF_ERROR(WriteBatch(batch));
      bytes = 0;
    }
    v1::TableLogRecord::Copy* const copy = batch.add_records()->mutable_copy();
    copy->set_table(item.place.table);
    copy->set_partition(static_cast<uint32_t>(item.place.partition));
    copy->set_piece(piece);
    copy->set_pieces(item.rows->pieces());
    copy->set_n(item.place.n);
    const Bytes rows = item.rows->Encode(piece);
    copy->set_rows(rows.data(), rows.size());
    bytes += rows.size();
    if (piece + 1 < item.rows->pieces()) continue;
    for (const auto& [client, window] : item.marks) {
      v1::ClientMark* const mark = copy->add_marks();
      mark->set_client(client);
      mark->set_high(window.high());
      mark->set_mask(window.mask());
    }
    for (const OpenClients::Opening& opening : item.openings) {
      auto* const to = copy->add_openings();
      to->mutable_worker()->set_id(opening.worker.id);
      to->mutable_worker()->set_epoch(opening.worker.epoch);
      to->set_client(opening.client);
      to->set_opened_at(opening.opened_at);
    }
  }
  return absl::OkStatus();
}

absl::Status TableLog::WriteBatch(v1::TableLogBatch& batch) {
  if (batch.records().empty()) return absl::OkStatus();
  std::string frame;
  AppendFrame(batch.SerializeAsString(), &frame);
  batch.Clear();
  WEFT_RETURN_IF_ERROR(file_->Append(frame));
  MutexLock lock(mu_);
  growth_ += static_cast<int64_t>(frame.size());
  return absl::OkStatus();
}

absl::Status TableLog::BeginSegment(
    const std::vector<v1::TableLogRecord>& heads) {
  const std::string path = PathOf(segment_ + 1);
  WEFT_ASSIGN_OR_RETURN(auto file, options_.files->Create(path));
  ++segment_;
  file_ = std::move(file);
  has_synced_ = false;
  WEFT_RETURN_IF_ERROR(file_->Append(kMagic));
  v1::TableLogBatch batch;
  for (const v1::TableLogRecord& record : heads) *batch.add_records() = record;
  WEFT_RETURN_IF_ERROR(WriteBatch(batch));
  WEFT_RETURN_IF_ERROR(file_->Sync());
  has_synced_ = !heads.empty();
  return options_.files->SyncDirectory(options_.directory);
}

void TableLog::Report(const Items& items) {
  for (const Item& item : items) {
    if (item.has_place) {
      untold_[{item.place.table, item.place.partition}] = item.place;
    }
  }
  bool is_removed;
  {
    MutexLock lock(mu_);
    is_removed = is_removed_;
  }
  std::vector<Place> on_disk;
  if (!is_removed) {
    for (const auto& [partition, place] : untold_) on_disk.push_back(place);
    untold_.clear();
  }
  if (!on_disk.empty()) callbacks_.on_disk(on_disk);
  MutexLock lock(mu_);
  written_ += items.size();
  status_ = absl::OkStatus();
  changed_.NotifyAll();
}

bool TableLog::Failed(const absl::Status& status) {
  // A segment of which nothing counts takes up room that another try needs.
  if (absl::IsResourceExhausted(status) && !has_synced_) {
    file_.reset();
    has_synced_ = true;
    options_.files->Remove(PathOf(segment_)).IgnoreError();
  }
  const auto until = SteadyDeadline(options_.retry_after);
  MutexLock lock(mu_);
  status_ = Named(options_.directory, status);
  has_failed_ = !absl::IsResourceExhausted(status);
  if (has_failed_) queue_.clear();
  changed_.NotifyAll();
  if (has_failed_) return false;
  while (!is_ending_ && changed_.WaitUntil(mu_, until)) {
  }
  return !is_ending_;
}

// --- Writing it anew ---------------------------------------------------------

void TableLog::Renew() {
  for (;;) {
    uint64_t segment = 0;
    {
      MutexLock lock(mu_);
      while (!is_ending_ && !has_failed_ && !is_removed_ &&
             growth_ <= std::max(options_.least_growth, copied_)) {
        changed_.Wait(mu_);
      }
      if (is_ending_ || has_failed_) return;
      Item item;
      item.begins_segment = true;
      item.heads = owners_;
      for (auto& [number, record] : tables_) {
        // What is not copied was not there.
        record.mutable_table()->set_begins_void(true);
        item.heads.push_back(record);
      }
      ++appended_;
      queue_.push_back(std::move(item));
      changed_.NotifyAll();
    }
    bool is_whole = Await().ok();
    {
      MutexLock lock(mu_);
      segment = oldest_;
    }
    // Somebody may have removed it meanwhile.
    is_whole = is_whole && callbacks_.copy_all() && Await().ok() &&
               options_.files->Size(PathOf(segment)).ok() &&
               WriteBegin(segment).ok() && RemoveBefore(segment).ok();
    const auto until = SteadyDeadline(kRenewAgainAfter);
    MutexLock lock(mu_);
    if (is_whole) {
      copied_ = std::exchange(growth_, 0);
      may_tell_ = std::exchange(is_removed_, false);
      changed_.NotifyAll();
      continue;
    }
    while (!is_ending_ && changed_.WaitUntil(mu_, until)) {
    }
  }
}

absl::Status TableLog::WriteBegin(uint64_t segment) {
  const std::string next = PathOfBegin() + ".new";
  WEFT_RETURN_IF_ERROR(options_.files->Remove(next));
  WEFT_ASSIGN_OR_RETURN(const auto file, options_.files->Create(next));
  std::string frame;
  AppendFrame(absl::StrCat(segment), &frame);
  WEFT_RETURN_IF_ERROR(file->Append(frame));
  WEFT_RETURN_IF_ERROR(file->Sync());
  WEFT_RETURN_IF_ERROR(options_.files->Rename(next, PathOfBegin()));
  return options_.files->SyncDirectory(options_.directory);
}

absl::Status TableLog::RemoveBefore(uint64_t segment) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        options_.files->List(options_.directory));
  for (const std::string& name : names) {
    const uint64_t number = SegmentOf(name);
    if (number == 0 || number >= segment) continue;
    WEFT_RETURN_IF_ERROR(
        options_.files->Remove(options_.directory + "/" + name));
  }
  return options_.files->SyncDirectory(options_.directory);
}

}  // namespace weft::ps
