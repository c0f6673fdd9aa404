#include "weft/tests/chaos/table_job.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "weft/tests/job/job.h"

namespace weft::testing {

int64_t LastStep(const std::string& output, size_t offset) {
  // The prefix that a worker prints; reports of its end repeat its last lines
  // without it.
  const std::string told = "] {\"step\":";
  const size_t at = output.rfind(told);
  if (at == output.npos || at < offset) return -1;
  return std::strtoll(output.c_str() + at + told.size(), nullptr, 10);
}

void WriteEnd(const std::string& path, int64_t step) {
  WriteBytes(path + ".new", absl::StrCat(step, " end"));
  std::filesystem::rename(path + ".new", path);
}

std::set<std::string> ResultsIn(const std::string& output) {
  std::set<std::string> results;
  const std::string begins = "{\"steps\":";
  for (size_t at = 0; (at = output.find(begins, at)) != output.npos; ++at) {
    results.insert(output.substr(at, output.find('\n', at) - at));
  }
  return results;
}

}  // namespace weft::testing
