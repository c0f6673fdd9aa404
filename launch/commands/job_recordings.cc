#include "weft/launch/commands/job_recordings.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/io/write_all.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/ask_members.h"
#include "weft/rendezvous/view.h"
#include "weft/telemetry/field.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/telemetry/flight_recording.h"

namespace weft::launch {
namespace {

// The most recordings of one name in a directory.
constexpr int kMostFiles = 1000;

absl::Status CannotWrite(const std::string& path, int why) {
  return worker::WithExitCode(absl::UnavailableError(absl::StrCat(
                                  "--out: ", path, ": ", strerror(why))),
                              worker::ExitCode::kResource);
}

absl::StatusOr<std::string> WriteRecording(const FlightFile& file,
                                           const std::string& directory) {
  const std::filesystem::path stem =
      std::filesystem::path(directory) / file.path;
  for (int n = 0; n < kMostFiles; ++n) {
    const std::string path = absl::StrCat(stem.string(), "-", n, ".flight");
    const int fd =
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
             0600);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return CannotWrite(path, errno);
    const int why = WriteAll(fd, file.text);
    close(fd);
    if (why != 0) return CannotWrite(path, why);
    return path;
  }
  return CannotWrite(stem.string(), EEXIST);
}

}  // namespace

absl::StatusOr<std::string> CheckRecording(absl::string_view said) {
  if (said.size() > worker::kMostRecordingBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it answered with ", said.size(), " bytes; a recording has at most ",
        worker::kMostRecordingBytes));
  }
  if (!IsRecording(said)) {
    return absl::InvalidArgumentError(
        "it answered with what is no flight recording");
  }
  std::string text;
  for (const absl::string_view line :
       absl::StrSplit(said, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, telemetry::Printable(line), "\n");
  }
  return text;
}

absl::StatusOr<JobRecordings> AskRecordings(const Question& question,
                                            const Meeting& meeting) {
  WEFT_ASSIGN_OR_RETURN(const rendezvous::View view,
                        AskForMembers(question, meeting));
  std::vector<const rendezvous::Member*> members;
  for (const rendezvous::Member& member : view.members()) {
    members.push_back(&member);
  }
  if (members.empty()) {
    return worker::WithExitCode(
        absl::NotFoundError(absl::StrCat("weft dump: no worker is in job ",
                                         meeting.job, ": ", view.Summary())),
        worker::ExitCode::kConfig);
  }
  JobRecordings recordings;
  for (MemberAnswer<std::string>& answer : AskEach<std::string>(
           question, members, meeting.job, [](const rpc::Target& target) {
             return worker::AskFlightRecording(target);
           })) {
    const std::string& name = answer.member->name;
    absl::StatusOr<std::string> text = answer.said;
    if (text.ok()) text = CheckRecording(*answer.said);
    answer.said = std::string();  // at most one copy of each is kept
    if (!text.ok()) {
      recordings.silent.emplace_back(name, text.status());
      continue;
    }
    // Another incarnation of the worker is another file.
    recordings.files.push_back({absl::StrCat(meeting.job, "-", name, "-",
                                             answer.member->key.ToString()),
                                *std::move(text), name});
  }
  return recordings;
}

absl::Status MakeDirectory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) == 0) return absl::OkStatus();
  const int why = errno;
  std::error_code error;
  if (std::filesystem::is_directory(directory, error)) return absl::OkStatus();
  return worker::WithExitCode(
      absl::FailedPreconditionError(
          absl::StrCat("--out=", directory,
                       ": wanted a directory to write in: ", strerror(why))),
      worker::ExitCode::kConfig);
}

absl::StatusOr<std::vector<std::string>> WriteRecordings(
    const std::vector<FlightFile>& files, const std::string& directory) {
  std::vector<std::string> paths;
  for (const FlightFile& file : files) {
    WEFT_ASSIGN_OR_RETURN(paths.emplace_back(),
                          WriteRecording(file, directory));
  }
  return paths;
}

}  // namespace weft::launch
