// The gloo backend: ranks of any hosts over the sockets of the library gloo,
// which all-reduces, reduces, broadcasts and all-gathers; see library_backend.h
// for the rest.
//
//   GlooOptions options;
//   options.store = &store;                    // rendezvous/store.h
//   options.rank = rank;
//   options.size = size;
//   auto backend = ConnectGloo(options);
//   auto group = ProcessGroup::Create(*std::move(backend));
//
// For those who expect it by name: the host backend is faster within a host,
// and speaks TLS between hosts. gloo neither encrypts nor proves who speaks,
// and whoever reaches its ports can end the process; so ranks on several hosts
// want GlooOptions::insecure.
//
// Cost of a rank of n: a thread of gloo's, two threads and two sockets for each
// other rank. A rank that is stopped (not ended) while gloo moves elements is
// not named: the others end at their deadline.

#ifndef WEFT_COLLECTIVES_BACKENDS_GLOO_GLOO_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_GLOO_GLOO_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/group_endpoint.h"

namespace weft::collectives {

struct GlooOptions : GroupEndpoint {
  // This host's address, an IP address or a name, to which the others connect.
  // That of the loopback interface serves ranks of one host.
  std::string address = "127.0.0.1";
  // Allows any other address than one of the loopback interface, and with it
  // ranks on several hosts: nothing is encrypted and nobody is authenticated.
  bool insecure = false;
};

// Waits for all ranks. Errors:
//   kInvalidArgument     options that make no sense; a rank was given twice
//   kFailedPrecondition  an address that is not of the loopback interface, and
//                        not insecure; a loopback address, and ranks on several
//                        hosts (on every rank)
//   kDeadlineExceeded    names the ranks that did not come
//   kUnavailable         gloo cannot connect; its reason
absl::StatusOr<std::unique_ptr<Backend>> ConnectGloo(GlooOptions options);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_GLOO_GLOO_BACKEND_H_
