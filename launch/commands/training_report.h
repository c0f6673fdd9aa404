// TrainingReport: what the trainers of a job say of their steps, and which of
// them the others are ahead of or wait for.

#ifndef WEFT_LAUNCH_COMMANDS_TRAINING_REPORT_H_
#define WEFT_LAUNCH_COMMANDS_TRAINING_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace weft::launch {

// For whom operations on a table wait at a server.
struct ServerWait {
  std::string server;
  std::string table;
  std::string why;
  std::vector<std::string> workers;
  absl::Duration waited;
};

// Nothing in it is trusted: it is what others have sent.
struct TrainingReport {
  std::string job;
  // By worker: the fields of the section (train/training_metrics.h).
  std::vector<std::pair<std::string, nlohmann::json>> trainers;
  // The trainers that have not answered, and why.
  std::vector<std::pair<std::string, absl::Status>> silent;
  std::vector<ServerWait> servers;
  // The servers that have not answered.
  std::vector<std::pair<std::string, absl::Status>> silent_servers;
  // From the first question to the last answer: steps that are apart by what
  // is trained in this time say nothing.
  absl::Duration spread;
};

// {"workers": {NAME: fields and "steps_behind"}, "servers": [{"server",
// "table", "waits_for": [NAME], "why", "waited_s"}], "no_answer": [NAME],
// "reasons": {NAME: why}, "stuck": [{"class", "ranks", "waiting", "operation",
// "group", "waited_s"}]}: the last as the event of `weft run`.
nlohmann::json ToJson(const TrainingReport& report);

// A line for each trainer and each wait of a server, then who is behind, who is
// slow, and for whom others have waited long, if there is any. For a terminal.
// Empty if there is nothing to say.
std::string ToText(const TrainingReport& report);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_TRAINING_REPORT_H_
