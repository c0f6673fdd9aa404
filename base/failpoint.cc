#include "weft/base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"

namespace weft {
namespace internal {
std::atomic<int> failpoints_armed{0};
}  // namespace internal

namespace {

// Nobody disarms a place later: its test waits for the blocked one itself.
constexpr std::chrono::minutes kLongestBlock{1};

struct Action {
  enum class Kind { kOff, kError, kDelay, kBlock, kCrash };
  Kind kind = Kind::kOff;
  absl::Status error;
  absl::Duration delay;
  int64_t hits_left = std::numeric_limits<int64_t>::max();
};

absl::Status Unreadable(absl::string_view action) {
  return absl::InvalidArgumentError(absl::StrCat(
      "failpoint: wants [N*]off|error(CODE[,message])|delay(50ms)|block|"
      "crash, joined by ->; found '",
      action, "'"));
}

// The code of a name such as UNAVAILABLE; kOk if there is none.
absl::StatusCode CodeOf(absl::string_view name) {
  for (int code = 1; code <= 16; ++code) {
    const auto candidate = static_cast<absl::StatusCode>(code);
    if (absl::StatusCodeToString(candidate) == name) return candidate;
  }
  return absl::StatusCode::kOk;
}

// Takes `word(argument)` apart.
bool ConsumeCall(absl::string_view text, absl::string_view word,
                 absl::string_view* argument) {
  if (!absl::ConsumePrefix(&text, word) || !absl::ConsumePrefix(&text, "(") ||
      !absl::ConsumeSuffix(&text, ")")) {
    return false;
  }
  *argument = text;
  return true;
}

absl::StatusOr<Action> ParseAction(absl::string_view whole) {
  Action action;
  absl::string_view text = whole;
  absl::string_view argument;
  if (const size_t star = text.find('*'); star != text.npos) {
    if (!absl::SimpleAtoi(text.substr(0, star), &action.hits_left) ||
        action.hits_left < 1) {
      return Unreadable(whole);
    }
    text.remove_prefix(star + 1);
  }
  if (text == "off") return action;
  if (text == "block" || text == "crash") {
    action.kind = text == "block" ? Action::Kind::kBlock : Action::Kind::kCrash;
    return action;
  }
  if (ConsumeCall(text, "error", &argument)) {
    std::pair<std::string, std::string> parts =
        absl::StrSplit(argument, absl::MaxSplits(',', 1));
    action.kind = Action::Kind::kError;
    action.error = absl::Status(CodeOf(parts.first), parts.second);
    if (action.error.ok()) return Unreadable(whole);
    return action;
  }
  if (ConsumeCall(text, "delay", &argument)) {
    action.kind = Action::Kind::kDelay;
    if (!absl::ParseDuration(argument, &action.delay)) return Unreadable(whole);
    return action;
  }
  return Unreadable(whole);
}

// What is armed, by name. Thread-safety: thread-safe.
class Registry {
 public:
  void Arm(absl::string_view name, std::deque<Action> actions)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    places_.insert_or_assign(std::string(name),
                             Place{std::move(actions), 0, ++last_number_});
    CountArmed();
    disarmed_.NotifyAll();  // what was armed under the name
  }

  void Disarm(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    places_.erase(std::string(name));
    CountArmed();
    disarmed_.NotifyAll();
  }

  int64_t Hits(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    auto found = places_.find(std::string(name));
    return found == places_.end() ? 0 : found->second.hits;
  }

  // What the place is to do this time, once it need not block.
  Action Hit(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    auto found = places_.find(std::string(name));
    if (found == places_.end()) return Action();
    Place& place = found->second;
    ++place.hits;
    if (place.actions.empty()) return Action();
    Action action = place.actions.front();
    if (--place.actions.front().hits_left == 0) place.actions.pop_front();
    if (action.kind == Action::Kind::kBlock) Block(found->first, place.number);
    return action;
  }

 private:
  struct Place {
    std::deque<Action> actions;
    int64_t hits = 0;
    int64_t number = 0;  // another each time the name is armed
  };

  // `name` by value: the place may go meanwhile.
  void Block(const std::string name, int64_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto deadline = std::chrono::steady_clock::now() + kLongestBlock;
    const auto is_armed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      const auto found = places_.find(name);
      return found != places_.end() && found->second.number == number;
    };
    while (is_armed()) {
      WEFT_CHECK(disarmed_.WaitUntil(mu_, deadline) || !is_armed())
          << "failpoint '" << name << "' blocks, and nobody disarms it";
    }
  }

  void CountArmed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    internal::failpoints_armed.store(static_cast<int>(places_.size()),
                                     std::memory_order_relaxed);
  }

  Mutex mu_;
  CondVar disarmed_;
  int64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, Place> places_ ABSL_GUARDED_BY(mu_);
};

Registry& TheRegistry() {
  static Registry& registry = *new Registry;  // outlives all that may hit it
  return registry;
}

// Before main, so that a place is armed when it is first passed. A program
// that was set to fail and does not is worse than one that does not start.
[[maybe_unused]] const bool environment_read = [] {
  const char* list = std::getenv("WEFT_FAILPOINTS");
  if (list == nullptr) return false;
  if (absl::Status armed = ArmFailpoints(list); !armed.ok()) {
    std::fprintf(stderr, "$WEFT_FAILPOINTS: %s\n", armed.ToString().c_str());
    std::_Exit(2);
  }
  return true;
}();

[[noreturn]] void Crash(absl::string_view name) {
  std::fprintf(stderr, "failpoint '%s': crash\n", std::string(name).c_str());
  std::fflush(stderr);
  kill(getpid(), SIGKILL);
  std::abort();
}

}  // namespace

absl::Status internal::HitFailpoint(absl::string_view name) {
  const Action action = TheRegistry().Hit(name);
  switch (action.kind) {
    case Action::Kind::kOff:
    case Action::Kind::kBlock:  // it has
      return absl::OkStatus();
    case Action::Kind::kError:
      return absl::Status(
          action.error.code(),
          absl::StrCat("failpoint '", name, "'",
                       action.error.message().empty() ? "" : ": ",
                       action.error.message()));
    case Action::Kind::kDelay:
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(action.delay));
      return absl::OkStatus();
    case Action::Kind::kCrash:
      Crash(name);
  }
  return absl::OkStatus();
}

absl::Status ArmFailpoint(absl::string_view name, absl::string_view actions) {
  std::deque<Action> parsed;
  for (absl::string_view text : absl::StrSplit(actions, "->")) {
    WEFT_ASSIGN_OR_RETURN(Action action, ParseAction(text));
    parsed.push_back(std::move(action));
  }
  TheRegistry().Arm(name, std::move(parsed));
  return absl::OkStatus();
}

void DisarmFailpoint(absl::string_view name) { TheRegistry().Disarm(name); }

absl::Status ArmFailpoints(absl::string_view list) {
  for (absl::string_view entry : absl::StrSplit(list, ';', absl::SkipEmpty())) {
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == entry.npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "failpoint: wants name=action;..., found '", entry, "'"));
    }
    WEFT_RETURN_IF_ERROR(
        ArmFailpoint(entry.substr(0, equals), entry.substr(equals + 1)));
  }
  return absl::OkStatus();
}

ScopedFailpoint::ScopedFailpoint(std::string name, absl::string_view actions)
    : name_(std::move(name)) {
  const absl::Status armed = ArmFailpoint(name_, actions);
  WEFT_CHECK(armed.ok()) << armed.ToString();
}

ScopedFailpoint::~ScopedFailpoint() { DisarmFailpoint(name_); }

int64_t ScopedFailpoint::hits() const { return TheRegistry().Hits(name_); }

}  // namespace weft
