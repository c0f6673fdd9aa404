// Token: a reference as it travels: which object, which fork, and the proof
// that its holder may register the fork with the owner.

#ifndef WEFT_RREF_CORE_TOKEN_H_
#define WEFT_RREF_CORE_TOKEN_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/rpc/object_id.h"

namespace weft::rref {

using rendezvous::WorkerKey;
using rpc::ObjectId;

// One counted reference to an object. `parent` made it, by sharing its own or
// by creating the object; `number` counts all forks that `parent` ever made.
struct ForkId {
  WorkerKey parent;
  uint64_t number = 0;

  std::string ToString() const {
    return absl::StrCat("fork ", number, " of ", parent.ToString());
  }
  friend bool operator==(const ForkId& a, const ForkId& b) {
    return a.parent == b.parent && a.number == b.number;
  }
  friend bool operator<(const ForkId& a, const ForkId& b) {
    return std::tie(a.parent, a.number) < std::tie(b.parent, b.number);
  }
  template <typename H>
  friend H AbslHashValue(H h, const ForkId& id) {
    return H::combine(std::move(h), id.parent, id.number);
  }
};

// `secret` is random, chosen by the creator, and known to whoever was given a
// reference. The owner refuses a fork whose secret differs.
struct Token {
  ObjectId object;
  ForkId fork;
  uint64_t secret = 0;
};

}  // namespace weft::rref

#endif  // WEFT_RREF_CORE_TOKEN_H_
