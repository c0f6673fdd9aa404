#include "weft/base/executor.h"

#include <cstdio>
#include <utility>

#include "weft/base/catch_to_status.h"

namespace weft {

void InlineExecutor::Schedule(Task task) { RunTask(std::move(task)); }

void RunTask(Task task) noexcept {
  const absl::Status status = CatchToStatus([&] { std::move(task)(); });
  if (status.ok()) return;
  std::fprintf(
      stderr, "executor: a task threw: %s\n",
      status.ToString(absl::StatusToStringMode::kWithNoExtraData).c_str());
}

}  // namespace weft
