#include "weft/collectives/backends/device/device_backend.h"

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
#include "weft/collectives/backends/device/device_agreement.h"
#include "weft/collectives/backends/device/device_flights.h"
#include "weft/collectives/backends/device/device_passage.h"
#include "weft/collectives/backends/device/device_streams.h"
#include "weft/collectives/backends/device/device_transfers.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {
namespace {

// How often a device is asked whether a Send or Receive has ended.
constexpr absl::Duration kDevicePoll = absl::Microseconds(100);
// How often a wait for ranks looks whether all of them live.
constexpr absl::Duration kCheckRanksInterval = absl::Milliseconds(100);

// Two threads: one lets each operation be compared, and gives it to the mover;
// one ends them (DeviceFlights).
class DeviceBackend final : public Backend {
 public:
  DeviceBackend(std::shared_ptr<DeviceMover> mover,
                std::unique_ptr<Backend> host,
                std::shared_ptr<DeviceStreams> streams)
      : mover_(std::move(mover)),
        host_(std::move(host)),
        streams_(std::move(streams)) {}
  ~DeviceBackend() override;

  // Waits for all ranks.
  absl::Status Start(Instant deadline,
                     const std::function<absl::Status()>& check_wait);

  absl::string_view name() const override { return mover_->name(); }
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
  void WithdrawSends() override {
    transfers_->Leave();
    host_->WithdrawSends();
  }
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
  void Begin(DeviceFlight& flight);
  absl::Status RunOnHost(const Operation& operation);
  // What is behind an error of the mover.
  absl::Status CauseOf(const absl::Status& error);
  // Puts it on the stream, with the event after it.
  absl::Status Launch(DeviceFlight& flight, bool with_factors);

  const std::shared_ptr<DeviceMover> mover_;
  const std::unique_ptr<Backend> host_;
  const std::shared_ptr<DeviceStreams> streams_;
  device::Stream stream_;  // set by Start
  std::unique_ptr<DeviceCommunicator> communicator_;
  std::unique_ptr<DeviceFlights> flights_;
  std::unique_ptr<DeviceTransfers> transfers_;
  uint64_t next_ = 0;  // operation of the host's group; of the thread

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

DeviceBackend::~DeviceBackend() {
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

absl::Status DeviceBackend::Start(
    Instant deadline, const std::function<absl::Status()>& check_wait) {
  WEFT_ASSIGN_OR_RETURN(stream_, streams_->Take());
  const auto check = [&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(host_->health());
    return check_wait == nullptr ? absl::OkStatus() : check_wait();
  };
  WEFT_ASSIGN_OR_RETURN(
      communicator_,
      mover_->Connect(*host_, next_, stream_,
                      DeviceWait{driver().clock(), deadline, check}));
  transfers_ = std::make_unique<DeviceTransfers>(*host_, mover_, streams_);
  WEFT_RETURN_IF_ERROR(transfers_->Start());
  flights_ = std::make_unique<DeviceFlights>(
      *host_, *communicator_, stream_, mover_->title(), mover_->longest_end());
  WEFT_RETURN_IF_ERROR(flights_->Start());
  WEFT_ASSIGN_OR_RETURN(thread_,
                        StartThread(mover_->name(), [this] { RunRequests(); }));
  return absl::OkStatus();
}

void DeviceBackend::Add(Request request) {
  MutexLock lock(mu_);
  requests_.push_back(std::move(request));
  changed_.NotifyAll();
}

void DeviceBackend::Enqueue(const Operation& operation, Done done) {
  Request request;
  request.operation = &operation;
  request.done = std::move(done);
  Add(std::move(request));
}

void DeviceBackend::Refuse(const Operation& operation,
                           const absl::Status& why) {
  Request request;
  request.refused = std::make_unique<Operation>(WholeOf(operation));
  request.why = why;
  Add(std::move(request));
}

device::Stream DeviceBackend::StreamOf(const Operation& operation,
                                       Device device) const {
  const bool is_own = device.context() == mover_->context().get() &&
                      device.index() == mover_->device();
  if (is_own && transfers_->Takes(operation)) return transfers_->stream();
  return is_own && mover_->Moves(operation) ? stream_ : device::Stream();
}

void DeviceBackend::AwaitTransfers(uint64_t seen, Instant until) {
  if (transfers_->awaits_device()) {
    until = std::min(until, driver().clock().Now() + kDevicePoll);
  }
  host_->AwaitTransfers(seen, until);
}

void DeviceBackend::RunRequests() {
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
    DeviceFlight flight;
    flight.operation = request.operation;
    flight.done = std::move(request.done);
    Begin(flight);
    flights_->Add(std::move(flight));
  }
}

absl::Status DeviceBackend::RunOnHost(const Operation& operation) {
  Operation step = operation;
  step.sequence = next_++;
  step.whole = &WholeOf(operation);
  return host_->Run(step);
}

void DeviceBackend::Begin(DeviceFlight& flight) {
  const Operation& operation = *flight.operation;
  if (operation.whole != nullptr || !mover_->Moves(operation)) {
    flight.ended = RunOnHost(operation);
    return;
  }
  const absl::StatusOr<DeviceAgreement> agreed =
      AgreeOnOperation(*host_, operation, next_++);
  if (!agreed.ok()) {
    flight.ended = agreed.status();
    if (!absl::IsAborted(agreed.status())) host_->Abort(agreed.status());
    return;
  }
  if (!agreed->any_on_device && !mover_->moves_host_tensors()) {
    flight.ended = RunOnHost(operation);
    return;
  }
  if (!HasPairCounts(operation.verb) && MovesNothing(operation)) {
    flight.ended = absl::OkStatus();
    return;
  }
  absl::Status launched = Launch(flight, agreed->any_factor);
  if (!launched.ok()) {
    launched = CauseOf(launched);
    // Others wait for this rank in their kernels. Unless it was aborted:
    host_->Abort(Reworded(
        launched, absl::StrCat("rank ", rank(),
                               " cannot begin it: ", launched.message())));
    flight.failure = host_->health();
  }
  if (!flight.event.is_valid()) flight.ended = flight.failure;
}

absl::Status DeviceBackend::CauseOf(const absl::Status& error) {
  // It may say only that CUDA has failed; the device says why.
  const absl::Status device = stream_.runtime().Health(stream_.device());
  if (!device.ok()) return device;
  // Or that another rank has aborted it, as one that ends does.
  const absl::Status ranks = host_->CheckRanks();
  return ranks.ok() ? error : ranks;
}

absl::Status DeviceBackend::Launch(DeviceFlight& flight, bool with_factors) {
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
        DevicePassage::Begin(*mover_->context(), stream_, operation, rank()));
    on_device = &flight.passage->operation();
  }
  Instant check_ranks_at = driver().clock().Now() + kCheckRanksInterval;
  const auto check = [&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(health());
    const Instant now = driver().clock().Now();
    if (now < check_ranks_at) return absl::OkStatus();
    check_ranks_at = now + kCheckRanksInterval;
    return host_->CheckRanks();
  };
  status =
      communicator_->Enqueue(*on_device, with_factors, flight.scratch,
                             {driver().clock(), operation.deadline, check});
  if (status.ok() && flight.passage != nullptr) {
    status = flight.passage->CopyBack();
  }
  // Also where some of it failed: the rest may be on the stream.
  const absl::Status recorded = runtime.RecordEvent(event, stream_);
  if (recorded.ok()) flight.event = std::move(event);
  return status.ok() ? recorded : status;
}

absl::StatusOr<std::unique_ptr<Backend>> Connect(
    absl::string_view call, std::shared_ptr<DeviceMover> mover,
    std::unique_ptr<Backend> host, std::shared_ptr<DeviceStreams> streams,
    Instant deadline, const std::function<absl::Status()>& check) {
  auto made = std::make_unique<DeviceBackend>(std::move(mover), std::move(host),
                                              std::move(streams));
  const absl::Status started = made->Start(deadline, check);
  if (started.ok()) return made;
  const absl::Status why =
      Reworded(started, absl::StrCat(call, ": ", started.message()));
  made->Abort(why);
  return why;
}

absl::StatusOr<std::unique_ptr<Backend>> DeviceBackend::Subgroup(
    const SubgroupSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> host, host_->Subgroup(spec));
  const std::string call =
      absl::StrCat("group ", spec.name, " of the ", name(), " backend, rank ",
                   host->rank(), " of ", host->size());
  return Connect(call, mover_->OfSubgroup(spec, rank()), std::move(host),
                 streams_, spec.deadline, spec.check_wait);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> ConnectDeviceBackend(
    absl::string_view call, std::shared_ptr<DeviceMover> mover,
    std::unique_ptr<Backend> host, Instant deadline,
    std::function<absl::Status()> check) {
  auto streams =
      std::make_shared<DeviceStreams>(mover->context(), mover->device());
  return Connect(call, std::move(mover), std::move(host), std::move(streams),
                 deadline, check);
}

}  // namespace weft::collectives
