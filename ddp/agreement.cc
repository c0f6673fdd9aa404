#include "weft/ddp/agreement.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/status_macros.h"

namespace weft::ddp {
namespace {

// Stands before the error of a rank, which is sent in place of its lines.
constexpr absl::string_view kError = "error: ";
// Differences in one message.
constexpr size_t kMostDifferences = 8;

std::string LineAt(const std::vector<absl::string_view>& lines, size_t i) {
  return i < lines.size() ? std::string(lines[i]) : "nothing";
}

void AddDifferences(const std::vector<absl::string_view>& first, int rank,
                    const std::vector<absl::string_view>& lines,
                    std::vector<std::string>& differences) {
  for (size_t i = 0; i < std::max(first.size(), lines.size()); ++i) {
    const std::string wanted = LineAt(first, i), found = LineAt(lines, i);
    if (wanted == found) continue;
    differences.push_back(
        absl::StrCat("rank 0 has ", wanted, ", rank ", rank, " has ", found));
  }
}

}  // namespace

absl::Status CompareDescriptions(const std::vector<std::string>& by_rank) {
  std::vector<std::string> faults;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    absl::string_view error = by_rank[rank];
    if (!absl::ConsumePrefix(&error, kError)) continue;
    faults.push_back(absl::StrCat("rank ", rank, " cannot train: ", error));
  }
  if (faults.empty()) {
    const std::vector<absl::string_view> first =
        absl::StrSplit(by_rank[0], '\n');
    for (size_t rank = 1; rank < by_rank.size(); ++rank) {
      if (by_rank[rank] == by_rank[0]) continue;
      AddDifferences(first, static_cast<int>(rank),
                     absl::StrSplit(by_rank[rank], '\n'), faults);
    }
  }
  if (faults.empty()) return absl::OkStatus();
  const size_t more = faults.size() - std::min(faults.size(), kMostDifferences);
  faults.resize(std::min(faults.size(), kMostDifferences));
  if (more > 0) faults.push_back(absl::StrCat("and ", more, " more"));
  return absl::InvalidArgumentError(absl::StrCat(
      "the ranks do not train the same model: ", absl::StrJoin(faults, "; ")));
}

absl::Status CheckAgreement(collectives::ProcessGroup& group,
                            const absl::Status& own,
                            const std::vector<std::string>& lines,
                            absl::optional<absl::Duration> timeout) {
  const std::string description = own.ok()
                                      ? absl::StrJoin(lines, "\n")
                                      : absl::StrCat(kError, own.message());
  collectives::CallOptions call;
  call.timeout = timeout;
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> by_rank,
                        group.AllGatherBytes(description, call));
  return CompareDescriptions(by_rank);
}

}  // namespace weft::ddp
