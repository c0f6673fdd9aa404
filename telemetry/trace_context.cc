#include "weft/telemetry/trace_context.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/check.h"
#include "weft/telemetry/field.h"

namespace weft::telemetry {
namespace {

// The standard allows lower-case digits only.
bool ParseHex(absl::string_view digits, uint64_t* value) {
  *value = 0;
  for (const char c : digits) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && (c < 'a' || c > 'f')) return false;
    *value =
        *value << 4 | static_cast<uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
  }
  return true;
}

constexpr size_t kLength = 55;

}  // namespace

std::string TraceIdText(const TraceContext& context) {
  return absl::StrFormat("%016x%016x", context.trace_high, context.trace_low);
}

std::string FormatTraceparent(const TraceContext& context) {
  WEFT_CHECK(context.is_valid());
  return absl::StrFormat("00-%s-%016x-%02x", TraceIdText(context), context.span,
                         context.sampled ? 1 : 0);
}

absl::StatusOr<TraceContext> ParseTraceparent(absl::string_view header) {
  const absl::Status refusal = absl::InvalidArgumentError(
      absl::StrCat("traceparent: wanted 00-<32 hex>-<16 hex>-<2 hex>, found \"",
                   Printable(header.substr(0, 2 * kLength)), "\""));
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' ||
      header[52] != '-') {
    return refusal;
  }
  uint64_t version, flags;
  TraceContext context;
  if (!ParseHex(header.substr(0, 2), &version) || version == 0xFF ||
      !ParseHex(header.substr(3, 16), &context.trace_high) ||
      !ParseHex(header.substr(19, 16), &context.trace_low) ||
      !ParseHex(header.substr(36, 16), &context.span) ||
      !ParseHex(header.substr(53, 2), &flags) || !context.is_valid()) {
    return refusal;
  }
  // Later versions may append fields.
  const bool has_more = header.size() > kLength;
  if (has_more && (version == 0 || header[kLength] != '-')) return refusal;
  context.sampled = (flags & 1) != 0;
  return context;
}

}  // namespace weft::telemetry
