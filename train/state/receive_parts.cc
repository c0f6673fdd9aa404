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

Future<void> Begin(collectives::ProcessGroup& group,
                   const std::vector<IncomingPart>& row) {
  std::vector<collectives::PointToPoint> moves;
  for (const IncomingPart& one : row) {
    moves.push_back(
        {collectives::PointToPoint::kReceive, one.tensor, one.from, one.tag});
  }
  return group.ExchangeAsync(moves);
}

}  // namespace

absl::Status ReceiveParts(
    collectives::ProcessGroup& group, const std::vector<IncomingPart>& parts,
    absl::FunctionRef<void(const std::vector<IncomingPart>& some)> on_arrival) {
  const std::vector<std::vector<IncomingPart>> rows = InTurns(parts);
  if (rows.empty()) return absl::OkStatus();
  Future<void> moved = Begin(group, rows[0]);
  for (size_t i = 0; i < rows.size(); ++i) {
    WEFT_RETURN_IF_ERROR(moved.Wait(absl::InfiniteDuration()));
    if (i + 1 < rows.size()) moved = Begin(group, rows[i + 1]);
    on_arrival(rows[i]);
  }
  return absl::OkStatus();
}

}  // namespace weft::train
