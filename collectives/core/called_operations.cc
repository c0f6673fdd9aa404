#include "weft/collectives/core/called_operations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::collectives {

CalledOperations::CalledOperations(int size, int self)
    : self_(self), ranks_(size) {}

size_t CalledOperations::PlaceOf(uint64_t sequence) const {
  // Nearly always the newest.
  if (calls_.empty() || calls_.back().sequence < sequence) return calls_.size();
  return std::lower_bound(calls_.begin(), calls_.end(), sequence,
                          [](const Call& call, uint64_t wanted) {
                            return call.sequence < wanted;
                          }) -
         calls_.begin();
}

int64_t CalledOperations::BytesOf(const Call& call) {
  return static_cast<int64_t>(sizeof call + call.text.size() + call.why.size());
}

void CalledOperations::Settle(Call& call) {
  if (call.ahead == kNobody) return;
  ranks_[call.ahead].ahead_bytes -= BytesOf(call);
  call.ahead = kNobody;
}

absl::Status CalledOperations::Keep(Call& call, int rank,
                                    const Announcement& announcement) {
  if (announcement.is_refused) {
    if (call.refuser != kNobody) return absl::OkStatus();
    call.refuser = rank;
    call.why = announcement.text;
    return absl::OkStatus();
  }
  if (call.caller == kNobody) {
    call.caller = rank;
    call.fingerprint = announcement.fingerprint;
    call.text = announcement.text;
    return absl::OkStatus();
  }
  if (call.fingerprint == announcement.fingerprint) return absl::OkStatus();
  return call.caller < rank
             ? Mismatch(call.caller, call.text, rank, announcement.text)
             : Mismatch(rank, announcement.text, call.caller, call.text);
}

absl::Status CalledOperations::Add(int rank, Announcement announcement) {
  Rank& from = ranks_[rank];
  const uint64_t sequence = announcement.sequence;
  absl::Status status;
  if (sequence >= forgotten_before_) {
    const size_t place = PlaceOf(sequence);
    const bool is_new = !IsAt(place, sequence);
    if (is_new) {
      calls_.insert(calls_.begin() + place, Call())->sequence = sequence;
    }
    Call& call = calls_[place];
    const bool is_ahead =
        self_ != kAll && rank != self_ && (is_new || call.ahead != kNobody) &&
        (!ranks_[self_].has_called || sequence > ranks_[self_].last.sequence);
    Settle(call);
    status = Keep(call, rank, announcement);
    if (is_ahead) {
      call.ahead = rank;
      from.ahead_bytes += BytesOf(call);
    }
    if (from.ahead_bytes > kMostAheadBytes) {
      Settle(call);
      calls_.erase(calls_.begin() + place);
      return absl::ResourceExhaustedError(absl::StrCat(
          "rank ", rank, " has announced more operations than it may be ahead;",
          " it ", Describe(rank)));
    }
  }
  if (!from.has_called || sequence >= from.last.sequence) {
    from.has_called = true;
    from.last = std::move(announcement);
  }
  ForgetPassed();
  return status;
}

void CalledOperations::End(int rank) {
  ranks_[rank].has_ended = true;
  ForgetPassed();
}

// A rank may be asked for the operation in which it is, so that is kept.
void CalledOperations::ForgetPassed() {
  if (calls_.empty()) return;
  uint64_t in_all = calls_.back().sequence;
  for (const Rank& rank : ranks_) {
    if (rank.has_ended) continue;
    in_all = std::min(in_all, rank.has_called ? rank.last.sequence : 0);
  }
  while (calls_.front().sequence < in_all ||
         (self_ != kAll && calls_.size() > kMostBehind &&
          calls_.front().ahead == kNobody)) {
    forgotten_before_ = calls_.front().sequence + 1;
    Settle(calls_.front());
    calls_.pop_front();
  }
}

const Announcement* CalledOperations::Last(int rank) const {
  return ranks_[rank].has_called ? &ranks_[rank].last : nullptr;
}

absl::Status CalledOperations::CheckRefusals(uint64_t sequence) const {
  const size_t place = PlaceOf(sequence);
  if (!IsAt(place, sequence) || calls_[place].refuser == kNobody) {
    return absl::OkStatus();
  }
  return Refused(calls_[place].refuser, calls_[place].why);
}

std::string CalledOperations::Describe(int rank) const {
  const Announcement* const last = Last(rank);
  return last == nullptr ? "has called nothing yet"
                         : absl::StrCat("last called ", last->text);
}

std::string CalledOperations::DescribeRanksBefore(
    uint64_t sequence, int asking,
    const std::vector<std::string>& names) const {
  std::string text;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    const Announcement* const last = Last(r);
    if (r == asking || (last != nullptr && last->sequence >= sequence)) {
      continue;
    }
    absl::StrAppend(&text, text.empty() ? "" : "; ",
                    RankText(r, names.empty() ? "" : names[r]),
                    " has not called it and ", Describe(r));
  }
  return text;
}

std::string CalledOperations::Snapshot() const {
  std::string text = absl::StrCat("before ", forgotten_before_);
  for (const Rank& rank : ranks_) {
    absl::StrAppend(&text, " [", rank.has_called, rank.has_ended, " ",
                    rank.last.sequence, " ", rank.last.fingerprint, " ",
                    rank.last.is_refused, " ", rank.ahead_bytes, "]");
  }
  for (const Call& call : calls_) {
    absl::StrAppend(&text, " (", call.sequence, " ", call.fingerprint, " ",
                    call.caller, " ", call.refuser, " ", call.ahead, ")");
  }
  return text;
}

}  // namespace weft::collectives
