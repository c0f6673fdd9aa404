// Journal: the records from which a coordinator's successor goes on.

#ifndef WEFT_RENDEZVOUS_JOURNAL_JOURNAL_H_
#define WEFT_RENDEZVOUS_JOURNAL_JOURNAL_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/proto/coordinator.pb.h"

namespace weft::rendezvous {

// Two keep one: CoordinatorLog in a file, EtcdJournal in etcd. One
// process has it open: another's Append fails, or its opening.
//
// Thread-safety: one thread at a time, but for status().
class Journal {
 public:
  virtual ~Journal() = default;

  // What it held when it was opened.
  virtual const std::vector<v1::LogRecord>& history() const = 0;

  // Returns once the records will be found again. kUnavailable: they may be or
  // not; the same are to be appended again, before anything else, and will be
  // there once. After another error nothing can be appended any more.
  virtual absl::Status Append(const std::vector<v1::LogRecord>& records) = 0;

  // Makes `records` all of its contents, atomically. kUnavailable: it may have
  // or not, and goes on either way.
  virtual absl::Status Rewrite(const std::vector<v1::LogRecord>& records) = 0;

  // kAborted: another has taken it over, as is known without an Append.
  // Thread-safe.
  virtual absl::Status status() const { return absl::OkStatus(); }

  virtual int64_t bytes() const = 0;

  // For messages to people: "coordinator log /var/job.log".
  virtual std::string where() const = 0;
};

// The highest term in `history`; 0 in an empty one.
inline uint32_t LastTermOf(const std::vector<v1::LogRecord>& history) {
  uint32_t term = 0;
  for (const v1::LogRecord& record : history) {
    term = std::max(term, record.opened().term());
  }
  return term;
}

// Records as bytes, framed as in base/record_frames.h.
std::string FrameRecords(const std::vector<v1::LogRecord>& records);

// Takes the whole records off the front of `bytes`; what is left is a write
// that was cut short, or whose end is zeros. kDataLoss: something else is in
// between.
absl::Status TakeRecords(absl::string_view* bytes,
                         std::vector<v1::LogRecord>* records);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_JOURNAL_JOURNAL_H_
