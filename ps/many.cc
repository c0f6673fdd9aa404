#include "weft/ps/many.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/ps/operation.h"
#include "weft/ps/service.h"
#include "weft/ps/shard/shard_requests.h"
#include "weft/ps/shard/shard_tensors.h"
#include "weft/ps/table_client.h"
#include "weft/rpc/call.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/session/failure.h"

namespace weft::ps {

namespace internal {

// What both kinds of tables have in common, as ExchangeEach sees it.
class TablesTogether {
 public:
  // Null if there is no table.
  static const TableClient* ClientOf(const TableOperation& of) {
    return std::visit(
        [](const auto* table) -> const TableClient* {
          return table == nullptr ? nullptr : table->table_.get();
        },
        of.table);
  }

  static absl::Status Check(const TableOperation& of) {
    if (const auto* sparse = std::get_if<SparseTable*>(&of.table)) {
      return (*sparse)->Check(Get(of.push_keys), Get(of.gradients),
                              Get(of.pull_keys));
    }
    for (const auto* keys : {Get(of.push_keys), Get(of.pull_keys)}) {
      if (keys == nullptr || !keys->defined()) continue;
      return Unfit(ClientOf(of)->layout(), "keys:", "none, of a dense table",
                   *keys);
    }
    return std::get<DenseTable*>(of.table)->Check(Get(of.gradients));
  }

  static absl::Status AwaitRoom(const TableOperation& of, Instant give_up) {
    if (!of.gradients.has_value()) return absl::OkStatus();
    return std::visit(
        [&](const auto* table) {
          return table->table_->AwaitRoom(
              std::max(give_up - SteadyClock().Now(), absl::ZeroDuration()),
              of.pull_keys.has_value() && table->table_->has_clock());
        },
        of.table);
  }

  static Prepared Prepare(TableOperation& of) {
    if (const auto* sparse = std::get_if<SparseTable*>(&of.table)) {
      return (*sparse)->Prepare(Get(of.push_keys), Get(of.gradients),
                                Get(of.pull_keys));
    }
    return std::get<DenseTable*>(of.table)->Prepare(std::move(of.gradients),
                                                    of.pull_keys.has_value());
  }

  // Runs the operation by a call of its own.
  static Future<Tensor> Alone(TableOperation& of) {
    if (const auto* sparse = std::get_if<SparseTable*>(&of.table)) {
      return (*sparse)->Exchange(Get(of.push_keys), Get(of.gradients),
                                 Get(of.pull_keys));
    }
    return std::get<DenseTable*>(of.table)->ExchangeReplicated(
        std::move(of.gradients), of.pull_keys.has_value());
  }

 private:
  static const Tensor* Get(const std::optional<Tensor>& tensor) {
    return tensor.has_value() ? &*tensor : nullptr;
  }
};

namespace {

// The replies of one operation, one for each of its messages.
using Replies = std::vector<std::optional<Future<ExchangeReply>>>;

// A message with at least this many keys is sent at once, so that its server
// works on it while the keys of the next tables are sorted. A call costs as
// much as a few hundred keys.
constexpr int64_t kKeysOfMessage = 3000;

int64_t KeysOf(const Message& message) {
  int64_t keys = 0;
  for (const auto* tensor : {&message.push_keys, &message.pull_keys}) {
    if (tensor->has_value()) keys += (*tensor)->numel();
  }
  return keys;
}

int64_t TotalBytes(const Message& message) {
  int64_t bytes = message.pulled_bytes;
  for (const auto* tensor :
       {&message.push_keys, &message.push_values, &message.pull_keys}) {
    if (tensor->has_value()) bytes += BytesOf(**tensor);
  }
  return bytes;
}

absl::Status CheckAll(const std::vector<TableOperation>& operations) {
  absl::flat_hash_set<absl::string_view> names;
  const TableClient* first = nullptr;
  for (const TableOperation& operation : operations) {
    const TableClient* table = TablesTogether::ClientOf(operation);
    if (table == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "operations on several tables: wanted a table in each "
          "of ",
          operations.size(), ", found a null pointer after ", names.size()));
    }
    const std::string& name = table->layout().spec().name();
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("table '", name,
                       "' is there twice; add up what is done with it, or make "
                       "two calls"));
    }
    if (first == nullptr) first = table;
    if (table->pinned() != first->pinned()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table '", name, "' and table '", first->layout().spec().name(),
          "' were opened by two clients, or one of them before a Restore; "
          "open both by one client, or make two calls"));
    }
    WEFT_RETURN_IF_ERROR(TablesTogether::Check(operation));
  }
  if (first == nullptr) return absl::OkStatus();
  const Instant give_up = SteadyClock().Now() + first->timeout();
  for (const TableOperation& operation : operations) {
    WEFT_RETURN_IF_ERROR(TablesTogether::AwaitRoom(operation, give_up));
  }
  return absl::OkStatus();
}

absl::Status WrongReply(const std::string& server, size_t parts,
                        const ManyReply& reply) {
  return absl::InternalError(absl::StrCat(
      server, ": wanted the answers of ", parts, " parts, found ",
      std::get<0>(reply).parts_size(), " and ", std::get<1>(reply).size(),
      " values; are client and server built from the same sources?"));
}

// The answer of one part, an error as that of a call by itself.
absl::StatusOr<ExchangeReply> PartOf(const ManyReply& reply, size_t i,
                                     size_t parts, const std::string& server) {
  const auto& [said, values] = reply;
  if (static_cast<size_t>(said.parts_size()) != parts ||
      values.size() != parts) {
    return WrongReply(server, parts, reply);
  }
  const v1::ReplyMany::Part& part = said.parts(static_cast<int>(i));
  if (part.status() == 0) return ExchangeReply(part.reply(), values[i]);
  constexpr char kFunction[] = "weft::ps::ExchangeMany";
  const auto code = static_cast<absl::StatusCode>(
      part.status() > 0 && part.status() <= 16 ? part.status() : 2);
  const absl::Status refused =
      rpc::internal::NameFailure(absl::Status(code, part.message()), server,
                                 kFunction, rpc::Phase::kHandler);
  return Reworded(refused,
                  absl::StrCat(server, ": ", kFunction, ": ", part.message()));
}

// Messages to one server, sent as one, and where the reply of each goes.
class Batch {
 public:
  bool HasRoomFor(const Message& message) const {
    return messages_.empty() ||
           (messages_.size() < kMostParts &&
            bytes_ + TotalBytes(message) <= kMostManyBytes);
  }
  void Add(Message message, std::optional<Future<ExchangeReply>>& reply) {
    bytes_ += TotalBytes(message);
    keys_ += KeysOf(message);
    messages_.push_back(std::move(message));
    replies_.push_back(&reply);
  }
  int64_t keys() const { return keys_; }

  void Send(const TableClient& through) {
    if (messages_.empty()) return;
    const int server = messages_.front().server;
    if (messages_.size() == 1) {
      *replies_[0] =
          internal::Send(through.To(server), std::move(messages_[0]));
      return;
    }
    v1::RequestMany request;
    std::vector<std::optional<Tensor>> tensors;
    tensors.reserve(3 * messages_.size());
    for (Message& message : messages_) {
      *request.add_parts() = std::move(message.request);
      tensors.push_back(std::move(message.push_keys));
      tensors.push_back(std::move(message.push_values));
      tensors.push_back(std::move(message.pull_keys));
    }
    const Future<ManyReply> reply = rpc::CallAsync(
        through.To(server), &ps::ExchangeMany, request, std::move(tensors));
    const auto name =
        std::make_shared<const std::string>(through.server_name(server));
    for (size_t i = 0; i < replies_.size(); ++i) {
      *replies_[i] =
          reply.Then([i, name, parts = replies_.size()](const ManyReply& all) {
            return PartOf(all, i, parts, *name);
          });
    }
  }

 private:
  std::vector<Message> messages_;
  std::vector<std::optional<Future<ExchangeReply>>*> replies_;
  int64_t bytes_ = 0;
  int64_t keys_ = 0;
};

// Adds the messages of an operation to those of other ones to their servers;
// sends what is large enough.
void AddTo(std::vector<Batch>& batches, std::vector<Message> messages,
           Replies& replies, const TableClient& through) {
  replies.resize(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    Batch& batch = batches[messages[i].server];
    if (!batch.HasRoomFor(messages[i])) {
      batch.Send(through);
      batch = Batch();
    }
    batch.Add(std::move(messages[i]), replies[i]);
    if (batch.keys() < kKeysOfMessage) continue;
    batch.Send(through);
    batch = Batch();
  }
}

}  // namespace
}  // namespace internal

std::vector<Future<Tensor>> ExchangeEach(
    std::vector<TableOperation> operations) {
  using internal::TablesTogether;
  std::vector<Future<Tensor>> results;
  if (operations.empty()) return results;
  const absl::Status fit = internal::CheckAll(operations);
  if (!fit.ok()) {
    return std::vector<Future<Tensor>>(operations.size(),
                                       MakeReady<Tensor>(fit));
  }
  const internal::TableClient& first =
      *TablesTogether::ClientOf(operations.front());
  if (first.replicated() != nullptr) {
    for (TableOperation& operation : operations) {
      results.push_back(TablesTogether::Alone(operation));
    }
    return results;
  }
  std::vector<internal::Prepared> prepared;
  std::vector<internal::Batch> batches(first.servers());
  std::vector<internal::Replies> replies(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    prepared.push_back(TablesTogether::Prepare(operations[i]));
    internal::AddTo(batches, std::move(prepared[i].messages), replies[i],
                    first);
  }
  for (internal::Batch& batch : batches) batch.Send(first);
  for (size_t i = 0; i < prepared.size(); ++i) {
    std::vector<Future<ExchangeReply>> all;
    for (auto& reply : replies[i]) all.push_back(*std::move(reply));
    results.push_back(std::move(prepared[i].finish)(std::move(all)));
  }
  return results;
}

namespace {

template <typename Kind>
std::vector<Future<Tensor>> Each(std::vector<Kind> operations) {
  return ExchangeEach({std::make_move_iterator(operations.begin()),
                       std::make_move_iterator(operations.end())});
}

}  // namespace

Future<std::vector<Tensor>> PullMany(std::vector<PullOf> pulls) {
  return WhenAllOk(Each(std::move(pulls)));
}

Future<void> PushMany(std::vector<PushOf> pushes) {
  return WhenAllOk(Each(std::move(pushes))).Then([](const auto&) {});
}

Future<std::vector<Tensor>> PushPullMany(std::vector<PushPullOf> operations) {
  return WhenAllOk(Each(std::move(operations)));
}

}  // namespace weft::ps
