// weft health: asks an endpoint whether it serves.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "weft/base/status_macros.h"
#include "weft/launch/commands/commands.h"
#include "weft/launch/commands/question.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"

namespace weft::launch {
absl::StatusOr<int> HealthCommand(int argc, char** argv) {
  Question question;
  bool json = false;
  worker::Flags flags("weft health",
                      "Asks an endpoint whether it serves: exit code 0 if so.");
  flags.AllowPositional("ADDRESS", /*anywhere=*/true);
  flags.Add("addr", &question.address, "the same as ADDRESS",
            {"WEFT_COORDINATOR"});
  flags.Add("json", &json, "as one JSON object");
  question.AddTo(flags);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (!flags.positional().empty()) question.address = flags.positional()[0];
  if (question.address.empty() || flags.positional().size() > 1) {
    return worker::WithExitCode(
        absl::InvalidArgumentError(
            "weft health: wanted one ADDRESS: HOST:PORT or unix:PATH"),
        worker::ExitCode::kUsage);
  }
  WEFT_ASSIGN_OR_RETURN(
      const std::string reply,
      Ask(question, "/grpc.health.v1.Health/Check", std::string()));
  // grpc.health.v1.HealthCheckResponse: field 1, status; 1 is SERVING.
  const bool serves = reply == absl::string_view("\x08\x01", 2);
  const char* const status = serves ? "SERVING" : "NOT_SERVING";
  if (json) {
    const nlohmann::json answer = {{"address", question.address},
                                   {"status", status}};
    std::printf("%s\n", answer.dump().c_str());
  } else {
    std::printf("%s: %s\n", question.address.c_str(), status);
  }
  return static_cast<int>(serves ? worker::ExitCode::kOk
                                 : worker::ExitCode::kPeerLost);
}

}  // namespace weft::launch
