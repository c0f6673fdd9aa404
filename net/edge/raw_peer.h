// RawPeer: a peer that speaks bytes: TLS and HTTP/2 as a test wants them, right
// or wrong. For tests.

#ifndef WEFT_NET_EDGE_RAW_PEER_H_
#define WEFT_NET_EDGE_RAW_PEER_H_

#include <openssl/ssl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft::net {

// Every wait ends within `kRawPeerPatience`. Thread-safety: one thread at a
// time.
class RawPeer {
 public:
  struct Hello {
    std::string certificate;  // PEM; empty: none is shown
    std::string key;          // PEM
    int version = TLS1_3_VERSION;
    std::string ciphers;  // up to TLS 1.2; empty: as OpenSSL likes
  };

  // Connects to host:port; from the host `from`, if given.
  explicit RawPeer(const std::string& address, const std::string& from = "");
  ~RawPeer();
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  bool connected() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  // TLS as a client that believes any server. True if this end is content.
  bool ShakeHands(const Hello& hello);
  // The serial number in the server's certificate, after ShakeHands.
  std::string ServerSerial() const;

  // Through TLS, if hands were shaken. False once the other end has gone.
  bool Write(absl::string_view bytes);
  // Says that it uses new keys of TLS 1.3 from now on: `count` times at once.
  bool UpdateKeys(int count);
  // True if a frame of `type` came; false at the end of the connection.
  bool AwaitFrame(uint8_t type);
  // Reads what there is, until the other end closes.
  bool AwaitEnd();
  // Throws away what has come, without waiting for more.
  void Discard();
  // Payloads of the frames that were passed over, and all other bytes.
  const std::string& received() const { return received_; }

 private:
  bool ReadMore();

  int fd_ = -1;
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
  std::string received_;
  size_t parsed_ = 0;
};

// What a client says first in TLS, whole.
std::string ClientHello();

// RFC 9113, section 6.
inline constexpr uint8_t kDataFrame = 0;
inline constexpr uint8_t kHeadersFrame = 1;
inline constexpr uint8_t kResetFrame = 3;
inline constexpr uint8_t kSettingsFrame = 4;
inline constexpr uint8_t kPingFrame = 6;
inline constexpr uint8_t kContinuationFrame = 9;
inline constexpr uint8_t kEndHeaders = 4;

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream,
                  absl::string_view payload);
std::string Preface();  // with empty settings
// Headers of a gRPC call, and `more`, as literals (RFC 7541, 6.2.2).
std::string HeaderBlock(
    const std::string& path,
    const std::vector<std::pair<std::string, std::string>>& more = {});

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_RAW_PEER_H_
