// Failure: where a call failed, and why, as a program can read it.
//
//   for (const rpc::Failure& f : rpc::FailuresOf(status)) {
//     log << f.function << " on " << f.worker << " in " << NameOf(f.phase);
//   }
//
// It is sent with the code and the message of a Status, through any number of
// processes, as are payloads that the user has set.

#ifndef WEFT_RPC_SESSION_FAILURE_H_
#define WEFT_RPC_SESSION_FAILURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace weft::rpc {

// The phase in which a call failed. The numbers are part of the protocol.
enum class Phase : uint8_t {
  kNone = 0,     // it was not begun: see IsLocal
  kQueue = 1,    // it waited for credit, a connection, or for a thread
  kWire = 2,     // it was sent, and the connection is lost since
  kDecode = 3,   // arguments were read; at the caller: the result was
  kHandler = 4,  // the function ran; from the caller's side: it was delivered
  kEncode = 5,   // the result was written
};
constexpr int kPhases = 6;
const char* NameOf(Phase phase);

// Why the peer is UNAVAILABLE, or no more calls are made here. The numbers are
// part of the protocol.
enum class Reason : uint8_t {
  kNone = 0,          // as the code and the message say
  kPeerGone = 1,      // that incarnation is dead; a later one can be called
  kUnreachable = 2,   // it could not be reached for too long
  kForgotten = 3,     // it lives, and has lost its memory of this session
  kShuttingDown = 4,  // or was; with kFailedPrecondition: the caller is
};
constexpr int kReasons = 5;
const char* NameOf(Reason reason);

// One call of a chain of nested ones.
struct Failure {
  std::string worker;    // the callee
  std::string function;  // that was called there
  Phase phase = Phase::kNone;
  Reason reason = Reason::kNone;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;  // without the names of workers nearer to the reader
};

// The call that ended with `status`, then the nested one that it failed by, and
// so on to where the error arose. Empty if it is not of a call. At most
// kMaxFailures: of a longer chain the nearest, and the last.
std::vector<Failure> FailuresOf(const absl::Status& status);
constexpr size_t kMaxFailures = 16;
// So much of a message is kept.
constexpr size_t kMaxFailureMessage = 1024;

// The reason and phase of the call itself; kNone if it is not an error of a
// call.
Phase PhaseOf(const absl::Status& status);
Reason ReasonOf(const absl::Status& status);

// Whether it is of a call that was not begun because of a mistake of the
// caller: an unknown worker, a negative timeout, a function that is not
// registered, an argument that cannot be encoded.
bool IsLocal(const absl::Status& status);

// `status`, made because of `cause`: its chain goes on with that of `cause`.
// For functions that do not pass on the Status of a nested call as it is.
absl::Status WithCause(absl::Status status, const absl::Status& cause);

namespace internal {

// `status` as that of a call which ended in `phase` for `reason`; whose call is
// said by NameFailure. Ok stays Ok.
absl::Status MarkFailure(absl::Status status, Phase phase,
                         Reason reason = Reason::kNone);

// Completes the failure of MarkFailure, or else puts a failure of `phase` in
// front of the chain: for the callee.
absl::Status NameFailure(absl::Status status, const std::string& worker,
                         const std::string& function, Phase phase);

// The same unless the chain begins with this call already: for the caller.
absl::Status ReceiveFailure(absl::Status status, const std::string& worker,
                            const std::string& function, Phase phase);

}  // namespace internal
}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_FAILURE_H_
