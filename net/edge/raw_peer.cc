#include "weft/net/edge/raw_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace weft::net {
namespace {

constexpr timeval kRawPeerPatience = {20, 0};

// RFC 7541, 5.1, with a prefix of 7 bits.
std::string HpackLength(size_t value) {
  if (value < 127) return std::string(1, static_cast<char>(value));
  std::string bytes(1, 127);
  for (value -= 127; value >= 128; value /= 128)
    bytes.push_back(static_cast<char>(value % 128 + 128));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

void UseCertificate(SSL_CTX* context, const RawPeer::Hello& hello) {
  if (hello.certificate.empty()) return;
  BIO* bio = BIO_new_mem_buf(hello.certificate.data(),
                             static_cast<int>(hello.certificate.size()));
  X509* certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  SSL_CTX_use_certificate(context, certificate);
  X509_free(certificate);
  BIO_free(bio);
  bio = BIO_new_mem_buf(hello.key.data(), static_cast<int>(hello.key.size()));
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
  SSL_CTX_use_PrivateKey(context, key);
  EVP_PKEY_free(key);
  BIO_free(bio);
}

}  // namespace

RawPeer::RawPeer(const std::string& address, const std::string& from) {
  signal(SIGPIPE, SIG_IGN);
  const size_t colon = address.rfind(':');
  int port = 0;
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &name.sin_addr) != 1)
    return;
  name.sin_port = htons(static_cast<uint16_t>(port));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  const bool placed =
      from.empty() ||
      (inet_pton(AF_INET, from.c_str(), &own.sin_addr) == 1 &&
       bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kRawPeerPatience,
             sizeof kRawPeerPatience);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kRawPeerPatience,
             sizeof kRawPeerPatience);
  if (placed &&
      connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0) {
    fd_ = fd;
  } else {
    close(fd);
  }
}

RawPeer::~RawPeer() {
  SSL_free(ssl_);
  SSL_CTX_free(context_);
  if (fd_ >= 0) close(fd_);
}

bool RawPeer::ShakeHands(const Hello& hello) {
  context_ = SSL_CTX_new(TLS_client_method());
  // Old versions and weak suites are offered only at this level.
  SSL_CTX_set_security_level(context_, 0);
  SSL_CTX_set_min_proto_version(context_, hello.version);
  SSL_CTX_set_max_proto_version(context_, hello.version);
  if (!hello.ciphers.empty())
    SSL_CTX_set_cipher_list(context_, hello.ciphers.c_str());
  UseCertificate(context_, hello);
  constexpr unsigned char kH2[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context_, kH2, sizeof kH2);
  ssl_ = SSL_new(context_);
  SSL_set_fd(ssl_, fd_);
  const bool content = SSL_connect(ssl_) == 1;
  ERR_clear_error();
  return content;
}

std::string RawPeer::ServerSerial() const {
  X509* certificate = SSL_get1_peer_certificate(ssl_);
  if (certificate == nullptr) return "";
  BIGNUM* number =
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr);
  char* text = BN_bn2hex(number);
  std::string serial(text);
  OPENSSL_free(text);
  BN_free(number);
  X509_free(certificate);
  return serial;
}

bool RawPeer::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const int64_t written =
        ssl_ != nullptr
            ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
            : send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ERR_clear_error();
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool RawPeer::UpdateKeys(int count) {
  // Gathered, as a hostile peer would send them.
  BIO* const gathered = BIO_new(BIO_s_mem());
  SSL_set0_wbio(ssl_, gathered);
  bool open = true;
  for (int i = 0; open && i < count; ++i) {
    open = SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 &&
           SSL_do_handshake(ssl_) == 1;
  }
  ERR_clear_error();
  char* text = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(gathered, &text));
  for (size_t at = 0; open && at < size;) {
    const ssize_t sent = send(fd_, text + at, size - at, MSG_NOSIGNAL);
    open = sent > 0;
    if (open) at += static_cast<size_t>(sent);
  }
  SSL_set0_wbio(ssl_, BIO_new_socket(fd_, BIO_NOCLOSE));
  return open;
}

bool RawPeer::ReadMore() {
  char bytes[16384];
  errno = 0;
  const int64_t got = ssl_ != nullptr ? SSL_read(ssl_, bytes, sizeof bytes)
                                      : recv(fd_, bytes, sizeof bytes, 0);
  ERR_clear_error();
  if (got <= 0) return false;
  received_.append(bytes, static_cast<size_t>(got));
  return true;
}

bool RawPeer::AwaitFrame(uint8_t type) {
  constexpr size_t kHeader = 9;
  for (;;) {
    while (received_.size() < parsed_ + kHeader) {
      if (!ReadMore()) return false;
    }
    const auto* header =
        reinterpret_cast<const uint8_t*>(received_.data() + parsed_);
    const size_t length = header[0] << 16 | header[1] << 8 | header[2];
    const uint8_t found = header[3];
    while (received_.size() < parsed_ + kHeader + length) {
      if (!ReadMore()) return false;
    }
    parsed_ += kHeader + length;
    if (found == type) return true;
  }
}

void RawPeer::Discard() {
  pollfd there = {fd_, POLLIN, 0};
  while (poll(&there, 1, 0) == 1 && ReadMore()) received_.clear();
  received_.clear();
  parsed_ = 0;
}

bool RawPeer::AwaitEnd() {
  while (ReadMore()) {
  }
  return errno != EAGAIN;
}

std::string ClientHello() {
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  SSL* const ssl = SSL_new(context);
  BIO* const said = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl, BIO_new(BIO_s_mem()), said);
  SSL_connect(ssl);  // wants an answer
  ERR_clear_error();
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(said, &bytes);
  std::string hello(bytes, static_cast<size_t>(size));
  SSL_free(ssl);
  SSL_CTX_free(context);
  return hello;
}

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream,
                  absl::string_view payload) {
  const auto byte = [](size_t value, int shift) {
    return static_cast<char>(value >> shift & 0xff);
  };
  std::string frame = {byte(payload.size(), 16), byte(payload.size(), 8),
                       byte(payload.size(), 0),  static_cast<char>(type),
                       static_cast<char>(flags), byte(stream, 24),
                       byte(stream, 16),         byte(stream, 8),
                       byte(stream, 0)};
  return frame.append(payload.data(), payload.size());
}

std::string Preface() {
  return absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                      Frame(kSettingsFrame, 0, 0, ""));
}

std::string HeaderBlock(
    const std::string& path,
    const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::pair<std::string, std::string>> headers = {
      {":method", "POST"},
      {":scheme", "https"},
      {":path", path},
      {":authority", "ps0"},
      {"content-type", "application/grpc"},
      {"te", "trailers"}};
  headers.insert(headers.end(), more.begin(), more.end());
  std::string block;
  for (const auto& [name, value] : headers) {
    block.push_back(0);  // a literal that is not to be remembered
    absl::StrAppend(&block, HpackLength(name.size()), name,
                    HpackLength(value.size()), value);
  }
  return block;
}

}  // namespace weft::net
