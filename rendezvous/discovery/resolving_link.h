// ResolvingLink: a link to a coordinator whose address has to be found, and may
// change when its host is started again elsewhere.

#ifndef WEFT_RENDEZVOUS_DISCOVERY_RESOLVING_LINK_H_
#define WEFT_RENDEZVOUS_DISCOVERY_RESOLVING_LINK_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/rendezvous/coordinator_link.h"

namespace weft::rendezvous {

// Until the address is known, calls fail with kUnavailable, which callers
// repeat. Until then an error of `find` other than kUnavailable, kNotFound or
// kDeadlineExceeded is final: all calls fail with it.
//
//   where    for messages to people: "file:///tmp/job"
//   find     the address as it is written now; may run on any thread that calls
//   connect  a link to that address
std::unique_ptr<CoordinatorLink> MakeResolvingLink(
    std::string where, Driver& driver,
    std::function<Future<std::string>()> find,
    std::function<absl::StatusOr<std::unique_ptr<CoordinatorLink>>(
        const std::string& address)>
        connect);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_DISCOVERY_RESOLVING_LINK_H_
