// NcclFunctions: the functions of NCCL that Weft calls, in one table: those of
// the library on this machine, or of a simulated one (simulated_nccl.h).

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_FUNCTIONS_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_FUNCTIONS_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/collectives/backends/nccl/nccl_abi.h"

namespace weft::collectives {

// Each is named as in nccl.h, without "nccl". The stream that they get is a
// cudaStream_t; of a simulated device the address of its device::Stream.
//
// Thread-safety: as NCCL's: one thread at a time for a communicator.
struct NcclFunctions {
  template <typename... Args>
  using Function = std::function<nccl::Result(Args...)>;

  Function<int*> GetVersion;
  Function<nccl::UniqueId*> GetUniqueId;
  std::function<const char*(nccl::Comm)> GetLastError;
  Function<nccl::Comm*, int, nccl::UniqueId, int, nccl::Config*>
      CommInitRankConfig;
  Function<nccl::Comm, nccl::Result*> CommGetAsyncError;
  Function<nccl::Comm> CommFinalize;
  Function<nccl::Comm> CommDestroy;
  Function<nccl::Comm> CommAbort;
  Function<nccl::RedOp*, void*, nccl::DataType, nccl::ScalarResidence,
           nccl::Comm>
      RedOpCreatePreMulSum;
  Function<nccl::RedOp, nccl::Comm> RedOpDestroy;
  Function<const void*, void*, size_t, nccl::DataType, nccl::RedOp, nccl::Comm,
           nccl::NativeStream>
      AllReduce;
  Function<const void*, void*, size_t, nccl::DataType, int, nccl::Comm,
           nccl::NativeStream>
      Broadcast;
  Function<const void*, void*, size_t, nccl::DataType, nccl::RedOp, int,
           nccl::Comm, nccl::NativeStream>
      Reduce;
  Function<const void*, void*, size_t, nccl::DataType, nccl::Comm,
           nccl::NativeStream>
      AllGather;
  Function<const void*, void*, size_t, nccl::DataType, nccl::RedOp, nccl::Comm,
           nccl::NativeStream>
      ReduceScatter;
  Function<const void*, size_t, nccl::DataType, int, nccl::Comm,
           nccl::NativeStream>
      Send;
  Function<void*, size_t, nccl::DataType, int, nccl::Comm, nccl::NativeStream>
      Recv;
  Function<> GroupStart;
  Function<> GroupEnd;
};

// Calls visit(name, function&) for each of `functions`, with its name in the
// library.
template <typename Functions, typename Visit>
void ForEachNcclFunction(Functions& functions, Visit visit) {
  visit("ncclGetVersion", functions.GetVersion);
  visit("ncclGetUniqueId", functions.GetUniqueId);
  visit("ncclGetLastError", functions.GetLastError);
  visit("ncclCommInitRankConfig", functions.CommInitRankConfig);
  visit("ncclCommGetAsyncError", functions.CommGetAsyncError);
  visit("ncclCommFinalize", functions.CommFinalize);
  visit("ncclCommDestroy", functions.CommDestroy);
  visit("ncclCommAbort", functions.CommAbort);
  visit("ncclRedOpCreatePreMulSum", functions.RedOpCreatePreMulSum);
  visit("ncclRedOpDestroy", functions.RedOpDestroy);
  visit("ncclAllReduce", functions.AllReduce);
  visit("ncclBroadcast", functions.Broadcast);
  visit("ncclReduce", functions.Reduce);
  visit("ncclAllGather", functions.AllGather);
  visit("ncclReduceScatter", functions.ReduceScatter);
  visit("ncclSend", functions.Send);
  visit("ncclRecv", functions.Recv);
  visit("ncclGroupStart", functions.GroupStart);
  visit("ncclGroupEnd", functions.GroupEnd);
}

// Those of the library `file`, which stays loaded. kUnimplemented, with what to
// install: it was not found, or is of a version before 2.18.
absl::StatusOr<NcclFunctions> LoadNccl(const char* file = "libnccl.so.2");

// OK, or what `name` failed with; ask of `comm`, which may be null, what it
// was. kUnavailable: another rank, the network or a lost device
// (ncclRemoteError, ncclSystemError); kInvalidArgument: of the caller; else
// kInternal.
absl::Status NcclStatus(const NcclFunctions& functions, nccl::Result result,
                        absl::string_view name, nccl::Comm comm);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_FUNCTIONS_H_
