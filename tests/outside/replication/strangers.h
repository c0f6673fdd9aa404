// Strangers: what those say to a replica who are no part of the job, or pretend
// to be.

#ifndef WEFT_TESTS_OUTSIDE_REPLICATION_STRANGERS_H_
#define WEFT_TESTS_OUTSIDE_REPLICATION_STRANGERS_H_

#include <cstdint>

#include "weft/base/bytes.h"
#include "weft/ps/core/replication/replication.h"
#include "weft/sim/random.h"

namespace weft::outside {

class Strangers {
 public:
  // `map_epoch`: of the map that holds. `random` outlives this.
  Strangers(sim::Random& random, uint64_t map_epoch)
      : random_(random), map_epoch_(map_epoch) {}

  // No incarnation of any server of the map.
  ps::WorkerKey Key() {
    return random_.Chance(0.5)
               ? ps::WorkerKey{static_cast<uint32_t>(1 + random_.Below(5)), 0}
               : ps::WorkerKey{static_cast<uint32_t>(50 + random_.Below(3)), 1};
  }

  // A number that is at an edge of those in use, or beyond them.
  uint64_t Absurd() {
    const uint64_t some[] = {0,
                             1,
                             2,
                             3,
                             64,
                             65,
                             map_epoch_,
                             map_epoch_ + 1,
                             ~uint64_t{0},
                             random_.Next()};
    return some[random_.Below(10)];
  }

  ps::ReplicaMessage Message(int entry) {
    ps::ReplicaMessage message;
    message.kind = static_cast<ps::ReplicaMessage::Kind>(random_.Below(5));
    message.entry =
        random_.Chance(0.5) ? entry : static_cast<int>(random_.Next());
    message.map_epoch = Absurd();
    message.epoch = Absurd();
    message.fill = Absurd();
    message.n = Absurd();
    for (int64_t i = random_.Below(3); i > 0; --i) {
      message.entries.push_back({{Absurd(), Absurd()},
                                 {Absurd(), Absurd(), Absurd()},
                                 Bytes::Copy("stranger")});
    }
    return message;
  }

  struct Addressees {
    ps::WorkerKey server;
    ps::WorkerKey stranger;
  };
  // A push of a client of its own: it too must count once.
  ps::PushRequest Push(int entry, uint64_t epoch, const Addressees& to) {
    ps::PushRequest push;
    push.entry = random_.Chance(0.8) ? entry : static_cast<int>(Absurd());
    push.to = random_.Chance(0.8) ? to.server : to.stranger;
    push.epoch = random_.Chance(0.8) ? epoch : Absurd();
    push.mark.client = 500 + random_.Below(3);
    push.mark.sequence = random_.Chance(0.8) ? 1 + random_.Below(80) : Absurd();
    push.mark.first = random_.Chance(0.8) ? 1 : Absurd();
    return push;
  }

  ps::ReadRequest Read(int entry, uint64_t epoch, ps::WorkerKey server) {
    ps::ReadRequest read;
    read.entry = entry;
    read.to = server;
    read.epoch = random_.Chance(0.8) ? epoch : Absurd();
    read.client = Absurd();
    read.through = Absurd();
    return read;
  }

 private:
  sim::Random& random_;
  const uint64_t map_epoch_;
};

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_REPLICATION_STRANGERS_H_
