#include "weft/train/core/state_handover.h"

#include <algorithm>
#include <utility>

#include "weft/base/check.h"

namespace weft::train {

StateHandover::StateHandover(std::vector<bool> holds, int source,
                             std::vector<int64_t> bytes, int64_t stretch_bytes)
    : holds_(std::move(holds)),
      source_(source),
      bytes_(std::move(bytes)),
      stretch_bytes_(stretch_bytes) {
  WEFT_CHECK(source >= 0 && source < static_cast<int>(holds_.size()) &&
             holds_[source])
      << "source " << source;
  GoToNextStretch();
}

void StateHandover::GoToNextStretch() {
  told_ = next_;
  int64_t bytes = 0;
  while (next_ < static_cast<int>(bytes_.size()) &&
         (next_ == told_ || bytes < stretch_bytes_)) {
    bytes += bytes_[next_++];
  }
}

std::vector<StateHandover::Transfer> StateHandover::NextRound(
    const std::vector<std::vector<int>>& lacks) {
  WEFT_CHECK_EQ(lacks.size(), holds_.size());
  std::vector<Transfer> round;
  unobtainable_.assign(holds_.size(), std::nullopt);
  std::vector<int64_t> load(holds_.size());
  for (int to = 0; to < static_cast<int>(lacks.size()); ++to) {
    if (holds_[to]) continue;
    for (const int part : lacks[to]) {
      const auto sent = sent_.find({to, part});
      if (sent != sent_.end()) {
        wrong_.emplace(to, part, sent->second);
        sent_.erase(sent);
      }
      const int from = ChooseSender(to, part, load);
      if (from < 0) {
        if (!unobtainable_[to].has_value()) unobtainable_[to] = part;
        continue;
      }
      load[from] += bytes_[part];
      sent_[{to, part}] = from;
      round.push_back({from, to, part});
    }
  }
  is_over_ = told_ == next_ && round.empty();
  GoToNextStretch();
  return round;
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

}  // namespace weft::train
