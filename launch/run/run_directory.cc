// RunDirectory: see the header.

#include "weft/launch/run/run_directory.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace weft::launch {

namespace fs = std::filesystem;

std::vector<std::string> SweepRunDirectory(const std::string& directory) {
  std::vector<std::string> kept;
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator it(directory, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    found.push_back(it->path());
  }
  for (const fs::path& path : found) {
    if (path.extension() == ".flight") {
      kept.push_back(path.string());
    } else {
      fs::remove_all(path, error);
    }
  }
  if (kept.empty()) fs::remove(directory, error);
  std::sort(kept.begin(), kept.end());
  return kept;
}

}  // namespace weft::launch
