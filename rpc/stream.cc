#include "weft/rpc/stream.h"

#include <algorithm>
#include <vector>

#include "weft/rpc/agent_parts.h"
#include "weft/rpc/class.h"

namespace weft::rpc::internal {

Driver& DriverOf(const Agent& agent) { return PartsOf(agent).driver; }

StreamTable& StreamsOf(const Agent& agent) { return PartsOf(agent).streams; }

namespace {

// The buffers under `id`, whoever of caller and function is first.
absl::StatusOr<std::shared_ptr<StreamBuffers>> FindBuffers(
    const CallContext& context, uint64_t id) {
  return StreamsOf(context.agent())
      .FindOrAdd(context.peer(), id, DriverOf(context.agent()));
}

// A stream whose function never came ends with the calls that are part of it.
template <typename T>
void DropWith(const Future<T>& part, const StreamBuffer& buffer,
              std::shared_ptr<StreamBuffers> buffers,
              const CallContext& context, StreamId id) {
  part.OnReady([&buffer, buffers = std::move(buffers),
                &streams = StreamsOf(context.agent()),
                caller = context.peer().key, id](const auto& result) {
    const absl::Status status = weft::internal::StatusOf(result);
    if (!status.ok() && !buffer.is_open()) streams.Remove(caller, id.value);
  });
}

// The next values that the function of the caller's stream `id` has written.
absl::StatusOr<Future<StreamBuffer::Batch>> Pull(CallContext& context,
                                                 StreamId id) {
  WEFT_ASSIGN_OR_RETURN(const auto buffers, FindBuffers(context, id.value));
  Future<StreamBuffer::Batch> batch = buffers->to_caller.Pull();
  DropWith(batch, buffers->to_caller, buffers, context, id);
  return batch;
}

// More values for it. Whether it still reads. A push that is abandoned while it
// waits for room loses its values: its quota no longer counts them.
absl::StatusOr<Future<bool>> Push(CallContext& context, StreamId id,
                                  bool is_last, std::vector<Slices> values) {
  WEFT_ASSIGN_OR_RETURN(const auto buffers, FindBuffers(context, id.value));
  StreamBuffer& buffer = buffers->to_function;
  const Future<void> room = buffer.Write(absl::MakeSpan(values), is_last);
  DropWith(room, buffer, buffers, context, id);
  auto reads = std::make_shared<Promise<bool>>(DriverOf(context.agent()));
  Future<bool> answer = reads->future();
  reads->OnCancel([buffers](const absl::Status& why) {
    buffers->to_function.Abort(why);  // and room with it
  });
  room.OnReady([reads, buffers](const absl::Status& status) {
    if (buffers->to_function.is_closed()) {
      reads->Set(false);
    } else if (status.ok()) {
      reads->Set(true);
    } else {
      reads->Set(status);
    }
  });
  return answer;
}

Function OfStream(Function function) {
  function.is_of_maker = true;
  function.is_part_of_stream = true;
  return function;
}

const bool registered_pull =
    Register(OfStream(Describe<&Pull>(RunsOn::kTransport, "weft::rpc::Pull")));
const bool registered_push =
    Register(OfStream(Describe<&Push>(RunsOn::kTransport, "weft::rpc::Push")));

// The function's reader of the values that its caller has pushed. Its
// destructor reports that the reader has ended.
class PushedSource final : public StreamSource {
 public:
  PushedSource(std::shared_ptr<StreamBuffers> buffers, Instant deadline,
               Driver& driver)
      : buffers_(std::move(buffers)), deadline_(deadline), driver_(driver) {}
  ~PushedSource() override { buffers_->to_function.Close(); }

 private:
  Future<StreamBuffer::Batch> Pull() override {
    return buffers_->to_function.Pull();
  }
  // Values that wait here count against the caller's limits; those that the
  // reader has taken do not.
  bool PullsAhead() const override { return false; }
  bool KnowsEnd() const override { return true; }
  absl::Status AwaitEnd(const absl::Status& failure) override {
    return failure;
  }
  void GiveUp(const absl::Status&) override { buffers_->to_function.Close(); }
  // As of an argument.
  absl::Status Unreadable(const absl::Status& why) const override {
    return MarkFailure(DecodeError(why), Phase::kDecode);
  }
  absl::Duration Patience() const override {
    return deadline_ - driver_.clock().Now() + absl::Seconds(1);
  }
  std::string Other() const override { return "the caller"; }

  const std::shared_ptr<StreamBuffers> buffers_;
  const Instant deadline_;
  Driver& driver_;
};

// The caller's reader of the values that the function has written.
class PulledSource final : public StreamSource {
 public:
  explicit PulledSource(StreamCall call) : call_(std::move(call)) {
    if (call_.id != 0) Prefetch();
  }
  ~PulledSource() override {
    GiveUp(absl::CancelledError("the reader was destroyed"));
  }

 private:
  Future<StreamBuffer::Batch> Pull() override {
    return CallAsync(call_.parts, internal::Pull, StreamId{call_.id});
  }
  bool PullsAhead() const override { return true; }  // a pull takes a while
  bool KnowsEnd() const override { return call_.reply.IsReady(); }
  absl::Status AwaitEnd(const absl::Status&) override {
    return call_.reply.Wait(Patience()).status();
  }
  void GiveUp(const absl::Status& why) override { call_.reply.Cancel(why); }
  absl::Status Unreadable(const absl::Status& why) const override {
    return ResultError(call_.target.name(), call_.function, why);
  }
  absl::Duration Patience() const override { return call_.Patience(); }
  std::string Other() const override { return call_.target.name(); }

  const StreamCall call_;
};

}  // namespace

// ------------------------------------------------------------ at the function

absl::StatusOr<ServedStream> ServedStream::Open(ServedCall& call, bool reads) {
  WEFT_ASSIGN_OR_RETURN(auto buffers, FindBuffers(call, call.id()));
  if (!reads) buffers->to_function.Close();
  buffers->to_caller.Open();
  buffers->to_function.Open();
  // As long as the call: its end takes the callback back.
  call.Follow(call.cancel().OnCancel([buffers](const absl::Status& why) {
    buffers->to_caller.Abort(why);
    buffers->to_function.Abort(why);
  }));
  ServedStream stream;
  stream.buffers_ = std::move(buffers);
  return stream;
}

std::unique_ptr<StreamSource> ServedStream::Read(const ServedCall& call) const {
  return std::make_unique<PushedSource>(buffers_, call.deadline(),
                                        DriverOf(call.agent()));
}

void ServedStream::Close(const ServedCall& call) {
  // They are gone already where the caller's session has ended.
  StreamsOf(call.agent()).Remove(call.peer().key, call.id());
}

void ServedStream::Finish(ServedCall& ended, absl::Status status) const {
  buffers_->to_caller.End().OnReady(
      [call = ended.shared_from_this(), kept = *this,
       status = std::move(status)](const absl::Status& told) {
        Close(*call);
        const absl::Status& end = status.ok() ? told : status;
        if (end.ok()) {
          call->Finish(Slices());
        } else {
          call->Finish(end);
        }
      });
}

// -------------------------------------------------------------- at the caller

StreamCall StreamCall::Open(
    const Target& target, absl::StatusOr<const Function*> function,
    const absl::StatusOr<std::shared_ptr<Request>>& request) {
  const auto whole = [](uint64_t, absl::StatusOr<Received>&& reply) {
    return std::move(reply);
  };
  auto whole_call = std::make_shared<TypedCall<Received, decltype(whole)>>(
      DriverOf(target), whole);
  StreamCall call(target,
                  weft::internal::FutureAccess::Make<Received>(whole_call));
  absl::Status status = function.status();
  status.Update(request.status());
  status.Update(CheckFixed(target));
  status.Update(CheckNotSerialized(target, kStreamsAreNotSerialized));
  if (status.ok()) status = AwaitCopiesOf(target, request->get());
  if (!status.ok()) {
    whole_call->Set(NotBegun(target, function, status));
    return call;
  }
  CancelSource ended;
  call.reply.OnReady([ended](const absl::StatusOr<Received>& end) mutable {
    ended.Cancel(end.ok() ? absl::CancelledError("the stream has ended")
                          : end.status());
  });
  StartCall(target, **function, *request, whole_call);
  call.function = (*function)->name;
  call.id = (*request)->id;
  call.deadline = (*request)->deadline;
  call.parts = PartOf(target, **request, ended.token());
  return call;
}

absl::Status NotFinishedHere(absl::string_view worker) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the end of the stream to ", worker,
      " would be waited for in a function that runs inline: use FinishAsync"));
}

std::unique_ptr<StreamSource> ReadPulled(StreamCall call) {
  return std::make_unique<PulledSource>(std::move(call));
}

StreamSink::StreamSink(StreamCall call)
    : call_(std::move(call)),
      buffer_(std::make_shared<StreamBuffer>(DriverOf(call_.target))) {
  buffer_->Open();
}

std::shared_ptr<StreamSink> StreamSink::Create(StreamCall call) {
  const std::shared_ptr<StreamSink> sink(new StreamSink(std::move(call)));
  sink->PushOn();
  sink->call_.reply.OnReady(
      [buffer = sink->buffer_](const absl::StatusOr<Received>& end) {
        if (end.ok()) return buffer->Close();
        buffer->Abort(end.status());
      });
  return sink;
}

// Pushes what was written since, and so on until the end.
void StreamSink::PushOn() {
  buffer_->Pull().OnReady(
      [self = shared_from_this()](
          const absl::StatusOr<StreamBuffer::Batch>& batch) {
        if (batch.ok()) self->Push(std::get<0>(*batch), std::get<1>(*batch));
      });
}

void StreamSink::Push(bool is_last, const std::vector<Slices>& values) {
  CallAsync(call_.parts, internal::Push, StreamId{call_.id}, is_last, values)
      .OnReady([self = shared_from_this(),
                is_last](const absl::StatusOr<bool>& reads) {
        if (!reads.ok()) {
          self->call_.reply.Cancel(reads.status());  // unless that is why
          self->buffer_->Abort(reads.status());
        } else if (!*reads) {
          self->buffer_->Close();
        } else if (!is_last) {
          self->PushOn();
        }
      });
}

void StreamSink::End() { (void)buffer_->End(); }

// -------------------------------------------------------------------- reading

void StreamSource::Cancel(const absl::Status& why) {
  GiveUp(why);
  values_.clear();
  if (!end_.has_value()) end_ = why;
}

void StreamSource::Prefetch() { pull_ = Pull(); }

absl::StatusOr<std::optional<Slices>> StreamSource::Next() {
  while (values_.empty() && !end_.has_value()) {
    if (!pull_.has_value() && !PullsAhead()) Prefetch();
    const bool must_wait = pull_.has_value() ? !pull_->IsReady() : !KnowsEnd();
    if (must_wait && InlineScope::IsActive()) return NotHere(Other());
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

// Takes what was pulled and pulls on, or when that was read; at the
// end, and after a failure, learns how the stream itself has ended.
void StreamSource::TakePull() {
  if (pull_.has_value()) {
    Result<StreamBuffer::Batch> batch = pull_->Wait(Patience());
    pull_.reset();
    if (batch.ok() && !std::get<0>(*batch)) {
      for (Slices& value : std::get<1>(*batch)) {
        values_.push_back(std::move(value));
      }
      if (PullsAhead()) Prefetch();
      return;
    }
    failure_ = batch.status();
    if (!failure_.ok()) GiveUp(failure_);  // unless that is why
  }
  // Where it takes waiting of its own, a later Next may.
  if (InlineScope::IsActive() && !KnowsEnd()) return;
  end_ = AwaitEnd(failure_);
}

}  // namespace weft::rpc::internal
