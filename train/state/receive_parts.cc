#include "weft/train/state/receive_parts.h"

#include <map>
#include <utility>

#include "weft/base/future.h"
#include "weft/base/status_macros.h"

namespace weft::train {
namespace {

// The n-th parts of all senders, for each n.
std::vector<std::vector<IncomingPart>> InTurns(
    const std::vector<IncomingPart>& parts) {
  std::map<int, size_t> turns;  // by sender: how many parts it has had
  std::vector<std::vector<IncomingPart>> rows;
  for (const IncomingPart& one : parts) {
    const size_t turn = turns[one.from]++;
    if (turn == rows.size()) rows.emplace_back();
    rows[turn].push_back(one);
  }
  return rows;
}

std::vector<Future<void>> Begin(collectives::ProcessGroup& group,
                                const std::vector<IncomingPart>& row) {
  std::vector<Future<void>> moves;
  for (const IncomingPart& one : row) {
    moves.push_back(group.ReceiveAsync(one.tensor, one.from, one.tag));
  }
  return moves;
}

// The first error, once all have ended, each of which has a deadline: a part
// that is on its way is written until then.
absl::Status End(const std::vector<Future<void>>& moves) {
  absl::Status first;
  for (const Future<void>& move : moves) {
    first.Update(move.Wait(absl::InfiniteDuration()));
  }
  return first;
}

}  // namespace

absl::Status ReceiveParts(
    collectives::ProcessGroup& group, const std::vector<IncomingPart>& parts,
    absl::FunctionRef<void(const std::vector<IncomingPart>& some)> on_arrival) {
  const std::vector<std::vector<IncomingPart>> rows = InTurns(parts);
  if (rows.empty()) return absl::OkStatus();
  std::vector<Future<void>> moves = Begin(group, rows[0]);
  for (size_t i = 0; i < rows.size(); ++i) {
    WEFT_RETURN_IF_ERROR(End(moves));
    if (i + 1 < rows.size()) moves = Begin(group, rows[i + 1]);
    on_arrival(rows[i]);
  }
  return absl::OkStatus();
}

}  // namespace weft::train
