#include "weft/net/address.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace weft::net {
namespace {

constexpr size_t kMaxPathBytes = 107;  // sockaddr_un, with its closing zero
constexpr size_t kMaxHostBytes = 253;

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  const absl::string_view shown = text.substr(0, 200);
  return absl::InvalidArgumentError(
      absl::StrCat("address \"", absl::CHexEscape(shown), "\": ", why,
                   "; wanted unix:/path or host:port"));
}

bool IsHostByte(char c) {
  return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
}
bool IsIpv6Byte(char c) {
  return absl::ascii_isxdigit(c) || c == ':' || c == '.';
}

absl::StatusOr<Address> ParseUnix(absl::string_view text,
                                  absl::string_view path) {
  if (!absl::StartsWith(path, "/"))
    return Refuse(text, "the path is not absolute");
  if (path.size() > kMaxPathBytes) {
    return Refuse(text,
                  absl::StrCat("the path has ", path.size(),
                               " bytes, the system takes ", kMaxPathBytes));
  }
  if (path.find('\0') != path.npos)
    return Refuse(text, "the path holds a zero byte");
  Address address;
  address.path = std::string(path);
  return address;
}

}  // namespace

std::string Address::ToString() const {
  if (kind == Kind::kUnix) return absl::StrCat("unix:", path);
  const bool bracket = absl::StrContains(host, ':');
  return bracket ? absl::StrCat("[", host, "]:", port)
                 : absl::StrCat(host, ":", port);
}

bool Address::IsLocal() const {
  return kind == Kind::kUnix || host == "localhost" || host == "::1" ||
         absl::StartsWith(host, "127.");
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) return ParseUnix(text, rest);

  const size_t colon = rest.rfind(':');
  if (colon == rest.npos) return Refuse(text, "there is no port");
  absl::string_view host = rest.substr(0, colon);
  const absl::string_view port = rest.substr(colon + 1);
  bool (*is_host_byte)(char) = IsHostByte;
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]"))
      return Refuse(text, "a bracket is not closed");
    is_host_byte = IsIpv6Byte;
  }
  if (host.empty()) return Refuse(text, "there is no host");
  if (host.size() > kMaxHostBytes) return Refuse(text, "the host is too long");
  for (char c : host) {
    if (!is_host_byte(c))
      return Refuse(text, "the host holds a byte that no host has");
  }
  Address address;
  address.kind = Address::Kind::kTcp;
  address.host = std::string(host);
  for (char c : port) {
    if (!absl::ascii_isdigit(c))
      return Refuse(text, "the port is not a number");
  }
  if (!absl::SimpleAtoi(port, &address.port) || address.port > 65535) {
    return Refuse(text, "the port is not a number from 0 to 65535");
  }
  return address;
}

}  // namespace weft::net
