#include "weft/ps/embedding/pull_rows.h"

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "weft/ps/embedding/ahead.h"
#include "weft/ps/embedding/look_up_record.h"
#include "weft/ps/many.h"

namespace weft::ps {
namespace {

// The look-ups of one table: their places, and the keys of each.
struct OfTable {
  SparseTable* table;
  std::vector<size_t> places;
  std::vector<Tensor> keys;
};

}  // namespace

Future<std::vector<Tensor>> PullRows(absl::Span<const LookUp> look_ups) {
  std::vector<Tensor> rows(look_ups.size());
  std::vector<OfTable> tables;
  absl::flat_hash_map<SparseTable*, size_t> number;
  for (size_t i = 0; i < look_ups.size(); ++i) {
    SparseTable* const table = look_ups[i].table;
    Tensor keys = KeysOf(look_ups[i]);
    if (keys.numel() == 0) {
      rows[i] = Tensor::Empty({0, table->dim()});
      continue;
    }
    const auto [at, is_new] = number.try_emplace(table, tables.size());
    if (is_new) tables.push_back({table, {}, {}});
    tables[at->second].places.push_back(i);
    tables[at->second].keys.push_back(std::move(keys));
  }
  std::vector<PullOf> pulls;
  for (const OfTable& of : tables) {
    pulls.push_back({of.table, JoinKeys(of.keys)});
  }
  return PullMany(std::move(pulls))
      .Then([rows = std::move(rows), tables = std::move(tables)](
                const std::vector<Tensor>& pulled) mutable {
        for (size_t t = 0; t < tables.size(); ++t) {
          const OfTable& of = tables[t];
          int64_t begin = 0;
          for (size_t i = 0; i < of.places.size(); ++i) {
            const int64_t end = begin + of.keys[i].numel();
            // Not views, where a write to one would be one to all.
            rows[of.places[i]] = of.places.size() == 1
                                     ? pulled[t]
                                     : pulled[t].Slice(0, begin, end).Clone();
            begin = end;
          }
        }
        return std::move(rows);
      });
}

}  // namespace weft::ps
