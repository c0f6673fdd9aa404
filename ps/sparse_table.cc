#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/status_macros.h"
#include "weft/ps/client.h"
#include "weft/ps/core/copy_row.h"
#include "weft/ps/operation.h"
#include "weft/ps/replicated/frame.h"
#include "weft/ps/table_client.h"
#include "weft/ps/wire/wire_values.h"
#include "weft/rpc/call.h"
#include "weft/rpc/codec/tensor_codec.h"

namespace weft::ps {
namespace {

using internal::Message;
using internal::RowsOf;
using internal::TableClient;
using internal::Unfit;
using internal::WatchPush;
using Replies = std::vector<ExchangeReply>;
using Pieces = std::vector<ReplicatedTableClient::Piece>;
constexpr auto kPushes = ReplicatedTableClient::Awaited::kPushes;

absl::Status CheckKeys(const TableLayout& layout, const Tensor& keys) {
  if (keys.defined() && keys.dtype() == DType::kI64 && keys.dim() == 1) {
    return absl::OkStatus();
  }
  return Unfit(layout, "keys:", "i64[n]", keys);
}

absl::Status CheckRows(const TableLayout& layout, const Tensor& keys,
                       const Tensor& rows) {
  if (rows.defined() && rows.dtype() == DType::kF32 && rows.dim() == 2 &&
      rows.size(0) == keys.numel() && rows.size(1) == layout.dim()) {
    return absl::OkStatus();
  }
  return Unfit(layout, "gradients:",
               absl::StrCat("f32[", keys.numel(), ", ", layout.dim(), "]"),
               rows);
}

Tensor KeyTensor(absl::Span<const uint64_t> keys) {
  Tensor out = Tensor::Empty({static_cast<int64_t>(keys.size())}, DType::kI64);
  std::copy(keys.begin(), keys.end(), out.data<int64_t>());
  return out;
}

// Where in cut.order the keys from unique number `unique` on begin.
size_t PlaceInOrder(const SparseCut& cut, int64_t unique) {
  if (cut.unique_of.empty()) return static_cast<size_t>(unique);
  const auto begin = cut.unique_of.begin();
  return std::lower_bound(begin, begin + cut.sorted, unique) - begin;
}

// Writes to `to`, as row i, the sum of the rows of `gradients` whose key is
// unique number first + i.
void SumByKey(const SparseCut& cut, const Tensor& gradients, int64_t first,
              int64_t rows, float* to) {
  const int64_t dim = gradients.size(1);
  const float* const from = gradients.data<float>();
  const size_t begin = PlaceInOrder(cut, first);
  const size_t end = PlaceInOrder(cut, first + rows);
  if (cut.unique_of.empty() && dim == 1) {
    for (size_t i = begin; i < end; ++i) *to++ = from[cut.order[i]];
    return;
  }
  to -= dim;
  int64_t last = first - 1;
  for (size_t i = begin; i < end; ++i) {
    const int64_t unique = cut.UniqueOf(i);
    const float* row = from + int64_t{cut.order[i]} * dim;
    if (unique != last) {
      last = unique;
      to += dim;
      CopyRow(row, dim, to);
    } else {
      for (int64_t j = 0; j < dim; ++j) to[j] += row[j];
    }
  }
}

Tensor SumByKey(const SparseCut& cut, const Tensor& gradients, int64_t first,
                int64_t rows) {
  Tensor sums = Tensor::Empty({rows, gradients.size(1)});
  SumByKey(cut, gradients, first, rows, sums.data<float>());
  return sums;
}

// A call, and the rows that it pulls: so many from unique number `first` on.
struct Call {
  Future<ExchangeReply> reply;
  int64_t first;
  int64_t rows;
};

// One to each server.
std::vector<Message> MessagesOf(TableClient& table, const SparseCut* pushed,
                                const Tensor& gradients,
                                const SparseCut* pulled, const RoundPart& of) {
  std::vector<Message> messages;
  const bool step = pushed != nullptr && pulled != nullptr && table.has_clock();
  for (int server = 0; server < table.servers(); ++server) {
    // A synchronous round needs a part of each shard at every server, and the
    // end of a step is for all.
    const bool push_here =
        pushed != nullptr &&
        (table.is_sync() || pushed->parts[server].size() > 0);
    const bool pull_here =
        pulled != nullptr && pulled->parts[server].size() > 0;
    if (!push_here && !pull_here && !step) continue;
    Message& message = messages.emplace_back();
    message.server = server;
    message.request = table.NewRequest(push_here, pull_here, of, step);
    if (push_here) {
      const SparsePart& part = pushed->parts[server];
      for (const SparsePart::Group& group : part.groups) {
        table.AddSpan(message.request, group.partition,
                      group.end - group.begin);
      }
      message.push_keys = KeyTensor(pushed->KeysOf(server));
      message.push_values = table.encoder().Encode(
          of.shard, of.round, pushed->KeysOf(server),
          SumByKey(*pushed, gradients, part.begin, part.size()));
    }
    if (pull_here) {
      message.pull_keys = KeyTensor(pulled->KeysOf(server));
      message.pulled_bytes =
          WireBytes(table.layout(), table.layout().spec().wire().pull(),
                    pulled->KeysOf(server));
    }
  }
  return messages;
}

// ASYNC: a push or a pull in pieces, which are whole partitions of one server
// each, so that a server works on the first while the keys of the next are
// sorted.
class CutPieces {
 public:
  // Cuts `keys` keys into pieces. `gradients`: those of a push, else null.
  CutPieces(TableClient& table, int64_t keys, const Tensor* gradients)
      : table_(table), left_(keys), gradients_(gradients) {
    const bool serves_already = gradients != nullptr
                                    ? table.has_pushes_under_way()
                                    : table.has_pull_under_way();
    const int64_t pieces =
        serves_already ? 1
                       : std::clamp(keys / kLeastRows, int64_t{1}, kMostPieces);
    rows_ = (keys + pieces - 1) / pieces;
  }

  // Sends the pieces that are whole; all: also what is left.
  void Send(const SparseCut& cut, bool all) {
    for (; server_ < table_.servers(); ++server_, group_ = 0) {
      const std::vector<SparsePart::Group>& groups = cut.parts[server_].groups;
      const bool is_whole = all || HasGroupsAfter(cut, server_);
      while (group_ < groups.size()) {
        const int64_t begin = groups[group_].begin;
        size_t end = group_;
        while (end < groups.size() &&
               (groups[end].begin - begin < rows_ ||
                left_ - (groups[end].begin - begin) < rows_ / 2)) {
          ++end;
        }
        if (end == groups.size() && !is_whole) return;
        SendGroups(cut, group_, end);
        group_ = end;
      }
      if (!is_whole) return;
    }
  }

  std::vector<Call> Take() { return std::move(calls_); }

 private:
  // A call costs as much as some hundred rows.
  static constexpr int64_t kLeastRows = 3000;
  static constexpr int64_t kMostPieces = 12;

  static bool HasGroupsAfter(const SparseCut& cut, int server) {
    for (size_t s = server + 1; s < cut.parts.size(); ++s) {
      if (!cut.parts[s].groups.empty()) return true;
    }
    return false;
  }

  void SendGroups(const SparseCut& cut, size_t begin, size_t end) {
    const SparsePart& part = cut.parts[server_];
    const bool push = gradients_ != nullptr;
    const RoundPart of = table_.OwnPart();
    v1::Request request = table_.NewRequest(push, !push, of);
    request.set_continues(begin > 0);
    const int64_t first = part.begin + part.groups[begin].begin;
    const int64_t rows = part.groups[end - 1].end - part.groups[begin].begin;
    const auto span = absl::MakeConstSpan(cut.keys).subspan(first, rows);
    Tensor keys = KeyTensor(span);
    std::optional<Tensor> pushed, values, pulled;
    if (push) {
      for (size_t g = begin; g < end; ++g) {
        table_.AddSpan(request, part.groups[g].partition,
                       part.groups[g].end - part.groups[g].begin);
      }
      pushed = std::move(keys);
      values = table_.encoder().Encode(of.shard, of.round, span,
                                       SumByKey(cut, *gradients_, first, rows));
    } else {
      pulled = std::move(keys);
    }
    calls_.push_back({rpc::CallAsync(table_.To(server_), &ps::Exchange, request,
                                     std::move(pushed), std::move(values),
                                     std::move(pulled)),
                      first, push ? 0 : rows});
    left_ -= rows;
  }

  TableClient& table_;
  int64_t left_;  // keys that were not sent, or repeat others
  const Tensor* const gradients_;
  int64_t rows_;  // of a piece, but for the last group and the last piece
  int server_ = 0;
  size_t group_ = 0;  // the server's next
  std::vector<Call> calls_;
};

// Puts pulled rows, those from unique number `first` on, where the caller's
// keys are.
void Place(const SparseCut& cut, int64_t first, int64_t rows, const float* from,
           Tensor& out) {
  const int64_t dim = out.size(1);
  float* const to = out.data<float>();
  const size_t begin = PlaceInOrder(cut, first);
  const size_t end = PlaceInOrder(cut, first + rows);
  if (cut.unique_of.empty() && dim == 1) {
    for (size_t i = begin; i < end; ++i) to[cut.order[i]] = from[i - begin];
    return;
  }
  for (size_t i = begin; i < end; ++i) {
    const int64_t row = int64_t{cut.UniqueOf(i)} - first;
    CopyRow(from + row * dim, dim, to + int64_t{cut.order[i]} * dim);
  }
}

absl::Status Scatter(const TableLayout& layout, const SparseCut& cut,
                     int64_t first, int64_t rows, const ExchangeReply& reply,
                     Tensor& out) {
  if (rows == 0) return absl::OkStatus();  // it was a push
  WEFT_ASSIGN_OR_RETURN(
      const Tensor values,
      RowsOf(reply, layout, absl::MakeConstSpan(cut.keys).subspan(first, rows),
             {rows, out.size(1)}));
  Place(cut, first, rows, values.data<float>(), out);
  return absl::OkStatus();
}

// The result of an operation, by its calls: pulled rows [keys] are put in their
// places as they come. `pulled` null: nothing is.
Future<Tensor> Finish(const std::shared_ptr<TableClient>& table, bool push,
                      const std::shared_ptr<const SparseCut>& pulled,
                      int64_t keys, std::vector<Call> calls) {
  std::vector<Future<ExchangeReply>> replies;
  if (push) {
    for (const Call& call : calls) replies.push_back(call.reply);
    Future<Replies> all = table->Watch(pulled == nullptr ? "Push" : "PushPull",
                                       WhenAllOk(std::move(replies)));
    table->Sent(all);
    table->EndRound();
    if (pulled != nullptr) table->EndStep();
    WatchPush(all, table);
    if (pulled == nullptr) {
      return std::move(all).Then([](const Replies&) { return Tensor(); });
    }
  }
  Tensor out = Tensor::Empty({keys, table->layout().dim()});
  std::vector<Future<void>> placed;
  for (Call& call : calls) {
    placed.push_back(
        std::move(call.reply)
            .Then([table, pulled, out, first = call.first,
                   rows = call.rows](const ExchangeReply& reply) mutable {
              return Scatter(table->layout(), *pulled, first, rows, reply, out);
            }));
  }
  Future<void> all =
      table->Watch(push ? "PushPull" : "Pull", WhenAllOk(std::move(placed)));
  table->Pulls(all);
  return std::move(all).Then([out] { return out; });
}

// The rows of a cut by one server, in one memory; SYNC: a piece for each
// partition.
Pieces SparsePieces(TableClient& table, const SparseCut& cut,
                    const Tensor& gradients, const RoundPart& of, bool all) {
  const TableLayout& layout = table.layout();
  const WireDtype dtype = layout.spec().wire().push();
  const SparsePart& part = cut.parts[0];
  const int64_t row_bytes = WireBytes(dtype, layout.dim());
  Tensor encoded;  // F32: they are summed where they are to be
  if (dtype != v1::WireValues::F32) {
    encoded = table.encoder().Encode(
        of.shard, of.round, cut.KeysOf(0),
        SumByKey(cut, gradients, part.begin, part.size()));
  }
  size_t words = 0;
  for (const SparsePart::Group& group : part.groups) {
    const int64_t rows = group.end - group.begin;
    words += FrameWords(static_cast<size_t>(rows), rows * row_bytes);
  }
  std::vector<uint64_t> frames(words);
  std::vector<bool> has_rows(layout.spec().partitions(), false);
  std::vector<size_t> begins;
  size_t at = 0;
  for (const SparsePart::Group& group : part.groups) {
    const int64_t first = part.begin + group.begin;
    const int64_t rows = group.end - group.begin;
    char* const values =
        WriteFrame(dtype, absl::MakeConstSpan(cut.keys).subspan(first, rows),
                   frames.data() + at);
    if (encoded.defined()) {
      std::copy_n(encoded.data<uint8_t>() + group.begin * row_bytes,
                  rows * row_bytes, values);
    } else {
      SumByKey(cut, gradients, first, rows, reinterpret_cast<float*>(values));
    }
    has_rows[group.partition] = true;
    begins.push_back(at);
    at += FrameWords(static_cast<size_t>(rows), rows * row_bytes);
  }
  const Bytes memory = Bytes::Own(std::move(frames));
  Pieces pieces;
  for (size_t g = 0; g < part.groups.size(); ++g) {
    const int64_t rows = part.groups[g].end - part.groups[g].begin;
    pieces.push_back({part.groups[g].partition,
                      memory.subspan(begins[g] * sizeof(uint64_t),
                                     FrameBytes(static_cast<size_t>(rows),
                                                rows * row_bytes))});
  }
  for (int i = 0; all && i < layout.spec().partitions(); ++i) {
    if (!has_rows[i]) pieces.push_back({i, EncodeGradient(dtype, {}, {})});
  }
  return pieces;
}

Pieces SparseKeys(const SparseCut& cut) {
  const SparsePart& part = cut.parts[0];
  const Bytes keys = EncodeKeys(cut.KeysOf(0));
  Pieces pieces;
  for (const SparsePart::Group& group : part.groups) {
    pieces.push_back(
        {group.partition,
         keys.subspan(group.begin * sizeof(uint64_t),
                      (group.end - group.begin) * sizeof(uint64_t))});
  }
  return pieces;
}

}  // namespace

SparseTable::SparseTable(std::unique_ptr<TableClient> table)
    : table_(std::move(table)) {}
SparseTable::~SparseTable() {
  (void)LeaveClock();
  table_->Close();
}

LateParts SparseTable::late_parts() const { return table_->late_parts(); }
Future<void> SparseTable::Tick() { return internal::Tick(table_); }
Future<void> SparseTable::LeaveClock() { return internal::LeaveClock(table_); }
int64_t SparseTable::clock() const { return table_->clock(); }

int64_t SparseTable::dim() const { return table_->layout().dim(); }
int64_t SparseTable::round() const { return table_->round(); }
const v1::TableSpec& SparseTable::spec() const {
  return table_->layout().spec();
}
absl::Status SparseTable::status() const { return table_->status(); }

absl::Status SparseTable::CheckPush(const Tensor& keys,
                                    const Tensor& gradients) const {
  WEFT_RETURN_IF_ERROR(table_->status());
  WEFT_RETURN_IF_ERROR(CheckKeys(table_->layout(), keys));
  WEFT_RETURN_IF_ERROR(CheckRows(table_->layout(), keys, gradients));
  return table_->encoder().Check(gradients);
}

Future<Tensor> SparseTable::ExchangeReplicated(const Tensor* push_keys,
                                               const Tensor* gradients,
                                               const Tensor* pull_keys) {
  absl::Status fit = push_keys != nullptr ? CheckPush(*push_keys, *gradients)
                                          : table_->status();
  if (fit.ok() && pull_keys != nullptr) {
    fit = CheckKeys(table_->layout(), *pull_keys);
  }
  if (!fit.ok()) return MakeReady<Tensor>(fit);
  std::optional<Future<void>> pushed;
  if (push_keys != nullptr) {
    Pieces pieces =
        SparsePieces(*table_, *table_->Cut(*push_keys), gradients->Contiguous(),
                     table_->OwnPart(), table_->is_sync());
    // As with one replica, a push and pull in one ends a step.
    if (pull_keys != nullptr) table_->AddTicks(pieces);
    pushed = table_->PushPieces(std::move(pieces), table_->OwnPart(),
                                /*closes=*/true);
    table_->EndRound();
    if (pull_keys != nullptr) table_->EndStep();
  }
  if (pull_keys == nullptr) {
    return table_->replicated()->Watch(kPushes, *std::move(pushed)).Then([] {
      return Tensor();
    });
  }
  const auto cut = table_->Cut(*pull_keys);
  return table_->PullPieces(pushed, SparseKeys(*cut))
      .Then([cut, table = table_, n = pull_keys->numel()](
                const std::vector<Bytes>& values) -> absl::StatusOr<Tensor> {
        Tensor out = Tensor::Empty({n, table->layout().dim()});
        const SparsePart& part = cut->parts[0];
        std::vector<float> memory;
        for (size_t g = 0; g < part.groups.size(); ++g) {
          const SparsePart::Group& group = part.groups[g];
          const int64_t rows = group.end - group.begin;
          const int64_t first = part.begin + group.begin;
          WEFT_ASSIGN_OR_RETURN(
              const float* const floats,
              internal::FloatsOf(
                  values[g], table->layout(),
                  absl::MakeConstSpan(cut->keys).subspan(first, rows), memory));
          Place(*cut, first, rows, floats, out);
        }
        return out;
      });
}

absl::Status SparseTable::Check(const Tensor* push_keys,
                                const Tensor* gradients,
                                const Tensor* pull_keys) const {
  WEFT_RETURN_IF_ERROR(push_keys != nullptr ? CheckPush(*push_keys, *gradients)
                                            : table_->servers_status());
  if (pull_keys == nullptr) return absl::OkStatus();
  return CheckKeys(table_->layout(), *pull_keys);
}

internal::Prepared SparseTable::Prepare(const Tensor* push_keys,
                                        const Tensor* gradients,
                                        const Tensor* pull_keys) {
  const bool push = push_keys != nullptr;
  std::shared_ptr<const SparseCut> pushed, pulled;
  if (push) pushed = table_->Cut(*push_keys);
  if (pull_keys != nullptr) pulled = table_->Cut(*pull_keys);
  internal::Prepared prepared;
  prepared.messages = MessagesOf(*table_, pushed.get(),
                                 push ? gradients->Contiguous() : Tensor(),
                                 pulled.get(), table_->OwnPart());
  std::vector<int> servers;
  for (const Message& message : prepared.messages) {
    servers.push_back(message.request.pull() ? message.server : -1);
  }
  const int64_t keys = pull_keys != nullptr ? pull_keys->numel() : 0;
  prepared.finish = [table = table_, push, pulled = std::move(pulled), keys,
                     servers = std::move(servers)](
                        std::vector<Future<ExchangeReply>> replies) {
    std::vector<Call> calls;
    for (size_t i = 0; i < replies.size(); ++i) {
      Call& call = calls.emplace_back(Call{std::move(replies[i]), 0, 0});
      if (servers[i] < 0) continue;
      call.first = pulled->parts[servers[i]].begin;
      call.rows = pulled->parts[servers[i]].size();
    }
    return Finish(table, push, pulled, keys, std::move(calls));
  };
  return prepared;
}

Future<Tensor> SparseTable::Exchange(const Tensor* push_keys,
                                     const Tensor* gradients,
                                     const Tensor* pull_keys) {
  if (table_->replicated() != nullptr) {
    return ExchangeReplicated(push_keys, gradients, pull_keys);
  }
  const bool push = push_keys != nullptr;
  const bool pull = pull_keys != nullptr;
  absl::Status fit = Check(push_keys, gradients, pull_keys);
  if (fit.ok() && push) fit = table_->AwaitRoom(pull && table_->has_clock());
  if (!fit.ok()) return MakeReady<Tensor>(fit);
  if (table_->is_sync() || push == pull) {
    internal::Prepared all = Prepare(push_keys, gradients, pull_keys);
    std::vector<Future<ExchangeReply>> replies;
    for (Message& message : all.messages) {
      const rpc::Target to = table_->To(message.server);
      replies.push_back(internal::Send(to, std::move(message)));
    }
    return std::move(all.finish)(std::move(replies));
  }
  const Tensor rows = push ? gradients->Contiguous() : Tensor();
  const Tensor& keys = push ? *push_keys : *pull_keys;
  CutPieces pieces(*table_, keys.numel(), push ? &rows : nullptr);
  const auto cut = table_->Cut(
      keys, [&](const SparseCut& grown) { pieces.Send(grown, false); });
  pieces.Send(*cut, true);
  return Finish(table_, push, pull ? cut : nullptr, keys.numel(),
                pieces.Take());
}

Future<void> SparseTable::PushShard(const RoundPart& part, const Tensor& keys,
                                    const Tensor& gradients) {
  absl::Status fit = table_->CheckRounds("PushShard");
  if (fit.ok()) fit = CheckPush(keys, gradients);
  if (!fit.ok()) return MakeReady<void>(fit);
  if (table_->replicated() != nullptr) {
    Pieces pieces = SparsePieces(*table_, *table_->Cut(keys),
                                 gradients.Contiguous(), part, /*all=*/true);
    return table_->replicated()->Watch(
        kPushes, table_->PushPieces(std::move(pieces), part, /*closes=*/false));
  }
  std::vector<Future<ExchangeReply>> replies;
  for (Message& message : MessagesOf(*table_, table_->Cut(keys).get(),
                                     gradients.Contiguous(), nullptr, part)) {
    const rpc::Target to = table_->To(message.server);
    replies.push_back(internal::Send(to, std::move(message)));
  }
  return table_->Watch("PushShard", WhenAllOk(std::move(replies)))
      .Then([table = table_](const Replies& all) { table->NoteLate(all); });
}

Future<void> SparseTable::SetLearningRateScale(
    double scale, std::optional<int64_t> from_round) {
  return table_->SetLearningRateScale(scale, from_round);
}

void SparseTable::EndRound() { table_->EndRound(); }

absl::Status SparseTable::AwaitStable(absl::Duration timeout) {
  ReplicatedTableClient* const replicated = table_->replicated();
  if (replicated == nullptr) return table_->status();
  const bool is_stable = replicated->AwaitStable(timeout);
  // A table that has failed has nothing outstanding any more.
  WEFT_RETURN_IF_ERROR(replicated->status());
  if (is_stable) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "table '", table_->layout().spec().name(),
      "': what was pushed is not stable yet, after ",
      absl::FormatDuration(timeout),
      "; its rounds wait for other shards, or a server for its backup: ",
      replicated->DescribeUnstable()));
}

Future<Tensor> SparseTable::Pull(const Tensor& keys) {
  return Exchange(nullptr, nullptr, &keys);
}

Future<void> SparseTable::Push(const Tensor& keys, const Tensor& gradients) {
  return Exchange(&keys, &gradients, nullptr).Then([](const Tensor&) {});
}

Future<Tensor> SparseTable::PushPull(const Tensor& push_keys,
                                     const Tensor& gradients,
                                     const Tensor& pull_keys) {
  return Exchange(&push_keys, &gradients, &pull_keys);
}

}  // namespace weft::ps
