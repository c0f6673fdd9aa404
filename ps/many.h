// Operations on several tables of one client, in one message to each server:
//
//   Future<std::vector<Tensor>> rows =
//       ps::PullMany({{users.get(), user_keys}, {items.get(), item_keys}});
//   ...
//   Future<void> pushed = ps::PushMany({{users.get(), user_keys, u_gradients},
//                                       {items.get(), item_keys, gradients}});
//
// Each operation does what the table's own method does, with the same rounds,
// sequence numbers, limit of 64 pushes under way, and errors, which name the
// table. Tables may be sparse or dense, SYNC or ASYNC; no table twice.
//
// A message has at most kMostParts tables and kMostManyBytes
// (shard_requests.h), what is pulled included; beyond that a server gets
// several, and one operation that is larger by itself is a call of its own.
// From 3,000 keys on a message leaves, so that its server works while the keys
// of the next tables are sorted. With two replicas the operations are calls of
// their own, made side by side.
//
// A list that cannot be sent is refused as a whole, before anything is sent:
// tensors that do not fit their table, or a table that an earlier push has
// closed. Then each server applies or refuses each operation by itself: a
// refused push closes its table, and no other. If a message is lost, or a
// server that got one ends, that closes every table to which it had a push.
//
// A server answers once all of a message is done. So an operation that waits
// for a round, as a SYNC pull does, delays the answers for the other tables of
// its message until the round is closed, at most as long as
// ClientOptions::timeout. What was pushed is applied meanwhile. To hear of the
// pushes earlier, push first and pull in a second call.
//
// To cancel one of the Futures cancels the messages that it is in.
//
//   kInvalidArgument  a table twice, tables of two clients or of one that has
//                     restored a checkpoint between their openings, a null
//                     pointer; else as the tables' methods. An empty list is OK
//
// Thread-safety: as an operation on each of the tables.

#ifndef WEFT_PS_MANY_H_
#define WEFT_PS_MANY_H_

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "weft/base/future.h"
#include "weft/ps/client.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// Borrowed until the call returns.
using AnyTable = std::variant<SparseTable*, DenseTable*>;

// Keys are those of a sparse table; of a dense one they are left undefined.
// Shapes as SparseTable's and DenseTable's methods have them.
struct PullOf {
  AnyTable table;
  Tensor keys = {};
};
struct PushOf {
  AnyTable table;
  Tensor keys;
  Tensor gradients;
};
struct PushPullOf {
  AnyTable table;
  Tensor push_keys;
  Tensor gradients;
  Tensor pull_keys;
};

// If an operation fails, the Future has the first error, and what the others
// pulled is lost. ExchangeEach gives the result of each.
Future<std::vector<Tensor>> PullMany(std::vector<PullOf> pulls);
Future<void> PushMany(std::vector<PushOf> pushes);
Future<std::vector<Tensor>> PushPullMany(std::vector<PushPullOf> operations);

// A push, a pull or both.
struct TableOperation {
  TableOperation(PullOf pull)  // NOLINT: is meant to convert
      : table(pull.table), pull_keys(std::move(pull.keys)) {}
  TableOperation(PushOf push)  // NOLINT
      : table(push.table),
        push_keys(std::move(push.keys)),
        gradients(std::move(push.gradients)) {}
  TableOperation(PushPullOf both)  // NOLINT
      : table(both.table),
        push_keys(std::move(both.push_keys)),
        gradients(std::move(both.gradients)),
        pull_keys(std::move(both.pull_keys)) {}

  AnyTable table;
  std::optional<Tensor> push_keys, gradients;  // of a push
  std::optional<Tensor> pull_keys;             // of a pull
};

// The result of each, in their order: what it pulled, else an undefined tensor.
std::vector<Future<Tensor>> ExchangeEach(
    std::vector<TableOperation> operations);

}  // namespace weft::ps

#endif  // WEFT_PS_MANY_H_
