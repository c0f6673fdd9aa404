#include "weft/launch/commands/ask_members.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"

namespace weft::launch {
namespace {

// How many workers are asked at a time.
constexpr size_t kAskers = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<rpc::Client>> ConnectTo(
    const Question& question, const rendezvous::Member& member,
    const std::string& job) {
  rpc::ClientOptions options;
  WEFT_ASSIGN_OR_RETURN(options.credentials, CredentialsOf(question));
  options.worker = member.name;
  options.job = job;
  options.connect_timeout = question.timeout;
  return rpc::Client::Connect(member.address, options);
}

void RunSeveral(size_t count, absl::FunctionRef<void(size_t)> ask) {
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t at = next++; at < count; at = next++) ask(at);
  };
  // This thread is one of them, so that all are asked where the system has no
  // more threads.
  std::vector<std::thread> askers;
  for (size_t i = 1; i < std::min(kAskers, count); ++i) {
    auto asker = StartThread("weft ask", run);
    if (!asker.ok()) break;
    askers.push_back(*std::move(asker));
  }
  run();
  for (std::thread& asker : askers) asker.join();
}

}  // namespace weft::launch
