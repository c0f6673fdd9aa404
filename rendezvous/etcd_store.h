// EtcdStore: a Store whose keys are in etcd, by its v3 API.

#ifndef WEFT_RENDEZVOUS_ETCD_STORE_H_
#define WEFT_RENDEZVOUS_ETCD_STORE_H_

#include <memory>
#include <string>

#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/store.h"

namespace weft::rendezvous {

// Key k is <prefix>/k there, its version the revision of its last change.
// `etcd` is of MakeEtcdLink; `timers` must outlive the store. A change whose
// answer is lost is kUnavailable or kDeadlineExceeded, and may have been made:
// etcd does not know a repeated request. Wait looks again after 5 ms, 10 ms,
// ... 200 ms.
std::unique_ptr<Store> MakeEtcdStore(TimerSource& timers,
                                     std::shared_ptr<CoordinatorLink> etcd,
                                     std::string prefix);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_ETCD_STORE_H_
