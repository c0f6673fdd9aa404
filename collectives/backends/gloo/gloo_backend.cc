#include "weft/collectives/backends/gloo/gloo_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gloo/allgatherv.h"
#include "gloo/allreduce.h"
#include "gloo/broadcast.h"
#include "gloo/reduce.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/backends/gloo/breakable_context.h"
#include "weft/collectives/backends/gloo/gloo_channel.h"
#include "weft/collectives/backends/gloo/gloo_meeting.h"
#include "weft/collectives/backends/gloo/sigpipe_scope.h"
#include "weft/collectives/backends/library/library_backend.h"
#include "weft/collectives/backends/stream/mesh.h"
#include "weft/collectives/linked_backends.h"
#include "weft/collectives/subgroup_name.h"

void WeftCollectivesHasGloo() {}

namespace weft::collectives {
namespace {

using std::chrono::milliseconds;

// Calls set(T*) with T as wide as an accumulator: gloo divides memory at
// elements.
template <typename Set>
void WithWidth(DType dtype, void* memory, Set set) {
  switch (AccumulatorBytes(dtype)) {
    case 1:
      return set(static_cast<uint8_t*>(memory));
    case 2:
      return set(static_cast<uint16_t*>(memory));
    case 4:
      return set(static_cast<uint32_t*>(memory));
    default:
      return set(static_cast<uint64_t*>(memory));
  }
}

// out[i] = a[i] op b[i]; `out` may be `a`.
::gloo::AllreduceOptions::Func ReduceFunction(const Operation& operation) {
  return [dtype = operation.dtype, op = operation.reduction.op](
             void* out, const void* a, const void* b, size_t count) {
    if (out != a) memcpy(out, a, count * AccumulatorBytes(dtype));
    AddAccumulators(dtype, op, b, out, static_cast<int64_t>(count));
  };
}

class GlooBackend final : public LibraryBackend {
 public:
  GlooBackend(GlooOptions options, std::shared_ptr<Mesh> mesh,
              std::shared_ptr<::gloo::transport::Device> device,
              std::shared_ptr<BreakableContext> elements)
      : LibraryBackend(std::move(mesh)),
        options_(std::move(options)),
        device_(std::move(device)),
        elements_(std::move(elements)) {}
  ~GlooBackend() override {
    Leave();
    channels_.clear();
  }

  // Connects by means of `control`, which is null for a single rank.
  absl::Status Start(const std::shared_ptr<::gloo::Context>& control,
                     Instant deadline);

  absl::string_view name() const override { return "gloo"; }
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec& spec) override;

 protected:
  absl::Status AllReduce(const Operation& operation,
                         Accumulators accumulators) override;
  absl::Status Reduce(const Operation& operation,
                      Accumulators accumulators) override;
  absl::Status Broadcast(const Operation& operation,
                         absl::Span<std::byte> bytes) override;
  absl::Status AllGather(const Operation& operation, std::byte* memory,
                         const std::vector<size_t>& counts) override;

 private:
  // Runs `call(options)` of an operation, where Options is gloo's.
  template <typename Options, typename Call>
  absl::Status Guard(const Operation& operation, Call call);

  const GlooOptions options_;
  const std::shared_ptr<::gloo::transport::Device> device_;
  const std::shared_ptr<BreakableContext> elements_;  // null for a single rank
  std::vector<std::unique_ptr<GlooChannel>> channels_;
};

absl::Status GlooBackend::Start(const std::shared_ptr<::gloo::Context>& control,
                                Instant deadline) {
  if (control == nullptr) return absl::OkStatus();
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    channels_.push_back(std::make_unique<GlooChannel>(
        control, r, shared_mesh(), [this] { elements_->Break(); }));
    WEFT_RETURN_IF_ERROR(channels_.back()->Start());
  }
  WEFT_RETURN_IF_ERROR(mesh().AwaitAll(
      deadline, [](int) {}, options_.check_wait));
  mesh().OnAbort(
      [elements = elements_](const absl::Status&) { elements->Break(); });
  return absl::OkStatus();
}

template <typename Options, typename Call>
absl::Status GlooBackend::Guard(const Operation& operation, Call call) {
  const absl::Duration left =
      std::min(operation.deadline - driver().clock().Now(), absl::Hours(9000));
  std::string what = "no time was left";
  SigpipeScope sigpipe;
  try {
    if (left > absl::ZeroDuration()) {
      Options options(elements_);
      options.setTag(static_cast<uint32_t>(operation.sequence));
      options.setTimeout(milliseconds(absl::ToInt64Milliseconds(left) + 1));
      call(options);
      return absl::OkStatus();
    }
  } catch (const std::exception& error) {
    what = error.what();
  }
  return FailureOf(operation, what);
}

absl::Status GlooBackend::AllReduce(const Operation& operation,
                                    Accumulators accumulators) {
  using Options = ::gloo::AllreduceOptions;
  return Guard<Options>(operation, [&](Options& options) {
    WithWidth(operation.dtype, accumulators.memory, [&](auto* memory) {
      options.setOutput(memory, static_cast<size_t>(accumulators.count));
    });
    options.setReduceFunction(ReduceFunction(operation));
    ::gloo::allreduce(options);
  });
}

absl::Status GlooBackend::Reduce(const Operation& operation,
                                 Accumulators accumulators) {
  using Options = ::gloo::ReduceOptions;
  return Guard<Options>(operation, [&](Options& options) {
    WithWidth(operation.dtype, accumulators.memory, [&](auto* memory) {
      options.setOutput(memory, static_cast<size_t>(accumulators.count));
    });
    options.setRoot(operation.root);
    options.setReduceFunction(ReduceFunction(operation));
    ::gloo::reduce(options);
  });
}

absl::Status GlooBackend::Broadcast(const Operation& operation,
                                    absl::Span<std::byte> bytes) {
  using Options = ::gloo::BroadcastOptions;
  return Guard<Options>(operation, [&](Options& options) {
    options.setOutput(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size());
    options.setRoot(operation.root);
    ::gloo::broadcast(options);
  });
}

absl::Status GlooBackend::AllGather(const Operation& operation,
                                    std::byte* memory,
                                    const std::vector<size_t>& counts) {
  using Options = ::gloo::AllgathervOptions;
  return Guard<Options>(operation, [&](Options& options) {
    options.setOutput(reinterpret_cast<uint8_t*>(memory), counts);
    ::gloo::allgatherv(options);
  });
}

absl::Status CheckOptions(const GlooOptions& options) {
  WEFT_RETURN_IF_ERROR(CheckEndpoint(options, "ConnectGloo"));
  if (!options.insecure && !IsLoopback(options.address)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ConnectGloo: other hosts can reach the address ", options.address,
        ", and gloo neither encrypts nor authenticates; set ",
        "GlooOptions::insecure if all who can reach it are trusted, take a ",
        "loopback address (127.0.0.1) for ranks of one host, or the host ",
        "backend, which has TLS"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Backend>> Connect(
    GlooOptions options, std::shared_ptr<::gloo::transport::Device> device,
    Instant deadline) {
  MeshOptions mesh_options(options, options.rank, options.size);
  WEFT_RETURN_IF_ERROR(MeetForGloo(options, deadline));
  std::shared_ptr<BreakableContext> control, elements;
  if (options.size > 1) {
    WEFT_ASSIGN_OR_RETURN(
        control, ConnectGlooContext(options, "control", device, deadline));
    WEFT_ASSIGN_OR_RETURN(
        elements, ConnectGlooContext(options, "elements", device, deadline));
  }
  auto mesh = std::make_shared<Mesh>(std::move(mesh_options), ParkingDriver());
  auto backend =
      std::make_unique<GlooBackend>(std::move(options), std::move(mesh),
                                    std::move(device), std::move(elements));
  WEFT_RETURN_IF_ERROR(backend->Start(control, deadline));
  return backend;
}

absl::StatusOr<std::unique_ptr<Backend>> GlooBackend::Subgroup(
    const SubgroupSpec& spec) {
  GlooOptions options = options_;
  options.name = SubgroupName(options_.name, spec.name);
  options.size = static_cast<int>(spec.members.size());
  options.rank = spec.PlaceOf(rank());
  options.connect_timeout = spec.deadline - driver().clock().Now();
  options.check_wait = spec.check_wait;
  return Connect(std::move(options), device_, spec.deadline);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> ConnectGloo(GlooOptions options) {
  WEFT_RETURN_IF_ERROR(CheckOptions(options));
  const Instant deadline = SteadyClock().Now() + options.connect_timeout;
  WEFT_ASSIGN_OR_RETURN(auto device, MakeGlooDevice(options));
  return Connect(std::move(options), std::move(device), deadline);
}

}  // namespace weft::collectives
