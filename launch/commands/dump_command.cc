// weft dump: what the flight recorders of several workers say together, from
// their files or from a running job.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/input/read_file.h"
#include "weft/launch/commands/commands.h"
#include "weft/launch/commands/flight_report.h"
#include "weft/launch/commands/job_recordings.h"
#include "weft/launch/commands/question.h"
#include "weft/telemetry/field.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"

namespace weft::launch {
namespace {

constexpr char kSuffix[] = ".flight";

absl::Status NotFound(absl::string_view what) {
  return worker::WithExitCode(
      absl::NotFoundError(absl::StrCat(
          "weft dump: ", what, "; wanted files *", kSuffix,
          " or directories that hold some: --dump-dir of the workers, or what "
          "weft run names when a rank fails")),
      worker::ExitCode::kConfig);
}

// The recordings in a directory, or the file itself.
absl::StatusOr<std::vector<std::string>> RecordingsAt(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return std::vector<std::string>{path};
  }
  std::vector<std::string> found;
  std::filesystem::directory_iterator it(path, error);
  for (; !error && it != std::filesystem::directory_iterator();
       it.increment(error)) {
    if (it->path().extension() == kSuffix) found.push_back(it->path().string());
  }
  if (error) return NotFound(absl::StrCat(path, ": ", error.message()));
  if (found.empty()) {
    return NotFound(absl::StrCat("no file *", kSuffix, " is in ", path));
  }
  std::sort(found.begin(), found.end());
  return found;
}

absl::StatusOr<std::vector<FlightFile>> ReadAll(
    const std::vector<std::string>& all_given) {
  std::vector<FlightFile> files;
  for (const std::string& given : all_given) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                          RecordingsAt(given));
    for (const std::string& path : paths) {
      absl::StatusOr<std::string> text = input::ReadFile(path);
      if (!text.ok()) return NotFound(text.status().message());
      // What was named must be one; in a directory there may be the rest of
      // what was killed while it wrote.
      if (path != given && !IsRecording(*text)) {
        std::fprintf(stderr, "weft dump: %s is no recording: left out\n",
                     path.c_str());
        continue;
      }
      files.push_back({path, *std::move(text)});
    }
  }
  if (files.empty()) return NotFound("no file there is a recording");
  return files;
}

// What a running job is asked for.
struct Live {
  Question question;
  Meeting meeting;
  std::string out;
  int events = 10;

  void AddTo(worker::Flags& flags) {
    meeting.AddTo(flags);
    flags.Add("out", &out,
              "of a running job: a directory to write each worker's recording "
              "to, too");
    flags.Add("events", &events,
              "of a running job: how many of each worker's newest events are "
              "shown");
    question.AddTo(flags);
  }
};

// Whether the command line, or without files the environment, says which job.
bool NamesAJob(const worker::Flags& flags) {
  for (const char* name : {"job", "coordinator", "init"}) {
    const std::string origin = flags.Origin(name);
    const bool counts =
        flags.positional().empty() ? origin != "default" : origin == "flag";
    if (counts) return true;
  }
  return false;
}

absl::Status Usage(absl::string_view what) {
  return worker::WithExitCode(
      absl::InvalidArgumentError(absl::StrCat("weft dump: ", what)),
      worker::ExitCode::kUsage);
}

absl::Status CheckUsage(const worker::Flags& flags, const Live& live) {
  const bool is_live = NamesAJob(flags);
  if (is_live && !flags.positional().empty()) {
    return Usage(
        "found files, and a running job to ask (--job, --coordinator, --init); "
        "wanted one of them");
  }
  if (!is_live && flags.positional().empty()) {
    return Usage(
        "wanted files *.flight, one of each worker: --dump-dir says where they "
        "are; or the --job to ask, while it runs");
  }
  if (!is_live && !live.out.empty()) {
    return Usage("--out is for what a running job (--job) says");
  }
  if (live.events < 0) return Usage("--events: wanted a number from 0");
  return absl::OkStatus();
}

// 0 if all have answered; else the code of the first who has not.
absl::StatusOr<int> DumpJob(const Live& live) {
  if (!live.out.empty()) WEFT_RETURN_IF_ERROR(MakeDirectory(live.out));
  WEFT_ASSIGN_OR_RETURN(const JobRecordings recordings,
                        AskRecordings(live.question, live.meeting));
  for (const auto& [name, why] : recordings.silent) {
    std::printf("no answer: %s: %s\n", name.c_str(),
                telemetry::Printable(why.message()).c_str());
  }
  if (!recordings.files.empty()) {
    WEFT_ASSIGN_OR_RETURN(const std::string report,
                          FlightReport(recordings.files));
    std::fputs(report.c_str(), stdout);
  }
  if (live.events > 0) {
    for (const FlightFile& file : recordings.files) {
      std::fputs(NewestEvents(file, live.events).c_str(), stdout);
    }
  }
  if (!live.out.empty()) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                          WriteRecordings(recordings.files, live.out));
    for (const std::string& path : paths) {
      std::fprintf(stderr, "weft dump: recording written to %s\n",
                   path.c_str());
    }
  }
  if (recordings.silent.empty()) {
    return static_cast<int>(worker::ExitCode::kOk);
  }
  return static_cast<int>(
      worker::ExitCodeFor(recordings.silent.front().second));
}

}  // namespace

absl::StatusOr<int> DumpCommand(int argc, char** argv) {
  worker::Flags flags(
      "weft dump",
      "Reads what flight recorders have written (--dump-dir of each worker), "
      "or "
      "asks the workers of a running job (--job), and says which worker is "
      "behind in which collective operation.");
  Live live;
  live.AddTo(flags);
  flags.AllowPositional("FILE|DIRECTORY...", /*anywhere=*/true);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  WEFT_RETURN_IF_ERROR(CheckUsage(flags, live));
  if (flags.positional().empty()) return DumpJob(live);
  WEFT_ASSIGN_OR_RETURN(const std::vector<FlightFile> files,
                        ReadAll(flags.positional()));
  WEFT_ASSIGN_OR_RETURN(const std::string report, FlightReport(files));
  std::fputs(report.c_str(), stdout);
  return static_cast<int>(worker::ExitCode::kOk);
}

}  // namespace weft::launch
