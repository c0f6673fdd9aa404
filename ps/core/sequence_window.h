// SequenceWindow: which of one client's numbered pushes a partition has
// applied.
//
// A client numbers its pushes to a partition 1, 2, 3, ... and sends one again,
// with the same number, whenever it is not sure. The window remembers every
// number up to the highest seen exactly, as long as at most 64 are
// outstanding; a number further ahead is refused rather than guessed at.
// Sixteen bytes a client and partition, whatever the number of pushes.
//
// Thread-safety: one thread at a time; the partition's lock guards it.

#ifndef WEFT_PS_CORE_SEQUENCE_WINDOW_H_
#define WEFT_PS_CORE_SEQUENCE_WINDOW_H_

#include <cstdint>

namespace weft::ps {

class SequenceWindow {
 public:
  static constexpr uint64_t kWidth = 64;

  enum class Answer {
    kNew,        // apply it, then Mark it
    kDuplicate,  // was applied: acknowledge, change nothing
    kTooFar,     // beyond the window: an earlier one was never sent
  };

  // What to do with push `sequence`; 0 is no valid number and is kTooFar.
  Answer Ask(uint64_t sequence) const;

  // Remembers that `sequence` was applied. REQUIRES: Ask(sequence) == kNew.
  void Mark(uint64_t sequence);

  // Takes all up to `through` for applied: the client will not send them again.
  void SkipTo(uint64_t through);

  // One that travels: what mask() gave; of others too, whatever they are.
  static SequenceWindow Of(uint64_t high, uint64_t mask) {
    SequenceWindow window;
    window.high_ = high;
    window.mask_ = mask;
    return window;
  }
  uint64_t mask() const { return mask_; }

  uint64_t high() const { return high_; }  // the highest number applied
  // All up to this one were applied, and the next one was not.
  uint64_t through() const;

  friend bool operator==(const SequenceWindow& a, const SequenceWindow& b) {
    return a.high_ == b.high_ && a.mask_ == b.mask_;
  }

 private:
  uint64_t high_ = 0;
  // Bit i: high_ - i was applied. Numbers below the mask all were.
  uint64_t mask_ = ~uint64_t{0};
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_SEQUENCE_WINDOW_H_
