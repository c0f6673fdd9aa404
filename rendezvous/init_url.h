// InitUrl: how a job's workers find each other.
//
//   env://                       MASTER_ADDR, MASTER_PORT
//   tcp://HOST:PORT              there
//   file:///PATH                 by a file that all see
//   etcd://HOST:PORT[/PREFIX]    by etcd, which also remembers for the
//   etcd+unix:///PATH            coordinator

#ifndef WEFT_RENDEZVOUS_INIT_URL_H_
#define WEFT_RENDEZVOUS_INIT_URL_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::rendezvous {

struct InitUrl {
  enum class Kind { kNone, kEnv, kTcp, kFile, kEtcd };

  Kind kind = Kind::kNone;
  std::string address;          // kTcp, kEtcd: HOST:PORT or unix:/PATH
  std::string path;             // kFile: absolute
  std::string prefix = "weft";  // kEtcd: of all its keys

  // Whether members have to look for the coordinator's address.
  bool is_found() const { return kind == Kind::kFile || kind == Kind::kEtcd; }
};

// kInvalidArgument says what is wrong and which forms there are.
absl::StatusOr<InitUrl> ParseInitUrl(absl::string_view text);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_INIT_URL_H_
