#include "weft/net/tls/credentials.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "weft/base/status_macros.h"
#include "weft/net/tls/certificates.h"

namespace weft::net {
namespace {

constexpr char kUrl[] = "weft.net/certificates";

absl::Status Unfit(const std::string& what, absl::string_view found) {
  return CertificatesError(absl::StrCat("certificates: ", what, ": ", found,
                                        "; ", kHowToGetCertificates));
}

bool IsThere(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

// To make new ones would be wrong advice where others of the job are there.
constexpr char kCopyThem[] =
    "copy the whole folder from where `weft certs init` has made it";

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int error = errno;
    const CertificateFiles files(path.substr(0, path.rfind('/')));
    if (IsThere(files.ca) || IsThere(files.certificate)) {
      return CertificatesError(absl::StrCat("certificates: ", path, ": ",
                                            strerror(error), "; ", kCopyThem));
    }
    return Unfit(path, strerror(error));
  }
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

absl::Status CheckKeyMode(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return Unfit(path, strerror(errno));
  if ((found.st_mode & 077) == 0) return absl::OkStatus();
  return CertificatesError(
      absl::StrFormat("certificates: %s has mode %04o, so that other users may "
                      "read the key; try: chmod 600 %s",
                      path, found.st_mode & 07777, path));
}

absl::Status CheckDates(const std::string& path, const Validity& validity) {
  const absl::Time now = absl::Now();
  const absl::TimeZone utc = absl::UTCTimeZone();
  if (now >= validity.until) {
    return Unfit(path, absl::StrCat("expired on ",
                                    absl::FormatTime(absl::RFC3339_sec,
                                                     validity.until, utc)));
  }
  if (now < validity.from) {
    return Unfit(path, absl::StrCat("valid only from ",
                                    absl::FormatTime(absl::RFC3339_sec,
                                                     validity.from, utc),
                                    ": is this host's clock right?"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CertificatesError(absl::string_view message) {
  absl::Status status = absl::FailedPreconditionError(message);
  status.SetPayload(kUrl, absl::Cord("1"));
  return status;
}

bool IsOfCertificates(const absl::Status& status) {
  return status.GetPayload(kUrl).has_value();
}

absl::Status Credentials::CheckJob(absl::string_view job) const {
  if (!identity_.has_value() || identity_->job == job) return absl::OkStatus();
  return CertificatesError(absl::StrCat(
      "certificates: ", directory_, " is for ", identity_->Name(), " of job \"",
      identity_->job, "\", wanted job \"", job,
      "\"; give --job=", identity_->job, ", or --certs of job ", job));
}

Credentials Credentials::Insecure() {
  Credentials credentials;
  credentials.insecure_ = true;
  return credentials;
}

absl::StatusOr<Credentials> Credentials::FromDirectory(
    const std::string& directory) {
  const CertificateFiles files(directory);
  WEFT_ASSIGN_OR_RETURN(std::string ca, ReadPem(files.ca));
  WEFT_ASSIGN_OR_RETURN(std::string certificate, ReadPem(files.certificate));
  WEFT_ASSIGN_OR_RETURN(std::string key, ReadPem(files.key));
  WEFT_RETURN_IF_ERROR(CheckKeyMode(files.key));
  absl::StatusOr<CertificateFacts> facts = ReadCertificate(certificate);
  if (!facts.ok()) return Unfit(files.certificate, facts.status().message());
  WEFT_RETURN_IF_ERROR(CheckDates(files.certificate, facts->validity));
  const absl::Status fits = CheckKeyFits(certificate, key);
  if (!fits.ok()) return Unfit(files.key, fits.message());
  std::string revoked;
  if (IsThere(files.revoked)) {
    WEFT_ASSIGN_OR_RETURN(revoked, ReadPem(files.revoked));
  }
  WEFT_ASSIGN_OR_RETURN(Credentials credentials,
                        FromPem(std::move(ca), std::move(certificate),
                                std::move(key), std::move(revoked)));
  credentials.directory_ = directory;
  return credentials;
}

std::vector<std::string> Credentials::files() const {
  if (directory_.empty()) return {};
  const CertificateFiles files(directory_);
  return {files.ca, files.certificate, files.key, files.revoked};
}

absl::StatusOr<Credentials> Credentials::ForMember(const std::string& directory,
                                                   const std::string& name) {
  const std::string own = MemberFolder(directory, name);
  struct stat found;
  const bool has_own = stat(own.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
  if (!has_own && !IsThere(CertificateFiles(directory).certificate)) {
    const std::vector<std::string> members = MembersIn(directory);
    if (!members.empty()) {
      return CertificatesError(absl::StrCat(
          "certificates: ", directory, " has a folder of ",
          absl::StrJoin(members, ", "), " and none of ", name, "; ", kCopyThem,
          " (it adds members to those that are there)"));
    }
  }
  WEFT_ASSIGN_OR_RETURN(Credentials credentials,
                        FromDirectory(has_own ? own : directory));
  if (credentials.identity_->Name() != name) {
    return Unfit(directory,
                 absl::StrCat("they are for ", credentials.identity_->Name(),
                              ", wanted ", name));
  }
  return credentials;
}

absl::StatusOr<Credentials> Credentials::FromPem(std::string ca,
                                                 std::string certificate,
                                                 std::string key,
                                                 std::string revoked) {
  WEFT_RETURN_IF_ERROR(CheckKeyFits(certificate, key));
  WEFT_ASSIGN_OR_RETURN(CertificateFacts facts, ReadCertificate(certificate));
  Credentials credentials;
  credentials.identity_ = std::move(facts.identity);
  credentials.ca_ = std::move(ca);
  credentials.certificate_ = std::move(certificate);
  credentials.key_ = std::move(key);
  credentials.revoked_ = std::move(revoked);
  return credentials;
}

}  // namespace weft::net
