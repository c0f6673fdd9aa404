#include "weft/telemetry/logger.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "weft/telemetry/field_json.h"

namespace weft::telemetry {
namespace {

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

const char* NameOf(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      return "error";
    case Level::kOff:
      return "off";
  }
  return "off";
}

spdlog::sink_ptr SinkFor(const Logger::Options& options) {
  if (options.output != nullptr) {
    return std::make_shared<spdlog::sinks::ostream_sink_mt>(
        *options.output, /*force_flush=*/true);
  }
  const bool plain =
      options.format == LogFormat::kJson || std::getenv("NO_COLOR") != nullptr;
  return std::make_shared<spdlog::sinks::stderr_color_sink_mt>(
      plain ? spdlog::color_mode::never : spdlog::color_mode::automatic);
}

std::string Place(Logger::Site site) {
  const char* slash = std::strrchr(site.file, '/');
  return absl::StrCat(slash == nullptr ? site.file : slash + 1, ":", site.line);
}

}  // namespace

Logger::Logger(Options options)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : SteadyClock()),
      level_(options_.level),
      out_(std::make_unique<spdlog::logger>("weft", SinkFor(options_))) {
  // Level and line are decided here; spdlog colours, writes and flushes.
  out_->set_level(spdlog::level::trace);
  out_->flush_on(spdlog::level::trace);
  out_->set_pattern(options_.format == LogFormat::kJson ? "%v" : "%^%L%$ %v");
}

Logger::~Logger() = default;

void Logger::Write(Level level, Site site, absl::string_view message,
                   Fields fields) {
  int64_t suppressed = 0;
  if (!ShouldLog(level) || !Admit(site, &suppressed)) return;
  if (suppressed > 0) fields.emplace_back("suppressed", suppressed);
  const std::string line = options_.format == LogFormat::kJson
                               ? JsonLine(level, site, message, fields)
                               : TextLine(site, message, fields);
  // A string_view is taken as it is; a std::string would be a format.
  out_->log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

bool Logger::Admit(Site site, int64_t* suppressed) {
  const Instant now = clock_.Now();
  MutexLock lock(mu_);
  Rate& rate =
      rates_.try_emplace({site.file, site.line}, Rate{now}).first->second;
  if (now - rate.window_start >= absl::Seconds(1)) {
    rate.window_start = now;
    rate.lines = 0;
  }
  if (rate.lines == options_.max_lines_per_second) {
    ++rate.suppressed;
    return false;
  }
  ++rate.lines;
  *suppressed = std::exchange(rate.suppressed, 0);
  return true;
}

std::string Logger::TextLine(Site site, absl::string_view message,
                             const Fields& fields) const {
  std::string line = absl::StrCat(
      absl::FormatTime("%H:%M:%E6S", absl::Now(), absl::LocalTimeZone()), " ",
      Printable(options_.role), options_.rank, " ", Printable(message));
  for (const Field& field : fields) absl::StrAppend(&line, " ", ToText(field));
  absl::StrAppend(&line, " (", Place(site), ")");
  return line;
}

std::string Logger::JsonLine(Level level, Site site, absl::string_view message,
                             const Fields& fields) const {
  nlohmann::ordered_json line;
  line["ts"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(),
                                absl::UTCTimeZone());
  line["level"] = NameOf(level);
  line["job"] = options_.job;
  line["role"] = options_.role;
  line["rank"] = options_.rank;
  line["message"] = std::string(message);
  line["site"] = Place(site);
  // Apart from the rest, so that no field can pass for the rank's own.
  line["fields"] = ToJson(fields);
  return DumpLine(line);
}

LogLine::LogLine(Logger& logger, Level level, Logger::Site site,
                 absl::string_view message)
    : logger_(logger), level_(level), site_(site) {
  message_ << message;
}

LogLine::~LogLine() {
  logger_.Write(level_, site_, message_.str(), std::move(fields_));
}

}  // namespace weft::telemetry
