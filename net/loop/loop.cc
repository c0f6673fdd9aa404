#include "weft/net/loop/loop.h"

#include <utility>

#include "weft/base/status_macros.h"
#include "weft/net/loop/descriptor_limit.h"
#include "weft/net/loop/loop_core.h"

namespace weft::net {

absl::StatusOr<std::unique_ptr<Loop>> Loop::Create(LoopOptions options) {
  WEFT_RETURN_IF_ERROR(CheckDescriptors());
  auto core = std::make_shared<Core>(std::move(options));
  WEFT_RETURN_IF_ERROR(core->Start());
  return std::unique_ptr<Loop>(new Loop(std::move(core)));
}

Loop::Loop(std::shared_ptr<Core> core) : core_(std::move(core)) {}

Loop::~Loop() { core_->Shutdown(absl::ZeroDuration()).IgnoreError(); }

Driver& Loop::driver() { return core_->driver(); }

void Loop::Post(absl::AnyInvocable<void() &&> fn) {
  core_->poller().Post(std::move(fn));
}

Loop::TimerId Loop::RunAt(Instant when, absl::AnyInvocable<void() &&> fn) {
  return core_->poller().RunAt(when, std::move(fn));
}

bool Loop::CancelTimer(TimerId id) { return core_->poller().CancelTimer(id); }

absl::Status Loop::Shutdown(absl::Duration timeout) {
  return core_->Shutdown(timeout);
}

absl::Status Loop::RenewCredentials(const Credentials& credentials) {
  return core_->RenewCredentials(credentials);
}

std::shared_ptr<MemoryWatch> Loop::memory_watch() const { return core_; }

telemetry::Telemetry& Loop::telemetry() const { return core_->telemetry(); }

const Credentials& Loop::credentials() const {
  return core_->options().credentials;
}

}  // namespace weft::net
