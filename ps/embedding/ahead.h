// Ahead: rows that were asked for before the pass that looks them up, and what
// is known of how they change until then. It sends nothing.
//
// A part is what one pass looks up of one table.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_PS_EMBEDDING_AHEAD_H_
#define WEFT_PS_EMBEDDING_AHEAD_H_

#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/base/future.h"
#include "weft/ps/client.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// The tensors joined to one, i64 [n]; without any, [0].
Tensor JoinKeys(absl::Span<const Tensor> keys);
// The keys of `a` that are also in `b`, each once, in the order in which they
// first come in `a`.
Tensor KeysInBoth(const Tensor& a, const Tensor& b);
// Writes row i of `new_rows` to each row whose key is new_keys[i].
void PatchRows(const Tensor& keys, const Tensor& new_keys,
               const Tensor& new_rows, Tensor& rows);

class Ahead {
 public:
  struct Part {
    SparseTable* table = nullptr;
    int passes = 0;  // how many Commits from now it is looked up
    Tensor keys;     // i64 [n], of its look-ups one after another
    // Where each look-up's keys begin and end, until it takes them.
    std::vector<std::pair<int64_t, int64_t>> look_ups;
    std::optional<Future<Tensor>> rows;  // [n, dim]; nullopt: ask for them
    // Keys and rows that are newer, in the order in which they lie upon it.
    std::vector<std::pair<Tensor, Future<Tensor>>> patches;
  };

  // Adds a part for what the pass `passes` Commits from now looks up. Valid
  // until the next Commit.
  Part& Add(SparseTable* table, int passes, std::vector<Tensor> keys);

  // The rows [n, dim] of a look-up in this pass, which nobody else has, and
  // which are then forgotten here. nullopt: they were not asked for, or do not
  // come.
  std::optional<Tensor> Take(const SparseTable* table, const Tensor& keys,
                             absl::Duration timeout);

  // A Commit: drops what this pass has not taken.
  void NextPass();

  std::list<Part>& parts() { return parts_; }

 private:
  // The rows of `part`, with its patches applied. nullopt: they do not come.
  static std::optional<Tensor> RowsOf(Part& part, absl::Duration timeout);

  std::list<Part> parts_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EMBEDDING_AHEAD_H_
