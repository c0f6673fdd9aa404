#include "weft/telemetry/telemetry.h"

#include <utility>

namespace weft::telemetry {

Telemetry::Telemetry(Options options)
    : logger_({options.job, options.role, options.rank, options.log_format,
               options.log_level, Logger::Options().max_lines_per_second,
               options.log_output, options.clock}),
      metrics_({options.job, options.role, options.rank,
                Metrics::Options().labels, Metrics::Options().max_series}),
      spans_({options.job, options.role, options.rank, options.tracing,
              Spans::Options().capacity, /*seed=*/0, options.clock}),
      recorder_(options.clock),
      recorder_page_(status_.Register(
          "flight recorder", [this] { return recorder_.Describe(); })) {}

Telemetry::Telemetry(Disabled)
    : logger_({"", "", 0, LogFormat::kText, Level::kOff}),
      metrics_({"", "", 0, Metrics::Options().labels, /*max_series=*/0}),
      spans_({}),
      recorder_(nullptr, /*enabled=*/false),
      status_(/*enabled=*/false) {}

Telemetry& Silent() {
  // Never destroyed: whoever was given none may end after main.
  static Telemetry& silent = *new Telemetry(Telemetry::Disabled());
  return silent;
}

}  // namespace weft::telemetry
