// Question: the address and credentials of a worker that a command asks.

#ifndef WEFT_LAUNCH_COMMANDS_QUESTION_H_
#define WEFT_LAUNCH_COMMANDS_QUESTION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/net/tls/credentials.h"
#include "weft/rendezvous/view.h"
#include "weft/worker/flags.h"

namespace weft::launch {

struct Question {
  std::string address;       // HOST:PORT or unix:PATH
  std::string name = "ps0";  // of the endpoint
  std::string certs;
  bool insecure = false;
  absl::Duration timeout = absl::Seconds(5);

  // --name, --certs, --insecure, --timeout.
  void AddTo(worker::Flags& flags);
};

// As admin0, or as whoever `certs` is the folder of; without certificates what
// --insecure says; kInvalidArgument with both.
absl::StatusOr<net::Credentials> CredentialsOf(const Question& question);

// One call. kUnavailable if nobody listens there; kUnimplemented, as a matter
// of configuration, if a server without `method` does.
absl::StatusOr<std::string> Ask(const Question& question,
                                absl::string_view method, std::string request);
// weft.rpc.v1.Worker/Call of a worker, which has said what can be called there:
// kUnimplemented is an answer like others.
absl::StatusOr<std::string> CallWorker(const Question& question,
                                       std::string request);

// Where a job meets, by the same flags as its workers.
struct Meeting {
  std::string coordinator;
  std::string init;
  std::string job = "weft";

  // --coordinator, --init, --job.
  void AddTo(worker::Flags& flags);
};

// The View in a coordinator's answer to Watch. kInternal if it is none.
absl::StatusOr<rendezvous::View> ParseMembers(absl::string_view coordinator,
                                              absl::string_view bytes);

// The members of the job. `question` says how to ask, but for the address.
absl::StatusOr<rendezvous::View> AskForMembers(Question question,
                                               const Meeting& meeting);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_QUESTION_H_
