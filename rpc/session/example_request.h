// ExampleRequest: a request for tests of sessions.

#ifndef WEFT_RPC_SESSION_EXAMPLE_REQUEST_H_
#define WEFT_RPC_SESSION_EXAMPLE_REQUEST_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/rpc/session/message.h"

namespace weft::rpc {

inline std::shared_ptr<Request> MakeRequest(int depth = 0,
                                            size_t body_bytes = 0) {
  auto request = std::make_shared<Request>();
  request->function = "F";
  request->deadline = Instant() + absl::Seconds(60);
  request->depth = depth;
  request->chain = "a > b";
  request->body = {Bytes::Own(std::string(body_bytes, 'x'))};
  return request;
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_EXAMPLE_REQUEST_H_
