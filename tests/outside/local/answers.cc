#include "weft/tests/outside/local/answers.h"

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <optional>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/driver.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/function.h"

namespace weft::outside {
namespace {

void Touch(const std::string& path) { std::ofstream(path).flush(); }

std::atomic<int64_t> flowed{0};

}  // namespace

std::string Turned(const std::string& bytes) {
  return std::string(bytes.rbegin(), bytes.rend());
}
WEFT_RPC(Turned);
WEFT_RPC_ROLES(Turned, "client", "trainer", "admin");

absl::StatusOr<int64_t> Held(rpc::CallContext& context,
                             const std::string& path) {
  const BlockingScope blocking;
  Touch(path + ".entered");
  while (access(path.c_str(), F_OK) != 0) {
    if (context.cancel().IsCancelled()) {
      Touch(path + ".cancelled");
      return context.cancel().status();
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return 1;
}
WEFT_RPC(Held);

absl::Status Flow(rpc::Writer<std::string> out, int64_t values, int64_t bytes) {
  for (int64_t i = 0; i < values; ++i) {
    WEFT_RETURN_IF_ERROR(out.Write(std::string(bytes, 'f')));
    ++flowed;
  }
  return absl::OkStatus();
}
WEFT_RPC_STREAM(Flow);

int64_t Flowed() { return flowed; }
WEFT_RPC(Flowed);

absl::StatusOr<int64_t> Drink(rpc::Reader<std::string> in,
                              int64_t milliseconds) {
  for (int64_t sum = 0;;) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<std::string> next, in.Next());
    if (!next.has_value()) return sum;
    sum += static_cast<int64_t>(next->size());
    const BlockingScope blocking;
    absl::SleepFor(absl::Milliseconds(milliseconds));
  }
}
WEFT_RPC_STREAM(Drink);

}  // namespace weft::outside
