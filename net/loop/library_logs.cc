#include "weft/net/loop/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "weft/base/clock.h"
#include "weft/net/line_budget.h"
#include "weft/telemetry/field.h"

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
  // A client's: the status of its call says it in our words.
  for (const char* said :
       {"No match found for server name", "certificate verify failed"}) {
    if (std::strstr(args->message, said) != nullptr) return;
  }
  static LineBudget& budget = *new LineBudget(SteadyClock(), kLinesPerMinute);
  int64_t not_logged = 0;
  if (!budget.MayWrite(&not_logged)) return;
  const char* slash = std::strrchr(args->file, '/');
  std::string line = telemetry::Printable(args->message);
  if (not_logged > 0) {
    line += " not_logged=";
    line += std::to_string(not_logged);
  }
  std::fprintf(stderr, "%s gRPC: %s (%s:%d)\n",
               gpr_log_severity_string(args->severity), line.c_str(),
               slash == nullptr ? args->file : slash + 1, args->line);
}

}  // namespace

void LimitLibraryLogs() {
  static const bool done = [] {
    former_protobuf_log = google::protobuf::SetLogHandler(&LogOfProtobuf);
    if (std::getenv("GRPC_VERBOSITY") == nullptr) {
      gpr_set_log_function(&LogOfGrpc);
    }
    return true;
  }();
  (void)done;
}

}  // namespace weft::net
