#include "weft/telemetry/stderr_line.h"

#include <atomic>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/telemetry/field_json.h"

namespace weft::telemetry {
namespace {

// Global, as standard error is, and as hooks of libraries are given nothing.
std::atomic<LogFormat> stderr_format{LogFormat::kText};

const char* NameOf(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    default:
      return "error";
  }
}

}  // namespace

void SetStderrFormat(LogFormat format) { stderr_format.store(format); }

LogFormat StderrFormat() { return stderr_format.load(); }

void WriteStderrLine(Level level, absl::string_view text,
                     absl::string_view message, const Fields& fields) {
  std::string line = absl::StrCat(text, "\n");
  if (StderrFormat() == LogFormat::kJson) {
    nlohmann::ordered_json object;
    object["ts"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(),
                                    absl::UTCTimeZone());
    object["level"] = NameOf(level);
    object["message"] = std::string(message);
    object["fields"] = ToJson(fields);
    line = absl::StrCat(DumpLine(object), "\n");
  }
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace weft::telemetry
