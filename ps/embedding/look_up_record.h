// LookUpRecord: the look-ups of one pass as leaves of the graph, and the
// gradients that backward passes left there. It sends nothing.
//
// Thread-safety: one thread at a time; backward passes on any.

#ifndef WEFT_PS_EMBEDDING_LOOK_UP_RECORD_H_
#define WEFT_PS_EMBEDDING_LOOK_UP_RECORD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/leaf.h"
#include "weft/autograd/variable.h"
#include "weft/ps/client.h"
#include "weft/ps/embedding/look_up.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// kInvalidArgument, naming the table: no table, ids of another dtype or a
// negative one, a mean of no rows, a bag of ids without dimensions.
absl::Status CheckLookUp(const LookUp& look_up);
// Its ids as i64 [n], contiguous.
Tensor KeysOf(const LookUp& look_up);

// What a pass pushes to one table.
struct Push {
  SparseTable* table;
  Tensor keys;       // i64 [n]
  Tensor gradients;  // f32 [n, dim]
};

class LookUpRecord {
 public:
  LookUpRecord();
  // As End.
  ~LookUpRecord();

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

  // Records a look-up that gave `rows` [n, dim]; what the model is given. In a
  // NoGradScope it records nothing.
  Variable Add(const LookUp& look_up, Tensor rows);

  // The gradient of a leaf that local backward passes have left here.
  Gradient GradientOf(const Leaf& leaf) const;

  struct Found {
    // One for each of `tables`, in their order, and for each other table that
    // was looked up: look-ups with a gradient, in the order in which they were
    // recorded.
    std::vector<Push> pushes;
    int64_t with_rows = 0;  // look-ups
    int64_t with_gradient = 0;
  };
  // kInvalidArgument: a gradient is not finite.
  absl::StatusOr<Found> Pushes(
      absl::Span<SparseTable* const> tables,
      absl::FunctionRef<Gradient(const Leaf&)> gradient_of) const;

  // Forgets all; a backward pass that comes to one of its look-ups from now on
  // is refused with `why`. REQUIRES: !why.ok().
  void End(const absl::Status& why);

 private:
  class Sink;
  struct Entry {
    SparseTable* table;
    Tensor keys;
    Variable leaf;
  };

  const std::shared_ptr<Sink> sink_;  // each leaf keeps it
  std::vector<Entry> entries_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EMBEDDING_LOOK_UP_RECORD_H_
