#include "weft/net/loop/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/net/line_budget.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/stderr_line.h"

namespace weft::net {
namespace {

constexpr int kLinesPerMinute = 60;

google::protobuf::LogHandler* former_protobuf_log = nullptr;

// A string of a peer that is not UTF-8 is a line, and its message is read all
// the same.
void LogOfProtobuf(google::protobuf::LogLevel level, const char* file, int line,
                   const std::string& message) {
  if (level == google::protobuf::LOGLEVEL_FATAL &&
      former_protobuf_log != nullptr) {
    former_protobuf_log(level, file, line, message);
  }
}

// gRPC's hook takes no argument, so that the budget is the process's.
void LogOfGrpc(gpr_log_func_args* args) {
  static const bool wants_all = std::getenv("GRPC_VERBOSITY") != nullptr;
  // A client's: the status of its call says it in our words.
  for (const char* said :
       {"No match found for server name", "certificate verify failed"}) {
    if (!wants_all && std::strstr(args->message, said) != nullptr) return;
  }
  static LineBudget& budget = *new LineBudget(SteadyClock(), kLinesPerMinute);
  int64_t not_logged = 0;
  if (!wants_all && !budget.MayWrite(&not_logged)) return;
  const char* slash = std::strrchr(args->file, '/');
  const std::string place =
      absl::StrCat(slash == nullptr ? args->file : slash + 1, ":", args->line);
  const std::string more =
      not_logged > 0 ? absl::StrCat(" not_logged=", not_logged) : "";
  telemetry::WriteStderrLine(
      args->severity == GPR_LOG_SEVERITY_ERROR ? telemetry::Level::kError
                                               : telemetry::Level::kInfo,
      absl::StrCat(gpr_log_severity_string(args->severity), " gRPC: ",
                   telemetry::Printable(args->message), more, " (", place, ")"),
      args->message,
      {{"library", "gRPC"}, {"site", place}, {"not_logged", not_logged}});
}

}  // namespace

void LimitLibraryLogs() {
  static const bool done = [] {
    former_protobuf_log = google::protobuf::SetLogHandler(&LogOfProtobuf);
    if (std::getenv("GRPC_VERBOSITY") == nullptr ||
        telemetry::StderrFormat() == telemetry::LogFormat::kJson) {
      gpr_set_log_function(&LogOfGrpc);
    }
    return true;
  }();
  (void)done;
}

}  // namespace weft::net
