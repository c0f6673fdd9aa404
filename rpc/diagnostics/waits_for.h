// WaitsFor: which calls wait for which, over several workers.
//
// Each worker knows the calls that it waits for and those that it serves. Put
// together they are a forest: a call waits for those that its function has
// made.

#ifndef WEFT_RPC_DIAGNOSTICS_WAITS_FOR_H_
#define WEFT_RPC_DIAGNOSTICS_WAITS_FOR_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/session/failure.h"

namespace weft::rpc {

// A call that has not ended, as one of its two workers sees it.
struct PendingCall {
  std::string peer;        // the other worker
  bool is_served = false;  // it is the peer's, and this worker runs it
  uint64_t id = 0;         // among the calls of that caller and callee
  std::string function;
  Phase phase = Phase::kNone;
  absl::Duration age;        // since this worker knows of it
  absl::Duration remaining;  // of its time-out
  // The call served here within which it was made; 0: none.
  std::string for_peer;
  uint64_t for_id = 0;
};

template <>
struct Codec<PendingCall> {
  static std::string TypeName() { return "weft.rpc.PendingCall"; }
  static void Encode(const PendingCall& call, Encoder& encoder);
  static absl::Status Decode(Decoder& decoder, PendingCall& call);
};

// Thread-safety: one thread at a time.
class WaitsFor {
 public:
  // One call of a chain: `caller` waits for `callee`.
  struct Wait {
    std::string caller;
    std::string callee;
    uint64_t id = 0;
    std::string function;
    Phase phase = Phase::kNone;
    absl::Duration age;
    absl::Duration remaining;  // of its time-out
    // The call to `caller` within which it was made; 0: none is known.
    std::string for_caller;
    uint64_t for_id = 0;
  };

  // What `worker` has said. Each worker once, in any order.
  void Add(const std::string& worker, const std::vector<PendingCall>& calls);

  // The calls that wait for one another, outermost first: the longest such
  // chain, of two the older. Empty if nothing is pending.
  std::vector<Wait> LongestChain() const;

  // A part of a chain that ends where it began, on its way by another worker:
  // there a function waits for one that needs a thread, or a lock, of the same
  // worker. Empty if there is none.
  std::vector<Wait> Cycle() const;

  // All that is pending, those that were made within another behind it.
  std::vector<Wait> Calls() const;

  // Calls() as lines, each further in than the call that it was made within:
  //   w0 waits for w1:Step  handler, 3s
  //     w1 waits for w2:Pull  queue, 2.9s
  // Empty if nothing is pending.
  std::string Tree() const;

  // "cycle: w0 > w1:Step (handler, 3s) > w0:Pull (queue, 2.9s)", or the longest
  // chain; "nothing is pending".
  std::string ToString() const;

 private:
  using Key = std::tuple<std::string, std::string, uint64_t>;  // caller, callee
  struct Node {
    Wait wait;
    Key parent;              // an id of 0: none is known
    std::set<Key> children;  // that have or had it for their parent
  };

  void AddBelow(const Key& key, int depth, std::set<Key>* seen,
                std::vector<std::pair<int, const Wait*>>* calls) const;
  // Calls() with how deep each is in its chain.
  std::vector<std::pair<int, const Wait*>> Forest() const;
  // To each call that waits for no other, from the outermost known.
  std::vector<std::vector<Wait>> Chains() const;

  std::map<Key, Node> nodes_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_DIAGNOSTICS_WAITS_FOR_H_
