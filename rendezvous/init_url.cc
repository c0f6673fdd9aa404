// InitUrl: see the header.

#include "weft/rendezvous/init_url.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "weft/net/address.h"

namespace weft::rendezvous {
namespace {

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "init URL \"", absl::CHexEscape(text.substr(0, 200)), "\": ", why,
      "; wanted env://, tcp://HOST:PORT, file:///PATH, "
      "etcd://HOST:PORT[/PREFIX] or etcd+unix:///PATH"));
}

bool IsPrefixByte(char c) {
  return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
}

// HOST:PORT and what follows its first '/'.
absl::Status SplitAddress(absl::string_view text, absl::string_view rest,
                          InitUrl* url) {
  const size_t slash = std::min(rest.find('/'), rest.size());
  url->address = std::string(rest.substr(0, slash));
  const auto address = net::ParseAddress(url->address);
  if (!address.ok()) return Refuse(text, "there is no HOST:PORT");
  if (address->port == 0) {
    return Refuse(text, "port 0 is none at which others find it");
  }
  if (absl::StrContains(rest, '?')) {
    return Refuse(text, "rank and world size are flags of their own");
  }
  const absl::string_view prefix =
      absl::StripSuffix(absl::StripPrefix(rest.substr(slash), "/"), "/");
  if (prefix.empty()) return absl::OkStatus();
  if (url->kind != InitUrl::Kind::kEtcd) {
    return Refuse(text, "nothing may follow the port");
  }
  if (!std::all_of(prefix.begin(), prefix.end(), IsPrefixByte)) {
    return Refuse(text, "the prefix may have letters, digits and any of -_./");
  }
  url->prefix = std::string(prefix);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InitUrl> ParseInitUrl(absl::string_view text) {
  InitUrl url;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "env://")) {
    url.kind = InitUrl::Kind::kEnv;
    if (!rest.empty()) return Refuse(text, "nothing may follow env://");
  } else if (absl::ConsumePrefix(&rest, "file://")) {
    url.kind = InitUrl::Kind::kFile;
    url.path = std::string(rest);
    if (!absl::StartsWith(rest, "/") || absl::EndsWith(rest, "/") ||
        absl::StrContains(rest, '\0')) {
      return Refuse(text, "the path is not that of a file from / on");
    }
  } else if (absl::ConsumePrefix(&rest, "etcd+unix://")) {
    url.kind = InitUrl::Kind::kEtcd;
    url.address = absl::StrCat("unix:", rest);
    if (!net::ParseAddress(url.address).ok()) {
      return Refuse(text, "the path is not that of a socket from / on");
    }
  } else if (absl::ConsumePrefix(&rest, "etcd://")) {
    url.kind = InitUrl::Kind::kEtcd;
    if (absl::Status s = SplitAddress(text, rest, &url); !s.ok()) return s;
  } else if (absl::ConsumePrefix(&rest, "tcp://")) {
    url.kind = InitUrl::Kind::kTcp;
    if (absl::Status s = SplitAddress(text, rest, &url); !s.ok()) return s;
  } else {
    return Refuse(text, "it begins with none of the known schemes");
  }
  return url;
}

}  // namespace weft::rendezvous
