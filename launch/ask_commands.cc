// weft health, weft status: ask an endpoint and show what it says.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/bytes.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands.h"
#include "weft/net/channel.h"
#include "weft/net/credentials.h"
#include "weft/net/loop.h"
#include "weft/net/socket_directory.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"

namespace weft::launch {
namespace {

// Whom to ask, and as whom.
struct Question {
  std::string address;
  std::string name = "ps0";  // of the endpoint
  std::string certs;
  bool insecure = false;
  absl::Duration timeout = absl::Seconds(5);

  void AddTo(worker::Flags& flags) {
    flags.Add("name", &name, "the endpoint's name, for its certificate");
    flags.Add("certs", &certs, "directory made by `weft certs init`",
              {"WEFT_CERTS"});
    flags.Add("insecure", &insecure, "TCP without certificates",
              {"WEFT_INSECURE"});
    flags.Add("timeout", &timeout, "for the answer");
  }
};

absl::StatusOr<std::string> Ask(const Question& question,
                                absl::string_view method, std::string request) {
  net::LoopOptions options;
  if (!question.certs.empty()) {
    WEFT_ASSIGN_OR_RETURN(options.credentials, net::Credentials::ForMember(
                                                   question.certs, "admin0"));
  } else if (question.insecure) {
    options.credentials = net::Credentials::Insecure();
  }
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<net::Loop> loop,
                        net::Loop::Create(std::move(options)));
  net::ChannelOptions channel_options;
  channel_options.name = question.name;
  WEFT_ASSIGN_OR_RETURN(
      const std::unique_ptr<net::Channel> channel,
      net::Channel::Create(*loop, question.address, channel_options));
  WEFT_ASSIGN_OR_RETURN(
      const Slices reply,
      channel
          ->UnaryCall(method, {Bytes::Own(std::move(request))},
                      question.timeout)
          .Wait(question.timeout + absl::Seconds(1)));
  return std::string(Flatten(reply).view());
}

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
  worker::Flags flags("weft health",
                      "Asks an endpoint whether it serves: exit code 0 if so.");
  flags.Add("addr", &question.address, "HOST:PORT or unix:PATH",
            {"WEFT_COORDINATOR"});
  question.AddTo(flags);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  WEFT_ASSIGN_OR_RETURN(
      const std::string reply,
      Ask(question, "/grpc.health.v1.Health/Check", std::string()));
  // grpc.health.v1.HealthCheckResponse: field 1, status; 1 is SERVING.
  const bool serves = reply == absl::string_view("\x08\x01", 2);
  std::printf("%s: %s\n", question.address.c_str(),
              serves ? "SERVING" : "NOT_SERVING");
  return static_cast<int>(serves ? worker::ExitCode::kOk
                                 : worker::ExitCode::kPeerLost);
}

absl::StatusOr<int> StatusCommand(int argc, char** argv) {
  Question question;
  std::string job = "weft";
  bool json = false;
  worker::Flags flags("weft status", "Shows who is in a job.");
  flags.Add("coordinator", &question.address, "where the job meets",
            {"WEFT_COORDINATOR"});
  flags.Add("job", &job, "the job's name", {"WEFT_JOB"});
  flags.Add("json", &json, "as one JSON object");
  question.AddTo(flags);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (question.address.empty()) {
    WEFT_ASSIGN_OR_RETURN(const std::string directory,
                          net::DefaultSocketDirectory(job));
    question.address = absl::StrCat("unix:", directory, "/coordinator.sock");
  }
  rendezvous::v1::WatchRequest request;
  request.set_job(job);
  WEFT_ASSIGN_OR_RETURN(const std::string bytes,
                        Ask(question, "/weft.rendezvous.v1.Coordinator/Watch",
                            request.SerializeAsString()));
  rendezvous::v1::WatchReply reply;
  if (!reply.ParseFromString(bytes)) {
    return absl::InternalError(absl::StrCat(
        question.address, ": the coordinator's answer cannot be read"));
  }
  const rendezvous::View view = rendezvous::FromWire(reply.view());
  json ? PrintJson(view, job) : PrintText(view, job);
  return 0;
}

}  // namespace weft::launch
