// ExitReporter: tells a job's coordinator which of its workers have ended, as
// somebody who has seen it: they are gone at once, without silence.

#ifndef WEFT_LAUNCH_RUN_EXIT_REPORTER_H_
#define WEFT_LAUNCH_RUN_EXIT_REPORTER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/bytes.h"
#include "weft/base/future.h"
#include "weft/launch/failure/exit.h"
#include "weft/net/channel.h"
#include "weft/net/loop/loop.h"

namespace weft::launch {

struct ExitReporterOptions {
  std::string job;
  std::string coordinator;  // unix:PATH or HOST:PORT
  std::string host;         // its host's name: ps0
  // Over TCP: a directory with the certificate of admin0, who alone may report.
  std::string certs;
  bool insecure = false;
};

// Thread-safety: one thread at a time.
class ExitReporter {
 public:
  explicit ExitReporter(ExitReporterOptions options)
      : options_(std::move(options)) {}
  // Waits a second for reports that are under way.
  ~ExitReporter();

  // `pid` led the group of the worker's processes: another process may have the
  // name. Returns without waiting for the answer; the first report starts
  // threads. A coordinator that is not there misses it: it may be who has
  // ended. kFailedPrecondition: there is no certificate of admin0.
  absl::Status Report(const std::string& name, pid_t pid, const Exit& exit);

 private:
  absl::Status Connect();

  const ExitReporterOptions options_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Channel> channel_;
  std::vector<Future<Slices>> reports_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_EXIT_REPORTER_H_
