// SumOrder: the order in which gradients that meet at a node are added, for a
// pass in which they come in another one.
//
// Floating-point sums depend on their order. Where all gradients of a GraphTask
// are fed before it first runs, nodes run in an order that depends on the graph
// only, and so do the sums. Where they are fed later, this class finds that
// order by a run without gradients, and keeps what comes too early.
//
// Cost: one look at each edge, 4 bytes an edge and 12 a result, when it is
// made; then a gradient waits in memory for those that come before it.
//
// Thread-safety: as its GraphTask.

#ifndef WEFT_AUTOGRAD_SUM_ORDER_H_
#define WEFT_AUTOGRAD_SUM_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "weft/autograd/gradient.h"

namespace weft {

class GraphTask;

class SumOrder {
 public:
  // `task` has run no node yet: all gradients are expected, some fed.
  explicit SumOrder(const GraphTask& task);

  // A gradient was fed for result `output` of the node at `place`: goes into
  // `sum`, with those that waited for it.
  void AddFed(uint32_t place, uint32_t output, Gradient gradient,
              Gradient& sum);

  // The same for the gradient of input number `input` of the node at `source`.
  void AddFrom(uint32_t source, size_t input, uint32_t place, uint32_t output,
               Gradient gradient, Gradient& sum);

  // Whether a gradient for that result has come and is not in its sum.
  bool IsWaiting(uint32_t place, uint32_t output) const;

 private:
  struct Result {
    uint32_t next = 0;     // number of gradients from nodes in the sum
    uint32_t unfed = 0;    // fed ones go first
    uint32_t waiting = 0;  // that came too early
  };

  void Number(const GraphTask& task);
  void AddWaiting(uint32_t at, Gradient& sum);

  std::vector<uint32_t> first_result_;  // by place
  std::vector<uint32_t> first_edge_;    // by place
  std::vector<uint32_t> numbers_;       // by edge: its number at its result
  std::vector<Result> results_;
  absl::flat_hash_map<uint64_t, Gradient> early_;  // by (result, number)
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_SUM_ORDER_H_
