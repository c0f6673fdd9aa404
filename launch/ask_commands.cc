// weft health, weft status: ask an endpoint and show what it says.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "weft/base/status_macros.h"
#include "weft/launch/commands.h"
#include "weft/launch/question.h"
#include "weft/rendezvous/view.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"

namespace weft::launch {
namespace {

bool IsEnding(const rendezvous::Member& member) {
  return member.phase != rendezvous::Phase::kActive;
}

void PrintJson(const rendezvous::View& view, const std::string& job) {
  nlohmann::json json = {{"job", job},
                         {"complete", view.IsComplete()},
                         {"missing", view.Missing()},
                         {"members", nlohmann::json::array()},
                         {"departed", nlohmann::json::array()}};
  for (const rendezvous::Member& member : view.members()) {
    json["members"].push_back({{"name", member.name},
                               {"key", member.key.ToString()},
                               {"role", member.role},
                               {"rank", member.rank},
                               {"address", member.address},
                               {"labels", member.labels},
                               {"suspect", member.suspect},
                               {"ending", IsEnding(member)}});
  }
  for (const rendezvous::Departed& departed : view.departed()) {
    json["departed"].push_back({{"name", departed.name},
                                {"key", departed.key.ToString()},
                                {"reason", departed.reason}});
  }
  std::printf("%s\n", json.dump().c_str());
}

void PrintText(const rendezvous::View& view, const std::string& job) {
  std::printf("job %s: %s\n", job.c_str(), view.Summary().c_str());
  for (const rendezvous::Member& member : view.members()) {
    std::printf("  %-12s %-8s %s%s%s\n", member.name.c_str(),
                member.key.ToString().c_str(), member.address.c_str(),
                member.suspect ? "  (silent)" : "",
                IsEnding(member) ? "  (ending)" : "");
  }
  for (const rendezvous::Departed& departed : view.departed()) {
    std::printf("  %-12s %-8s gone: %s\n", departed.name.c_str(),
                departed.key.ToString().c_str(), departed.reason.c_str());
  }
}

}  // namespace

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

absl::StatusOr<int> StatusCommand(int argc, char** argv) {
  Question question;
  Meeting meeting;
  bool json = false;
  worker::Flags flags("weft status", "Shows who is in a job.");
  meeting.AddTo(flags);
  flags.Add("json", &json, "as one JSON object");
  question.AddTo(flags);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  WEFT_ASSIGN_OR_RETURN(const rendezvous::View view,
                        AskWhoIsThere(question, meeting));
  json ? PrintJson(view, meeting.job) : PrintText(view, meeting.job);
  return 0;
}

}  // namespace weft::launch
