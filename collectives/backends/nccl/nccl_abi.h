// The types of NCCL 2 as its functions take them, declared here so that a build
// needs no header of NCCL: nccl_abi_test compares them with nccl.h where the
// toolkit is installed.
//
// Source: nccl.h of NCCL 2.28.9. The fields of Config are those of 2.18, which
// later versions take by their size.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_ABI_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_ABI_H_

#include <climits>
#include <cstddef>

#include "weft/collectives/backends/device/communicator_id.h"

namespace weft::collectives::nccl {

struct Communicator;         // opaque: what ncclComm_t points to
using Comm = Communicator*;  // ncclComm_t
using NativeStream = void*;  // cudaStream_t

using UniqueId = CommunicatorId;

enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

// What RedOpCreatePreMulSum makes is another value of it.
enum class RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };
inline constexpr int kNumRedOps = 5;

// Where the factor of a RedOpCreatePreMulSum lies.
enum class ScalarResidence : int { kDevice = 0, kHostImmediate = 1 };

struct Config {
  static constexpr int kUndefined = INT_MIN;

  // To the end of the last field, without padding: what comes after it in
  // later versions keeps its default.
  size_t size = offsetof(Config, split_share) + sizeof(int);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

}  // namespace weft::collectives::nccl

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_ABI_H_
