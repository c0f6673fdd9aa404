// WEFT_RPC_BATCHED: a function that serves several calls at once.
//
//   std::vector<float> ScoreAll(std::vector<Features> items);
//   WEFT_RPC_BATCHED(ScoreAll, 64, absl::Milliseconds(2));
//
//   Future<float> score = rpc::CallOneAsync(target, ScoreAll, features);
//
// It takes a vector of items and returns a vector of as many results, or
// StatusOr of it. Each caller sends one item and gets its own result. Calls of
// all callers are gathered until there are `max_items` or the first has waited
// `max_delay`. Calls cancelled by then are left out; an error of the function
// is the error of all calls in the batch. It takes no CallContext, as it serves
// many calls.

#ifndef WEFT_RPC_BATCH_H_
#define WEFT_RPC_BATCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/future.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"

namespace weft::rpc {

namespace internal {

// The T of vector<T>; T itself for other types, so that BatchType's message is
// the only one.
template <typename T>
struct ElementOf {
  static constexpr bool kIsOfVector = false;
  using type = T;
};
template <typename T, typename A>
struct ElementOf<std::vector<T, A>> {
  static constexpr bool kIsOfVector = true;
  using type = T;
};

template <typename F>
struct BatchType;
template <typename R, typename P>
struct BatchType<R (*)(P)> {
  using Items = std::decay_t<P>;
  using Results = typename Returned<std::decay_t<R>>::type;
  static_assert(
      ElementOf<Items>::kIsOfVector && ElementOf<Results>::kIsOfVector,
      "this is no function of WEFT_RPC_BATCHED, which takes a vector of items "
      "and returns a vector of results");
  using Item = typename ElementOf<Items>::type;
  using Value = typename ElementOf<Results>::type;

  static std::string Signature() {
    return absl::StrCat("one of ", TypeName<Value>(), "(", TypeName<Item>(),
                        ")");
  }
};

// Runs the calls of one batch at the server.
template <auto function>
void ServeBatch(std::vector<std::shared_ptr<ServedCall>> calls) {
  using Type = BatchType<decltype(function)>;
  typename Type::Items items;
  decltype(calls) served;
  for (auto& call : calls) {
    std::tuple<typename Type::Item> item;
    absl::Status status = call->cancel().status();
    if (status.ok()) status = TakeArguments(*call, item);
    if (!status.ok()) {
      call->Finish(std::move(status));
      continue;
    }
    items.push_back(std::get<0>(std::move(item)));
    served.push_back(std::move(call));
  }
  if (served.empty()) return;
  absl::StatusOr<typename Type::Results> results =
      CatchToStatus([&] { return function(std::move(items)); });
  if (results.ok() && results->size() != served.size()) {
    results = absl::InternalError(absl::StrCat(NameOf<function>(), " returned ",
                                               results->size(), " results for ",
                                               served.size(), " items"));
  }
  for (size_t i = 0; i < served.size(); ++i) {
    if (!results.ok()) {
      served[i]->Finish(results.status());
      continue;
    }
    FinishEncoded(*served[i], [&](Encoder& encoder) {
      return EncodeResult<typename Type::Value>(encoder,
                                                std::move((*results)[i]));
    });
  }
}

template <auto function>
Function DescribeBatch(int64_t max_items, absl::Duration max_delay) {
  Function f;
  f.name = NameOf<function>();
  f.signature = BatchType<decltype(function)>::Signature();
  f.digest = DigestOf(f.signature);
  f.address = reinterpret_cast<Function::Address>(function);
  f.batch = BatchPolicy{max_items, max_delay};
  f.serve_batch = &ServeBatch<function>;
  return f;
}

}  // namespace internal

// One item of a batched function: the Future of its result.
template <typename R, typename P, typename A>
std::enable_if_t<
    internal::kFits<typename internal::BatchType<R (*)(P)>::Item, A>,
    Future<typename internal::BatchType<R (*)(P)>::Value>>
CallOneAsync(const Target& target, R (*function)(P), A&& item) {
  using Type = internal::BatchType<R (*)(P)>;
  const Target now = target.Pinned();
  return internal::StartTyped<typename Type::Value>(
      now,
      internal::FindFunction(now,
                             reinterpret_cast<Function::Address>(function)),
      internal::EncodeArguments(now, internal::Types<typename Type::Item>(),
                                std::forward<A>(item)),
      [](uint64_t, const absl::StatusOr<Received>& reply) {
        return internal::DecodeResult<typename Type::Value>(reply);
      });
}
template <typename F, typename A>
auto CallOne(const Target& target, F* function, A&& item)
    -> decltype(CallOneAsync(target, function, std::forward<A>(item))
                    .Wait(absl::Duration())) {
  return internal::StartAndWait(target, [&] {
    return CallOneAsync(target, function, std::forward<A>(item));
  });
}

}  // namespace weft::rpc

#define WEFT_RPC_BATCHED(function, max_items, max_delay) \
  WEFT_RPC_BATCHED_(function, max_items, max_delay, __COUNTER__)
#define WEFT_RPC_BATCHED_(function, max_items, max_delay, n) \
  WEFT_RPC_BATCHED_AS_(function, max_items, max_delay, n)
#define WEFT_RPC_BATCHED_AS_(function, max_items, max_delay, n)      \
  [[maybe_unused]] static const bool weft_rpc_registered_##n =       \
      ::weft::rpc::internal::Register(                               \
          ::weft::rpc::internal::DescribeBatch<&function>(max_items, \
                                                          max_delay))

#endif  // WEFT_RPC_BATCH_H_
