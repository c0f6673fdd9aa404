#include "weft/launch/run/job_event.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace weft::launch {
namespace {

// The messages are those of train/ and ps/replicated.
struct Told {
  const char* message;
  const char* event;
  const char* number = "step";  // that the line must have
};
constexpr Told kTold[] = {
    {"taking part", "rank_joined"},
    {"asked to stop; leaving, and the others go on", "rank_left"},
    {"a rank was lost; the others meet again", "step_repeated"},
    {"promoted; serving as the primary what it was the backup of", "promoted",
     "partitions"},
    {"holds partitions of tables from now on", "server_joined", "partitions"},
};

// The number behind `name`, as in step=12 or "step":12.
std::optional<int64_t> NumberOf(absl::string_view name,
                                absl::string_view line) {
  for (const std::string& before :
       {absl::StrCat(" ", name, "="), absl::StrCat("\"", name, "\":")}) {
    const size_t at = line.find(before);
    if (at == absl::string_view::npos) continue;
    const absl::string_view rest =
        absl::StripLeadingAsciiWhitespace(line.substr(at + before.size()));
    size_t end = 0;
    while (end < rest.size() && absl::ascii_isdigit(rest[end])) ++end;
    int64_t number = 0;
    if (absl::SimpleAtoi(rest.substr(0, end), &number)) return number;
  }
  return std::nullopt;
}

}  // namespace

std::optional<JobEvent> JobEventIn(absl::string_view line) {
  for (const Told& told : kTold) {
    // Behind the head of a line of text, or a whole value of JSON.
    if (!absl::StrContains(line, absl::StrCat(" ", told.message, " ")) &&
        !absl::StrContains(line, absl::StrCat("\"", told.message, "\""))) {
      continue;
    }
    const std::optional<int64_t> number = NumberOf(told.number, line);
    if (!number.has_value()) return std::nullopt;
    JobEvent event;
    event.event = told.event;
    const bool is_of_server = absl::string_view(told.number) == "partitions";
    (is_of_server ? event.partitions : event.step) = *number;
    if (event.event == "rank_joined") {
      event.ranks = NumberOf("ranks", line).value_or(-1);
    }
    return event;
  }
  return std::nullopt;
}

}  // namespace weft::launch
