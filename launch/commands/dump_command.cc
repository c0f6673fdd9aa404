// weft dump: what the flight recorders of several workers say together.

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/commands.h"
#include "weft/launch/commands/flight_report.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"

namespace weft::launch {

absl::StatusOr<int> DumpCommand(int argc, char** argv) {
  worker::Flags flags("weft dump",
                      "Reads what flight recorders have written (--dump-dir of "
                      "each worker) and says which worker is behind in which "
                      "collective operation.");
  flags.AllowPositional("FILE...", /*anywhere=*/true);
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.positional().empty()) {
    return worker::WithExitCode(
        absl::InvalidArgumentError("weft dump: wanted files *.flight, one of "
                                   "each worker: --dump-dir says where they "
                                   "are"),
        worker::ExitCode::kUsage);
  }
  std::vector<FlightFile> files;
  for (const std::string& path : flags.positional()) {
    std::ifstream in(path, std::ios::binary);
    if (!in) {
      return absl::NotFoundError(
          absl::StrCat("weft dump: cannot read ", path));
    }
    files.push_back({WorkerOfFile(path),
                     std::string(std::istreambuf_iterator<char>(in), {})});
  }
  WEFT_ASSIGN_OR_RETURN(const std::string report, FlightReport(files));
  std::fputs(report.c_str(), stdout);
  return static_cast<int>(worker::ExitCode::kOk);
}

}  // namespace weft::launch
