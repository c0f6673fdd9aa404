// RendezvousFile: where a job meets, in a file that all its workers see.
//
// The host makes it whole under another name and links it into place, so it is
// there or not, never half. It holds a lock on it while it lives: a file
// without that lock is stale, and nobody reuses it in silence.
//
// The directory must be this user's and nobody else's to write, or sticky; the
// file is this user's and no link. For one host, or a file system that keeps
// locks between hosts; one that keeps none is refused.
//
// Source: OFD locks, fcntl(2).

#ifndef WEFT_RENDEZVOUS_DISCOVERY_RENDEZVOUS_FILE_H_
#define WEFT_RENDEZVOUS_DISCOVERY_RENDEZVOUS_FILE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/proto/coordinator.pb.h"

namespace weft::rendezvous {

// The host's. Thread-safety: one thread at a time.
class RendezvousFile {
 public:
  // kAlreadyExists: a host that lives has it, and is named;
  // kFailedPrecondition: it is stale (the command that removes it is named),
  // the directory or the file is not this user's alone, or locks do not work
  // there; kDataLoss: it is no such file.
  static absl::StatusOr<std::unique_ptr<RendezvousFile>> Create(
      std::string path, const std::string& job, const std::string& address);
  // Removes the file.
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

 private:
  RendezvousFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const int fd_;
};

// The coordinator's address. kNotFound: the file is not there yet; the other
// errors are those of Create; kFailedPrecondition also: it is another job's.
absl::StatusOr<std::string> ReadRendezvousFile(const std::string& path,
                                               const std::string& job);

// What such a file holds. kDataLoss: `bytes` are none.
absl::StatusOr<v1::Meeting> ParseRendezvousFile(absl::string_view bytes);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_DISCOVERY_RENDEZVOUS_FILE_H_
