// caller: a worker that does what the words after its flags say, one by one,
// and then ends in good order:
//
//   caller --trainers=12 await:/t/go call:3:4096 group:g:8
//
//   await:FILE        until the file is there
//   barrier:TAG       waits there with all others
//   call:N:BYTES      N threads each call all the others at once, for the first
//                     time if nobody has called before, with so many bytes:
//                     prints "answered K" for the K-th right answer, "lost
//                     NAME: STATUS" for each call that has failed, and "called"
//   group:NAME:N      the first N trainers meet and sum; others do nothing
//   leave             ends now, and waits for no other
//
// --descriptors=N, before all other flags: it may have so many, and no more.

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/future.h"
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

// The same bytes, turned round.
std::string Reversed(const std::string& bytes) {
  return std::string(bytes.rbegin(), bytes.rend());
}
WEFT_RPC(Reversed);

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

absl::Status Await(const std::string& file) {
  for (const absl::Time end = absl::Now() + kLong;
       access(file.c_str(), F_OK) != 0;) {
    if (absl::Now() > end) return absl::DeadlineExceededError(file);
    absl::SleepFor(absl::Milliseconds(5));
  }
  return absl::OkStatus();
}

// What callbacks share, which may run after who waits has gone on.
struct Answers {
  std::atomic<int> right{0};
  std::atomic<int> ended{0};
};

absl::Status CallAll(weft::worker::Worker& worker, int threads, int64_t bytes) {
  const weft::worker::Options& options = worker.options();
  const auto answers = std::make_shared<Answers>();
  const auto call_from = [&](int thread) {
    std::string text(bytes, static_cast<char>('a' + options.rank % 26));
    if (bytes > 0) text[0] = static_cast<char>('A' + thread % 26);
    const std::string wanted = Reversed(text);
    for (int i = 1; i < options.trainers; ++i) {
      const std::string name =
          absl::StrCat("trainer", (options.rank + i) % options.trainers);
      weft::rpc::CallAsync(worker.agent().To(name), Reversed, text)
          .OnReady([answers, name,
                    wanted](const absl::StatusOr<std::string>& answer) {
            if (!answer.ok()) {
              Say(absl::StrCat("lost ", name, ": ",
                               answer.status().ToString()));
            } else if (*answer != wanted) {
              Say("WRONG answer of " + name);
            } else {
              Say(absl::StrCat("answered ", ++answers->right));
            }
            ++answers->ended;
          });
    }
  };
  std::vector<std::thread> callers;
  for (int t = 0; t < threads; ++t) callers.emplace_back(call_from, t);
  for (std::thread& caller : callers) caller.join();
  const absl::Time end = absl::Now() + kLong;
  while (answers->ended < threads * (options.trainers - 1)) {
    if (absl::Now() > end) return absl::InternalError("a call has no end");
    absl::SleepFor(absl::Milliseconds(2));
  }
  Say("called");
  return absl::OkStatus();
}

absl::Status Group(weft::worker::Worker& worker, const std::string& name,
                   int size) {
  if (worker.options().rank >= size) return absl::OkStatus();
  weft::worker::JoinGroupOptions join;
  join.name = name;
  join.join_timeout = kLong;
  for (int i = 0; i < size; ++i) {
    join.members.push_back(absl::StrCat("trainer", i));
  }
  WEFT_ASSIGN_OR_RETURN(const auto group,
                        weft::worker::JoinGroup(worker, join));
  const weft::Tensor ones = weft::Tensor::Ones({100});
  WEFT_RETURN_IF_ERROR(group->AllReduce(ones));
  if (ones.data<float>()[99] != static_cast<float>(size)) {
    return absl::DataLossError("a wrong sum");
  }
  Say(absl::StrCat("met ", name));
  return group->Barrier();
}

absl::Status Do(weft::worker::Worker& worker, const std::string& word) {
  const std::vector<std::string> parts = absl::StrSplit(word, ':');
  const auto number = [&](size_t i) {
    return std::atoll(i < parts.size() ? parts[i].c_str() : "");
  };
  if (parts[0] == "await") return Await(parts[1]);
  if (parts[0] == "barrier") return worker.AwaitAll(parts[1], kLong);
  if (parts[0] == "call") {
    return CallAll(worker, static_cast<int>(number(1)), number(2));
  }
  if (parts[0] == "group") {
    return Group(worker, parts[1], static_cast<int>(number(2)));
  }
  if (parts[0] == "leave") {
    weft::worker::ShutdownOptions alone;
    alone.together = "name=" + worker.options().name();
    return worker.Shutdown(alone).status();
  }
  return absl::InvalidArgumentError("no word: " + word);
}

}  // namespace

int main(int argc, char** argv) {
  absl::string_view descriptors = argc > 1 ? argv[1] : "";
  if (absl::ConsumePrefix(&descriptors, "--descriptors=")) {
    const auto most = static_cast<rlim_t>(std::atoi(descriptors.data()));
    const rlimit limit = {most, most};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 99;
    argv[1] = argv[0];
    ++argv;
    --argc;
  }
  auto worker = weft::worker::Worker::Start(
      weft::worker::Options::FromFlags(&argc, argv));
  weft::ExitIfError(worker.status());
  Say("joined");
  for (int i = 1; i < argc; ++i) weft::ExitIfError(Do(**worker, argv[i]));
  weft::ExitIfError((*worker)->Shutdown(absl::Minutes(2)).status());
}
