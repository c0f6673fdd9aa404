// Telemetry: all by which one rank shows what it does. No telemetry leaves the
// machine unless somebody asks for it.

#ifndef WEFT_TELEMETRY_TELEMETRY_H_
#define WEFT_TELEMETRY_TELEMETRY_H_

#include <ostream>
#include <string>

#include "weft/base/clock.h"
#include "weft/telemetry/flight_recorder.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/metrics.h"
#include "weft/telemetry/spans.h"
#include "weft/telemetry/status_page.h"

namespace weft::telemetry {

// Thread-safety: thread-safe. Give it to a part as a pointer in its Options;
// it must outlive all parts. A null pointer there means Silent().
class Telemetry {
 public:
  struct Options {
    std::string job;
    std::string role;
    int rank = 0;
    LogFormat log_format = LogFormat::kText;
    Level log_level = Level::kInfo;
    std::ostream* log_output = nullptr;  // null is standard error
    bool tracing = false;                // keep spans
    const Clock* clock = nullptr;        // null is SteadyClock()
  };

  explicit Telemetry(Options options);
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  Logger& logger() { return logger_; }
  Metrics& metrics() { return metrics_; }
  Spans& spans() { return spans_; }
  FlightRecorder& recorder() { return recorder_; }
  StatusPage& status() { return status_; }

 private:
  friend Telemetry& Silent();
  struct Disabled {};
  explicit Telemetry(Disabled);

  Logger logger_;
  Metrics metrics_;
  Spans spans_;
  FlightRecorder recorder_;
  StatusPage status_;
  StatusPage::Registration recorder_page_;
};

// The one for parts that were given none: it works and keeps nothing.
Telemetry& Silent();

// `given`, or Silent() if there is none.
inline Telemetry& OrSilent(Telemetry* given) {
  return given != nullptr ? *given : Silent();
}

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_TELEMETRY_H_
