#include "weft/ps/export/export_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/ps/export/served_exports.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/function.h"

namespace weft::ps {
namespace {

absl::StatusOr<ServedExports*> ExportsOf(const rpc::CallContext& context) {
  if (auto* exports = context.Local<ServedExports>()) return exports;
  return absl::FailedPreconditionError(absl::StrCat(
      "'", context.agent().name(),
      "' serves no exported tables; ask a process of weft ckpt serve"));
}

}  // namespace

absl::StatusOr<LookUpReply> LookUp(rpc::CallContext& context,
                                   const std::string& table,
                                   const Tensor& keys) {
  WEFT_ASSIGN_OR_RETURN(ServedExports* const exports, ExportsOf(context));
  WEFT_ASSIGN_OR_RETURN(const ServedExports::Table found, exports->Find(table));
  if (!keys.defined() || keys.dtype() != DType::kI64 || keys.dim() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "LookUp of table '", table, "': wanted keys i64[n], found ",
        keys.defined() ? keys.Describe() : "no tensor"));
  }
  const int64_t n = keys.numel();
  const int64_t row_bytes = found->dim() * 4 + 1;
  if (n > kMostLookUpBytes / row_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "LookUp of table '", table, "': ", n, " keys, wanted at most ",
        kMostLookUpBytes / row_bytes, " in one call, of ", row_bytes,
        " bytes each; ask for them in several"));
  }
  const Tensor flat = keys.Contiguous();
  const Tensor values = Tensor::Empty({n, found->dim()}, DType::kF32);
  const Tensor is_found = Tensor::Empty({n}, DType::kU8);
  WEFT_RETURN_IF_ERROR(
      found
          ->LookUp({reinterpret_cast<const uint64_t*>(flat.data<int64_t>()),
                    static_cast<size_t>(n)},
                   {values.data<float>(), static_cast<size_t>(values.numel())},
                   {is_found.data<uint8_t>(), static_cast<size_t>(n)})
          .status());
  return LookUpReply(found->version(), found->checkpoint(), values, is_found);
}
WEFT_RPC_IDEMPOTENT(LookUp);
WEFT_RPC_ROLES(LookUp, "client", "trainer", "ps", "admin");

absl::StatusOr<std::vector<ExportDescription>> DescribeExports(
    rpc::CallContext& context) {
  WEFT_ASSIGN_OR_RETURN(const ServedExports* exports, ExportsOf(context));
  std::vector<ExportDescription> all;
  for (const ServedExports::Table& table : exports->tables()) {
    all.emplace_back(table->name(), table->version(), table->checkpoint(),
                     table->rows(), table->dim());
  }
  return all;
}
WEFT_RPC_IDEMPOTENT(DescribeExports);
WEFT_RPC_ROLES(DescribeExports, "client", "trainer", "ps", "admin");

}  // namespace weft::ps
