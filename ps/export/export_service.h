// The calls by which others read exported tables: any program with a
// certificate of the job, an rpc::Client too.
//
//   auto client = rpc::Client::Connect(address, options);
//   auto answer = rpc::Call(client->To(), ps::LookUp, "words", keys);
//
// Each finds its ServedExports by CallContext::Local<ServedExports>(); without
// it, it is kFailedPrecondition.

#ifndef WEFT_PS_EXPORT_EXPORT_SERVICE_H_
#define WEFT_PS_EXPORT_EXPORT_SERVICE_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// The largest answer: more keys are asked for in several calls.
inline constexpr int64_t kMostLookUpBytes = int64_t{64} << 20;

// All of one file: the version of the table, the checkpoint that it was
// exported from, values f32 [n, dim], and found u8 [n], 1 where the file has
// the row; else the values are the initializer's.
using LookUpReply = std::tuple<int64_t, std::string, Tensor, Tensor>;

// `keys` i64 [n], 64 bits without a sign; of a dense table the numbers of
// elements, and dim is 1.
//   kNotFound           no such table; names those that there are
//   kInvalidArgument    keys of another dtype or shape
//   kResourceExhausted  the answer would be larger than kMostLookUpBytes
//   kDataLoss           the file was written to in place
absl::StatusOr<LookUpReply> LookUp(rpc::CallContext& context,
                                   const std::string& table,
                                   const Tensor& keys);

// What is served: name, version, checkpoint, rows, dim, of each table.
using ExportDescription =
    std::tuple<std::string, int64_t, std::string, int64_t, int64_t>;
absl::StatusOr<std::vector<ExportDescription>> DescribeExports(
    rpc::CallContext& context);

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_EXPORT_SERVICE_H_
