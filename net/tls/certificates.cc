#include "weft/net/tls/certificates.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"
#include "weft/net/tls/openssl.h"

namespace weft::net {
namespace {

using openssl::Bio;
using openssl::Certificate;
using openssl::Key;
using openssl::RevocationList;
using openssl::Serial;
using openssl::Time;

// Authorities outlive their members: later ones are signed with them.
constexpr absl::Duration kAuthorityValidity = absl::Hours(24 * 3650);

// Clocks of hosts differ.
constexpr absl::Duration kBackdate = absl::Minutes(5);

absl::Status OpenSslError(absl::string_view what) {
  char text[256];
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  ERR_clear_error();
  return absl::InternalError(absl::StrCat(what, ": ", text));
}

absl::string_view Contents(BIO* bio) {
  char* begin = nullptr;
  const long size = BIO_get_mem_data(bio, &begin);
  return {begin, static_cast<size_t>(size)};
}

std::string KeyPem(EVP_PKEY* key) {
  Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr,
                           nullptr);
  return std::string(Contents(bio.get()));
}

std::string CertificatePem(X509* certificate) {
  Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return std::string(Contents(bio.get()));
}

absl::StatusOr<Certificate> ParseCertificate(const std::string& pem) {
  Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Certificate certificate(
      PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr)
    return absl::InvalidArgumentError("not a certificate in PEM form");
  return certificate;
}

absl::StatusOr<Key> ParseKey(const std::string& pem) {
  Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  // The empty password keeps OpenSSL from asking for one on the terminal.
  char no_password[] = "";
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, no_password));
  ERR_clear_error();
  if (key == nullptr)
    return absl::InvalidArgumentError("not a private key in PEM form");
  return key;
}

absl::Status AddExtension(X509* certificate, X509* issuer, int kind,
                          const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension =
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  if (extension == nullptr)
    return OpenSslError(absl::StrCat("certificate extension ", value));
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
  return absl::OkStatus();
}

// A certificate with a new serial number, `subject` and dates, not yet signed.
absl::StatusOr<Certificate> Draft(const std::string& organisation,
                                  const std::string& subject, EVP_PKEY* key,
                                  Validity validity) {
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  unsigned char serial[16];
  if (RAND_bytes(serial, sizeof serial) != 1)
    return OpenSslError("random serial number");
  serial[0] &= 0x7f;
  BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate.get()));
  BN_free(number);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()),
                absl::ToTimeT(validity.from));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()),
                absl::ToTimeT(validity.until));
  X509_NAME* name = X509_get_subject_name(certificate.get());
  const auto add = [name](const char* field, const std::string& value) {
    X509_NAME_add_entry_by_txt(
        name, field, MBSTRING_ASC,
        reinterpret_cast<const unsigned char*>(value.c_str()), -1, -1, 0);
  };
  add("O", organisation);
  add("CN", subject);
  if (X509_set_pubkey(certificate.get(), key) != 1)
    return OpenSslError("public key");
  return certificate;
}

// DNS names and IP numbers only: the text becomes part of OpenSSL's own
// notation.
absl::StatusOr<std::string> AlternativeName(const std::string& host) {
  unsigned char number[16];
  if (inet_pton(AF_INET, host.c_str(), number) == 1 ||
      inet_pton(AF_INET6, host.c_str(), number) == 1) {
    return absl::StrCat("IP:", host);
  }
  bool fits = !host.empty() && host.size() <= 253;
  for (char c : host)
    fits = fits && (absl::ascii_isalnum(c) || c == '.' || c == '-');
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host \"", absl::CHexEscape(host.substr(0, 80)),
        "\" for a certificate: wanted an IP number or a DNS name"));
  }
  return absl::StrCat("DNS:", host);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, path);
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

// Never follows or overwrites what is there.
absl::Status WriteFile(const std::string& path, const std::string& contents,
                       mode_t mode) {
  const int fd = open(
      path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd < 0) {
    const std::string message =
        absl::StrCat("cannot write ", path, ": ", strerror(errno));
    return errno == EEXIST ? absl::AlreadyExistsError(message)
                           : absl::FailedPreconditionError(message);
  }
  const ssize_t written = write(fd, contents.data(), contents.size());
  const bool whole =
      written == static_cast<ssize_t>(contents.size()) && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  if (whole) return absl::OkStatus();
  unlink(path.c_str());
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot write ", path, ": ", strerror(error)));
}

// Readers see the former contents or these, never a part.
absl::Status ReplaceFile(const std::string& path, const std::string& contents,
                         mode_t mode) {
  const std::string made = absl::StrCat(path, ".new");
  unlink(made.c_str());
  WEFT_RETURN_IF_ERROR(WriteFile(made, contents, mode));
  if (rename(made.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot replace ", path, ": ", strerror(errno)));
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  std::string why = strerror(errno);
  struct stat there;
  if (errno == EEXIST && stat(path.c_str(), &there) == 0) {
    if (S_ISDIR(there.st_mode)) return absl::OkStatus();
    why = "it is a file; move it away, or choose another directory";
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot make directory ", path, ": ", why));
}

std::string OrganisationOf(const std::string& job) {
  return absl::StrCat("weft job ", job);
}

std::string OrganisationOf(X509* certificate) {
  char text[128] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate),
                            NID_organizationName, text, sizeof text);
  return text;
}

constexpr char kWhereItsAuthorityIs[] =
    "run this in the directory where `weft certs init` has made it, or copy "
    "both files from there";

// One of the two files that an authority is.
absl::StatusOr<std::string> ReadAuthority(const std::string& path) {
  absl::StatusOr<std::string> read = ReadFile(path);
  if (read.ok()) return read;
  return absl::Status(
      read.status().code(),
      absl::StrCat("no authority of a job: ", read.status().message(), "; ",
                   kWhereItsAuthorityIs));
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm calendar = {};
  ASN1_TIME_to_tm(time, &calendar);
  return absl::FromTM(calendar, absl::UTCTimeZone());
}

// A member is not trusted beyond the end of `authority`, read from `path`.
absl::Status CheckOutlives(X509* authority, const std::string& path,
                           const CertificatesOptions& options) {
  const absl::Time now = absl::Now();
  const absl::Time until = TimeOf(X509_get0_notAfter(authority));
  if (options.members.empty() || now + options.validity <= until) {
    return absl::OkStatus();
  }
  const int64_t days = absl::ToInt64Hours(until - now) / 24;
  return absl::InvalidArgumentError(absl::StrCat(
      "the authority ", path, " is good until ",
      absl::FormatTime("%Y-%m-%d", until, absl::UTCTimeZone()), ": ",
      days < 1 ? std::string("it signs no more")
               : absl::StrCat("wanted certificates of at most ", days,
                              " days, found ",
                              absl::ToInt64Hours(options.validity) / 24),
      "; choose another --dir for a new authority"));
}

absl::StatusOr<Authority> LoadOrMakeAuthority(
    const CertificatesOptions& options) {
  const CertificateFiles files(options.directory);
  absl::StatusOr<std::string> certificate = ReadFile(files.ca);
  if (certificate.ok()) {
    WEFT_ASSIGN_OR_RETURN(const Certificate parsed,
                          ParseCertificate(*certificate));
    const std::string found = OrganisationOf(parsed.get());
    if (found != OrganisationOf(options.job)) {
      return absl::FailedPreconditionError(
          absl::StrCat(files.ca, " is of \"", found, "\", wanted job ",
                       options.job, "; choose another --dir"));
    }
    WEFT_RETURN_IF_ERROR(CheckOutlives(parsed.get(), files.ca, options));
    WEFT_ASSIGN_OR_RETURN(std::string key, ReadAuthority(files.ca_key));
    return Authority{*std::move(certificate), std::move(key)};
  }
  if (!absl::IsNotFound(certificate.status())) return certificate.status();
  // Members of two authorities refuse each other.
  if (const auto members = MembersIn(options.directory); !members.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        options.directory, " has certificates of ",
        absl::StrJoin(members, ", "),
        " and not the authority that signed them (ca.pem, ca-key.pem); ",
        kWhereItsAuthorityIs, ", or choose another --dir for a new authority"));
  }
  const absl::Time now = absl::Now();
  const absl::Duration validity =
      std::max(kAuthorityValidity, 2 * options.validity);
  WEFT_ASSIGN_OR_RETURN(
      Authority made,
      MakeAuthority(options.job, {now - kBackdate, now + validity}));
  WEFT_RETURN_IF_ERROR(WriteFile(files.ca_key, made.key, 0600));
  WEFT_RETURN_IF_ERROR(WriteFile(files.ca, made.certificate, 0644));
  return made;
}

absl::StatusOr<std::vector<Serial>> SerialsIn(const std::string& pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const RevocationList list(
      PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (list == nullptr)
    return absl::InvalidArgumentError("not a revocation list in PEM form");
  std::vector<Serial> serials;
  STACK_OF(X509_REVOKED)* entries = X509_CRL_get_REVOKED(list.get());
  for (int i = 0; i < sk_X509_REVOKED_num(entries); ++i) {
    serials.emplace_back(ASN1_INTEGER_dup(
        X509_REVOKED_get0_serialNumber(sk_X509_REVOKED_value(entries, i))));
  }
  return serials;
}

absl::StatusOr<std::string> SignList(const Authority& authority,
                                     const std::vector<Serial>& serials,
                                     Validity validity) {
  WEFT_ASSIGN_OR_RETURN(const Certificate issuer,
                        ParseCertificate(authority.certificate));
  WEFT_ASSIGN_OR_RETURN(const Key key, ParseKey(authority.key));
  const RevocationList list(X509_CRL_new());
  X509_CRL_set_version(list.get(), 1);
  X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(issuer.get()));
  const Time from(ASN1_TIME_set(nullptr, absl::ToTimeT(validity.from)));
  const Time until(ASN1_TIME_set(nullptr, absl::ToTimeT(validity.until)));
  X509_CRL_set1_lastUpdate(list.get(), from.get());
  X509_CRL_set1_nextUpdate(list.get(), until.get());
  for (const Serial& serial : serials) {
    X509_REVOKED* entry = X509_REVOKED_new();
    X509_REVOKED_set_serialNumber(entry, serial.get());
    X509_REVOKED_set_revocationDate(entry, from.get());
    X509_CRL_add0_revoked(list.get(), entry);  // which owns it now
  }
  X509_CRL_sort(list.get());
  if (X509_CRL_sign(list.get(), key.get(), EVP_sha256()) == 0)
    return OpenSslError("signing");
  const Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509_CRL(bio.get(), list.get());
  return std::string(Contents(bio.get()));
}

// The one URI among the alternative names.
absl::StatusOr<Identity> IdentityOf(X509* certificate) {
  const openssl::Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::optional<std::string> uri;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get());
       ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    if (uri.has_value())
      return absl::InvalidArgumentError(
          "the certificate names two URIs, wanted one");
    const ASN1_IA5STRING* text = name->d.uniformResourceIdentifier;
    uri.emplace(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                ASN1_STRING_length(text));
  }
  if (!uri.has_value())
    return absl::InvalidArgumentError(
        "the certificate names no weft://<job>/<role>/<rank>");
  return ParseIdentity(*uri);
}

}  // namespace

CertificateFiles::CertificateFiles(const std::string& folder)
    : ca(folder + "/ca.pem"),
      ca_key(folder + "/ca-key.pem"),
      certificate(folder + "/cert.pem"),
      key(folder + "/key.pem"),
      revoked(folder + "/crl.pem") {}

std::string MemberFolder(const std::string& directory,
                         const std::string& name) {
  return absl::StrCat(directory, "/", name);
}

bool HasMember(const std::string& directory, const Identity& member) {
  const CertificateFiles files(MemberFolder(directory, member.Name()));
  return access(files.ca.c_str(), F_OK) == 0;
}

std::vector<std::string> MembersIn(const std::string& directory) {
  std::vector<std::string> members;
  std::error_code ended;
  for (std::filesystem::directory_iterator at(directory, ended), end;
       !ended && at != end; at.increment(ended)) {
    const CertificateFiles files(at->path().string());
    if (access(files.certificate.c_str(), F_OK) != 0) continue;
    members.push_back(at->path().filename().string());
  }
  std::sort(members.begin(), members.end());
  return members;
}

absl::StatusOr<Authority> MakeAuthority(const std::string& job,
                                        Validity validity) {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("EC key");
  WEFT_ASSIGN_OR_RETURN(
      const Certificate certificate,
      Draft(OrganisationOf(job), "authority", key.get(), validity));
  X509_set_issuer_name(certificate.get(),
                       X509_get_subject_name(certificate.get()));
  X509* const self = certificate.get();
  WEFT_RETURN_IF_ERROR(AddExtension(self, self, NID_basic_constraints,
                                    "critical,CA:TRUE,pathlen:0"));
  WEFT_RETURN_IF_ERROR(
      AddExtension(self, self, NID_key_usage, "critical,keyCertSign,cRLSign"));
  WEFT_RETURN_IF_ERROR(
      AddExtension(self, self, NID_subject_key_identifier, "hash"));
  if (X509_sign(self, key.get(), EVP_sha256()) == 0)
    return OpenSslError("signing");
  return Authority{CertificatePem(self), KeyPem(key.get())};
}

absl::StatusOr<MemberCertificate> MakeMemberCertificate(
    const Authority& authority, const Identity& identity,
    const std::vector<std::string>& extra_hosts, Validity validity) {
  WEFT_RETURN_IF_ERROR(ValidateIdentity(identity));
  std::vector<std::string> names = {absl::StrCat("URI:", identity.Uri()),
                                    absl::StrCat("DNS:", identity.DnsName())};
  for (const std::string& host : extra_hosts) {
    WEFT_ASSIGN_OR_RETURN(std::string name, AlternativeName(host));
    names.push_back(std::move(name));
  }
  WEFT_ASSIGN_OR_RETURN(const Certificate issuer,
                        ParseCertificate(authority.certificate));
  WEFT_ASSIGN_OR_RETURN(const Key issuer_key, ParseKey(authority.key));
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("EC key");
  WEFT_ASSIGN_OR_RETURN(const Certificate certificate,
                        Draft(OrganisationOf(identity.job), identity.Name(),
                              key.get(), validity));
  X509* const made = certificate.get();
  X509_set_issuer_name(made, X509_get_subject_name(issuer.get()));
  WEFT_RETURN_IF_ERROR(AddExtension(made, issuer.get(), NID_basic_constraints,
                                    "critical,CA:FALSE"));
  WEFT_RETURN_IF_ERROR(AddExtension(made, issuer.get(), NID_key_usage,
                                    "critical,digitalSignature"));
  WEFT_RETURN_IF_ERROR(AddExtension(made, issuer.get(), NID_ext_key_usage,
                                    "serverAuth,clientAuth"));
  WEFT_RETURN_IF_ERROR(
      AddExtension(made, issuer.get(), NID_authority_key_identifier, "keyid"));
  WEFT_RETURN_IF_ERROR(AddExtension(made, issuer.get(), NID_subject_alt_name,
                                    absl::StrJoin(names, ",")));
  if (X509_sign(made, issuer_key.get(), EVP_sha256()) == 0)
    return OpenSslError("signing");
  return MemberCertificate{CertificatePem(made), KeyPem(key.get())};
}

absl::StatusOr<std::string> MakeRevocationList(
    const Authority& authority, const std::vector<std::string>& certificates,
    Validity validity) {
  std::vector<Serial> serials;
  for (const std::string& pem : certificates) {
    WEFT_ASSIGN_OR_RETURN(const Certificate revoked, ParseCertificate(pem));
    serials.emplace_back(
        ASN1_INTEGER_dup(X509_get0_serialNumber(revoked.get())));
  }
  return SignList(authority, serials, validity);
}

absl::Status RevokeCertificates(const std::string& directory,
                                const std::vector<std::string>& members) {
  const CertificateFiles files(directory);
  Authority authority;
  WEFT_ASSIGN_OR_RETURN(authority.certificate, ReadAuthority(files.ca));
  WEFT_ASSIGN_OR_RETURN(authority.key, ReadAuthority(files.ca_key));
  const absl::StatusOr<std::string> before = ReadFile(files.revoked);
  std::vector<Serial> serials;
  if (before.ok()) {
    WEFT_ASSIGN_OR_RETURN(serials, SerialsIn(*before));
  } else if (!absl::IsNotFound(before.status())) {
    return before.status();
  }
  for (const std::string& member : members) {
    const CertificateFiles own(MemberFolder(directory, member));
    const absl::StatusOr<std::string> pem = ReadFile(own.certificate);
    if (absl::IsNotFound(pem.status())) {
      const auto there = MembersIn(directory);
      return absl::NotFoundError(
          absl::StrCat("there is no certificate of ", member, " in ", directory,
                       "; there are: ",
                       there.empty() ? "none" : absl::StrJoin(there, ", ")));
    }
    WEFT_RETURN_IF_ERROR(pem.status());
    WEFT_ASSIGN_OR_RETURN(const Certificate revoked, ParseCertificate(*pem));
    serials.emplace_back(
        ASN1_INTEGER_dup(X509_get0_serialNumber(revoked.get())));
  }
  const absl::Time now = absl::Now();
  WEFT_ASSIGN_OR_RETURN(const Certificate issuer,
                        ParseCertificate(authority.certificate));
  const absl::Time until = std::max(now + kAuthorityValidity,
                                    TimeOf(X509_get0_notAfter(issuer.get())));
  WEFT_ASSIGN_OR_RETURN(const std::string list,
                        SignList(authority, serials, {now - kBackdate, until}));
  WEFT_RETURN_IF_ERROR(ReplaceFile(files.revoked, list, 0644));
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (!entry.is_directory()) continue;
    const CertificateFiles own(entry.path().string());
    WEFT_RETURN_IF_ERROR(ReplaceFile(own.revoked, list, 0644));
  }
  return absl::OkStatus();
}

absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& pem) {
  WEFT_ASSIGN_OR_RETURN(const Certificate certificate, ParseCertificate(pem));
  CertificateFacts facts;
  WEFT_ASSIGN_OR_RETURN(facts.identity, IdentityOf(certificate.get()));
  facts.validity.from = TimeOf(X509_get0_notBefore(certificate.get()));
  facts.validity.until = TimeOf(X509_get0_notAfter(certificate.get()));
  return facts;
}

absl::Status CheckKeyFits(const std::string& certificate,
                          const std::string& key) {
  WEFT_ASSIGN_OR_RETURN(const Certificate parsed,
                        ParseCertificate(certificate));
  WEFT_ASSIGN_OR_RETURN(const Key parsed_key, ParseKey(key));
  const bool fits = X509_check_private_key(parsed.get(), parsed_key.get()) == 1;
  ERR_clear_error();
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError("the key is of another certificate");
}

absl::Status MakeCertificates(const CertificatesOptions& options) {
  WEFT_RETURN_IF_ERROR(ValidateIdentity({options.job, "any", 0}));
  for (const std::string& host : options.extra_hosts) {
    WEFT_RETURN_IF_ERROR(AlternativeName(host).status());
  }
  WEFT_RETURN_IF_ERROR(MakeDirectory(options.directory));
  WEFT_ASSIGN_OR_RETURN(const Authority authority,
                        LoadOrMakeAuthority(options));
  // A revocation from before a member was added counts for it too.
  const absl::StatusOr<std::string> revoked =
      ReadFile(CertificateFiles(options.directory).revoked);
  if (!revoked.ok() && !absl::IsNotFound(revoked.status())) {
    return revoked.status();
  }
  const absl::Time now = absl::Now();
  for (Identity member : options.members) {
    member.job = options.job;
    WEFT_ASSIGN_OR_RETURN(
        const MemberCertificate made,
        MakeMemberCertificate(authority, member, options.extra_hosts,
                              {now - kBackdate, now + options.validity}));
    const std::string folder = MemberFolder(options.directory, member.Name());
    WEFT_RETURN_IF_ERROR(MakeDirectory(folder));
    const CertificateFiles files(folder);
    if (revoked.ok()) {
      WEFT_RETURN_IF_ERROR(ReplaceFile(files.revoked, *revoked, 0644));
    }
    const auto write = options.renew ? &ReplaceFile : &WriteFile;
    WEFT_RETURN_IF_ERROR(write(files.key, made.key, 0600));
    WEFT_RETURN_IF_ERROR(write(files.certificate, made.certificate, 0644));
    // The last: HasMember().
    WEFT_RETURN_IF_ERROR(write(files.ca, authority.certificate, 0644));
  }
  return absl::OkStatus();
}

}  // namespace weft::net
