#include "weft/collectives/backends/stream/called_operations.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {

absl::Status CalledOperations::AddOwn(Announcement mine) {
  absl::Status status;
  for (int r = 0; r < static_cast<int>(kept_.size()) && status.ok(); ++r) {
    if (r == rank_) continue;
    const Announcement* const theirs = Find(r, mine.sequence);
    if (theirs != nullptr) status = Compare(r, mine, *theirs);
  }
  Keep(kept_[rank_], std::move(mine));
  return status;
}

absl::Status CalledOperations::Add(int peer, Announcement theirs) {
  const Announcement* const known = Find(peer, theirs.sequence);
  if (known != nullptr && known->is_refused == theirs.is_refused) {
    return absl::OkStatus();
  }
  Keep(kept_[peer], std::move(theirs));
  const Announcement& added = kept_[peer].back();
  const Announcement* const mine = FindOwn(added.sequence);
  return mine == nullptr ? absl::OkStatus() : Compare(peer, *mine, added);
}

absl::Status CalledOperations::CheckRefusals(uint64_t sequence) const {
  for (int r = 0; r < static_cast<int>(kept_.size()); ++r) {
    if (r == rank_) continue;
    const Announcement* const theirs = Find(r, sequence);
    if (theirs != nullptr && theirs->is_refused) {
      return Refused(r, theirs->text);
    }
  }
  return absl::OkStatus();
}

std::string CalledOperations::Describe(int peer) const {
  const Announcements& kept = kept_[peer];
  return kept.empty() ? "has called nothing yet"
                      : absl::StrCat("last called ", kept.back().text);
}

std::string CalledOperations::DescribeRanksBefore(uint64_t sequence) const {
  std::string text;
  for (int r = 0; r < static_cast<int>(kept_.size()); ++r) {
    if (r == rank_) continue;
    if (!kept_[r].empty() && kept_[r].back().sequence >= sequence) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "rank ", r,
                    " has not called it and ", Describe(r));
  }
  return text;
}

const Announcement* CalledOperations::Find(const Announcements& kept,
                                           uint64_t sequence) {
  for (auto it = kept.rbegin(); it != kept.rend(); ++it) {
    if (it->sequence == sequence) return &*it;
  }
  return nullptr;
}

void CalledOperations::Keep(Announcements& kept, Announcement announcement) {
  kept.push_back(std::move(announcement));
  if (kept.size() > kKept) kept.pop_front();
}

absl::Status CalledOperations::Compare(int peer, const Announcement& mine,
                                       const Announcement& theirs) const {
  if (mine.is_refused || theirs.is_refused ||
      mine.fingerprint == theirs.fingerprint) {
    return absl::OkStatus();
  }
  return peer < rank_ ? Mismatch(peer, theirs.text, rank_, mine.text)
                      : Mismatch(rank_, mine.text, peer, theirs.text);
}

}  // namespace weft::collectives
