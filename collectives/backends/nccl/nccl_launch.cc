#include "weft/collectives/backends/nccl/nccl_launch.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/device/current.h"
#include "weft/tensor/half.h"

namespace weft::collectives {
namespace {

using nccl::DataType;
using nccl::RedOp;
using nccl::Result;

bool Reduces(Verb verb) {
  return verb == Verb::kAllReduce || verb == Verb::kReduce ||
         verb == Verb::kReduceScatter;
}

DataType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return DataType::kFloat32;
    case DType::kF64:
      return DataType::kFloat64;
    case DType::kF16:
      return DataType::kFloat16;
    case DType::kBF16:
      return DataType::kBfloat16;
    case DType::kI64:
      return DataType::kInt64;
    case DType::kI32:
      return DataType::kInt32;
    case DType::kI8:
      return DataType::kInt8;
    case DType::kU8:
    case DType::kBool:
      return DataType::kUint8;
  }
  return DataType::kUint8;
}

RedOp OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
      return RedOp::kProd;
    case ReduceOp::kMin:
      return RedOp::kMin;
    case ReduceOp::kMax:
      return RedOp::kMax;
    case ReduceOp::kAverage:
      return RedOp::kAvg;
    default:
      return RedOp::kSum;
  }
}

bool AreEven(const Blocks& blocks) {
  return std::all_of(blocks.begin(), blocks.end(), [&](const Block& block) {
    return block.elements == blocks[0].elements;
  });
}

// A factor as NCCL reads it: an element of the dtype.
union Factor {
  float f32;
  double f64;
  uint16_t bits;
};

Factor FactorOf(DType dtype, double factor) {
  Factor made = {};
  switch (dtype) {
    case DType::kF64:
      made.f64 = factor;
      break;
    case DType::kF16:
      made.bits = weft::internal::Float16Bits(static_cast<float>(factor));
      break;
    case DType::kBF16:
      made.bits = weft::internal::BFloat16Bits(static_cast<float>(factor));
      break;
    default:
      made.f32 = static_cast<float>(factor);
  }
  return made;
}

// One operation that is being launched.
class Launch {
 public:
  Launch(const NcclPlace& place, const Operation& operation,
         nccl::NativeStream native, DeviceScratch& scratch)
      : f_(place.functions),
        place_(place),
        operation_(operation),
        native_(native),
        scratch_(scratch),
        type_(TypeOf(operation.dtype)) {}

  absl::Status Run(bool with_factors);

 private:
  absl::Status Check(Result result, absl::string_view name) const {
    // Begun: the caller asks the communicator how it went on.
    if (result == Result::kInProgress) return absl::OkStatus();
    return NcclStatus(f_, result, name, place_.comm);
  }
  // Calls `body` between ncclGroupStart and ncclGroupEnd.
  absl::Status InGroup(absl::FunctionRef<absl::Status()> body) const;
  absl::StatusOr<RedOp> MakeOp(bool with_factors);
  absl::Status RunWith(RedOp op);
  absl::Status AllGather();
  absl::Status ReduceScatter(RedOp op);
  absl::Status Gather();
  absl::Status Scatter();
  absl::Status AllToAll();
  absl::Status Send(const Block& block, int to) const;
  absl::Status Receive(const Block& block, int from) const;
  absl::Status Copy(const Block& from, const Block& to) const;
  // Memory for all of `blocks`, side by side.
  absl::StatusOr<Blocks> Allocate(const Blocks& blocks);
  bool AreSideBySide(const Blocks& blocks) const;
  size_t Bytes(const Block& block) const {
    return static_cast<size_t>(operation_.BytesOf(block));
  }
  const Block& own_input() const { return operation_.inputs[0]; }

  const NcclFunctions& f_;
  const NcclPlace& place_;
  const Operation& operation_;
  const nccl::NativeStream native_;
  DeviceScratch& scratch_;
  const DataType type_;
};

absl::Status Launch::InGroup(absl::FunctionRef<absl::Status()> body) const {
  WEFT_RETURN_IF_ERROR(Check(f_.GroupStart(), "ncclGroupStart"));
  const absl::Status status = body();
  // Also after an error: groups are counted by thread.
  const absl::Status ended = Check(f_.GroupEnd(), "ncclGroupEnd");
  return status.ok() ? ended : status;
}

absl::StatusOr<RedOp> Launch::MakeOp(bool with_factors) {
  const Reduction& reduction = operation_.reduction;
  if (!with_factors || !IsFloating(operation_.dtype)) {
    return OpOf(reduction.op);
  }
  const double ranks =
      reduction.op == ReduceOp::kAverage ? static_cast<double>(place_.size) : 1;
  Factor factor = FactorOf(operation_.dtype, reduction.factor / ranks);
  RedOp op = RedOp::kSum;
  WEFT_RETURN_IF_ERROR(
      Check(f_.RedOpCreatePreMulSum(&op, &factor, type_,
                                    nccl::ScalarResidence::kHostImmediate,
                                    place_.comm),
            "ncclRedOpCreatePreMulSum"));
  return op;
}

absl::Status Launch::Run(bool with_factors) {
  if (!Reduces(operation_.verb)) return RunWith(RedOp::kSum);
  WEFT_ASSIGN_OR_RETURN(const RedOp op, MakeOp(with_factors));
  const absl::Status status = RunWith(op);
  if (static_cast<int>(op) < nccl::kNumRedOps) return status;
  // What has been launched keeps its factor.
  const absl::Status destroyed =
      Check(f_.RedOpDestroy(op, place_.comm), "ncclRedOpDestroy");
  return status.ok() ? destroyed : status;
}

absl::Status Launch::RunWith(RedOp op) {
  const Blocks& in = operation_.inputs;
  const Blocks& out = operation_.outputs;
  switch (operation_.verb) {
    case Verb::kAllReduce:
      return Check(f_.AllReduce(in[0].memory, out[0].memory, in[0].elements,
                                type_, op, place_.comm, native_),
                   "ncclAllReduce");
    case Verb::kReduce:
      return Check(
          f_.Reduce(in[0].memory,
                    place_.rank == operation_.root ? out[0].memory : nullptr,
                    in[0].elements, type_, op, operation_.root, place_.comm,
                    native_),
          "ncclReduce");
    case Verb::kBroadcast:
      return Check(
          f_.Broadcast(out[0].memory, out[0].memory, Bytes(out[0]),
                       DataType::kUint8, operation_.root, place_.comm, native_),
          "ncclBroadcast");
    case Verb::kAllGather:
      return AllGather();
    case Verb::kReduceScatter:
      return ReduceScatter(op);
    case Verb::kGather:
      return Gather();
    case Verb::kScatter:
      return Scatter();
    case Verb::kAllToAll:
      return AllToAll();
    case Verb::kSend:
      return InGroup([&] { return Send(in[0], operation_.root); });
    case Verb::kReceive:
      return InGroup([&] { return Receive(out[0], operation_.root); });
    default:
      return absl::InternalError(
          absl::StrCat(Name(operation_.verb), " is not run by NCCL"));
  }
}

bool Launch::AreSideBySide(const Blocks& blocks) const {
  const std::byte* end = blocks[0].memory;
  for (const Block& block : blocks) {
    if (block.memory != end) return false;
    end += Bytes(block);
  }
  return true;
}

absl::StatusOr<Blocks> Launch::Allocate(const Blocks& blocks) {
  int64_t total = 0;
  for (const Block& block : blocks) total += operation_.BytesOf(block);
  // For work on this stream, behind which it is used again.
  const device::StreamScope current(place_.stream);
  WEFT_ASSIGN_OR_RETURN(
      std::shared_ptr<device::Block> memory,
      device::Block::Allocate(place_.context, place_.stream.device().index,
                              total));
  auto* at = static_cast<std::byte*>(memory->address());
  scratch_.memory.push_back(std::move(memory));
  Blocks made;
  for (const Block& block : blocks) {
    made.push_back({at, block.elements});
    at += Bytes(block);
  }
  return made;
}

absl::Status Launch::Copy(const Block& from, const Block& to) const {
  if (from.memory == to.memory || from.elements == 0) return absl::OkStatus();
  return place_.stream.runtime().CopyAsync(
      to.memory, from.memory, operation_.BytesOf(from), place_.stream);
}

absl::Status Launch::AllGather() {
  const Blocks& out = operation_.outputs;
  if (AreEven(out)) {
    Blocks parts = out;
    const bool is_whole = AreSideBySide(out);
    if (!is_whole) {
      WEFT_ASSIGN_OR_RETURN(parts, Allocate(out));
    }
    WEFT_RETURN_IF_ERROR(Check(
        f_.AllGather(own_input().memory, parts[0].memory, Bytes(own_input()),
                     DataType::kUint8, place_.comm, native_),
        "ncclAllGather"));
    for (size_t r = 0; !is_whole && r < out.size(); ++r) {
      scratch_.copies.push_back(
          {parts[r].memory, out[r].memory, operation_.BytesOf(out[r])});
    }
    return absl::OkStatus();
  }
  return InGroup([&]() -> absl::Status {
    for (int r = 0; r < place_.size; ++r) {
      if (out[r].elements == 0) continue;
      const void* const from =
          r == place_.rank ? own_input().memory : out[r].memory;
      WEFT_RETURN_IF_ERROR(
          Check(f_.Broadcast(from, out[r].memory, Bytes(out[r]),
                             DataType::kUint8, r, place_.comm, native_),
                "ncclBroadcast"));
    }
    return absl::OkStatus();
  });
}

absl::Status Launch::ReduceScatter(RedOp op) {
  const Blocks& in = operation_.inputs;
  const Block& out = operation_.outputs[0];
  if (AreEven(in)) {
    Blocks parts = in;
    if (!AreSideBySide(in)) {
      WEFT_ASSIGN_OR_RETURN(parts, Allocate(in));
      for (size_t r = 0; r < in.size(); ++r) {
        WEFT_RETURN_IF_ERROR(Copy(in[r], parts[r]));
      }
    }
    return Check(f_.ReduceScatter(parts[0].memory, out.memory, out.elements,
                                  type_, op, place_.comm, native_),
                 "ncclReduceScatter");
  }
  return InGroup([&]() -> absl::Status {
    for (int r = 0; r < place_.size; ++r) {
      if (in[r].elements == 0) continue;
      WEFT_RETURN_IF_ERROR(
          Check(f_.Reduce(in[r].memory, r == place_.rank ? out.memory : nullptr,
                          in[r].elements, type_, op, r, place_.comm, native_),
                "ncclReduce"));
    }
    return absl::OkStatus();
  });
}

absl::Status Launch::Send(const Block& block, int to) const {
  if (block.elements == 0) return absl::OkStatus();
  return Check(f_.Send(block.memory, Bytes(block), DataType::kUint8, to,
                       place_.comm, native_),
               "ncclSend");
}

absl::Status Launch::Receive(const Block& block, int from) const {
  if (block.elements == 0) return absl::OkStatus();
  return Check(f_.Recv(block.memory, Bytes(block), DataType::kUint8, from,
                       place_.comm, native_),
               "ncclRecv");
}

absl::Status Launch::Gather() {
  if (place_.rank != operation_.root) {
    return InGroup([&] { return Send(own_input(), operation_.root); });
  }
  const Blocks& out = operation_.outputs;
  WEFT_RETURN_IF_ERROR(Copy(own_input(), out[place_.rank]));
  return InGroup([&]() -> absl::Status {
    for (int r = 0; r < place_.size; ++r) {
      if (r != place_.rank) WEFT_RETURN_IF_ERROR(Receive(out[r], r));
    }
    return absl::OkStatus();
  });
}

absl::Status Launch::Scatter() {
  const Block& out = operation_.outputs[0];
  if (place_.rank != operation_.root) {
    return InGroup([&] { return Receive(out, operation_.root); });
  }
  const Blocks& in = operation_.inputs;
  WEFT_RETURN_IF_ERROR(Copy(in[place_.rank], out));
  return InGroup([&]() -> absl::Status {
    for (int r = 0; r < place_.size; ++r) {
      if (r != place_.rank) WEFT_RETURN_IF_ERROR(Send(in[r], r));
    }
    return absl::OkStatus();
  });
}

absl::Status Launch::AllToAll() {
  const Blocks& out = operation_.outputs;
  Blocks in = operation_.inputs;
  // What is received must not fall on what is still to be sent.
  for (size_t r = 0; r < in.size(); ++r) {
    if (in[r].elements == 0 || in[r].memory != out[r].memory) continue;
    WEFT_ASSIGN_OR_RETURN(const Blocks copies, Allocate(in));
    for (size_t i = 0; i < in.size(); ++i) {
      WEFT_RETURN_IF_ERROR(Copy(in[i], copies[i]));
    }
    in = copies;
    break;
  }
  WEFT_RETURN_IF_ERROR(Copy(in[place_.rank], out[place_.rank]));
  return InGroup([&]() -> absl::Status {
    for (int r = 0; r < place_.size; ++r) {
      if (r == place_.rank) continue;
      WEFT_RETURN_IF_ERROR(Send(in[r], r));
      WEFT_RETURN_IF_ERROR(Receive(out[r], r));
    }
    return absl::OkStatus();
  });
}

}  // namespace

bool IsOfNccl(const Operation& operation) {
  const ReduceOp op = operation.reduction.op;
  switch (operation.verb) {
    case Verb::kAllReduce:
    case Verb::kReduce:
    case Verb::kReduceScatter:
      if (operation.dtype == DType::kBool) return false;
      if (op == ReduceOp::kSum || op == ReduceOp::kAverage) return true;
      return !IsFloating(operation.dtype) &&
             (op == ReduceOp::kProduct || op == ReduceOp::kMin ||
              op == ReduceOp::kMax);
    case Verb::kBroadcast:
    case Verb::kAllGather:
    case Verb::kGather:
    case Verb::kScatter:
    case Verb::kAllToAll:
      return true;
    default:
      return false;
  }
}

absl::Status LaunchOnNccl(const NcclPlace& place, const Operation& operation,
                          bool with_factors, nccl::NativeStream native,
                          DeviceScratch& scratch) {
  return Launch(place, operation, native, scratch).Run(with_factors);
}

}  // namespace weft::collectives
