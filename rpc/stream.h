// Streams: functions that write many values to their caller, read many of it,
// or both.
//
//   absl::Status Tokens(Writer<std::string> out, const std::string& prompt) {
//     ...
//     WEFT_RETURN_IF_ERROR(out.Write(token));  // waits for the reader
//   }
//   WEFT_RPC_STREAM(Tokens);
//
//   Reader<std::string> tokens = OpenStream(target, Tokens, "To be");
//   for (;;) {
//     WEFT_ASSIGN_OR_RETURN(std::optional<std::string> t, tokens.Next());
//     if (!t.has_value()) break;  // the end
//   }
//
// The caller writes to a function that takes a Reader; its result is as of any
// registered function. A function that takes a Reader and a Writer does both:
//
//   absl::StatusOr<int64_t> Count(Reader<std::string> in);
//   absl::Status Chat(Reader<std::string> in, Writer<std::string> out);
//
//   Upload<std::string, int64_t> upload = OpenStream(target, Count);
//   WEFT_RETURN_IF_ERROR(upload.Write("one"));
//   WEFT_ASSIGN_OR_RETURN(int64_t n, upload.Finish());
//
//   Duplex<std::string, std::string> chat = OpenStream(target, Chat);
//
// A stream is one call, which lasts until both sides know its end, and further
// calls that pull the function's values and push the caller's. The first call
// determines the stream: its deadline bounds it, cancelling the caller's end
// cancels the function, an error of the function is the stream's. Each value is
// read once and in order, also if connections break, since each pull and push
// is a call. A writer is ahead of its reader by at most three windows
// (StreamBuffer).

#ifndef WEFT_RPC_STREAM_H_
#define WEFT_RPC_STREAM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/cancel.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/future.h"
#include "weft/rpc/call.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/function.h"
#include "weft/rpc/stream_buffer.h"
#include "weft/rpc/stream_table.h"

namespace weft::rpc {

// The writing end of a stream. Cheap to copy.
//
// Thread-safety: thread-safe; values leave in the order of the calls.
template <typename T>
class Writer {
 public:
  // Takes the value; waits for room. Once the reader has ended it returns the
  // reader's status: the function should return then. kFailedPrecondition in an
  // InlineScope, if there is no room; the value was taken. If the value cannot
  // be encoded, the error of its Codec: it was not taken, and the stream goes
  // on.
  absl::Status Write(T value) {
    Future<void> room = WriteAsync(std::move(value));
    const absl::Duration left = deadline_ - room.driver().clock().Now();
    return room.Wait(left + absl::Seconds(1));
  }
  // The same without waiting: the next value should be written once the Future
  // is ready.
  Future<void> WriteAsync(T value) {
    absl::StatusOr<Slices> encoded = CatchToStatus([&] {
      Encoder encoder;
      return internal::EncodeResult<T>(encoder, std::move(value));
    });
    if (!encoded.ok()) return MakeReady<void>(encoded.status());
    return buffer_->Write(*std::move(encoded));
  }

  // For ServeStream and OpenStream.
  Writer(std::shared_ptr<StreamBuffer> buffer, Instant deadline)
      : buffer_(std::move(buffer)), deadline_(deadline) {}

 private:
  std::shared_ptr<StreamBuffer> buffer_;
  Instant deadline_;
};

namespace internal {

Driver& DriverOf(const Agent& agent);
StreamTable& StreamsOf(const Agent& agent);
absl::Status NotFinishedHere(absl::string_view worker);  // in an InlineScope

// A stream at its caller: its call, and the target of the calls that are part
// of it: they share its deadline, need no credit and end with it.
struct StreamCall {
  // Opens one. An error is its reply.
  static StreamCall Open(
      const Target& target, absl::StatusOr<const Function*> function,
      const absl::StatusOr<std::shared_ptr<Request>>& request);
  StreamCall(const Target& to, Future<Received> end)
      : target(to), reply(std::move(end)), parts(to) {}
  // How long to wait for it. Its deadline ends all; this bounds a wait if its
  // Loop has stopped.
  absl::Duration Patience() const {
    return deadline - reply.driver().clock().Now() + absl::Seconds(1);
  }

  Target target;
  Future<Received> reply;  // cancelling it gives the stream up
  std::string function;    // its name; empty if it was not opened
  uint64_t id = 0;         // 0: it was not opened
  Instant deadline;
  Target parts;
};

// Where encoded values are read.
//
// Thread-safety: one thread at a time.
class StreamSource {
 public:
  virtual ~StreamSource() = default;

  absl::StatusOr<std::optional<Slices>> Next();
  void Cancel(const absl::Status& why);
  // The error that the reader receives for a value that cannot be decoded.
  virtual absl::Status Unreadable(const absl::Status& why) const = 0;

 protected:
  void Prefetch();

 private:
  virtual Future<StreamBuffer::Batch> Pull() = 0;
  // One batch ahead of what is read, or once all of it was.
  virtual bool PullsAhead() const = 0;
  // How the stream has ended, after a pull that failed, which gave it up, or
  // told the end; and whether that takes no waiting.
  virtual absl::Status AwaitEnd(const absl::Status& failure) = 0;
  virtual bool KnowsEnd() const = 0;
  virtual void GiveUp(const absl::Status& why) = 0;
  virtual absl::Duration Patience() const = 0;
  virtual std::string Other() const = 0;  // who writes, for messages

  void TakePull();

  std::optional<Future<StreamBuffer::Batch>> pull_;
  std::deque<Slices> values_;
  absl::Status failure_;             // of the last pull
  std::optional<absl::Status> end_;  // after values_
};

// At the caller.
std::unique_ptr<StreamSource> ReadPulled(StreamCall call);

// Where the caller writes: what is written while a push is under way is the
// next one.
//
// Thread-safety: thread-safe.
class StreamSink : public std::enable_shared_from_this<StreamSink> {
 public:
  static std::shared_ptr<StreamSink> Create(StreamCall call);

  const StreamCall& call() const { return call_; }
  const std::shared_ptr<StreamBuffer>& buffer() const { return buffer_; }
  void End();  // no value follows

 private:
  explicit StreamSink(StreamCall call);
  void PushOn();
  void Push(bool is_last, const std::vector<Slices>& values);

  const StreamCall call_;
  const std::shared_ptr<StreamBuffer> buffer_;
};

}  // namespace internal

// The reading end of a stream. Destroying the caller's Reader cancels the
// stream; after the function's is destroyed, writes of the caller fail with
// kCancelled.
//
// Thread-safety: one thread at a time. Must not outlive its agent.
template <typename T>
class Reader {
 public:
  // The next value, nullopt at the end, or the error of the stream; all values
  // written before the function's own error are read first. Waits, at most
  // until the stream's deadline; kFailedPrecondition in an InlineScope, and the
  // stream goes on. A value that cannot be decoded ends it: kInvalidArgument at
  // the function, kInternal at the caller.
  absl::StatusOr<std::optional<T>> Next() {
    absl::StatusOr<std::optional<Slices>> next = source_->Next();
    if (!next.ok()) return next.status();
    if (!next->has_value()) return std::nullopt;
    Result<T> value = CatchToStatus([&] {
      return internal::DecodeResult<T>(Received{**std::move(next), false});
    });
    if (!value.ok()) {
      const absl::Status why = source_->Unreadable(value.status());
      Cancel(why);
      return why;
    }
    return std::optional<T>(*std::move(value));
  }

  // Reads no more. The caller's reader cancels the stream: the function is
  // notified.
  void Cancel(absl::Status why = absl::CancelledError("cancelled")) {
    source_->Cancel(why);
  }

  // For ServeStream and OpenStream.
  explicit Reader(std::unique_ptr<internal::StreamSource> source)
      : source_(std::move(source)) {}

 private:
  std::unique_ptr<internal::StreamSource> source_;
};

// The caller's end of a stream that it writes and whose function returns an R.
// Destroying it cancels the stream, unless it was finished.
//
// Thread-safety: one thread at a time. Must not outlive its agent.
template <typename T, typename R>
class Upload {
 public:
  // As Writer: kCancelled once the function reads no more, and the stream's own
  // error once it has failed.
  absl::Status Write(T value) { return writer_.Write(std::move(value)); }
  Future<void> WriteAsync(T value) {
    return writer_.WriteAsync(std::move(value));
  }

  // Ends the values and returns the function's result, which may come before it
  // has read all. Call one of the two, once: after that kFailedPrecondition.
  // Finish() in an InlineScope is kFailedPrecondition too, and the stream goes
  // on.
  Result<R> Finish() {
    if (InlineScope::IsActive()) {
      return internal::NotFinishedHere(call().target.name());
    }
    return FinishAsync().Wait(call().Patience());
  }
  Future<R> FinishAsync() {
    if (std::exchange(is_finished_, true)) {
      return MakeReady<R>(absl::FailedPreconditionError(absl::StrCat(
                              "the stream to ", call().target.name(),
                              " was finished already: its result is that of "
                              "the first Finish or FinishAsync")),
                          call().reply.driver());
    }
    sink_->End();
    return call().reply.Then(
        [worker = call().target.name(),
         function = call().function](const Received& reply) -> Result<R> {
          Result<R> result = CatchToStatus([&] {
            return internal::DecodeResult<R>(absl::StatusOr<Received>(reply));
          });
          const absl::Status& status = weft::internal::StatusOf(result);
          if (status.ok()) return result;
          return internal::ResultError(worker, function, status);
        });
  }

  // Cancels the stream; the function is notified.
  void Cancel(absl::Status why = absl::CancelledError("cancelled")) {
    call().reply.Cancel(why);
  }

  // For OpenStream.
  explicit Upload(internal::StreamCall opened)
      : sink_(internal::StreamSink::Create(std::move(opened))),
        writer_(sink_->buffer(), call().deadline) {}
  Upload(Upload&&) = default;
  Upload& operator=(Upload&&) = delete;
  ~Upload() {
    if (sink_ == nullptr || is_finished_) return;
    Cancel(absl::CancelledError("the writer was destroyed"));
  }

 private:
  const internal::StreamCall& call() const { return sink_->call(); }

  std::shared_ptr<internal::StreamSink> sink_;  // null: moved away
  Writer<T> writer_;
  bool is_finished_ = false;
};

// The caller's end of a stream that it writes and reads. Destroying it cancels
// the stream. A function that waits for its reader does not read: a caller that
// only writes may wait until the deadline.
//
// Thread-safety: one thread at a time writes, and one reads. Must not outlive
// its agent.
template <typename T, typename U>
class Duplex {
 public:
  absl::Status Write(T value) { return writer_.Write(std::move(value)); }
  Future<void> WriteAsync(T value) {
    return writer_.WriteAsync(std::move(value));
  }
  void EndWriting() { sink_->End(); }  // no value follows

  absl::StatusOr<std::optional<U>> Next() { return reader_.Next(); }
  void Cancel(absl::Status why = absl::CancelledError("cancelled")) {
    reader_.Cancel(std::move(why));
  }

  // For OpenStream.
  explicit Duplex(const internal::StreamCall& call)
      : sink_(internal::StreamSink::Create(call)),
        writer_(sink_->buffer(), call.deadline),
        reader_(internal::ReadPulled(call)) {}

 private:
  std::shared_ptr<internal::StreamSink> sink_;
  Writer<T> writer_;
  Reader<U> reader_;
};

namespace internal {

// The kind of a stream's function: the ends that it takes before its
// parameters; void is none.
template <typename T, typename U, bool takes_context, typename R, typename... P>
struct StreamShape : Shape<R, P...> {
  using Read = T;
  using Written = U;
  static constexpr bool kTakesContext = takes_context;

  static std::string Signature() {
    std::string text;
    if constexpr (!std::is_void_v<U>) {
      text = absl::StrCat("stream<", TypeName<U>(), "> ");
    }
    absl::StrAppend(&text, ReturnName<typename Shape<R, P...>::Value>(), "(");
    if constexpr (!std::is_void_v<T>) {
      absl::StrAppend(&text, "stream<", TypeName<T>(), ">",
                      sizeof...(P) == 0 ? "" : ", ");
    }
    return absl::StrCat(text, TypeNames<P...>(), ")");
  }
};

template <typename F>
struct StreamType;
template <typename R, typename U, typename... P>
struct StreamType<R (*)(Writer<U>, P...)>
    : StreamShape<void, U, false, R, P...> {};
template <typename R, typename U, typename... P>
struct StreamType<R (*)(CallContext&, Writer<U>, P...)>
    : StreamShape<void, U, true, R, P...> {};
template <typename R, typename T, typename... P>
struct StreamType<R (*)(Reader<T>, P...)>
    : StreamShape<T, void, false, R, P...> {};
template <typename R, typename T, typename... P>
struct StreamType<R (*)(CallContext&, Reader<T>, P...)>
    : StreamShape<T, void, true, R, P...> {};
template <typename R, typename T, typename U, typename... P>
struct StreamType<R (*)(Reader<T>, Writer<U>, P...)>
    : StreamShape<T, U, false, R, P...> {};
template <typename R, typename T, typename U, typename... P>
struct StreamType<R (*)(CallContext&, Reader<T>, Writer<U>, P...)>
    : StreamShape<T, U, true, R, P...> {};

// A stream, to the worker that serves it: the call that opened it.
struct StreamId {
  uint64_t value = 0;
};

// A stream at its function: where its values wait. Cheap to copy.
class ServedStream {
 public:
  // The one that `call` is, whose function reads or not.
  static absl::StatusOr<ServedStream> Open(ServedCall& call, bool reads);
  // Ends its buffers.
  static void Close(const ServedCall& call);

  std::unique_ptr<StreamSource> Read(const ServedCall& call) const;
  template <typename T>
  Writer<T> Write(const ServedCall& call) const {
    return Writer<T>({buffers_, &buffers_->to_caller}, call.deadline());
  }
  // Ends `call` with `status` once the reader has all.
  void Finish(ServedCall& call, absl::Status status) const;

 private:
  std::shared_ptr<StreamBuffers> buffers_;
};

// Runs a stream's function with its ends of the stream.
template <auto function, typename... Ends>
auto RunStream(ServedCall& call,
               typename StreamType<decltype(function)>::Arguments& arguments,
               Ends... ends) {
  return CatchToStatus([&] {
    return std::apply(
        [&](auto&... values) {
          if constexpr (StreamType<decltype(function)>::kTakesContext) {
            return function(call, std::move(ends)..., std::move(values)...);
          } else {
            return function(std::move(ends)..., std::move(values)...);
          }
        },
        arguments);
  });
}

// Serves the function of a stream that it writes, and reads if Read is not
// void.
template <auto function>
void ServeWritten(ServedCall& call,
                  typename StreamType<decltype(function)>::Arguments& arguments,
                  const ServedStream& stream) {
  using Type = StreamType<decltype(function)>;
  static_assert(std::is_void_v<typename Type::Value>,
                "a function that writes a stream returns void, Status or "
                "Future<void>");
  const auto writer = stream.Write<typename Type::Written>(call);
  auto result = [&] {
    if constexpr (std::is_void_v<typename Type::Read>) {
      return RunStream<function>(call, arguments, writer);
    } else {
      return RunStream<function>(call, arguments,
                                 Reader<typename Type::Read>(stream.Read(call)),
                                 writer);
    }
  }();
  if constexpr (std::is_same_v<decltype(result), absl::Status>) {
    stream.Finish(call, std::move(result));
  } else {  // StatusOr<Future<void>>
    if (!result.ok()) return stream.Finish(call, result.status());
    call.BecomeAsync();
    result->OnReady(
        [call = call.shared_from_this(), stream](const absl::Status& status) {
          stream.Finish(*call, status);
        });
  }
}

// The same for one that it only reads.
template <auto function>
void ServeRead(ServedCall& call,
               typename StreamType<decltype(function)>::Arguments& arguments,
               const ServedStream& stream) {
  using Type = StreamType<decltype(function)>;
  auto result = RunStream<function>(
      call, arguments, Reader<typename Type::Read>(stream.Read(call)));
  FinishLater<typename Type::Arguments, typename Type::Value>(
      call, std::move(result),
      [](ServedCall& ended) { ServedStream::Close(ended); });
}

// Serves a stream's function.
template <auto function>
void ServeStream(ServedCall& call) {
  using Type = StreamType<decltype(function)>;
  typename Type::Arguments arguments;
  if (absl::Status taken = TakeArguments(call, arguments); !taken.ok()) {
    return call.Finish(std::move(taken));
  }
  const auto stream =
      ServedStream::Open(call, !std::is_void_v<typename Type::Read>);
  if (!stream.ok()) return call.Finish(stream.status());
  if constexpr (std::is_void_v<typename Type::Written>) {
    ServeRead<function>(call, arguments, *stream);
  } else {
    ServeWritten<function>(call, arguments, *stream);
  }
}

template <auto function>
Function DescribeStream() {
  Function f;
  f.name = NameOf<function>();
  f.signature = StreamType<decltype(function)>::Signature();
  f.digest = DigestOf(f.signature);
  f.address = reinterpret_cast<Function::Address>(function);
  f.serve = &ServeStream<function>;
  f.is_stream = true;
  return f;
}

template <typename Parameters, typename... A>
StreamCall StartStream(const Target& target, Function::Address address,
                       Parameters types, A&&... arguments) {
  const Target now = target.Pinned();
  return StreamCall::Open(
      now, FindFunction(now, address),
      EncodeArguments(now, types, std::forward<A>(arguments)...));
}

constexpr absl::string_view kStreamsAreNotSerialized =
    "a stream is in order by itself";

// If arguments A fit the parameters P, the caller's end of a stream.
template <typename End, typename P, typename A>
using StreamEnd = std::enable_if_t<Fit<P, A>::value, End>;

}  // namespace internal

template <>
struct Codec<internal::StreamId> {
  static std::string TypeName() { return "stream"; }
  static void Encode(internal::StreamId id, Encoder& e) { e.Varint(id.value); }
  static absl::Status Decode(Decoder& d, internal::StreamId& id) {
    return d.Varint(id.value);
  }
};

// Starts a stream with the incarnation that the target names now; it ends by
// the target's timeout at the latest. Errors are returned by Next(), Write()
// and Finish().
template <typename R, typename U, typename... P, typename... A>
internal::StreamEnd<Reader<U>, internal::Types<P...>, internal::Types<A...>>
OpenStream(const Target& target, R (*function)(Writer<U>, P...),
           A&&... arguments) {
  return Reader<U>(internal::ReadPulled(internal::StartStream(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...)));
}
template <typename R, typename U, typename... P, typename... A>
internal::StreamEnd<Reader<U>, internal::Types<P...>, internal::Types<A...>>
OpenStream(const Target& target, R (*function)(CallContext&, Writer<U>, P...),
           A&&... arguments) {
  return Reader<U>(internal::ReadPulled(internal::StartStream(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...)));
}
template <typename R, typename T, typename... P, typename... A>
internal::StreamEnd<Upload<T, internal::ValueOf<R>>, internal::Types<P...>,
                    internal::Types<A...>>
OpenStream(const Target& target, R (*function)(Reader<T>, P...),
           A&&... arguments) {
  return Upload<T, internal::ValueOf<R>>(internal::StartStream(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...));
}
template <typename R, typename T, typename... P, typename... A>
internal::StreamEnd<Upload<T, internal::ValueOf<R>>, internal::Types<P...>,
                    internal::Types<A...>>
OpenStream(const Target& target, R (*function)(CallContext&, Reader<T>, P...),
           A&&... arguments) {
  return Upload<T, internal::ValueOf<R>>(internal::StartStream(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...));
}
template <typename R, typename T, typename U, typename... P, typename... A>
internal::StreamEnd<Duplex<T, U>, internal::Types<P...>, internal::Types<A...>>
OpenStream(const Target& target, R (*function)(Reader<T>, Writer<U>, P...),
           A&&... arguments) {
  return Duplex<T, U>(internal::StartStream(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...));
}
template <typename R, typename T, typename U, typename... P, typename... A>
internal::StreamEnd<Duplex<T, U>, internal::Types<P...>, internal::Types<A...>>
OpenStream(const Target& target,
           R (*function)(CallContext&, Reader<T>, Writer<U>, P...),
           A&&... arguments) {
  return Duplex<T, U>(internal::StartStream(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...));
}

}  // namespace weft::rpc

#define WEFT_RPC_STREAM(function) WEFT_RPC_STREAM_(function, __COUNTER__)
#define WEFT_RPC_STREAM_(function, n) WEFT_RPC_STREAM_AS_(function, n)
#define WEFT_RPC_STREAM_AS_(function, n)                       \
  [[maybe_unused]] static const bool weft_rpc_registered_##n = \
      ::weft::rpc::internal::Register(                         \
          ::weft::rpc::internal::DescribeStream<&function>())

#endif  // WEFT_RPC_STREAM_H_
