// The part of Contexts that says which passes are open.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/participation.h"

namespace weft::dist_autograd {
namespace {

// For all parts together. One that runs a node answers once that has run.
constexpr absl::Duration kLongestLook = absl::Milliseconds(250);

}  // namespace

std::vector<std::string> Contexts::ExplainPasses() const {
  std::vector<std::pair<PassKey, std::shared_ptr<Participation>>> parts;
  {
    MutexLock lock(mu_);
    for (const auto& [key, part] : passes_) {
      if (!part->is_over()) parts.emplace_back(key, part);
    }
  }
  struct Asked {
    std::string name;
    Future<std::string> line;
  };
  std::vector<Asked> asked;
  for (const auto& [key, part] : parts) {
    const auto promise = std::make_shared<Promise<std::string>>();
    part->Post([promise](Participation& p) { promise->Set(p.Describe()); });
    asked.push_back(
        {absl::StrCat(key.second.ToString(), " in ", key.first.ToString()),
         promise->future()});
  }
  const Instant deadline = SteadyClock().Now() + kLongestLook;
  std::vector<std::string> lines;
  for (const Asked& one : asked) {
    const auto line = one.line.Wait(
        std::max(deadline - SteadyClock().Now(), absl::ZeroDuration()));
    lines.push_back(absl::StrCat(
        one.name, line.ok() ? *line : ": is running a node of its graph"));
  }
  return lines;
}

telemetry::Fields Contexts::Describe() const {
  const Counts now = counts();
  telemetry::Fields fields;
  fields.emplace_back("open contexts", now.contexts);
  fields.emplace_back("open passes", now.passes);
  size_t number = 0;
  for (const std::string& line : ExplainPasses()) {
    fields.emplace_back(absl::StrCat("pass ", ++number), line);
  }
  return fields;
}

}  // namespace weft::dist_autograd
