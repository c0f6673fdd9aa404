// Prepared: an operation on a table whose messages are made and not yet sent,
// so that they can travel together with those of other tables.

#ifndef WEFT_PS_OPERATION_H_
#define WEFT_PS_OPERATION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "weft/base/future.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/service.h"
#include "weft/rpc/call.h"
#include "weft/tensor/tensor.h"

namespace weft::ps::internal {

// The arguments of ps::Exchange at one server.
struct Message {
  int server = 0;
  v1::Request request;
  std::optional<Tensor> push_keys, push_values, pull_keys;
  int64_t pulled_bytes = 0;  // of the values that it asks for
};

struct Prepared {
  std::vector<Message> messages;  // servers ascend
  // Makes the result of the replies to the messages, which are in their order.
  // What is pushed counts as sent.
  absl::AnyInvocable<Future<Tensor>(std::vector<Future<ExchangeReply>>) &&>
      finish;
};

// Sends `message` by itself.
Future<ExchangeReply> Send(const rpc::Target& to, Message message);

}  // namespace weft::ps::internal

#endif  // WEFT_PS_OPERATION_H_
