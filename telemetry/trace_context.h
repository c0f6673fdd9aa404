// TraceContext: which trace and span a piece of work belongs to, as it travels
// between processes.
//
// Source: W3C Trace Context, level 1, section 3.2 (traceparent).

#ifndef WEFT_TELEMETRY_TRACE_CONTEXT_H_
#define WEFT_TELEMETRY_TRACE_CONTEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::telemetry {

struct TraceContext {
  uint64_t trace_high = 0;  // with trace_low 128 bits, never both 0
  uint64_t trace_low = 0;
  uint64_t span = 0;  // never 0
  bool sampled = false;

  bool is_valid() const { return (trace_high | trace_low) != 0 && span != 0; }
};

// "00-<32 hex>-<16 hex>-<2 hex>". REQUIRES: context.is_valid().
std::string FormatTraceparent(const TraceContext& context);

// kInvalidArgument if `header` is not a traceparent. Versions above 00 are
// read by their first four fields, as the standard asks.
absl::StatusOr<TraceContext> ParseTraceparent(absl::string_view header);

// The 32 hexadecimal digits that logs and traces show.
std::string TraceIdText(const TraceContext& context);

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_TRACE_CONTEXT_H_
