// AskRecordings: the flight recordings of a running job's members.

#ifndef WEFT_LAUNCH_COMMANDS_JOB_RECORDINGS_H_
#define WEFT_LAUNCH_COMMANDS_JOB_RECORDINGS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/launch/commands/flight_report.h"
#include "weft/launch/commands/question.h"

namespace weft::launch {

struct JobRecordings {
  // Each with its worker, and as `path` the name of a file for it.
  std::vector<FlightFile> files;
  // The workers that gave no recording, and why.
  std::vector<std::pair<std::string, absl::Status>> silent;
};

// Asks every member of the job; each has question.timeout. One that does not
// answer, or not with a recording, spoils no other. The errors of
// AskForMembers; kNotFound if the job has no member.
absl::StatusOr<JobRecordings> AskRecordings(const Question& question,
                                            const Meeting& meeting);

// What a worker said as it may be shown on a terminal, line by line.
// kInvalidArgument if it is no recording, or longer than one can be.
absl::StatusOr<std::string> CheckRecording(absl::string_view said);

// Makes the directory, mode 0700, unless it is there.
absl::Status MakeDirectory(const std::string& directory);

// Writes each to a file of `directory` that is not there yet, mode 0600, and
// says their paths.
absl::StatusOr<std::vector<std::string>> WriteRecordings(
    const std::vector<FlightFile>& files, const std::string& directory);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_JOB_RECORDINGS_H_
