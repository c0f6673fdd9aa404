// ProbeCount: what follows from the answers of an endpoint's own port.

#ifndef WEFT_NET_PROBE_COUNT_H_
#define WEFT_NET_PROBE_COUNT_H_

namespace weft::net {

// Thread-safety: one thread at a time.
class ProbeCount {
 public:
  enum class Then {
    kNothing,
    kReopen,  // so many misses in a row: make the listener anew
    kGiveUp,  // as many again since that: it did not help
  };

  explicit ProbeCount(int misses) : allowed_(misses) {}

  Then OnProbed(bool answered) {
    if (answered) {
      missed_ = 0;
      reopened_ = false;
      return Then::kNothing;
    }
    if (++missed_ < allowed_) return Then::kNothing;
    missed_ = 0;
    const bool helped_not = reopened_;
    reopened_ = !reopened_;  // after giving up it begins anew
    return helped_not ? Then::kGiveUp : Then::kReopen;
  }

 private:
  const int allowed_;
  int missed_ = 0;
  bool reopened_ = false;
};

}  // namespace weft::net

#endif  // WEFT_NET_PROBE_COUNT_H_
