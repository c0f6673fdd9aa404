// StderrLine: lines of standard error that are no logger's: of a library, of a
// program that ends with an error before it has a logger.
//
// Standard error is the process's, and so is the form of these lines: with
// --log=json each is one JSON object, as the logger's are.

#ifndef WEFT_TELEMETRY_STDERR_LINE_H_
#define WEFT_TELEMETRY_STDERR_LINE_H_

#include "absl/strings/string_view.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/logger.h"

namespace weft::telemetry {

// Sets the format of the whole process, from now on. Thread-safety:
// thread-safe.
void SetStderrFormat(LogFormat format);
LogFormat StderrFormat();  // text, if nothing was set

// Writes one line, whole: in text `text` as it is, which must be printable; in
// JSON {"ts", "level", "message", "fields"}. Thread-safety: thread-safe.
void WriteStderrLine(Level level, absl::string_view text,
                     absl::string_view message, const Fields& fields = {});

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_STDERR_LINE_H_
