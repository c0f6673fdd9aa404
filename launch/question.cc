#include "weft/launch/question.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/bytes.h"
#include "weft/base/status_macros.h"
#include "weft/net/certificates.h"
#include "weft/net/channel.h"
#include "weft/net/loop.h"
#include "weft/net/socket_directory.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/wire.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {

absl::StatusOr<net::Credentials> CredentialsOf(const Question& question) {
  if (question.certs.empty()) {
    return question.insecure ? net::Credentials::Insecure()
                             : net::Credentials::LocalOnly();
  }
  // One member's own folder is for whoever that is.
  const bool is_members =
      access(net::CertificateFiles(question.certs).certificate.c_str(), F_OK) ==
      0;
  auto read = is_members
                  ? net::Credentials::FromDirectory(question.certs)
                  : net::Credentials::ForMember(question.certs, "admin0");
  if (read.ok()) return read;
  return worker::WithExitCode(read.status(), worker::ExitCode::kAuth);
}

void Question::AddTo(worker::Flags& flags) {
  flags.Add("name", &name, "the endpoint's name, for its certificate");
  flags.Add("certs", &certs, "directory made by `weft certs init`",
            {"WEFT_CERTS"});
  flags.Add("insecure", &insecure, "TCP without certificates",
            {"WEFT_INSECURE"});
  flags.Add("timeout", &timeout, "for the answer");
}

absl::StatusOr<std::string> Ask(const Question& question,
                                absl::string_view method, std::string request) {
  net::LoopOptions options;
  WEFT_ASSIGN_OR_RETURN(options.credentials, CredentialsOf(question));
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<net::Loop> loop,
                        net::Loop::Create(std::move(options)));
  net::ChannelOptions channel_options;
  channel_options.name = question.name;
  auto channel = net::Channel::Create(*loop, question.address, channel_options);
  if (!channel.ok()) {
    // TCP without certificates is a matter of rights, the rest of words.
    return worker::WithExitCode(channel.status(),
                                absl::IsFailedPrecondition(channel.status())
                                    ? worker::ExitCode::kAuth
                                    : worker::ExitCode::kUsage);
  }
  WEFT_ASSIGN_OR_RETURN(
      const Slices reply,
      (*channel)
          ->UnaryCall(method, {Bytes::Own(std::move(request))},
                      question.timeout)
          .Wait(question.timeout + absl::Seconds(1)));
  return std::string(Flatten(reply).view());
}

void Meeting::AddTo(worker::Flags& flags) {
  flags.Add("coordinator", &coordinator, "where the job meets",
            {"WEFT_COORDINATOR"});
  flags.Add("job", &job, "the job's name", {"WEFT_JOB"});
}

absl::StatusOr<rendezvous::View> ReadWhoIsThere(absl::string_view coordinator,
                                                absl::string_view bytes) {
  rendezvous::v1::WatchReply reply;
  if (!reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return rendezvous::BadAnswer(coordinator, "Watch", "it cannot be read");
  }
  auto view = rendezvous::ReadView(reply.view());
  if (view.ok()) return view;
  return rendezvous::BadAnswer(coordinator, "Watch", view.status().message());
}

absl::StatusOr<rendezvous::View> AskWhoIsThere(Question question,
                                               const Meeting& meeting) {
  question.address = meeting.coordinator;
  if (question.address.empty()) {
    WEFT_ASSIGN_OR_RETURN(const std::string directory,
                          net::DefaultSocketDirectory(meeting.job));
    question.address = absl::StrCat("unix:", directory, "/coordinator.sock");
  }
  rendezvous::v1::WatchRequest request;
  request.set_job(meeting.job);
  WEFT_ASSIGN_OR_RETURN(const std::string bytes,
                        Ask(question, "/weft.rendezvous.v1.Coordinator/Watch",
                            request.SerializeAsString()));
  return ReadWhoIsThere(question.address, bytes);
}

}  // namespace weft::launch
