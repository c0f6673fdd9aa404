#include "weft/ps/core/sequence_window.h"

#include "absl/numeric/bits.h"
#include "weft/base/check.h"

namespace weft::ps {

SequenceWindow::Answer SequenceWindow::Ask(uint64_t sequence) const {
  if (sequence == 0) return Answer::kTooFar;
  if (sequence <= high_) {
    const uint64_t age = high_ - sequence;
    const bool applied = age >= kWidth || ((mask_ >> age) & 1) != 0;
    return applied ? Answer::kDuplicate : Answer::kNew;
  }
  // Moving the window up pushes its oldest numbers out; none of them may be
  // still missing, since it would look like an applied one afterwards.
  const uint64_t shift = sequence - high_;
  if (shift > kWidth) return Answer::kTooFar;
  const uint64_t leaving = shift == kWidth ? mask_ : mask_ >> (kWidth - shift);
  const uint64_t all =
      shift == kWidth ? ~uint64_t{0} : (uint64_t{1} << shift) - 1;
  return leaving == all ? Answer::kNew : Answer::kTooFar;
}

void SequenceWindow::Mark(uint64_t sequence) {
  WEFT_CHECK(Ask(sequence) == Answer::kNew);
  if (sequence <= high_) {
    mask_ |= uint64_t{1} << (high_ - sequence);
    return;
  }
  const uint64_t shift = sequence - high_;
  mask_ = (shift == kWidth ? 0 : mask_ << shift) | 1;
  high_ = sequence;
}

void SequenceWindow::SkipTo(uint64_t through) {
  if (through >= high_) {
    high_ = through;
    mask_ = ~uint64_t{0};
    return;
  }
  const uint64_t age = high_ - through;
  if (age < kWidth) mask_ |= ~uint64_t{0} << age;
}

uint64_t SequenceWindow::through() const {
  if (mask_ == ~uint64_t{0}) return high_;
  const int oldest_missing = 63 - absl::countl_zero(~mask_);
  return high_ - static_cast<uint64_t>(oldest_missing) - 1;
}

}  // namespace weft::ps
