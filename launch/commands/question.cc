#include "weft/launch/commands/question.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/bytes.h"
#include "weft/base/status_macros.h"
#include "weft/base/version.h"
#include "weft/net/channel.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/certificates.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/discovery/rendezvous_file.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/rendezvous/journal/etcd_journal.h"
#include "weft/rendezvous/wire.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/options.h"

namespace weft::launch {

namespace {

constexpr char kHost[] = "ps0";  // of the coordinator, if a job has servers

// Adds a hint at --name where the peer is not the default host.
absl::Status WithWhomToName(const Question& question,
                            const absl::Status& status) {
  if (!absl::IsUnauthenticated(status) || question.name != kHost) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(),
                                   "; --name says who it is: coordinator0 "
                                   "hosts the coordinator of a job that weft "
                                   "run started, otherwise ps0, or trainer0 "
                                   "of a job without servers"));
}

// Where the coordinator is now, of a job whose workers look for it.
absl::StatusOr<std::string> Find(const Question& question,
                                 const worker::Options& job) {
  const rendezvous::InitUrl& url = job.init_url;
  if (url.kind == rendezvous::InitUrl::Kind::kFile) {
    return rendezvous::ReadRendezvousFile(url.path, job.job);
  }
  net::LoopOptions options;
  WEFT_ASSIGN_OR_RETURN(options.credentials, CredentialsOf(question));
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<net::Loop> loop,
                        net::Loop::Create(std::move(options)));
  WEFT_ASSIGN_OR_RETURN(const auto etcd,
                        rendezvous::MakeEtcdLink(*loop, url.address));
  return rendezvous::FindByEtcd(*etcd, url.prefix, job.job)
      .Wait(question.timeout);
}

absl::StatusOr<std::string> UnaryCall(const Question& question,
                                      absl::string_view method,
                                      std::string request) {
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
  const absl::StatusOr<Slices> reply =
      (*channel)
          ->UnaryCall(method, {Bytes::Own(std::move(request))},
                      question.timeout)
          .Wait(question.timeout + absl::Seconds(1));
  if (absl::IsDeadlineExceeded(reply.status())) {
    return absl::DeadlineExceededError(absl::StrCat(
        reply.status().message(),
        "; is it a worker that listens there, and does it run? --timeout is "
        "how long it is waited for"));
  }
  if (!reply.ok()) return WithWhomToName(question, reply.status());
  return std::string(Flatten(*reply).view());
}

}  // namespace

absl::StatusOr<net::Credentials> CredentialsOf(const Question& question) {
  WEFT_RETURN_IF_ERROR(worker::CheckTrust(question.certs, question.insecure));
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
  auto reply = UnaryCall(question, method, std::move(request));
  if (!absl::IsUnimplemented(reply.status())) return reply;
  return worker::WithExitCode(
      absl::UnimplementedError(
          absl::StrCat(question.address, " serves gRPC, but not ", method,
                       ": it is no worker of this version of Weft (", kVersion,
                       "), or not of the kind that serves it; found: ",
                       reply.status().message())),
      worker::ExitCode::kConfig);
}

absl::StatusOr<std::string> CallWorker(const Question& question,
                                       std::string request) {
  return UnaryCall(question, "/weft.rpc.v1.Worker/Call", std::move(request));
}

void Meeting::AddTo(worker::Flags& flags) {
  flags.Add("coordinator", &coordinator, "where the job meets",
            {"WEFT_COORDINATOR"});
  flags.Add("init", &init, "how its workers meet, in place of --coordinator",
            {"WEFT_INIT"});
  flags.Add("job", &job, "the job's name", {"WEFT_JOB"});
}

absl::StatusOr<rendezvous::View> ParseMembers(absl::string_view coordinator,
                                              absl::string_view bytes) {
  rendezvous::v1::WatchReply reply;
  if (!reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return rendezvous::BadAnswer(coordinator, "Watch", "it cannot be read");
  }
  auto view = rendezvous::ReadView(reply.view());
  if (view.ok()) return view;
  return rendezvous::BadAnswer(coordinator, "Watch", view.status().message());
}

absl::StatusOr<rendezvous::View> AskForMembers(Question question,
                                               const Meeting& meeting) {
  // Resolved as a worker of the job resolves the same flags.
  worker::Options options;
  options.job = meeting.job;
  options.coordinator = meeting.coordinator;
  options.init = meeting.init;
  options.trainers = 1;
  options.only_asks = true;
  WEFT_RETURN_IF_ERROR(options.Resolve());
  WEFT_ASSIGN_OR_RETURN(const net::Credentials credentials,
                        CredentialsOf(question));
  WEFT_RETURN_IF_ERROR(credentials.CheckJob(meeting.job));
  question.address = options.coordinator;
  if (options.init_url.is_found()) {
    WEFT_ASSIGN_OR_RETURN(question.address, Find(question, options));
  }
  rendezvous::v1::WatchRequest request;
  request.set_job(meeting.job);
  const absl::StatusOr<std::string> bytes =
      Ask(question, "/weft.rendezvous.v1.Coordinator/Watch",
          request.SerializeAsString());
  if (bytes.ok()) return ParseMembers(question.address, *bytes);
  const bool is_of_name = meeting.coordinator.empty() && meeting.init.empty() &&
                          absl::StartsWith(question.address, "unix:");
  if (!absl::IsUnavailable(bytes.status()) || !is_of_name) {
    return bytes.status();
  }
  return absl::UnavailableError(absl::StrCat(
      bytes.status().message(), " It follows from --job=", meeting.job,
      ": is that the job's name, and has it no --coordinator?"));
}

}  // namespace weft::launch
