// CoordinatorLog: the file in which a coordinator's decisions outlive it.
//
//   "WEFTCRD1", then records: length (u32), XXH64 of the bytes (u64), the bytes
//   of a LogRecord; little-endian.
//
// A record that a crash cut short at the end is dropped; damage before the end
// is an error. The file is locked while it is open.

#ifndef WEFT_RENDEZVOUS_COORDINATOR_LOG_H_
#define WEFT_RENDEZVOUS_COORDINATOR_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/proto/coordinator.pb.h"

namespace weft::rendezvous {

// Thread-safety: one thread at a time.
class CoordinatorLog {
 public:
  // Opens or makes it. kFailedPrecondition: another process has it open;
  // kDataLoss: it is damaged, or no such log; else what the system said.
  static absl::StatusOr<std::unique_ptr<CoordinatorLog>> Open(std::string path);
  ~CoordinatorLog();
  CoordinatorLog(const CoordinatorLog&) = delete;
  CoordinatorLog& operator=(const CoordinatorLog&) = delete;

  // What it held when it was opened.
  const std::vector<v1::LogRecord>& history() const { return history_; }
  // The highest term in it; 0 in a new log.
  uint32_t last_term() const;

  // Returns once the records are on disk. After an error nothing can be
  // appended any more. kResourceExhausted: the disk is full.
  absl::Status Append(const std::vector<v1::LogRecord>& records);

  // Makes `records` all of its contents, atomically.
  absl::Status Rewrite(const std::vector<v1::LogRecord>& records);

  int64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  CoordinatorLog(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status Read();
  absl::Status WriteAll(int fd, absl::string_view bytes) const;
  absl::Status Failed(absl::string_view what) const;

  const std::string path_;
  int fd_;
  int64_t bytes_ = 0;
  bool is_broken_ = false;
  std::vector<v1::LogRecord> history_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_COORDINATOR_LOG_H_
