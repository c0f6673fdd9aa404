// Functions that fail in each way.

#ifndef WEFT_RPC_TESTING_FAILURE_TEST_FUNCTIONS_H_
#define WEFT_RPC_TESTING_FAILURE_TEST_FUNCTIONS_H_

#include <atomic>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "weft/base/parker.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/batch.h"
#include "weft/rpc/detail.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/simulated_ranks.h"

namespace weft::rpc {

// The words that cannot be written, or cannot be read.
struct Word {
  std::string text;
};

template <>
struct Codec<Word> {
  static std::string TypeName() { return "test.Word"; }
  static void Encode(const Word& word, Encoder& encoder) {
    if (word.text == "unwritable") {
      return encoder.Fail(absl::OutOfRangeError("this word is not written"));
    }
    if (word.text == "unspeakable") throw std::runtime_error("cannot write it");
    if (word.text == "too long") throw std::bad_alloc();
    encoder.Write(word.text);
  }
  static absl::Status Decode(Decoder& decoder, Word& word) {
    WEFT_RETURN_IF_ERROR(decoder.Read(word.text));
    if (word.text == "unreadable") throw std::runtime_error("cannot read it");
    if (word.text == "endless") throw std::bad_alloc();
    if (word.text != "forbidden") return absl::OkStatus();
    absl::Status status = absl::PermissionDeniedError("this word is not read");
    status.SetPayload("test/payload", absl::Cord("kept"));
    return status;
  }
};

// What an exception tells its caller, for it can itself be made of no bytes.
struct Overdrawn {
  int64_t account = 0;
  double by = 0;
};

template <>
struct Codec<Overdrawn> {
  static std::string TypeName() { return "test.Overdrawn"; }
  static void Encode(const Overdrawn& o, Encoder& encoder) {
    encoder.Write(o.account, o.by);
  }
  static absl::Status Decode(Decoder& decoder, Overdrawn& o) {
    return decoder.Read(o.account, o.by);
  }
};

inline constexpr char kPayload[] = "test/payload";

inline absl::Status Fail(const std::string& why) {
  absl::Status status = absl::DataLossError(why);
  status.SetPayload(kPayload, absl::Cord("kept"));
  return WithDetail(status, Overdrawn{3, 1.5});
}
WEFT_RPC(Fail);

inline Word MakeWord(const std::string& text) { return Word{text}; }
WEFT_RPC(MakeWord);

inline std::vector<Word> MakeEach(const std::vector<std::string>& texts) {
  std::vector<Word> words;
  for (const std::string& text : texts) words.push_back(Word{text});
  return words;
}
WEFT_RPC_BATCHED(MakeEach, 3, absl::Milliseconds(50));

inline absl::Status Endless(Writer<int64_t> out) {
  for (int64_t i = 0;; ++i) WEFT_RETURN_IF_ERROR(out.Write(i));
}
WEFT_RPC_STREAM(Endless);

inline absl::Status FailBelow(CallContext& context, const std::string& other,
                              const std::string& why) {
  return Call(context.To(other), Fail, why);
}
WEFT_RPC(FailBelow);

// Before the ranks, whose last call may run after the test's last line.
struct Parked {
  Parker began;
  Mutex mu;
  std::vector<Promise<int64_t>> promises ABSL_GUARDED_BY(mu);
  std::atomic<int> runs{0};
};

inline Future<int64_t> Park(CallContext& context) {
  auto* parked = context.Local<Parked>();
  auto [promise, future] = MakePromise<int64_t>();
  {
    MutexLock lock(parked->mu);
    parked->promises.push_back(std::move(promise));
  }
  ++parked->runs;
  parked->began.Unpark();
  return future;
}
WEFT_RPC(Park);

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_FAILURE_TEST_FUNCTIONS_H_
