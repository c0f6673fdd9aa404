// ClientHelloCheck: what a connection says before it wants an answer.

#ifndef WEFT_NET_EDGE_CLIENT_HELLO_CHECK_H_
#define WEFT_NET_EDGE_CLIENT_HELLO_CHECK_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace weft::net {

struct ClientHelloCheck {
  bool is_whole = false;
  const char* unfit = nullptr;  // why it can become nothing that is wanted
  bool is_local = false;        // it begins a stream within a host
};

// As many bytes as these look at.
inline constexpr size_t kClientHelloCheckBytes = 24;

// `first` bytes, one at least, of `there` that have come. Over TLS a record
// with a ClientHello of TLS 1.2 or newer (TLS itself refuses what only turns
// out later); else the preface of HTTP/2, or what is none: gRPC answers that in
// plain text, by which who speaks TLS knows where it is.
ClientHelloCheck CheckTlsHello(absl::string_view first, size_t there);
ClientHelloCheck CheckHttp2Preface(absl::string_view first);
// Of a unix socket: kLocalProtocol, whole once its version is there too, or
// what CheckHttp2Preface takes.
ClientHelloCheck CheckLocalPreface(absl::string_view first);

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_CLIENT_HELLO_CHECK_H_
