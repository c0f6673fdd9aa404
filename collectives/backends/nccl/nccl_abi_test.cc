// Whether nccl_abi.h and nccl_functions.h are what NCCL's own header says.

#include "weft/collectives/backends/nccl/nccl_abi.h"

#include <nccl.h>

#include <cstddef>
#include <functional>
#include <type_traits>

#include "gtest/gtest.h"
#include "weft/collectives/backends/nccl/nccl_functions.h"

namespace weft::collectives {
namespace {

// Whether a caller that knows A passes what a callee that has B takes.
template <typename A, typename B>
constexpr bool PassesAs() {
  if (std::is_pointer_v<A> || std::is_pointer_v<B>) {
    return std::is_pointer_v<A> && std::is_pointer_v<B>;
  }
  if (std::is_class_v<A> || std::is_class_v<B>) {
    return std::is_class_v<A> && std::is_class_v<B> && sizeof(A) == sizeof(B);
  }
  return sizeof(A) == sizeof(B) &&
         std::is_floating_point_v<A> == std::is_floating_point_v<B>;
}

template <typename Ours, typename Theirs>
struct IsSame : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct IsSame<std::function<R(A...)>, S(B...)> {
  static constexpr bool Check() {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return PassesAs<R, S>() && (... && PassesAs<A, B>());
    } else {
      return false;
    }
  }
};

#define WEFT_SAME(name)                                                        \
  static_assert(IsSame<decltype(NcclFunctions::name),                          \
                       std::remove_pointer_t<decltype(&nccl##name)>>::Check(), \
                #name)

WEFT_SAME(GetVersion);
WEFT_SAME(GetUniqueId);
WEFT_SAME(GetLastError);
WEFT_SAME(CommInitRankConfig);
WEFT_SAME(CommGetAsyncError);
WEFT_SAME(CommFinalize);
WEFT_SAME(CommDestroy);
WEFT_SAME(CommAbort);
WEFT_SAME(RedOpCreatePreMulSum);
WEFT_SAME(RedOpDestroy);
WEFT_SAME(AllReduce);
WEFT_SAME(Broadcast);
WEFT_SAME(Reduce);
WEFT_SAME(AllGather);
WEFT_SAME(ReduceScatter);
WEFT_SAME(Send);
WEFT_SAME(Recv);
WEFT_SAME(GroupStart);
WEFT_SAME(GroupEnd);

template <typename A, typename B>
constexpr bool AreEqual(A ours, B theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(AreEqual(nccl::Result::kSuccess, ncclSuccess));
static_assert(AreEqual(nccl::Result::kUnhandledCudaError,
                       ncclUnhandledCudaError));
static_assert(AreEqual(nccl::Result::kSystemError, ncclSystemError));
static_assert(AreEqual(nccl::Result::kInternalError, ncclInternalError));
static_assert(AreEqual(nccl::Result::kInvalidArgument, ncclInvalidArgument));
static_assert(AreEqual(nccl::Result::kInvalidUsage, ncclInvalidUsage));
static_assert(AreEqual(nccl::Result::kRemoteError, ncclRemoteError));
static_assert(AreEqual(nccl::Result::kInProgress, ncclInProgress));

static_assert(AreEqual(nccl::DataType::kInt8, ncclInt8));
static_assert(AreEqual(nccl::DataType::kUint8, ncclUint8));
static_assert(AreEqual(nccl::DataType::kInt32, ncclInt32));
static_assert(AreEqual(nccl::DataType::kInt64, ncclInt64));
static_assert(AreEqual(nccl::DataType::kFloat16, ncclFloat16));
static_assert(AreEqual(nccl::DataType::kFloat32, ncclFloat32));
static_assert(AreEqual(nccl::DataType::kFloat64, ncclFloat64));
static_assert(AreEqual(nccl::DataType::kBfloat16, ncclBfloat16));

static_assert(AreEqual(nccl::RedOp::kSum, ncclSum));
static_assert(AreEqual(nccl::RedOp::kProd, ncclProd));
static_assert(AreEqual(nccl::RedOp::kMax, ncclMax));
static_assert(AreEqual(nccl::RedOp::kMin, ncclMin));
static_assert(AreEqual(nccl::RedOp::kAvg, ncclAvg));
static_assert(nccl::kNumRedOps == ncclNumOps);
static_assert(AreEqual(nccl::ScalarResidence::kDevice, ncclScalarDevice));
static_assert(AreEqual(nccl::ScalarResidence::kHostImmediate,
                       ncclScalarHostImmediate));

static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId));
static_assert(nccl::Config::kUndefined == NCCL_CONFIG_UNDEF_INT);

#define WEFT_SAME_FIELD(ours, theirs) \
  static_assert(offsetof(nccl::Config, ours) == offsetof(ncclConfig_t, theirs))
WEFT_SAME_FIELD(size, size);
WEFT_SAME_FIELD(magic, magic);
WEFT_SAME_FIELD(version, version);
WEFT_SAME_FIELD(blocking, blocking);
WEFT_SAME_FIELD(cga_cluster_size, cgaClusterSize);
WEFT_SAME_FIELD(min_ctas, minCTAs);
WEFT_SAME_FIELD(max_ctas, maxCTAs);
WEFT_SAME_FIELD(net_name, netName);
WEFT_SAME_FIELD(split_share, splitShare);

TEST(NcclAbi, ConfigEndsWithItsLastField) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const nccl::Config ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.size, offsetof(ncclConfig_t, trafficClass));
  EXPECT_EQ(ours.version, static_cast<unsigned>(NCCL_VERSION(2, 18, 0)));
}

}  // namespace
}  // namespace weft::collectives
