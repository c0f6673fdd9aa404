// Functions whose results or arguments are streams.

#ifndef WEFT_RPC_TESTING_STREAM_TEST_FUNCTIONS_H_
#define WEFT_RPC_TESTING_STREAM_TEST_FUNCTIONS_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/parker.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/simulated_ranks.h"

namespace weft::rpc {

// What the functions share with a test. As all that they use, before the ranks:
// the last of them may run after the test's last line.
struct Progress {
  std::atomic<int64_t> written{0};
  std::atomic<int> ended{0};
  Parker end;
  Mutex mu;
  absl::Status why ABSL_GUARDED_BY(mu);

  absl::Status End(absl::Status status) {
    {
      MutexLock lock(mu);
      why = status;
    }
    ++ended;
    end.Unpark();
    return status;
  }
};

// 0, 1, ..., n - 1, of `bytes` each.
inline absl::Status Count(CallContext& context, Writer<std::string> out,
                          int64_t n, int64_t bytes) {
  auto* progress = context.Local<Progress>();
  for (int64_t i = 0; i < n; ++i) {
    std::string value = absl::StrCat(i);
    value.resize(std::max<size_t>(value.size(), bytes), '.');
    const absl::Status written = out.Write(std::move(value));
    if (!written.ok()) return progress->End(written);
    ++progress->written;
  }
  return progress->End(absl::OkStatus());
}
WEFT_RPC_STREAM(Count);

inline absl::Status ThreeThenFail(Writer<int64_t> out) {
  for (const int64_t i : {1, 2, 3}) WEFT_RETURN_IF_ERROR(out.Write(i));
  return absl::DataLossError("the rest is missing");
}
WEFT_RPC_STREAM(ThreeThenFail);

inline Tensor Row(int64_t i) {
  return Tensor::Full({1000}, static_cast<double>(i));
}

// The sum, or the error `fail` after so many values.
inline absl::StatusOr<int64_t> SumOf(CallContext& context,
                                     Reader<std::string> in,
                                     int64_t fail_after) {
  auto* progress = context.Local<Progress>();
  int64_t sum = 0;
  int64_t read = 0;
  for (;;) {
    if (read == fail_after) return absl::DataLossError("enough");
    absl::StatusOr<std::optional<std::string>> next = in.Next();
    if (!next.ok()) return progress->End(next.status());
    if (!next->has_value()) break;
    if (std::stoll(**next) != read) return absl::InternalError("out of order");
    sum += read++;
    ++progress->written;
  }
  (void)progress->End(absl::OkStatus());
  return sum;
}
WEFT_RPC_STREAM(SumOf);

// Each value twice; -1 is refused, after what came before it.
inline absl::Status Twice(CallContext& context, Reader<int64_t> in,
                          Writer<int64_t> out, int64_t times) {
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<int64_t> x, in.Next());
    if (!x.has_value()) return absl::OkStatus();
    if (*x < 0) return absl::OutOfRangeError("below 0");
    WEFT_RETURN_IF_ERROR(out.Write(*x * times));
    if (context.cancel().IsCancelled()) return context.cancel().status();
  }
}
WEFT_RPC_STREAM(Twice);

// What a reader refuses, throws at, or a writer throws at: 13, 23, 33.
struct Picky {
  int64_t value = 0;
};

inline int64_t Ping() { return 1; }
WEFT_RPC(Ping);

template <>
struct Codec<Picky> {
  static std::string TypeName() { return "test.Picky"; }
  static void Encode(const Picky& x, Encoder& e) {
    if (x.value == 33) throw std::runtime_error("threw at a 33");
    e.Write(x.value);
  }
  static absl::Status Decode(Decoder& d, Picky& x) {
    WEFT_RETURN_IF_ERROR(d.Read(x.value));
    if (x.value == 23) throw std::runtime_error("threw at a 23");
    return x.value == 13 ? Decoder::Malformed("a 13") : absl::OkStatus();
  }
};

template <typename T>
absl::StatusOr<std::vector<T>> ReadAll(Reader<T> reader) {
  std::vector<T> all;
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(std::optional<T> value, reader.Next());
    if (!value.has_value()) return all;
    all.push_back(*std::move(value));
  }
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_STREAM_TEST_FUNCTIONS_H_
