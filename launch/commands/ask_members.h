// AskEach: asks the members of a job, several at a time.

#ifndef WEFT_LAUNCH_COMMANDS_ASK_MEMBERS_H_
#define WEFT_LAUNCH_COMMANDS_ASK_MEMBERS_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/question.h"
#include "weft/rendezvous/view.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"

namespace weft::launch {

// What one member has said, and between which moments.
template <typename T>
struct MemberAnswer {
  const rendezvous::Member* member = nullptr;
  absl::StatusOr<T> said;
  Instant asked;
  Instant answered;
};

// A client of `member`, which must be of `job`; within question.timeout.
absl::StatusOr<std::unique_ptr<rpc::Client>> ConnectTo(
    const Question& question, const rendezvous::Member& member,
    const std::string& job);

// Runs `ask(0)` to `ask(count - 1)`, eight at a time, and returns after all.
void RunSeveral(size_t count, absl::FunctionRef<void(size_t)> ask);

// Calls `ask(target, left)` of each member, with what is left of
// question.timeout once it is connected; `target` has that deadline. The
// answers are in the order of the members, which must outlive them. What `ask`
// throws becomes its status.
template <typename T>
std::vector<MemberAnswer<T>> AskEach(
    const Question& question,
    const std::vector<const rendezvous::Member*>& members,
    const std::string& job,
    const std::function<Future<T>(const rpc::Target&)>& ask) {
  std::vector<MemberAnswer<T>> answers(members.size());
  RunSeveral(members.size(), [&](size_t at) {
    MemberAnswer<T>& answer = answers[at];
    answer.member = members[at];
    answer.said = CatchToStatus([&]() -> absl::StatusOr<T> {
      const Instant deadline = SteadyClock().Now() + question.timeout;
      WEFT_ASSIGN_OR_RETURN(const auto client,
                            ConnectTo(question, *members[at], job));
      answer.asked = SteadyClock().Now();
      const absl::Duration left =
          std::max(deadline - answer.asked, absl::Milliseconds(1));
      // The call ends by its own deadline, and says where it was then.
      return ask(client->To(left)).Wait(left + absl::Seconds(1));
    });
    answer.answered = SteadyClock().Now();
  });
  return answers;
}

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_ASK_MEMBERS_H_
