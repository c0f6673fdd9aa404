// ExitCode: see the header.

#include "weft/worker/exit_code.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/reworded.h"
#include "weft/base/said_by.h"
#include "weft/net/call/connection_reset.h"
#include "weft/net/tls/credentials.h"
#include "weft/ps/lost_partition.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/stderr_line.h"

namespace weft {
namespace worker {
namespace {

constexpr char kPayload[] = "weft.worker/exit_code";
constexpr char kNoRestart[] = "weft.worker/no_restart";
constexpr int kSignalBase = 128;  // of a shell's exit codes

}  // namespace

ExitCode ExitCodeFor(const absl::Status& status) {
  if (const auto payload = status.GetPayload(kPayload)) {
    int code = 0;
    if (absl::SimpleAtoi(std::string(*payload), &code)) {
      return static_cast<ExitCode>(code);
    }
  }
  if (net::WasConnectionReset(status) || net::IsOfCertificates(status)) {
    return ExitCode::kAuth;
  }
  if (ps::IsLostPartition(status)) return ExitCode::kPeerLost;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return ExitCode::kConfig;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return ExitCode::kPeerLost;
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kTimeout;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return ExitCode::kAuth;
    case absl::StatusCode::kResourceExhausted:
      return ExitCode::kResource;
    case absl::StatusCode::kDataLoss:
      return ExitCode::kBadCheckpoint;
    default:
      return ExitCode::kInternal;
  }
}

absl::Status OfPart(absl::string_view part, const absl::Status& status) {
  return Reworded(status, SaidBy(part, status.message()));
}

absl::Status WithExitCode(absl::Status status, ExitCode code) {
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(static_cast<int>(code))));
  return status;
}

absl::Status WithoutRestart(absl::Status status) {
  status.SetPayload(kNoRestart, absl::Cord("1"));
  return status;
}

bool IsFinal(const absl::Status& status) {
  if (status.ok()) return false;
  if (status.GetPayload(kNoRestart).has_value()) return true;
  switch (ExitCodeFor(status)) {
    case ExitCode::kUsage:
    case ExitCode::kConfig:
    case ExitCode::kDiverged:
    case ExitCode::kBadCheckpoint:
      return true;
    case ExitCode::kAuth:
      return !net::WasConnectionReset(status);
    default:
      return false;
  }
}

absl::Status EndedBySignal(int signal, absl::string_view message) {
  return WithExitCode(absl::CancelledError(message),
                      static_cast<ExitCode>(kSignalBase + signal));
}

std::optional<int> SignalOf(const absl::Status& status) {
  const int code = static_cast<int>(ExitCodeFor(status));
  if (code <= kSignalBase) return std::nullopt;
  return code - kSignalBase;
}

absl::string_view NameOf(ExitCode code) {
  if (static_cast<int>(code) > kSignalBase) return "stopped by a signal";
  switch (code) {
    case ExitCode::kOk:
      return "ok";
    case ExitCode::kInternal:
      return "internal error";
    case ExitCode::kUsage:
      return "usage";
    case ExitCode::kConfig:
      return "configuration";
    case ExitCode::kPeerLost:
      return "peer lost";
    case ExitCode::kTimeout:
      return "timeout";
    case ExitCode::kAuth:
      return "authentication";
    case ExitCode::kResource:
      return "resource";
    case ExitCode::kDiverged:
      return "diverged";
    case ExitCode::kBadCheckpoint:
      return "bad checkpoint";
  }
  return "unknown";
}

namespace {

// A launcher that finds no such file starts again what has ended.
void TellLauncherOfFinal(const absl::Status& status) {
  const char* const path = std::getenv(kNoRestartFile);
  if (path == nullptr || !IsFinal(status)) return;
  const int file =
      open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file >= 0) close(file);
}

}  // namespace
}  // namespace worker

void ExitIfError(const absl::Status& status) {
  if (status.ok()) return;
  const worker::ExitCode code = worker::ExitCodeFor(status);
  worker::TellLauncherOfFinal(status);
  std::fflush(stdout);
  // A peer's words may be in it, and a terminal obeys control characters.
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(status.message(), '\n'))
    lines.push_back(telemetry::Printable(line));
  const bool is_stopped = worker::SignalOf(status).has_value();
  telemetry::WriteStderrLine(
      is_stopped ? telemetry::Level::kWarning : telemetry::Level::kError,
      absl::StrCat(is_stopped ? "stopped" : "error", ": ",
                   absl::StrJoin(lines, "\n"), " (", worker::NameOf(code), ")"),
      status.message(),
      {{"exit_code", static_cast<int>(code)}, {"exit", worker::NameOf(code)}});
  _exit(static_cast<int>(code));
}

}  // namespace weft
