#include "weft/worker/trace_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "weft/worker/exit_code.h"

namespace weft::worker {

TraceFile::TraceFile(std::string path, absl::string_view worker,
                     telemetry::Telemetry& telemetry)
    : option_(std::move(path)),
      path_(absl::StrReplaceAll(option_, {{"{name}", worker}})),
      telemetry_(telemetry) {}

absl::Status TraceFile::Write() {
  if (path_.empty()) return absl::OkStatus();
  MutexLock lock(mu_);
  const std::string part = absl::StrCat(path_, ".part");
  errno = 0;
  std::ofstream out(part, std::ios::trunc);
  telemetry_.spans().WriteChromeTrace(out);
  out.close();
  if (out && std::rename(part.c_str(), path_.c_str()) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  std::remove(part.c_str());
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return WithExitCode(
      absl::UnavailableError(absl::StrCat(
          "--trace=", option_, ": wanted a file to write, found ", path_, ": ",
          error != 0 ? std::strerror(error) : "an error")),
      is_full ? ExitCode::kResource : ExitCode::kConfig);
}

void TraceFile::WriteOrLog() {
  const absl::Status written = Write();
  if (written.ok()) return;
  WEFT_LOG(telemetry_.logger(), Warning, "no trace was written: ")
      << written.message();
}

}  // namespace weft::worker
