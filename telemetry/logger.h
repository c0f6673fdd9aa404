// Logger: the structured log of one rank: text for people, JSON lines for
// machines.
//
//   WEFT_LOG(logger, Info, "joined the job").With("servers", 2);
//   WEFT_LOG(logger, Warning, "peer is slow: ") << peer << " took " << elapsed;

#ifndef WEFT_TELEMETRY_LOGGER_H_
#define WEFT_TELEMETRY_LOGGER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/telemetry/field.h"

namespace spdlog {
class logger;
}

namespace weft::telemetry {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat { kText, kJson };

// Thread-safety: thread-safe. A line is written whole.
class Logger {
 public:
  struct Options {
    std::string job;
    std::string role;
    int rank = 0;
    LogFormat format = LogFormat::kText;
    Level level = Level::kInfo;
    // Lines of one call site in one second; the others are counted and the
    // count is a field `suppressed` of the next line that is written.
    int max_lines_per_second = 100;
    // Where lines go; null is standard error, coloured if it is a terminal and
    // NO_COLOR is unset. It must outlive the logger.
    std::ostream* output = nullptr;
    // For the rate limit; null is SteadyClock(). It must outlive the logger.
    const Clock* clock = nullptr;
  };

  // A place in the source. `file` is a literal.
  struct Site {
    const char* file;
    int line;
  };

  explicit Logger(Options options);
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  bool ShouldLog(Level level) const {
    return level >= level_.load(std::memory_order_relaxed);
  }
  void SetLevel(Level level) { level_.store(level, std::memory_order_relaxed); }

  // Writes one line unless the level or the rate limit of `site` forbids it.
  void Write(Level level, Site site, absl::string_view message, Fields fields)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Rate {
    Instant window_start;
    int lines = 0;
    int64_t suppressed = 0;
  };

  // Whether `site` may write now; if so, *suppressed is what it could not.
  bool Admit(Site site, int64_t* suppressed) ABSL_LOCKS_EXCLUDED(mu_);
  std::string TextLine(Site site, absl::string_view message,
                       const Fields& fields) const;
  std::string JsonLine(Level level, Site site, absl::string_view message,
                       const Fields& fields) const;

  const Options options_;
  const Clock& clock_;
  std::atomic<Level> level_;
  std::unique_ptr<spdlog::logger> out_;
  Mutex mu_;
  absl::flat_hash_map<std::pair<const char*, int>, Rate> rates_
      ABSL_GUARDED_BY(mu_);
};

// What WEFT_LOG makes: it is written when the statement ends.
class LogLine {
 public:
  LogLine(Logger& logger, Level level, Logger::Site site,
          absl::string_view message);
  ~LogLine();
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;

  template <typename T>
  LogLine& With(absl::string_view key, T&& value) {
    fields_.emplace_back(key, std::forward<T>(value));
    return *this;
  }

  // Adds to the message.
  template <typename T>
  LogLine& operator<<(const T& value) {
    message_ << value;
    return *this;
  }

 private:
  Logger& logger_;
  const Level level_;
  const Logger::Site site_;
  std::ostringstream message_;
  Fields fields_;
};

}  // namespace weft::telemetry

// `level` is Debug, Info, Warning or Error. What is streamed is not evaluated
// when the level is off.
#define WEFT_LOG(logger, level, message)                              \
  switch (0)                                                          \
  case 0:                                                             \
  default:                                                            \
    if (::weft::telemetry::Logger& weft_logger = (logger);            \
        !weft_logger.ShouldLog(::weft::telemetry::Level::k##level)) { \
    } else /* NOLINT */                                               \
      ::weft::telemetry::LogLine(weft_logger,                         \
                                 ::weft::telemetry::Level::k##level,  \
                                 {__FILE__, __LINE__}, message)

#endif  // WEFT_TELEMETRY_LOGGER_H_
