#include "weft/ps/waits/wait_board.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/function.h"

namespace weft::ps {

std::string NameOfTrainer(int rank) { return absl::StrCat("trainer", rank); }

void WaitBoard::Set(std::vector<TableWait> waits) {
  MutexLock lock(mu_);
  waits_ = std::move(waits);
}

std::vector<TableWait> WaitBoard::Of(const std::string& table) const {
  std::vector<TableWait> found;
  MutexLock lock(mu_);
  for (const TableWait& wait : waits_) {
    if (table.empty() || wait.table == table) found.push_back(wait);
  }
  return found;
}

absl::StatusOr<WaitAnswer> DescribeWaits(rpc::CallContext& context,
                                         const std::string& table) {
  WaitAnswer answer;
  const WaitBoard* const board = context.Local<WaitBoard>();
  if (board == nullptr) return answer;
  for (TableWait& wait : board->Of(table)) {
    const auto lives = [&](const std::string& name) {
      const auto found = context.agent().ToAll(absl::StrCat("name=", name));
      return found.ok() && !found->empty();
    };
    if (!wait.expected.empty() && lives(NameOfTrainer(wait.shards - 1))) {
      wait.workers.insert(wait.workers.end(), wait.expected.begin(),
                          wait.expected.end());
    }
    std::vector<std::string> living;
    for (std::string& name : wait.workers) {
      if (lives(name)) living.push_back(std::move(name));
    }
    answer.emplace_back(std::move(wait.table), std::move(wait.why),
                        std::move(living), absl::ToDoubleSeconds(wait.waited));
  }
  return answer;
}
WEFT_RPC_INLINE(DescribeWaits);

}  // namespace weft::ps
