// The functions of a simulated NCCL.

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/collectives/backends/nccl/simulated_nccl_state.h"
#include "weft/tensor/half.h"

namespace weft::collectives {

using namespace simulated;  // NOLINT: the types of the state

namespace {

using State = SimulatedNccl::State;

// The factor that lies at `scalar`.
double FactorAt(const void* scalar, DataType type) {
  uint16_t bits = 0;
  float f32 = 0;
  double f64 = 0;
  switch (type) {
    case DataType::kFloat64:
      memcpy(&f64, scalar, sizeof f64);
      return f64;
    case DataType::kFloat16:
      memcpy(&bits, scalar, sizeof bits);
      return weft::internal::FloatOfFloat16(bits);
    case DataType::kBfloat16:
      memcpy(&bits, scalar, sizeof bits);
      return weft::internal::FloatOfBFloat16(bits);
    default:
      memcpy(&f32, scalar, sizeof f32);
      return f32;
  }
}

// `body`, which begins with the fault that a test asked for.
template <typename Body>
auto WithFault(std::shared_ptr<State> self, int process, std::string name,
               Body body) {
  return [=](auto... args) {
    const Result fault = self->TakeFault(process, name);
    return fault != Result::kSuccess ? fault : body(args...);
  };
}

size_t ItemOf(DataType type) {
  return static_cast<size_t>(ItemSize(DTypeOf(type)));
}

}  // namespace

void SimulatedNccl::State::FillCommunicators(int process, NcclFunctions& f) {
  const auto self = shared_from_this();
  f.GetVersion = [](int* version) {
    *version = 22809;
    return Result::kSuccess;
  };
  f.GetLastError = [self, process](nccl::Comm) {
    MutexLock lock(self->mu);
    return self->processes[process].last_error.c_str();
  };
  f.GetUniqueId =
      WithFault(self, process, "ncclGetUniqueId", [self](nccl::UniqueId* id) {
        MutexLock lock(self->mu);
        *id = {};
        const std::string text = absl::StrCat("simulated ", self->next_id++);
        memcpy(id->bytes, text.data(), text.size());
        return Result::kSuccess;
      });
  f.CommInitRankConfig =
      WithFault(self, process, "ncclCommInitRankConfig",
                [self, process](nccl::Comm* comm, int size, nccl::UniqueId id,
                                int rank, nccl::Config* config) {
                  if (config->blocking != 0) return Result::kInvalidUsage;
                  return self->Init(process, comm, size, id, rank);
                });
  f.CommGetAsyncError = WithFault(
      self, process, "ncclCommGetAsyncError",
      [self](nccl::Comm comm, Result* r) { return self->AsyncError(comm, r); });
  f.CommFinalize =
      WithFault(self, process, "ncclCommFinalize",
                [self](nccl::Comm comm) { return self->Finalize(comm); });
  f.CommDestroy = WithFault(
      self, process, "ncclCommDestroy",
      [self](nccl::Comm comm) { return self->End(comm, /*is_abort=*/false); });
  f.CommAbort = WithFault(
      self, process, "ncclCommAbort",
      [self](nccl::Comm comm) { return self->End(comm, /*is_abort=*/true); });
  f.RedOpCreatePreMulSum =
      WithFault(self, process, "ncclRedOpCreatePreMulSum",
                [self](RedOp* op, void* scalar, DataType type,
                       nccl::ScalarResidence, nccl::Comm comm) {
                  const auto endpoint = self->Find(comm);
                  if (endpoint == nullptr) return Result::kInvalidArgument;
                  MutexLock lock(self->mu);
                  int made = nccl::kNumRedOps;
                  while (endpoint->factors.count(made) > 0) ++made;
                  endpoint->factors[made] = FactorAt(scalar, type);
                  *op = static_cast<RedOp>(made);
                  return Result::kSuccess;
                });
  f.RedOpDestroy = WithFault(
      self, process, "ncclRedOpDestroy", [self](RedOp op, nccl::Comm comm) {
        const auto endpoint = self->Find(comm);
        if (endpoint == nullptr) return Result::kInvalidArgument;
        MutexLock lock(self->mu);
        return endpoint->factors.erase(static_cast<int>(op)) > 0
                   ? Result::kSuccess
                   : Result::kInvalidArgument;
      });
}

void SimulatedNccl::State::FillCollectives(int process, NcclFunctions& f) {
  const auto self = shared_from_this();
  const auto collect = [self, process](Kind kind, const void* from, void* to,
                                       size_t count, DataType type, RedOp op,
                                       int root, nccl::Comm comm, void* stream,
                                       size_t sent, size_t taken) {
    Part part;
    part.signature = {kind, count, type, false, op, root};
    part.from = static_cast<const char*>(from);
    part.to = static_cast<char*>(to);
    return self->Collect(process, comm, stream, part, sent, taken, op);
  };
  f.AllReduce = WithFault(
      self, process, "ncclAllReduce",
      [=](const void* from, void* to, size_t n, DataType type, RedOp op,
          nccl::Comm comm, void* stream) {
        return collect(Kind::kAllReduce, from, to, n, type, op, 0, comm, stream,
                       n * ItemOf(type), n * ItemOf(type));
      });
  f.Reduce = WithFault(self, process, "ncclReduce",
                       [=](const void* from, void* to, size_t n, DataType type,
                           RedOp op, int root, nccl::Comm comm, void* stream) {
                         return collect(Kind::kReduce, from, to, n, type, op,
                                        root, comm, stream, n * ItemOf(type),
                                        n * ItemOf(type));
                       });
  f.Broadcast = WithFault(
      self, process, "ncclBroadcast",
      [=](const void* from, void* to, size_t n, DataType type, int root,
          nccl::Comm comm, void* stream) {
        return collect(Kind::kBroadcast, from, to, n, type, RedOp::kSum, root,
                       comm, stream, n * ItemOf(type), n * ItemOf(type));
      });
  f.AllGather =
      WithFault(self, process, "ncclAllGather",
                [=](const void* from, void* to, size_t n, DataType type,
                    nccl::Comm comm, void* stream) {
                  const auto endpoint = self->Find(comm);
                  if (endpoint == nullptr) return Result::kInvalidArgument;
                  return collect(Kind::kAllGather, from, to, n, type,
                                 RedOp::kSum, 0, comm, stream, n * ItemOf(type),
                                 n * ItemOf(type) * endpoint->clique->size);
                });
  f.ReduceScatter = WithFault(
      self, process, "ncclReduceScatter",
      [=](const void* from, void* to, size_t n, DataType type, RedOp op,
          nccl::Comm comm, void* stream) {
        const auto endpoint = self->Find(comm);
        if (endpoint == nullptr) return Result::kInvalidArgument;
        return collect(Kind::kReduceScatter, from, to, n, type, op, 0, comm,
                       stream, n * ItemOf(type) * endpoint->clique->size,
                       n * ItemOf(type));
      });
}

void SimulatedNccl::State::FillMessages(int process, NcclFunctions& f) {
  const auto self = shared_from_this();
  const auto message = [self, process](bool is_send, void* memory, size_t n,
                                       DataType type, int peer, nccl::Comm comm,
                                       void* stream) {
    Message made;
    made.peer = peer;
    made.from = static_cast<const char*>(memory);
    made.to = static_cast<char*>(memory);
    made.bytes = n * ItemOf(type);
    return self->AddMessage(process, comm, stream, is_send, made);
  };
  f.Send = WithFault(self, process, "ncclSend",
                     [=](const void* from, size_t n, DataType type, int peer,
                         nccl::Comm comm, void* stream) {
                       return message(true, const_cast<void*>(from), n, type,
                                      peer, comm, stream);
                     });
  f.Recv = WithFault(self, process, "ncclRecv",
                     [=](void* to, size_t n, DataType type, int peer,
                         nccl::Comm comm, void* stream) {
                       return message(false, to, n, type, peer, comm, stream);
                     });
  f.GroupStart = WithFault(self, process, "ncclGroupStart", [self, process] {
    MutexLock lock(self->mu);
    ++self->processes[process].groups[std::this_thread::get_id()].depth;
    return Result::kSuccess;
  });
  f.GroupEnd = WithFault(self, process, "ncclGroupEnd",
                         [self, process] { return self->EndGroup(process); });
}

}  // namespace weft::collectives
