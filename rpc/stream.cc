#include "weft/rpc/stream.h"

#include <algorithm>

#include "weft/rpc/class.h"
#include "weft/rpc/handle.h"

namespace weft::rpc::internal {
namespace {

ObjectTable::Object MakeBuffer(Driver& driver) {
  ObjectTable::Object object;
  object.value = std::make_shared<StreamBuffer>(driver);
  object.type = &kTypeKey<StreamBuffer>;
  return object;
}

// The buffer under `id`, whoever of reader and function is first.
absl::StatusOr<std::shared_ptr<StreamBuffer>> FindBuffer(
    const CallContext& context, uint64_t id) {
  WEFT_ASSIGN_OR_RETURN(
      const ObjectTable::Object object,
      ObjectsOf(context.agent())
          .FindOrAdd(context.peer().key, id, &kTypeKey<StreamBuffer>,
                     [&] { return MakeBuffer(DriverOf(context.agent())); }));
  return std::static_pointer_cast<StreamBuffer>(object.value);
}

void DropBuffer(ObjectTable& objects, rendezvous::WorkerKey maker,
                uint64_t id) {
  // It is gone already where the reader's session has ended.
  objects.Release(maker, id).IgnoreError();
}

// The next values of the caller's stream `id`.
absl::StatusOr<Future<StreamBuffer::Batch>> Pull(CallContext& context,
                                                 ObjectId id) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<StreamBuffer> buffer,
                        FindBuffer(context, id.value));
  Future<StreamBuffer::Batch> batch = buffer->Pull();
  // A stream whose function never came ends with its reader.
  batch.OnReady([buffer, &objects = ObjectsOf(context.agent()),
                 maker = context.peer().key,
                 id](const absl::StatusOr<StreamBuffer::Batch>& result) {
    if (result.ok() || buffer->is_open()) return;
    DropBuffer(objects, maker, id.value);
  });
  return batch;
}

Function DescribePull() {
  Function f = Describe<&Pull>(RunsOn::kTransport, "weft::rpc::Pull");
  f.is_of_maker = true;
  return f;
}

const bool registered = Register(DescribePull());

}  // namespace

absl::StatusOr<std::shared_ptr<StreamBuffer>> OpenBuffer(ServedCall& call) {
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<StreamBuffer> buffer,
                        FindBuffer(call, call.id()));
  buffer->Open();
  // As long as the call: its end takes the callback back.
  call.Follow(call.cancel().OnCancel(
      [buffer](const absl::Status& why) { buffer->Abort(why); }));
  return buffer;
}

void FinishStream(const std::shared_ptr<ServedCall>& call,
                  const std::shared_ptr<StreamBuffer>& buffer,
                  absl::Status status) {
  buffer->End().OnReady(
      [call, buffer, status = std::move(status)](const absl::Status& told) {
        DropBuffer(ObjectsOf(call->agent()), call->peer().key, call->id());
        const absl::Status& end = status.ok() ? told : status;
        if (end.ok()) {
          call->Finish(Slices());
        } else {
          call->Finish(end);
        }
      });
}

// -------------------------------------------------------------------- reading

std::unique_ptr<StreamSource> StreamSource::Open(
    const Target& target, absl::StatusOr<const Function*> function,
    absl::StatusOr<Outgoing> outgoing) {
  auto promise = std::make_shared<Promise<void>>(DriverOf(target));
  std::unique_ptr<StreamSource> source(
      new StreamSource(target, promise->future()));
  absl::Status status = function.status();
  status.Update(outgoing.status());
  status.Update(CheckFixed(target));
  status.Update(CheckNoLane(target));
  if (!status.ok()) {
    promise->Set(status);
    return source;
  }
  source->call_.OnReady(
      [ended = source->ended_](const absl::Status& end) mutable {
        if (!end.ok()) ended.Cancel(end);
      });
  StartedStream started = StartStreamCall(
      target, **function, *std::move(outgoing), source->ended_.token(),
      [promise](uint64_t, absl::StatusOr<Received> reply) {
        promise->Set(reply.status());
      });
  source->id_ = started.id;
  source->pulls_ = std::move(started.pulls);
  promise->OnCancel(std::move(started.abandon));
  source->StartPull();
  return source;
}

StreamSource::~StreamSource() {
  Cancel(absl::CancelledError("the reader was let go"));
}

void StreamSource::Cancel(const absl::Status& why) {
  call_.Cancel(why);  // and with it the pulls
  values_.clear();
  if (!end_.has_value()) end_ = why;
}

void StreamSource::StartPull() {
  pull_ = CallAsync(pulls_, Pull, ObjectId{id_});
}

absl::StatusOr<std::optional<Slices>> StreamSource::Next() {
  while (values_.empty() && !end_.has_value()) {
    const bool must_wait =
        pull_.has_value() ? !pull_->IsReady() : !call_.IsReady();
    if (must_wait && InlineScope::IsActive()) return NotHere(target_.name());
    TakePull();
  }
  if (!values_.empty()) {
    Slices value = std::move(values_.front());
    values_.pop_front();
    return std::optional<Slices>(std::move(value));
  }
  if (!end_->ok()) return *end_;
  return std::optional<Slices>();
}

// Takes what was pulled and pulls on, one batch ahead of what is read; at the
// end, and after a failure, learns how the stream itself has ended.
void StreamSource::TakePull() {
  // The stream's deadline ends both; this bounds the wait if its Loop has
  // stopped.
  const absl::Duration patience = target_.timeout() + absl::Seconds(1);
  absl::Status failure;
  if (pull_.has_value()) {
    Result<StreamBuffer::Batch> batch = pull_->Wait(patience);
    pull_.reset();
    if (batch.ok() && !std::get<0>(*batch)) {
      for (Slices& value : std::get<1>(*batch)) {
        values_.push_back(std::move(value));
      }
      return StartPull();
    }
    failure = batch.status();
  }
  if (!failure.ok()) call_.Cancel(failure);  // unless that is why
  end_ = call_.Wait(patience);
}

}  // namespace weft::rpc::internal
