#include "weft/rpc/session/failure.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "weft/proto/rpc.pb.h"

namespace weft::rpc {
namespace {

constexpr char kUrl[] = "type.googleapis.com/weft.rpc.v1.ErrorDetails";

// The details that another process sent, sanitized.
v1::ErrorDetails DetailsOf(const absl::Status& status) {
  v1::ErrorDetails details;
  const auto payload = status.GetPayload(kUrl);
  if (!payload.has_value()) return details;
  if (!details.ParseFromString(std::string(*payload))) details.Clear();
  return details;
}

void Bound(v1::ErrorDetails* details) {
  auto* failures = details->mutable_failures();
  const int most = static_cast<int>(kMaxFailures);
  if (failures->size() > most) {
    failures->SwapElements(most - 1, failures->size() - 1);
    failures->DeleteSubrange(most, failures->size() - most);
  }
  for (v1::Failure& failure : *failures) {
    if (failure.error().size() > kMaxFailureMessage) {
      failure.mutable_error()->resize(kMaxFailureMessage);
    }
  }
}

absl::Status With(absl::Status status, v1::ErrorDetails details) {
  Bound(&details);
  status.SetPayload(kUrl, absl::Cord(details.SerializeAsString()));
  return status;
}

// One that MarkFailure made, and nobody has named.
bool IsUnnamed(const v1::ErrorDetails& details) {
  return !details.failures().empty() && details.failures(0).worker().empty() &&
         details.failures(0).function().empty();
}

template <typename Enum>
Enum Checked(uint32_t number, int count) {
  return number < static_cast<uint32_t>(count) ? static_cast<Enum>(number)
                                               : Enum::kNone;
}

void PutInFront(v1::Failure failure, v1::ErrorDetails* details) {
  auto* failures = details->mutable_failures();
  *failures->Add() = std::move(failure);
  std::rotate(failures->begin(), failures->end() - 1, failures->end());
}

}  // namespace

const char* NameOf(Phase phase) {
  static constexpr const char* kNames[kPhases] = {
      "none", "queue", "wire", "decode", "handler", "encode"};
  return kNames[static_cast<int>(phase)];
}

const char* NameOf(Reason reason) {
  static constexpr const char* kNames[kReasons] = {
      "none", "peer gone", "unreachable", "forgotten", "shutting down"};
  return kNames[static_cast<int>(reason)];
}

std::vector<Failure> FailuresOf(const absl::Status& status) {
  v1::ErrorDetails details = DetailsOf(status);
  Bound(&details);
  std::vector<Failure> failures;
  for (v1::Failure& from : *details.mutable_failures()) {
    Failure& failure = failures.emplace_back();
    failure.worker = std::move(*from.mutable_worker());
    failure.function = std::move(*from.mutable_function());
    failure.phase = Checked<Phase>(from.phase(), kPhases);
    failure.reason = Checked<Reason>(from.reason(), kReasons);
    failure.code = static_cast<absl::StatusCode>(
        from.code() > 0 && from.code() <= 16 ? from.code() : 2);
    failure.message = std::move(*from.mutable_error());
  }
  return failures;
}

Phase PhaseOf(const absl::Status& status) {
  const v1::ErrorDetails details = DetailsOf(status);
  if (details.failures().empty()) return Phase::kNone;
  return Checked<Phase>(details.failures(0).phase(), kPhases);
}

Reason ReasonOf(const absl::Status& status) {
  const v1::ErrorDetails details = DetailsOf(status);
  if (details.failures().empty()) return Reason::kNone;
  return Checked<Reason>(details.failures(0).reason(), kReasons);
}

bool IsLocal(const absl::Status& status) {
  const v1::ErrorDetails details = DetailsOf(status);
  return !details.failures().empty() && details.failures(0).phase() == 0;
}

absl::Status WithCause(absl::Status status, const absl::Status& cause) {
  if (status.ok()) return status;
  v1::ErrorDetails details = DetailsOf(status);
  details.MergeFrom(DetailsOf(cause));
  return With(std::move(status), std::move(details));
}

namespace internal {

absl::Status MarkFailure(absl::Status status, Phase phase, Reason reason) {
  if (status.ok()) return status;
  v1::ErrorDetails details = DetailsOf(status);
  v1::Failure failure;
  failure.set_phase(static_cast<uint32_t>(phase));
  failure.set_reason(static_cast<uint32_t>(reason));
  if (IsUnnamed(details)) {
    // The reason is known where the error arises, the phase where it ends a
    // call.
    if (reason == Reason::kNone)
      failure.set_reason(details.failures(0).reason());
    *details.mutable_failures(0) = std::move(failure);
  } else {
    PutInFront(std::move(failure), &details);
  }
  return With(std::move(status), std::move(details));
}

absl::Status NameFailure(absl::Status status, const std::string& worker,
                         const std::string& function, Phase phase) {
  if (status.ok()) return status;
  v1::ErrorDetails details = DetailsOf(status);
  if (!IsUnnamed(details)) {
    v1::Failure failure;
    failure.set_phase(static_cast<uint32_t>(phase));
    PutInFront(std::move(failure), &details);
  } else if (details.failures(0).phase() == 0) {
    details.mutable_failures(0)->set_phase(static_cast<uint32_t>(phase));
  }
  v1::Failure& failure = *details.mutable_failures(0);
  failure.set_worker(worker);
  failure.set_function(function);
  failure.set_code(static_cast<int32_t>(status.code()));
  failure.set_error(std::string(status.message()));
  return With(std::move(status), std::move(details));
}

absl::Status ReceiveFailure(absl::Status status, const std::string& worker,
                            const std::string& function, Phase phase) {
  if (status.ok()) return status;
  const v1::ErrorDetails details = DetailsOf(status);
  if (!details.failures().empty() && details.failures(0).worker() == worker &&
      details.failures(0).function() == function) {
    return status;
  }
  return NameFailure(std::move(status), worker, function, phase);
}

}  // namespace internal
}  // namespace weft::rpc
