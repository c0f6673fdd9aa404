#include "weft/net/edge/tls_frames.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "weft/base/clock.h"
#include "weft/net/tls/certificates.h"
#include "weft/net/tls/openssl.h"

namespace weft::net {
namespace {

// The hooks are C functions without a context: this is how they get to know
// what the accept loop hands over on the same thread.
thread_local WatchNewTls* watching = nullptr;

using Held = std::shared_ptr<TlsFrames>;

void Release(void*, void* held, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Held*>(held);
}

// The index of the TlsFrames among the data of an SSL.
int HeldIndex() {
  static const int index =
      SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, Release);
  return index;
}

TlsFrames* FramesOf(const SSL* ssl) {
  const auto* held = static_cast<Held*>(SSL_get_ex_data(ssl, HeldIndex()));
  return held == nullptr ? nullptr : held->get();
}

std::string NameOf(const SSL* ssl) {
  const openssl::Certificate certificate(SSL_get1_peer_certificate(ssl));
  const openssl::Bio bio(BIO_new(BIO_s_mem()));
  if (certificate == nullptr ||
      PEM_write_bio_X509(bio.get(), certificate.get()) != 1)
    return "no certificate";
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  const auto facts =
      ReadCertificate(std::string(text, static_cast<size_t>(size)));
  return facts.ok() ? facts->identity.Name()
                    : "a certificate without weft://<job>/<role>/<rank>";
}

}  // namespace

TlsFrames::TlsFrames(FrameGuard::Options options, OnFlood on_flood)
    : guard_(options), on_flood_(std::move(on_flood)) {}

std::string TlsFrames::peer_name() const {
  MutexLock lock(mu_);
  return peer_name_;
}

bool TlsFrames::OnRead(const void* ssl, absl::string_view bytes) {
  const std::string& flood = guard_.OnReceived(bytes, SteadyClock().Now());
  const bool is_in_handshake = bytes.empty() && flood.empty();
  if (!is_in_handshake && !std::exchange(is_named_, true)) {
    std::string name = NameOf(static_cast<const SSL*>(ssl));
    MutexLock lock(mu_);
    peer_name_ = std::move(name);
  }
  if (flood.empty()) return true;
  if (!std::exchange(is_cut_, true)) on_flood_(peer_name(), flood);
  return false;
}

WatchNewTls::WatchNewTls(std::shared_ptr<TlsFrames> frames)
    : frames_(std::move(frames)) {
  watching = this;
}

WatchNewTls::~WatchNewTls() { watching = nullptr; }

std::shared_ptr<TlsFrames> WatchNewTls::Take() {
  return watching == nullptr ? nullptr : std::move(watching->frames_);
}

namespace {

// Called by OpenSSL for each record, also those that it handles by itself.
void OnTls(int is_written, int, int content, const void* bytes, size_t,
           SSL* ssl, void*) {
  // The type is the first byte; TLS 1.3 has the true one inside.
  if (is_written != 0 ||
      (content != SSL3_RT_HEADER && content != SSL3_RT_INNER_CONTENT_TYPE) ||
      *static_cast<const unsigned char*>(bytes) == SSL3_RT_APPLICATION_DATA)
    return;
  if (TlsFrames* const frames = FramesOf(ssl)) frames->OnTlsRecord();
}

void Watch(SSL* ssl) {
  Held frames = WatchNewTls::Take();
  if (frames == nullptr) return;
  auto held = std::make_unique<Held>(std::move(frames));
  if (SSL_set_ex_data(ssl, HeldIndex(), held.get()) != 1) return;
  (void)held.release();  // Release() deletes it
  SSL_set_msg_callback(ssl, OnTls);
}

}  // namespace
}  // namespace weft::net

// Instead of libssl's, by other functions of libssl that do the same.
#define WEFT_INTERPOSED extern "C" __attribute__((visibility("default")))

// gRPC calls it for each SSL that it makes, at once. A reference to each BIO is
// given away; one to both if they are the same.
WEFT_INTERPOSED void SSL_set_bio(SSL* s, BIO* rbio, BIO* wbio) {
  BIO* const old_in = SSL_get_rbio(s);
  BIO* const old_out = SSL_get_wbio(s);
  if (rbio == old_in && wbio == old_out) return;
  if (rbio != nullptr && rbio == wbio) BIO_up_ref(rbio);
  // A BIO that stays keeps the reference that it has.
  if (rbio != old_in && (wbio != old_out || old_in == old_out)) {
    SSL_set0_rbio(s, rbio);
    SSL_set0_wbio(s, wbio);
  } else if (rbio != old_in) {
    SSL_set0_rbio(s, rbio);
  } else {
    SSL_set0_wbio(s, wbio);
  }
  weft::net::Watch(s);
}

WEFT_INTERPOSED int SSL_read(SSL* s, void* buf, int num) {
  size_t count = 0;
  const bool has_read =
      num >= 0 && SSL_read_ex(s, buf, static_cast<size_t>(num), &count) == 1;
  weft::net::TlsFrames* const frames = weft::net::FramesOf(s);
  if (frames != nullptr &&
      !frames->OnRead(s, {static_cast<const char*>(buf), count})) {
    ERR_raise_data(ERR_LIB_USER, 1, "a flood of HTTP/2 frames");
    return -1;
  }
  return has_read ? static_cast<int>(count) : -1;
}

WEFT_INTERPOSED int SSL_write(SSL* s, const void* buf, int num) {
  size_t count = 0;
  if (num < 0 || SSL_write_ex(s, buf, static_cast<size_t>(num), &count) != 1)
    return -1;
  if (weft::net::TlsFrames* const frames = weft::net::FramesOf(s))
    frames->OnWritten({static_cast<const char*>(buf), count});
  return static_cast<int>(count);
}
