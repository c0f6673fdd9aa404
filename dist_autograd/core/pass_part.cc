#include "weft/dist_autograd/core/pass_part.h"

namespace weft::dist_autograd {

std::vector<uint64_t> PassPart::Prepare(MessageIntervals live) {
  for (const MessageInterval& interval : live) live_.Add(self_, interval);
  is_prepared_ = true;
  return {arrived_.begin(), arrived_.end()};
}

PassPart::Arrival PassPart::OnGradient(uint64_t number) {
  if (is_prepared_ && !IsLive(number)) return Arrival::kNotLive;
  if (!arrived_.insert(number).second) return Arrival::kDuplicate;
  return is_prepared_ ? Arrival::kFeed : Arrival::kStash;
}

std::vector<uint64_t> PassPart::Missing() const {
  std::vector<uint64_t> missing;
  for (const MessageInterval& interval : live_.Of(self_)) {
    for (uint64_t n = interval.first; n <= interval.last; ++n) {
      if (arrived_.count(n) == 0) missing.push_back(n);
    }
  }
  return missing;
}

}  // namespace weft::dist_autograd
