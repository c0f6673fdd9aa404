// MessageSet: some messages of a distributed context: the lineage of a result,
// or the part of a pass that lies at one worker.
//
// Each worker numbers the messages that it sends in a context 1, 2, 3, ..., so
// a set is a few intervals for each producer.
//
// Source: pytorch/pytorch#23110 (the SMART algorithm's lineage).

#ifndef WEFT_DIST_AUTOGRAD_CORE_MESSAGE_SET_H_
#define WEFT_DIST_AUTOGRAD_CORE_MESSAGE_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/rendezvous/worker_key.h"

namespace weft::dist_autograd {

using rendezvous::WorkerKey;

struct MessageId {
  WorkerKey producer;
  uint64_t number = 0;  // from 1

  std::string ToString() const;
  friend bool operator==(const MessageId& a, const MessageId& b) {
    return a.producer == b.producer && a.number == b.number;
  }
  friend bool operator<(const MessageId& a, const MessageId& b) {
    return a.producer != b.producer ? a.producer < b.producer
                                    : a.number < b.number;
  }
};

// Both ends belong to it.
struct MessageInterval {
  uint64_t first = 0;
  uint64_t last = 0;
  friend bool operator==(const MessageInterval& a, const MessageInterval& b) {
    return a.first == b.first && a.last == b.last;
  }
};
using MessageIntervals = std::vector<MessageInterval>;  // ascending, apart

// Greater than the number of each message: the end of the interval that means
// all messages of a producer.
constexpr uint64_t kLastMessage = uint64_t{1} << 40;

// Thread-safety: as for an int.
class MessageSet {
 public:
  // REQUIRES: id.number > 0.
  void Add(const MessageId& id);
  // REQUIRES: 0 < interval.first <= interval.last.
  void Add(WorkerKey producer, MessageInterval interval);
  void Add(const MessageSet& other);

  // All messages of `producer`, whatever their number.
  void AddAll(WorkerKey producer) { Add(producer, {1, kLastMessage}); }
  // Replaces by all of its messages those of the producers with the most
  // intervals, until there are at most `most_intervals`, or one for each
  // producer.
  void Shorten(size_t most_intervals);
  // The workers all of whose messages are in the set: see Shorten.
  std::vector<WorkerKey> producers_of_all() const;

  bool Contains(const MessageId& id) const;
  bool ContainsAll(const MessageSet& other) const;
  bool empty() const { return producers_.empty(); }
  size_t intervals() const;  // all together
  // Ascending; empty if there are none of this producer.
  const MessageIntervals& Of(WorkerKey producer) const;
  // How many messages of this producer; kLastMessage for all of them.
  uint64_t CountOf(WorkerKey producer) const;
  const std::map<WorkerKey, MessageIntervals>& producers() const {
    return producers_;
  }

  std::string ToString() const;  // "0@0.1: 1-3 5-5; 2@0.1: 1-1"

  friend bool operator==(const MessageSet& a, const MessageSet& b) {
    return a.producers_ == b.producers_;
  }

 private:
  std::map<WorkerKey, MessageIntervals> producers_;
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_CORE_MESSAGE_SET_H_
