#include "weft/net/edge/client_hello_check.h"

#include <cstdint>

#include "absl/strings/match.h"
#include "weft/net/local/local_frames.h"

namespace weft::net {
namespace {

// RFC 9113, 3.4.
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// RFC 8446, 4.1.2 and 5.1: a record's header, and in it a ClientHello up to its
// version.
constexpr size_t kRecordHeaderBytes = 5;
constexpr size_t kHelloBytes = 11;
constexpr size_t kMaxRecordBytes = 1 << 14;
constexpr uint8_t kHandshake = 22;
constexpr uint8_t kClientHello = 1;
constexpr int kTls12 = 0x0303;

static_assert(kClientHelloCheckBytes >= kPreface.size() &&
              kClientHelloCheckBytes >= kHelloBytes &&
              kClientHelloCheckBytes >= kLocalPreface.size());

}  // namespace

ClientHelloCheck CheckTlsHello(absl::string_view first, size_t there) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(first[at]); };
  if (byte(0) != kHandshake) return {false, "plain text; TLS is wanted here"};
  if (first.size() < kRecordHeaderBytes) return {};
  const size_t size = byte(3) << 8 | byte(4);
  if (size > kMaxRecordBytes || kRecordHeaderBytes + size < kHelloBytes)
    return {false, "a TLS record of a size that no ClientHello has"};
  if (first.size() < kHelloBytes) return {};
  if (byte(5) != kClientHello) return {false, "TLS without a ClientHello"};
  if ((byte(9) << 8 | byte(10)) < kTls12)
    return {false, "TLS 1.1 or older; TLS 1.2 is wanted"};
  return {there >= kRecordHeaderBytes + size, nullptr};
}

ClientHelloCheck CheckLocalPreface(absl::string_view first) {
  const absl::string_view protocol = first.substr(0, kLocalProtocol.size());
  if (!absl::StartsWith(kLocalProtocol, protocol)) {
    return CheckHttp2Preface(first);
  }
  ClientHelloCheck said;
  said.is_local = said.is_whole = first.size() >= kLocalPreface.size();
  return said;
}

ClientHelloCheck CheckHttp2Preface(absl::string_view first) {
  first = first.substr(0, kPreface.size());
  return {first.size() == kPreface.size() || !absl::StartsWith(kPreface, first),
          nullptr};
}

}  // namespace weft::net
