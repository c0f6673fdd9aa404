#include "weft/collectives/backends/library/library_backend.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/algorithms/direct.h"
#include "weft/collectives/algorithms/run_over_link.h"
#include "weft/collectives/backends/stream/mesh.h"
#include "weft/collectives/backends/stream/stream_backend.h"

namespace weft::collectives {
namespace {

// How long a rank that leaves waits for its last messages to be taken, and for
// those of the others, which may say that its last operation differs.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);
// How long a rank whose library call failed waits to learn which rank is why.
constexpr absl::Duration kCauseTimeout = absl::Seconds(2);

// Whether the library does it. Every rank finds the same: verb and counts are
// compared before.
bool IsOfLibrary(const Operation& operation) {
  switch (operation.verb) {
    case Verb::kAllReduce:
    case Verb::kReduce:
      return operation.inputs[0].elements > 0;
    case Verb::kBroadcast:
      return operation.outputs[0].elements > 0;
    case Verb::kAllGather:
      return std::any_of(operation.outputs.begin(), operation.outputs.end(),
                         [](const Block& block) { return block.elements > 0; });
    default:
      return false;
  }
}

}  // namespace

absl::Status LibraryBackend::Run(const Operation& operation) {
  return RunWith(operation, [&](Link& link) -> absl::Status {
    if (size() == 1 || !IsOfLibrary(operation)) {
      return RunOverLink(link, operation, StreamCost());
    }
    WEFT_RETURN_IF_ERROR(DisseminationBarrier(link));
    return RunInLibrary(operation);
  });
}

absl::Status LibraryBackend::RunInLibrary(const Operation& operation) {
  const Block& output =
      operation.outputs.empty() ? Block() : operation.outputs[0];
  switch (operation.verb) {
    case Verb::kAllReduce:
      return RunAllReduce(operation);
    case Verb::kReduce:
      return RunReduce(operation);
    case Verb::kBroadcast:
      return Broadcast(
          operation, absl::MakeSpan(output.memory, operation.BytesOf(output)));
    case Verb::kAllGather:
      return RunAllGather(operation);
    default:
      return absl::InternalError(
          absl::StrCat(Name(operation.verb), " is not run by a library"));
  }
}

absl::Status LibraryBackend::RunAllReduce(const Operation& operation) {
  const DType dtype = operation.dtype;
  const Block& in = operation.inputs[0];
  const Block& out = operation.outputs[0];
  std::vector<std::byte> wide;  // where accumulators are no elements
  Accumulators accumulators = {out.memory, in.elements};
  if (AccumulatorBytes(dtype) != ItemSize(dtype)) {
    wide.resize(in.elements * AccumulatorBytes(dtype));
    accumulators.memory = wide.data();
  }
  LoadElements(dtype, operation.reduction, in.memory, accumulators.memory,
               in.elements);
  WEFT_RETURN_IF_ERROR(AllReduce(operation, accumulators));
  StoreElements(dtype, operation.reduction.op, size(), accumulators.memory,
                out.memory, in.elements);
  return absl::OkStatus();
}

absl::Status LibraryBackend::RunReduce(const Operation& operation) {
  const DType dtype = operation.dtype;
  const Block& in = operation.inputs[0];
  std::vector<std::byte> accumulators(in.elements * AccumulatorBytes(dtype));
  LoadElements(dtype, operation.reduction, in.memory, accumulators.data(),
               in.elements);
  WEFT_RETURN_IF_ERROR(Reduce(operation, {accumulators.data(), in.elements}));
  if (rank() != operation.root) return absl::OkStatus();
  StoreElements(dtype, operation.reduction.op, size(), accumulators.data(),
                operation.outputs[0].memory, in.elements);
  return absl::OkStatus();
}

absl::Status LibraryBackend::RunAllGather(const Operation& operation) {
  CopyBlock(operation, operation.inputs[0], operation.outputs[rank()]);
  std::vector<size_t> counts;
  size_t total = 0;
  bool is_whole = true;  // the blocks lie one behind the other
  for (const Block& block : operation.outputs) {
    is_whole = is_whole && block.memory == operation.outputs[0].memory + total;
    counts.push_back(operation.BytesOf(block));
    total += counts.back();
  }
  if (is_whole) {
    return AllGather(operation, operation.outputs[0].memory, counts);
  }
  std::vector<std::byte> all(total);
  size_t at = 0;
  for (int r = 0; r < size(); ++r) {
    const Block& block = operation.outputs[r];
    if (r == rank() && counts[r] > 0) {
      memcpy(all.data() + at, block.memory, counts[r]);
    }
    at += counts[r];
  }
  WEFT_RETURN_IF_ERROR(AllGather(operation, all.data(), counts));
  at = 0;
  for (int r = 0; r < size(); ++r) {
    const Block& block = operation.outputs[r];
    if (counts[r] > 0) memcpy(block.memory, all.data() + at, counts[r]);
    at += counts[r];
  }
  return absl::OkStatus();
}

void LibraryBackend::Leave() {
  mesh().Leave();
  const Instant until = driver().clock().Now() + kLeaveTimeout;
  while (!mesh().IsSettled() && driver().clock().Now() < until) {
    absl::SleepFor(absl::Milliseconds(1));
  }
}

absl::Status LibraryBackend::FailureOf(const Operation& operation,
                                       absl::string_view what) {
  WEFT_RETURN_IF_ERROR(health());
  const Instant now = driver().clock().Now();
  if (now >= operation.deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat("all ranks have called it, and ", name(),
                     " has not ended it in time on rank ", rank(), ": ", what));
  }
  WEFT_RETURN_IF_ERROR(mesh().AwaitFailure(
      operation, std::min(operation.deadline, now + kCauseTimeout)));
  return absl::UnavailableError(absl::StrCat(name(), ": ", what));
}

}  // namespace weft::collectives
