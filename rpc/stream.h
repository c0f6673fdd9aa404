// Streams: a function that writes many values, and a caller that reads them.
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
// A stream is one call, which lasts until the reader knows the end, and beside
// it calls that pull what was written. All of a call holds of the first: its
// deadline bounds the stream, giving up the Reader cancels the function, an
// error of the function is the stream's. Each value is read once and in order,
// whatever breaks in between, since each pull is a call. The function is ahead
// of the reader by three windows (StreamBuffer) at most.

#ifndef WEFT_RPC_STREAM_H_
#define WEFT_RPC_STREAM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/base/cancel.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/future.h"
#include "weft/rpc/call.h"
#include "weft/rpc/codec.h"
#include "weft/rpc/function.h"
#include "weft/rpc/stream_buffer.h"

namespace weft::rpc {

// Where a stream's function writes. Cheap to copy.
//
// Thread-safety: thread-safe; values leave in the order of the calls.
template <typename T>
class Writer {
 public:
  // Takes the value; waits for room. The reason, once nobody reads any more:
  // the function should return then. kFailedPrecondition in an InlineScope, if
  // there is no room; the value was taken.
  absl::Status Write(T value) {
    Future<void> room = WriteAsync(std::move(value));
    const absl::Duration left = deadline_ - room.driver().clock().Now();
    return room.Wait(left + absl::Seconds(1));
  }
  // The same without waiting: the next value should be written once the Future
  // is ready.
  Future<void> WriteAsync(T value) {
    Encoder encoder;
    encoder.Write(std::move(value));
    absl::StatusOr<Slices> encoded = std::move(encoder).Finish();
    if (!encoded.ok()) return MakeReady<void>(encoded.status());
    return buffer_->Write(*std::move(encoded));
  }

  // For ServeStream.
  Writer(std::shared_ptr<StreamBuffer> buffer, Instant deadline)
      : buffer_(std::move(buffer)), deadline_(deadline) {}

 private:
  std::shared_ptr<StreamBuffer> buffer_;
  Instant deadline_;
};

namespace internal {

// A stream's call, and the target of the calls that are part of it: they share
// its deadline, need no credit and end with `ended`.
struct StartedStream {
  uint64_t id = 0;
  Abandon abandon;
  Target pulls;
};
StartedStream StartStreamCall(const Target& target, const Function& function,
                              Outgoing outgoing, CancelToken ended, Done done);
Driver& DriverOf(const Agent& agent);

// The reading end, of encoded values.
//
// Thread-safety: one thread at a time.
class StreamSource {
 public:
  static std::unique_ptr<StreamSource> Open(
      const Target& target, absl::StatusOr<const Function*> function,
      absl::StatusOr<Outgoing> outgoing);
  ~StreamSource();

  absl::StatusOr<std::optional<Slices>> Next();
  void Cancel(const absl::Status& why);

 private:
  StreamSource(const Target& target, Future<void> call)
      : target_(target), pulls_(target), call_(std::move(call)) {}

  void StartPull();
  void TakePull();

  const Target target_;
  Target pulls_;
  Future<void> call_;   // the stream itself
  CancelSource ended_;  // ends the pulls with it
  uint64_t id_ = 0;
  std::optional<Future<StreamBuffer::Batch>> pull_;
  std::deque<Slices> values_;
  std::optional<absl::Status> end_;  // after values_
};

}  // namespace internal

// Where a caller reads. Its end gives the stream up.
//
// Thread-safety: one thread at a time. Must not outlive its agent.
template <typename T>
class Reader {
 public:
  // The next value, nullopt at the end, or why the stream has failed: then the
  // values that were written before the function's own error have all been
  // read. Waits, at most until the stream's deadline; kFailedPrecondition where
  // it must not, and the stream goes on.
  absl::StatusOr<std::optional<T>> Next() {
    absl::StatusOr<std::optional<Slices>> next = source_->Next();
    if (!next.ok()) return next.status();
    if (!next->has_value()) return std::nullopt;
    Result<T> value =
        internal::DecodeResult<T>(Received{**std::move(next), false});
    if (!value.ok()) {
      Cancel(value.status());
      return value.status();
    }
    return std::optional<T>(*std::move(value));
  }

  // Gives the stream up; the function is told.
  void Cancel(absl::Status why = absl::CancelledError("cancelled")) {
    source_->Cancel(why);
  }

  // For OpenStream.
  explicit Reader(std::unique_ptr<internal::StreamSource> source)
      : source_(std::move(source)) {}

 private:
  std::unique_ptr<internal::StreamSource> source_;
};

namespace internal {

template <typename F>
struct StreamType;
template <typename R, typename T, typename... P>
struct StreamType<R (*)(Writer<T>, P...)> : Shape<R, P...> {
  using Value = T;
  static constexpr bool kTakesContext = false;
};
template <typename R, typename T, typename... P>
struct StreamType<R (*)(CallContext&, Writer<T>, P...)> : Shape<R, P...> {
  using Value = T;
  static constexpr bool kTakesContext = true;
};

// The buffer of the stream that `call` is.
absl::StatusOr<std::shared_ptr<StreamBuffer>> OpenBuffer(ServedCall& call);
// Ends `call` with `status` once the reader has all.
void FinishStream(const std::shared_ptr<ServedCall>& call,
                  const std::shared_ptr<StreamBuffer>& buffer,
                  absl::Status status);

// What a server runs for a stream's function.
template <auto function>
void ServeStream(std::shared_ptr<ServedCall> call) {
  using Type = StreamType<decltype(function)>;
  typename Type::Arguments arguments;
  if (absl::Status taken = TakeArguments(*call, arguments); !taken.ok()) {
    return call->Finish(std::move(taken));
  }
  const auto buffer = OpenBuffer(*call);
  if (!buffer.ok()) return call->Finish(buffer.status());
  const Writer<typename Type::Value> writer(*buffer, call->deadline());
  auto result = CatchToStatus([&] {
    return std::apply(
        [&](auto&... values) {
          if constexpr (Type::kTakesContext) {
            return function(*call, writer, std::move(values)...);
          } else {
            return function(writer, std::move(values)...);
          }
        },
        arguments);
  });
  if constexpr (std::is_same_v<decltype(result), absl::Status>) {
    FinishStream(call, *buffer, std::move(result));
  } else {  // StatusOr<Future<void>>
    if (!result.ok()) return FinishStream(call, *buffer, result.status());
    result->OnReady([call, buffer = *buffer](const absl::Status& status) {
      FinishStream(call, buffer, status);
    });
  }
}

template <auto function>
Function DescribeStream() {
  using Type = StreamType<decltype(function)>;
  Function f;
  f.name = NameOf<function>();
  f.signature = absl::StrCat("stream<", TypeName<typename Type::Value>(), "> ",
                             Type::Signature());
  f.digest = DigestOf(f.signature);
  f.address = reinterpret_cast<Function::Address>(function);
  f.serve = &ServeStream<function>;
  return f;
}

template <typename T, typename P, typename A>
using StreamOf = std::enable_if_t<Fit<P, A>::value, Reader<T>>;

template <typename T, typename Parameters, typename... A>
Reader<T> StartStream(const Target& target, Function::Address address,
                      Parameters types, A&&... arguments) {
  return Reader<T>(StreamSource::Open(
      target, FindFunction(target, address),
      EncodeArguments(types, std::forward<A>(arguments)...)));
}

}  // namespace internal

// Starts a stream, which ends by the target's time-out at the latest. What is
// wrong shows in Next().
template <typename R, typename T, typename... P, typename... A>
internal::StreamOf<T, internal::Types<P...>, internal::Types<A...>> OpenStream(
    const Target& target, R (*function)(Writer<T>, P...), A&&... arguments) {
  return internal::StartStream<T>(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...);
}
template <typename R, typename T, typename... P, typename... A>
internal::StreamOf<T, internal::Types<P...>, internal::Types<A...>> OpenStream(
    const Target& target, R (*function)(CallContext&, Writer<T>, P...),
    A&&... arguments) {
  return internal::StartStream<T>(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...);
}

}  // namespace weft::rpc

#define WEFT_RPC_STREAM(function) WEFT_RPC_STREAM_(function, __COUNTER__)
#define WEFT_RPC_STREAM_(function, n) WEFT_RPC_STREAM_AS_(function, n)
#define WEFT_RPC_STREAM_AS_(function, n)                       \
  [[maybe_unused]] static const bool weft_rpc_registered_##n = \
      ::weft::rpc::internal::Register(                         \
          ::weft::rpc::internal::DescribeStream<&function>())

#endif  // WEFT_RPC_STREAM_H_
