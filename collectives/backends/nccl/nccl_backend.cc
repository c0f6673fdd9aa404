#include "weft/collectives/backends/nccl/nccl_backend.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/base/reworded.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/nccl/nccl_agreement.h"
#include "weft/collectives/backends/nccl/nccl_communicator.h"
#include "weft/collectives/backends/nccl/nccl_flights.h"
#include "weft/collectives/backends/nccl/nccl_launch.h"
#include "weft/collectives/backends/nccl/nccl_meeting.h"
#include "weft/collectives/backends/nccl/nccl_passage.h"
#include "weft/collectives/backends/nccl/nccl_streams.h"
#include "weft/collectives/backends/nccl/nccl_transfers.h"
#include "weft/collectives/linked_backends.h"
#include "weft/collectives/subgroup_name.h"

void WeftCollectivesHasNccl() {}

namespace weft::collectives {
namespace {

// How often a device is asked whether a Send or Receive has ended.
constexpr absl::Duration kDevicePoll = absl::Microseconds(100);

// Two threads: one lets each operation be compared, and gives it to NCCL; one
// ends them (NcclFlights).
class NcclBackend final : public Backend {
 public:
  NcclBackend(NcclOptions options, std::unique_ptr<Backend> host,
              std::shared_ptr<NcclStreams> streams)
      : options_(std::move(options)),
        host_(std::move(host)),
        streams_(std::move(streams)) {}
  ~NcclBackend() override;

  // Waits for all ranks.
  absl::Status Start(Instant deadline);

  absl::string_view name() const override { return "nccl"; }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  Driver& driver() override { return host_->driver(); }
  absl::Status Run(const Operation& operation) override {
    return absl::InternalError(
        absl::StrCat(Describe(operation), ": Run of a backend that enqueues"));
  }
  bool enqueues() const override { return true; }
  void Enqueue(const Operation& operation, Done done) override;
  device::Stream StreamOf(const Operation& operation,
                          Device device) const override;
  void Refuse(const Operation& operation, const absl::Status& why) override;
  void Abort(const absl::Status& why) override { host_->Abort(why); }
  absl::Status health() const override { return host_->health(); }
  absl::Status CheckRanks() override { return host_->CheckRanks(); }
  void EndShrink(uint64_t key, const absl::Status& why) override {
    host_->EndShrink(key, why);
  }
  absl::Status CheckShrink(uint64_t key) const override {
    return host_->CheckShrink(key);
  }
  absl::StatusOr<bool> Advance(Transfer& transfer) override {
    return transfers_->Advance(transfer);
  }
  void WithdrawSends() override { host_->WithdrawSends(); }
  uint64_t transfer_events() const override { return host_->transfer_events(); }
  void AwaitTransfers(uint64_t seen, Instant until) override;
  absl::StatusOr<Tensor> Allocate(const Shape& shape, DType dtype) override {
    return host_->Allocate(shape, dtype);
  }
  absl::StatusOr<std::unique_ptr<Backend>> Subgroup(
      const SubgroupSpec& spec) override;

 private:
  // What the other thread is to do.
  struct Request {
    const Operation* operation = nullptr;
    Done done = nullptr;
    // A copy of an operation that is refused, whose caller does not wait.
    std::unique_ptr<Operation> refused = nullptr;
    absl::Status why;
  };

  void Add(Request request) ABSL_LOCKS_EXCLUDED(mu_);
  void RunRequests() ABSL_LOCKS_EXCLUDED(mu_);
  // Sets flight.ended unless it is on its way.
  void Begin(NcclFlight& flight);
  absl::Status RunOnHost(const Operation& operation);
  // Puts it on the stream, with the event after it.
  absl::Status Launch(NcclFlight& flight, bool with_factors);

  const NcclOptions options_;
  const std::unique_ptr<Backend> host_;
  const std::shared_ptr<NcclStreams> streams_;
  device::Stream stream_;  // set by Start
  std::unique_ptr<NcclCommunicator> communicator_;
  std::unique_ptr<NcclFlights> flights_;
  std::unique_ptr<NcclTransfers> transfers_;
  uint64_t next_ = 0;  // operation of the host's group; of the thread

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

NcclBackend::~NcclBackend() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  transfers_ = nullptr;
  flights_ = nullptr;
  // No rank of an aborted group answers the farewell.
  if (communicator_ != nullptr && !host_->health().ok()) {
    communicator_->Abort();
  }
  communicator_ = nullptr;
  if (stream_.is_valid()) streams_->GiveBack(stream_);
}

absl::Status NcclBackend::Start(Instant deadline) {
  WEFT_ASSIGN_OR_RETURN(stream_, streams_->Take());
  const auto check = [this]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(host_->health());
    return options_.check_wait == nullptr ? absl::OkStatus()
                                          : options_.check_wait();
  };
  WEFT_ASSIGN_OR_RETURN(
      const nccl::UniqueId id,
      MeetForNccl(options_, *options_.functions, deadline, check));
  NcclCommunicator::Options made;
  made.functions = options_.functions;
  made.context = options_.context;
  made.stream = stream_;
  made.id = id;
  made.rank = rank();
  made.size = size();
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> communicator =
      NcclCommunicator::Create(std::move(made),
                               {driver().clock(), deadline, check});
  EndNcclMeeting(options_);
  WEFT_ASSIGN_OR_RETURN(communicator_, std::move(communicator));
  NcclTransfers::Options transfers;
  transfers.functions = options_.functions;
  transfers.context = options_.context;
  transfers.streams = streams_;
  transfers.host_bytes = options_.host_bytes;
  transfers_ = std::make_unique<NcclTransfers>(*host_, std::move(transfers));
  WEFT_RETURN_IF_ERROR(transfers_->Start());
  flights_ = std::make_unique<NcclFlights>(*host_, *communicator_, stream_);
  WEFT_RETURN_IF_ERROR(flights_->Start());
  WEFT_ASSIGN_OR_RETURN(thread_,
                        StartThread("nccl", [this] { RunRequests(); }));
  return absl::OkStatus();
}

void NcclBackend::Add(Request request) {
  MutexLock lock(mu_);
  requests_.push_back(std::move(request));
  changed_.NotifyAll();
}

void NcclBackend::Enqueue(const Operation& operation, Done done) {
  Request request;
  request.operation = &operation;
  request.done = std::move(done);
  Add(std::move(request));
}

void NcclBackend::Refuse(const Operation& operation, const absl::Status& why) {
  Request request;
  request.refused = std::make_unique<Operation>(WholeOf(operation));
  request.why = why;
  Add(std::move(request));
}

device::Stream NcclBackend::StreamOf(const Operation& operation,
                                     Device device) const {
  const bool is_own = device.context() == options_.context.get() &&
                      device.index() == options_.device;
  if (is_own && transfers_->Takes(operation)) return transfers_->stream();
  return is_own && IsOfNccl(operation) ? stream_ : device::Stream();
}

void NcclBackend::AwaitTransfers(uint64_t seen, Instant until) {
  if (transfers_->awaits_device()) {
    until = std::min(until, driver().clock().Now() + kDevicePoll);
  }
  host_->AwaitTransfers(seen, until);
}

void NcclBackend::RunRequests() {
  while (true) {
    Request request;
    {
      MutexLock lock(mu_);
      while (requests_.empty() && !stopping_) changed_.Wait(mu_);
      if (requests_.empty()) return;
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    if (request.refused != nullptr) {
      Operation step = *request.refused;
      step.sequence = next_++;
      step.whole = request.refused.get();
      host_->Refuse(step, request.why);
      continue;
    }
    NcclFlight flight;
    flight.operation = request.operation;
    flight.done = std::move(request.done);
    Begin(flight);
    flights_->Add(std::move(flight));
  }
}

absl::Status NcclBackend::RunOnHost(const Operation& operation) {
  Operation step = operation;
  step.sequence = next_++;
  step.whole = &WholeOf(operation);
  return host_->Run(step);
}

void NcclBackend::Begin(NcclFlight& flight) {
  const Operation& operation = *flight.operation;
  if (operation.whole != nullptr || !IsOfNccl(operation)) {
    flight.ended = RunOnHost(operation);
    return;
  }
  const absl::StatusOr<NcclAgreement> agreed =
      AgreeOnOperation(*host_, operation, next_++);
  if (!agreed.ok()) {
    flight.ended = agreed.status();
    if (!absl::IsAborted(agreed.status())) host_->Abort(agreed.status());
    return;
  }
  if (!agreed->any_on_device && !options_.moves_host_tensors) {
    flight.ended = RunOnHost(operation);
    return;
  }
  if (!HasPairCounts(operation.verb) && MovesNothing(operation)) {
    flight.ended = absl::OkStatus();
    return;
  }
  absl::Status launched = Launch(flight, agreed->any_factor);
  if (!launched.ok()) {
    // NCCL's error says only that CUDA has failed; the device's says why.
    const absl::Status device = stream_.runtime().Health(stream_.device());
    if (!device.ok()) launched = device;
    // Others wait for this rank in their kernels. Unless it was aborted:
    host_->Abort(Reworded(
        launched, absl::StrCat("rank ", rank(),
                               " cannot begin it: ", launched.message())));
    flight.failure = host_->health();
  }
  if (!flight.event.is_valid()) flight.ended = flight.failure;
}

absl::Status NcclBackend::Launch(NcclFlight& flight, bool with_factors) {
  const Operation& operation = *flight.operation;
  device::Runtime& runtime = stream_.runtime();
  WEFT_ASSIGN_OR_RETURN(device::Event event,
                        runtime.CreateEvent(stream_.device()));
  const Operation* on_device = &operation;
  absl::Status status;
  if (operation.ready != nullptr) {
    WEFT_RETURN_IF_ERROR(runtime.StreamWaitEvent(stream_, *operation.ready));
  } else {
    WEFT_ASSIGN_OR_RETURN(
        flight.passage,
        NcclPassage::Begin(*options_.context, stream_, operation, rank()));
    on_device = &flight.passage->operation();
  }
  status = communicator_->Enqueue(
      *on_device, with_factors, flight.scratch,
      {driver().clock(), operation.deadline, [this] { return health(); }});
  if (status.ok() && flight.passage != nullptr) {
    status = flight.passage->CopyBack();
  }
  // Also where some of it failed: the rest may be on the stream.
  const absl::Status recorded = runtime.RecordEvent(event, stream_);
  if (recorded.ok()) flight.event = std::move(event);
  return status.ok() ? recorded : status;
}

absl::StatusOr<std::unique_ptr<Backend>> Connect(
    NcclOptions options, std::unique_ptr<Backend> host,
    std::shared_ptr<NcclStreams> streams, Instant deadline) {
  const std::string what =
      absl::StrCat("ConnectNccl, rank ", options.rank, " of ", options.size,
                   " of group ", options.name);
  auto made = std::make_unique<NcclBackend>(std::move(options), std::move(host),
                                            std::move(streams));
  const absl::Status started = made->Start(deadline);
  if (started.ok()) return made;
  const absl::Status why =
      Reworded(started, absl::StrCat(what, ": ", started.message()));
  made->Abort(why);
  return why;
}

absl::StatusOr<std::unique_ptr<Backend>> NcclBackend::Subgroup(
    const SubgroupSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> host, host_->Subgroup(spec));
  NcclOptions options = options_;
  options.name = SubgroupName(options_.name, spec.name);
  options.size = static_cast<int>(spec.members.size());
  options.rank = spec.PlaceOf(rank());
  options.check_wait = spec.check_wait;
  return Connect(std::move(options), std::move(host), streams_, spec.deadline);
}

absl::Status CheckOptions(const NcclOptions& options, const Backend* host) {
  WEFT_RETURN_IF_ERROR(CheckEndpoint(options, "ConnectNccl"));
  if (host == nullptr || host->rank() != options.rank ||
      host->size() != options.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ConnectNccl: wants a group of the host of the same ranks, rank ",
        options.rank, " of ", options.size, ", found ",
        host == nullptr
            ? "none"
            : absl::StrCat("rank ", host->rank(), " of ", host->size())));
  }
  if (options.context == nullptr) {
    return absl::InvalidArgumentError(
        "ConnectNccl: no devices are given (NcclOptions::context)");
  }
  const int count = options.context->device_count();
  if (options.device < 0 || options.device >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("ConnectNccl: wants a device from 0 to ", count - 1,
                     ", found ", options.device));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> ConnectNccl(
    NcclOptions options, std::unique_ptr<Backend> host) {
  absl::Status checked = CheckOptions(options, host.get());
  if (checked.ok() && options.functions == nullptr) {
    absl::StatusOr<NcclFunctions> functions = LoadNccl();
    checked = functions.status();
    if (functions.ok()) {
      options.functions =
          std::make_shared<const NcclFunctions>(*std::move(functions));
    }
  }
  if (!checked.ok()) {
    if (host != nullptr) host->Abort(checked);
    return checked;
  }
  auto streams = std::make_shared<NcclStreams>(options.context, options.device);
  const Instant deadline =
      host->driver().clock().Now() + options.connect_timeout;
  return Connect(std::move(options), std::move(host), std::move(streams),
                 deadline);
}

}  // namespace weft::collectives
