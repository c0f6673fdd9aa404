// OpenSSL's objects, each owned by one pointer.

#ifndef WEFT_NET_TLS_OPENSSL_H_
#define WEFT_NET_TLS_OPENSSL_H_

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <memory>

namespace weft::net::openssl {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* p) const {
    kFree(p);
  }
};
template <typename T, auto kFree>
using Owner = std::unique_ptr<T, Free<kFree>>;

using Bio = Owner<BIO, BIO_free_all>;
using Certificate = Owner<X509, X509_free>;
using Key = Owner<EVP_PKEY, EVP_PKEY_free>;
using Names = Owner<GENERAL_NAMES, GENERAL_NAMES_free>;
using RevocationList = Owner<X509_CRL, X509_CRL_free>;
using Serial = Owner<ASN1_INTEGER, ASN1_INTEGER_free>;
using Store = Owner<X509_STORE, X509_STORE_free>;
using Time = Owner<ASN1_TIME, ASN1_TIME_free>;
using Verification = Owner<X509_STORE_CTX, X509_STORE_CTX_free>;

}  // namespace weft::net::openssl

#endif  // WEFT_NET_TLS_OPENSSL_H_
