#include "weft/net/tls/trust.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/net/tls/openssl.h"

namespace weft::net {
namespace {

using openssl::Bio;
using openssl::Certificate;
using openssl::RevocationList;

// Every object of one kind in a PEM text.
template <typename Owner, typename T>
std::vector<Owner> ReadAll(const std::string& pem,
                           T* (*read)(BIO*, T**, pem_password_cb*, void*)) {
  std::vector<Owner> found;
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  while (T* next = read(bio.get(), nullptr, nullptr, nullptr))
    found.emplace_back(next);
  ERR_clear_error();
  return found;
}

// An authority without a list has taken nothing back.
int IgnoreAbsentLists(int ok, X509_STORE_CTX* context) {
  if (ok == 1) return ok;
  return X509_STORE_CTX_get_error(context) == X509_V_ERR_UNABLE_TO_GET_CRL;
}

absl::Status WantHost(X509_VERIFY_PARAM* wanted, const std::string& host) {
  if (X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1)
    return absl::OkStatus();
  ERR_clear_error();
  if (X509_VERIFY_PARAM_set1_host(wanted, host.data(), host.size()) == 1)
    return absl::OkStatus();
  ERR_clear_error();
  return absl::UnauthenticatedError("the name to compare with is none");
}

}  // namespace

struct Trust::Store {
  explicit Store(openssl::Store owner) : x509(std::move(owner)) {}
  const openssl::Store x509;
};

absl::StatusOr<std::unique_ptr<Trust>> Trust::Create(
    const std::string& authorities, const std::string& revoked) {
  auto trust = absl::WrapUnique(new Trust);
  WEFT_RETURN_IF_ERROR(trust->Replace(authorities, revoked));
  return trust;
}

absl::Status Trust::Replace(const std::string& authorities,
                            const std::string& revoked) {
  const auto trusted =
      ReadAll<Certificate, X509>(authorities, PEM_read_bio_X509);
  if (trusted.empty())
    return absl::InvalidArgumentError("no authority's certificate in PEM form");
  const auto lists =
      ReadAll<RevocationList, X509_CRL>(revoked, PEM_read_bio_X509_CRL);
  if (lists.empty() && !revoked.empty())
    return absl::InvalidArgumentError("no revocation list in PEM form");
  auto store = std::make_shared<const Store>(openssl::Store(X509_STORE_new()));
  for (const Certificate& authority : trusted)
    X509_STORE_add_cert(store->x509.get(), authority.get());
  for (const RevocationList& list : lists)
    X509_STORE_add_crl(store->x509.get(), list.get());
  if (!lists.empty())
    X509_STORE_set_flags(store->x509.get(), X509_V_FLAG_CRL_CHECK);
  MutexLock lock(mu_);
  store_.swap(store);
  return absl::OkStatus();
}

absl::Status Trust::CheckClient(const std::string& certificate,
                                const std::string& chain) const {
  return Check(certificate, chain, nullptr);
}

absl::Status Trust::CheckServer(const std::string& certificate,
                                const std::string& chain,
                                const std::string& host) const {
  return Check(certificate, chain, &host);
}

absl::Status Trust::Check(const std::string& certificate,
                          const std::string& chain,
                          const std::string* host) const {
  std::shared_ptr<const Store> store;
  {
    MutexLock lock(mu_);
    store = store_;
  }
  const auto shown = ReadAll<Certificate, X509>(certificate, PEM_read_bio_X509);
  if (shown.empty()) return absl::UnauthenticatedError("no certificate");
  const auto between = ReadAll<Certificate, X509>(chain, PEM_read_bio_X509);
  STACK_OF(X509)* const untrusted = sk_X509_new_null();
  const absl::Cleanup free_untrusted = [&] { sk_X509_free(untrusted); };
  for (const Certificate& one : between) sk_X509_push(untrusted, one.get());
  const openssl::Verification context(X509_STORE_CTX_new());
  if (X509_STORE_CTX_init(context.get(), store->x509.get(), shown[0].get(),
                          untrusted) != 1) {
    return absl::InternalError("OpenSSL has no memory");
  }
  X509_STORE_CTX_set_verify_cb(context.get(), IgnoreAbsentLists);
  X509_STORE_CTX_set_default(context.get(),
                             host == nullptr ? "ssl_client" : "ssl_server");
  if (host != nullptr) {
    WEFT_RETURN_IF_ERROR(
        WantHost(X509_STORE_CTX_get0_param(context.get()), *host));
  }
  const int believed = X509_verify_cert(context.get());
  const int error = X509_STORE_CTX_get_error(context.get());
  ERR_clear_error();
  if (believed == 1) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat(
      "certificate verify failed: ", X509_verify_cert_error_string(error)));
}

}  // namespace weft::net
