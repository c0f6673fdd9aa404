// weft dump: what the flight recorders of several workers say together.

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

}  // namespace

absl::StatusOr<int> DumpCommand(int argc, char** argv) {
  worker::Flags flags("weft dump",
                      "Reads what flight recorders have written (--dump-dir of "
                      "each worker) and says which worker is behind in which "
                      "collective operation.");
  flags.AllowPositional("FILE|DIRECTORY...", /*anywhere=*/true);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.positional().empty()) {
    return worker::WithExitCode(
        absl::InvalidArgumentError("weft dump: wanted files *.flight, one of "
                                   "each worker: --dump-dir says where they "
                                   "are"),
        worker::ExitCode::kUsage);
  }
  std::vector<FlightFile> files;
  for (const std::string& given : flags.positional()) {
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
  WEFT_ASSIGN_OR_RETURN(const std::string report, FlightReport(files));
  std::fputs(report.c_str(), stdout);
  return static_cast<int>(worker::ExitCode::kOk);
}

}  // namespace weft::launch
