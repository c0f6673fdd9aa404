#include "weft/ps/embedding/hybrid_step.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"

namespace weft::ps {
namespace {

// A code in one byte, and the message.
std::string Encode(const absl::Status& status) {
  if (status.ok()) return "";
  std::string bytes(1, static_cast<char>(status.code()));
  bytes.append(status.message().data(), status.message().size());
  return bytes;
}

absl::Status Decode(absl::string_view bytes) {
  if (bytes.empty()) return absl::OkStatus();
  const int code = static_cast<uint8_t>(bytes[0]);
  return absl::Status(code > 0 && code <= 16
                          ? static_cast<absl::StatusCode>(code)
                          : absl::StatusCode::kUnknown,
                      bytes.substr(1));
}

absl::Status Prefixed(absl::string_view what, const absl::Status& status) {
  return Reworded(status, absl::StrCat(what, status.message()));
}

}  // namespace

HybridStep::HybridStep(const HybridParts& parts) : parts_(parts) {
  WEFT_CHECK(parts.optimizer != nullptr);
  WEFT_CHECK(parts.lookups != nullptr);
}

absl::Status HybridStep::Step(const Variable& loss) {
  return Run(CatchToStatus([&] { loss.Backward(); }), /*has_data=*/true);
}

absl::Status HybridStep::StepWithoutData() {
  if (parts_.ddp == nullptr) {
    return absl::FailedPreconditionError(
        "HybridStep::StepWithoutData: there is no DistributedDataParallel, so "
        "no other rank has data either");
  }
  return Run(parts_.ddp->ContributeNothing(), /*has_data=*/false);
}

absl::Status HybridStep::CheckDense() const {
  return parts_.optimizer->Check(
      [](const optimizer::Parameter& parameter) {
        return parameter.variable.gradient();
      },
      optimizer::Finite::kRequired);
}

absl::Status HybridStep::Agree(const absl::Status& own) const {
  if (parts_.group == nullptr || parts_.group->size() == 1) return own;
  const auto all = parts_.group->AllGatherBytes(Encode(own));
  if (!own.ok()) return own;
  if (!all.ok()) return Prefixed("agreeing on a step: ", all.status());
  for (size_t rank = 0; rank < all->size(); ++rank) {
    const absl::Status status = Decode((*all)[rank]);
    if (!status.ok())
      return Prefixed(absl::StrCat("rank ", rank, ": "), status);
  }
  return absl::OkStatus();
}

absl::Status HybridStep::Run(const absl::Status& backward, bool has_data) {
  Lookups& lookups = *parts_.lookups;
  const auto step = [&]() -> absl::Status {
    absl::Status ready = backward;
    if (ready.ok()) ready = CheckDense();
    if (ready.ok()) {
      ready = has_data ? lookups.Check() : lookups.CheckNothing();
    }
    WEFT_RETURN_IF_ERROR(Prefixed("no rank has stepped: ", Agree(ready)));
    WEFT_RETURN_IF_ERROR(
        Prefixed("tables may have changed, and no dense parameter has: ",
                 Agree(has_data ? lookups.Commit() : lookups.CommitNothing())));
    return parts_.optimizer->Step();
  };
  const absl::Status status = step();
  if (!status.ok()) lookups.Abort();
  parts_.optimizer->ZeroGrad();
  return status;
}

}  // namespace weft::ps
