#include "weft/train/core/state_handover.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/check.h"

namespace weft::train {

StateHandover::StateHandover(std::vector<bool> holds, int source,
                             std::vector<int64_t> bytes)
    : holds_(std::move(holds)), source_(source), bytes_(std::move(bytes)) {
  WEFT_CHECK(source >= 0 && source < static_cast<int>(holds_.size()) &&
             holds_[source])
      << "source " << source;
}

std::vector<StateHandover::Transfer> StateHandover::NextRound(
    const std::vector<std::vector<int>>& lacks) {
  WEFT_CHECK_EQ(lacks.size(), holds_.size());
  for (const Transfer& sent : round_) {
    const std::vector<int>& still = lacks[sent.to];
    if (std::binary_search(still.begin(), still.end(), sent.part)) {
      wrong_.emplace(sent.to, sent.part, sent.from);
    }
  }
  round_.clear();
  unobtainable_.assign(holds_.size(), std::nullopt);
  std::vector<int64_t> load(holds_.size());
  for (int to = 0; to < static_cast<int>(lacks.size()); ++to) {
    if (holds_[to]) continue;
    for (const int part : lacks[to]) {
      const int from = ChooseSender(to, part, load);
      if (from < 0) {
        if (!unobtainable_[to].has_value()) unobtainable_[to] = part;
        continue;
      }
      load[from] += bytes_[part];
      round_.push_back({from, to, part});
    }
  }
  return round_;
}

// The least loaded one; of a part that was wrong, the source first, whose hash
// it is compared with.
int StateHandover::ChooseSender(int to, int part,
                                const std::vector<int64_t>& load) const {
  const auto may_send = [&](int from) {
    return holds_[from] && wrong_.count({to, part, from}) == 0;
  };
  const auto first = wrong_.lower_bound({to, part, 0});
  const bool was_wrong = first != wrong_.end() && std::get<0>(*first) == to &&
                         std::get<1>(*first) == part;
  if (was_wrong && may_send(source_)) return source_;
  int chosen = -1;
  for (int from = 0; from < static_cast<int>(holds_.size()); ++from) {
    if (!may_send(from)) continue;
    if (chosen < 0 || load[from] < load[chosen]) chosen = from;
  }
  return chosen;
}

std::optional<int> StateHandover::Unobtainable(int rank) const {
  return unobtainable_.empty() ? std::nullopt : unobtainable_[rank];
}

std::vector<int> StateHandover::SentWrong(int rank, int part) const {
  std::vector<int> senders;
  for (int from = 0; from < static_cast<int>(holds_.size()); ++from) {
    if (wrong_.count({rank, part, from}) > 0) senders.push_back(from);
  }
  return senders;
}

std::string FormatParts(const std::vector<int>& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size();) {
    size_t end = i + 1;
    while (end < parts.size() && parts[end] == parts[end - 1] + 1) ++end;
    absl::StrAppend(&text, i == 0 ? "" : ",", parts[i]);
    if (end - i > 1) absl::StrAppend(&text, "-", parts[end - 1]);
    i = end;
  }
  return text;
}

absl::StatusOr<std::vector<int>> ParseParts(absl::string_view text, int parts) {
  std::vector<int> parsed;
  if (text.empty()) return parsed;
  const std::vector<absl::string_view> ranges = absl::StrSplit(text, ',');
  for (const absl::string_view range : ranges) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    int first = 0, last = 0;
    const int next = parsed.empty() ? 0 : parsed.back() + 1;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < next || last < first ||
        last >= parts) {
      return absl::InvalidArgumentError(absl::StrCat(
          "wanted rising ranges of ", parts,
          " parts of the state that a rank lacks, found \"", range, "\""));
    }
    for (int part = first; part <= last; ++part) parsed.push_back(part);
  }
  return parsed;
}

}  // namespace weft::train
