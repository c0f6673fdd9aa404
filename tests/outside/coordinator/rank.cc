// rank: a worker that does what the words after its flags say, one by one, and
// then ends in good order:
//
//   rank --trainers=2 calls:/t/stop 1/await:/t/go barrier:a
//
//   barrier:TAG   waits there with all others
//   await:FILE    until the file is there
//   touch:FILE    makes it
//   calls:FILE    calls the next trainer, again and again, until FILE is there
//   groups:FILE   of an elastic job: is in a group of all, again and again,
//                 until FILE is there
//   leave         ends now, and waits for no other
//   exit:CODE     ends the process at once
//
// "1/" before a word: of trainer 1 alone. "first/": only where no restart was.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/function.h"
#include "weft/tensor/tensor.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/join_group.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace {

constexpr absl::Duration kLong = absl::Minutes(2);

int64_t Twice(int64_t x) { return 2 * x; }
WEFT_RPC(Twice);

bool IsThere(const std::string& file) {
  return access(file.c_str(), F_OK) == 0;
}

absl::Status Await(const std::string& file) {
  for (const absl::Time end = absl::Now() + kLong; !IsThere(file);) {
    if (absl::Now() > end) return absl::DeadlineExceededError(file);
    absl::SleepFor(absl::Milliseconds(5));
  }
  return absl::OkStatus();
}

absl::Status CallUntil(weft::worker::Worker& worker, const std::string& file) {
  const weft::worker::Options& options = worker.options();
  const int next = (options.rank + 1) % options.trainers;
  const auto target =
      worker.agent().To(absl::StrCat("trainer", next), absl::Seconds(60));
  while (!IsThere(file)) {
    const auto four = weft::rpc::Call(target, Twice, 2);
    if (!four.ok()) return four.status();
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::OkStatus();
}

// In each group rank 0 says whether it goes on, since others wait to come in,
// or since FILE is there.
absl::Status GroupsUntil(weft::worker::Worker& worker,
                         const std::string& file) {
  weft::worker::JoinGroupOptions join;
  join.elastic.min = 2;
  join.join_timeout = kLong;
  join.arena_bytes = 1 << 20;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const auto group,
                          weft::worker::JoinGroup(worker, join));
    std::printf("group of %d as %d\n", group->size(), group->rank());
    std::fflush(stdout);
    const weft::Tensor said = weft::Tensor::Zeros({2});
    absl::Status status;
    while (status.ok() && said.data<float>()[0] + said.data<float>()[1] == 0) {
      if (group->rank() == 0) {
        WEFT_ASSIGN_OR_RETURN(const auto waiting, weft::worker::MembersWaiting(
                                                      worker, join, kLong));
        said.data<float>()[0] = IsThere(file);
        said.data<float>()[1] = !waiting.empty();
      }
      status = group->Broadcast(said, 0);
      absl::SleepFor(absl::Milliseconds(5));
    }
    if (!status.ok() && !absl::IsUnavailable(status)) return status;
    if (said.data<float>()[0] != 0) return absl::OkStatus();
  }
}

absl::Status Do(weft::worker::Worker& worker, const std::string& word) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(word, absl::MaxSplits(':', 1));
  const auto& [verb, object] = parts;
  if (verb == "barrier") return worker.AwaitAll(object, kLong);
  if (verb == "await") return Await(object);
  if (verb == "calls") return CallUntil(worker, object);
  if (verb == "groups") return GroupsUntil(worker, object);
  if (verb == "touch") {
    std::ofstream(object).flush();
    return absl::OkStatus();
  }
  if (verb == "leave") {
    weft::worker::ShutdownOptions alone;
    alone.together = "name=" + worker.options().name();
    return worker.Shutdown(alone).status();
  }
  if (verb == "exit") _exit(atoi(object.c_str()));
  return absl::InvalidArgumentError("no word: " + word);
}

// The word without its condition; "" if that does not hold.
std::string Mine(absl::string_view word, int rank) {
  const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (absl::ConsumePrefix(&word, "first/") && restarts != nullptr &&
      std::string(restarts) != "0") {
    return "";
  }
  if (word.size() > 1 && word[1] == '/') {
    if (word[0] - '0' != rank) return "";
    word.remove_prefix(2);
  }
  return std::string(word);
}

}  // namespace

int main(int argc, char** argv) {
  auto worker = weft::worker::Worker::Start(
      weft::worker::Options::FromFlags(&argc, argv));
  weft::ExitIfError(worker.status());
  const int rank = (*worker)->options().rank;
  std::printf("joined\n");
  std::fflush(stdout);
  for (int i = 1; i < argc; ++i) {
    const std::string word = Mine(argv[i], rank);
    if (word.empty()) continue;
    weft::ExitIfError(Do(**worker, word));
    std::printf("done %s\n", word.c_str());
    std::fflush(stdout);
  }
  weft::ExitIfError((*worker)->Shutdown(absl::Minutes(2)).status());
}
