// CoordinatorLog: the file in which a coordinator's decisions outlive it.
//
//   "WEFTCRD2", then records, as FrameRecords writes them.
//
// A record that a crash cut short at the end is dropped; damage before the end
// is an error. The file is locked while it is open.

#ifndef WEFT_RENDEZVOUS_JOURNAL_COORDINATOR_LOG_H_
#define WEFT_RENDEZVOUS_JOURNAL_COORDINATOR_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/journal/journal.h"

namespace weft::rendezvous {

// Thread-safety: one thread at a time.
class CoordinatorLog final : public Journal {
 public:
  // What a record survives once Append has returned: the end of the process,
  // or also that of the host, for which Append waits for the disk.
  enum class Survives { kHost, kProcess };

  // Opens or makes it. kFailedPrecondition: another process has it open, or it
  // is no file; kDataLoss: it is damaged, or no such log; else what the system
  // said.
  static absl::StatusOr<std::unique_ptr<CoordinatorLog>> Open(
      std::string path, Survives survives = Survives::kHost);
  ~CoordinatorLog() override;
  CoordinatorLog(const CoordinatorLog&) = delete;
  CoordinatorLog& operator=(const CoordinatorLog&) = delete;

  const std::vector<v1::LogRecord>& history() const override {
    return history_;
  }
  // kResourceExhausted: the disk is full. A file that somebody has removed is
  // made again first, with all that it had.
  absl::Status Append(const std::vector<v1::LogRecord>& records) override;
  absl::Status Rewrite(const std::vector<v1::LogRecord>& records) override;
  int64_t bytes() const override { return bytes_; }
  std::string where() const override {
    return absl::StrCat("coordinator log ", path_);
  }

 private:
  CoordinatorLog(std::string path, int fd, Survives survives)
      : path_(std::move(path)), survives_(survives), fd_(fd) {}
  absl::Status Read();
  // The file at the path again, of what is in the one that is open.
  absl::Status Restore();
  // Another file in place of the one that is open.
  absl::Status Replace(const std::string& contents);
  absl::Status Write(int fd, absl::string_view bytes) const;
  // Waits for the disk where a record survives the host.
  absl::Status Sync(int fd) const;
  absl::Status Failed(absl::string_view what) const;

  const std::string path_;
  const Survives survives_;
  int fd_;
  int64_t bytes_ = 0;
  bool is_broken_ = false;
  std::vector<v1::LogRecord> history_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_JOURNAL_COORDINATOR_LOG_H_
