#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/status_macros.h"
#include "weft/ps/client.h"
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

absl::Status CheckFlat(const TableLayout& layout, absl::string_view what,
                       const Tensor& t) {
  const int64_t n = layout.spec().elements();
  if (t.defined() && t.dtype() == DType::kF32 && t.dim() == 1 &&
      t.numel() == n) {
    return absl::OkStatus();
  }
  return Unfit(layout, what, absl::StrCat("f32[", n, "]"), t);
}

// The slices of one server out of the whole vector, one after another: the
// vector itself if that is all of it and nobody else has its memory. Else a
// copy, which is moved into the call: the call would make one, of memory that
// is not pooled.
Tensor Gather(Tensor& values, const TableLayout& layout,
              const DensePart& part) {
  if (part.is_whole) {
    return values.is_sole_owner() ? std::move(values) : values.Clone();
  }
  Tensor out = Tensor::Empty({part.elements});
  const float* from = values.data<float>();
  float* to = out.data<float>();
  for (const DensePart::Group& group : part.groups) {
    for (uint64_t slice : group.slices) {
      const int64_t begin = static_cast<int64_t>(slice) * layout.dim();
      const int64_t length = layout.RowLength(slice);
      std::copy_n(from + begin, length, to);
      to += length;
    }
  }
  return out;
}

// A flat vector's slices, by partition.
Pieces DensePieces(Frame::Kind kind, const DensePart& cut,
                   const TableLayout& layout, const Tensor& flat) {
  Pieces pieces;
  std::vector<absl::Span<const float>> rows;
  for (const DensePart::Group& group : cut.groups) {
    rows.clear();
    for (uint64_t slice : group.slices) {
      rows.emplace_back(
          flat.data<float>() + static_cast<int64_t>(slice) * layout.dim(),
          layout.RowLength(slice));
    }
    pieces.push_back(
        {group.partition, EncodeSeparateRows(kind, group.slices, rows)});
  }
  return pieces;
}

// The same of a gradient, as it is pushed.
Pieces GradientPieces(TableClient& table, const RoundPart& of,
                      const DensePart& cut, const Tensor& flat) {
  const TableLayout& layout = table.layout();
  const WireDtype dtype = layout.spec().wire().push();
  if (dtype == v1::WireValues::F32) {
    return DensePieces(Frame::Kind::kGradient, cut, layout, flat);
  }
  Pieces pieces;
  for (const DensePart::Group& group : cut.groups) {
    Tensor values = Tensor::Empty({group.elements});
    float* to = values.data<float>();
    for (const uint64_t slice : group.slices) {
      const int64_t length = layout.RowLength(slice);
      to = std::copy_n(
          flat.data<float>() + static_cast<int64_t>(slice) * layout.dim(),
          length, to);
    }
    const Tensor encoded = table.encoder().Encode(
        of.shard, of.round, group.slices, std::move(values));
    pieces.push_back(
        {group.partition,
         EncodeGradient(dtype, group.slices,
                        {reinterpret_cast<const char*>(encoded.data<uint8_t>()),
                         static_cast<size_t>(encoded.numel())})});
  }
  return pieces;
}

Pieces DenseKeys(const DensePart& cut) {
  Pieces pieces;
  for (const DensePart::Group& group : cut.groups) {
    pieces.push_back({group.partition, EncodeKeys(group.slices)});
  }
  return pieces;
}

absl::StatusOr<Tensor> AssembleDense(const DensePart& cut,
                                     const TableLayout& layout,
                                     const std::vector<Bytes>& values) {
  Tensor out = Tensor::Empty({layout.spec().elements()});
  std::vector<float> memory;
  for (size_t i = 0; i < cut.groups.size(); ++i) {
    const DensePart::Group& group = cut.groups[i];
    WEFT_ASSIGN_OR_RETURN(
        const float* from,
        internal::FloatsOf(values[i], layout, group.slices, memory));
    for (uint64_t slice : group.slices) {
      const int64_t length = layout.RowLength(slice);
      std::copy_n(
          from, length,
          out.data<float>() + static_cast<int64_t>(slice) * layout.dim());
      from += length;
    }
  }
  return out;
}

// The whole vector out of the servers' parts of it.
absl::StatusOr<Tensor> Assemble(const std::vector<DensePart>& cut,
                                const TableLayout& layout,
                                const Replies& replies) {
  for (const DensePart& part : cut) {
    if (!part.is_whole) continue;
    return RowsOf(replies.front(), layout, SlicesOf(part.groups),
                  {part.elements});
  }
  Tensor out = Tensor::Empty({layout.spec().elements()});
  float* to = out.data<float>();
  size_t next = 0;
  for (const DensePart& part : cut) {
    if (part.groups.empty()) continue;
    const ExchangeReply& reply = replies[next++];
    WEFT_ASSIGN_OR_RETURN(
        const Tensor values,
        RowsOf(reply, layout, SlicesOf(part.groups), {part.elements}));
    const float* from = values.data<float>();
    for (const DensePart::Group& group : part.groups) {
      for (uint64_t slice : group.slices) {
        const int64_t begin = static_cast<int64_t>(slice) * layout.dim();
        const int64_t length = layout.RowLength(slice);
        std::copy_n(from, length, to + begin);
        from += length;
      }
    }
  }
  return out;
}

// What was sent, of a push or not, as it ends.
Future<Replies> Finish(const std::shared_ptr<TableClient>& table, bool push,
                       bool pull, std::vector<Future<ExchangeReply>> calls) {
  Future<Replies> replies = table->Watch(!push  ? "Pull"
                                         : pull ? "PushPull"
                                                : "Push",
                                         WhenAllOk(std::move(calls)));
  if (!push) return replies;
  if (pull) table->EndStep();
  table->Sent(replies);
  table->EndRound();
  WatchPush(replies, table);
  return replies;
}

}  // namespace

DenseTable::DenseTable(std::unique_ptr<TableClient> table)
    : table_(std::move(table)),
      cut_(std::make_shared<const std::vector<DensePart>>(
          CutDense(table_->layout(), table_->placement()))) {}
DenseTable::~DenseTable() {
  (void)LeaveClock();
  table_->Close();
}

LateParts DenseTable::late_parts() const { return table_->late_parts(); }
Future<void> DenseTable::Tick() { return internal::Tick(table_); }
Future<void> DenseTable::LeaveClock() { return internal::LeaveClock(table_); }
int64_t DenseTable::clock() const { return table_->clock(); }

int64_t DenseTable::elements() const {
  return table_->layout().spec().elements();
}
int64_t DenseTable::round() const { return table_->round(); }

Future<void> DenseTable::Initialize(const Tensor& values) {
  absl::Status fit = table_->servers_status();
  if (fit.ok()) fit = CheckFlat(table_->layout(), "first values:", values);
  if (!fit.ok()) return MakeReady<void>(fit);
  Tensor flat = values.Contiguous();
  if (table_->replicated() != nullptr) {
    return table_->replicated()->Change(
        DensePieces(Frame::Kind::kPut, (*cut_)[0], table_->layout(), flat));
  }
  std::vector<Future<void>> calls;
  for (int server = 0; server < table_->servers(); ++server) {
    if ((*cut_)[server].groups.empty()) continue;
    calls.push_back(rpc::CallAsync(
        table_->To(server), &ps::Initialize, table_->layout().spec().name(),
        table_->identity(), Gather(flat, table_->layout(), (*cut_)[server])));
  }
  return table_->Watch("Initialize", WhenAllOk(std::move(calls)));
}

absl::Status DenseTable::CheckGradient(const Tensor& gradient) const {
  WEFT_RETURN_IF_ERROR(table_->status());
  WEFT_RETURN_IF_ERROR(CheckFlat(table_->layout(), "gradient:", gradient));
  return table_->encoder().Check(gradient);
}

absl::Status DenseTable::Check(const Tensor* gradient) const {
  return gradient != nullptr ? CheckGradient(*gradient)
                             : table_->servers_status();
}

std::vector<internal::Message> DenseTable::MessagesOf(
    std::optional<Tensor> gradient, bool pull, const RoundPart& of) {
  const bool push = gradient.has_value();
  if (push && !gradient->is_contiguous()) gradient = gradient->Contiguous();
  std::vector<Message> messages;
  for (int server = 0; server < table_->servers(); ++server) {
    const DensePart& part = (*cut_)[server];
    if (part.groups.empty()) continue;
    Message& message = messages.emplace_back();
    message.server = server;
    message.request = table_->NewRequest(push, pull, of, push && pull);
    if (push) {
      for (const DensePart::Group& group : part.groups) {
        table_->AddSpan(message.request, group.partition, group.slices.size());
      }
      message.push_values =
          table_->encoder().Encode(of.shard, of.round, SlicesOf(part.groups),
                                   Gather(*gradient, table_->layout(), part));
    }
    if (pull) {
      message.pulled_bytes =
          WireBytes(table_->layout(), table_->layout().spec().wire().pull(),
                    SlicesOf(part.groups));
    }
  }
  return messages;
}

std::vector<Future<ExchangeReply>> DenseTable::Send(
    std::optional<Tensor> gradient, bool pull, const RoundPart& of) {
  std::vector<Future<ExchangeReply>> calls;
  for (Message& message : MessagesOf(std::move(gradient), pull, of)) {
    const rpc::Target to = table_->To(message.server);
    calls.push_back(internal::Send(to, std::move(message)));
  }
  return calls;
}

internal::Prepared DenseTable::Prepare(std::optional<Tensor> gradient,
                                       bool pull) {
  const bool push = gradient.has_value();
  internal::Prepared prepared;
  prepared.messages = MessagesOf(std::move(gradient), pull, table_->OwnPart());
  prepared.finish = [table = table_, cut = cut_, push,
                     pull](std::vector<Future<ExchangeReply>> calls) {
    return Finish(table, push, pull, std::move(calls))
        .Then([cut, table,
               pull](const Replies& replies) -> absl::StatusOr<Tensor> {
          if (!pull) return Tensor();
          return Assemble(*cut, table->layout(), replies);
        });
  };
  return prepared;
}

Future<Replies> DenseTable::Exchange(std::optional<Tensor> gradient,
                                     bool pull) {
  const bool push = gradient.has_value();
  absl::Status fit = Check(push ? &*gradient : nullptr);
  if (fit.ok() && push) fit = table_->AwaitRoom(pull && table_->has_clock());
  if (!fit.ok()) return MakeReady<Replies>(fit);
  return Finish(table_, push, pull,
                Send(std::move(gradient), pull, table_->OwnPart()));
}

Future<void> DenseTable::PushShard(const RoundPart& part, Tensor gradient) {
  absl::Status fit = table_->CheckRounds("PushShard");
  if (fit.ok()) fit = CheckGradient(gradient);
  if (!fit.ok()) return MakeReady<void>(fit);
  if (table_->replicated() != nullptr) {
    return table_->replicated()->Watch(
        kPushes, table_->PushPieces(GradientPieces(*table_, part, (*cut_)[0],
                                                   gradient.Contiguous()),
                                    part, /*closes=*/false));
  }
  return table_
      ->Watch("PushShard",
              WhenAllOk(Send(std::move(gradient), /*pull=*/false, part)))
      .Then([table = table_](const Replies& replies) {
        table->NoteLate(replies);
      });
}

Future<void> DenseTable::SetLearningRateScale(
    double scale, std::optional<int64_t> from_round) {
  return table_->SetLearningRateScale(scale, from_round);
}

void DenseTable::EndRound() { table_->EndRound(); }

Future<Tensor> DenseTable::ExchangeReplicated(std::optional<Tensor> gradient,
                                              bool pull) {
  absl::Status fit =
      gradient.has_value() ? CheckGradient(*gradient) : table_->status();
  if (!fit.ok()) return MakeReady<Tensor>(fit);
  std::optional<Future<void>> pushed;
  if (gradient.has_value()) {
    auto pieces = GradientPieces(*table_, table_->OwnPart(), (*cut_)[0],
                                 gradient->Contiguous());
    if (pull) table_->AddTicks(pieces);
    pushed = table_->PushPieces(std::move(pieces), table_->OwnPart(),
                                /*closes=*/true);
    table_->EndRound();
    if (pull) table_->EndStep();
  }
  if (!pull) {
    return table_->replicated()->Watch(kPushes, *std::move(pushed)).Then([] {
      return Tensor();
    });
  }
  return table_->PullPieces(pushed, DenseKeys((*cut_)[0]))
      .Then([cut = cut_, table = table_](const std::vector<Bytes>& values) {
        return AssembleDense((*cut)[0], table->layout(), values);
      });
}

Future<Tensor> DenseTable::PushPull(Tensor gradient) {
  if (table_->replicated() != nullptr) {
    return ExchangeReplicated(std::move(gradient), /*pull=*/true);
  }
  return Exchange(std::move(gradient), /*pull=*/true)
      .Then([cut = cut_, table = table_](const Replies& replies) {
        return Assemble(*cut, table->layout(), replies);
      });
}

Future<Tensor> DenseTable::Pull() {
  if (table_->replicated() != nullptr) {
    return ExchangeReplicated(std::nullopt, /*pull=*/true);
  }
  return Exchange(std::nullopt, /*pull=*/true)
      .Then([cut = cut_, table = table_](const Replies& replies) {
        return Assemble(*cut, table->layout(), replies);
      });
}

Future<void> DenseTable::Push(Tensor gradient) {
  if (table_->replicated() != nullptr) {
    return ExchangeReplicated(std::move(gradient), /*pull=*/false)
        .Then([](const Tensor&) {});
  }
  return Exchange(std::move(gradient), /*pull=*/false).Then([](const Replies&) {
  });
}

}  // namespace weft::ps
