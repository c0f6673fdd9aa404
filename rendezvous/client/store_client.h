// StoreClient: the Store that the coordinator keeps.

#ifndef WEFT_RENDEZVOUS_CLIENT_STORE_CLIENT_H_
#define WEFT_RENDEZVOUS_CLIENT_STORE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "weft/rendezvous/client/open_calls.h"
#include "weft/rendezvous/client/wait_reports.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/store.h"

namespace weft::rendezvous {

// `client` is a member's incarnation; its changes are made once. Once `calls`
// have ended, every operation ends with their status. `timers` must outlive the
// store. `report` is told of each Wait that lasts long (wait_reports.h), but of
// those of roll calls, which tell themselves what they wait for; null: of none.
std::unique_ptr<Store> MakeStoreClient(
    TimerSource& timers, std::shared_ptr<CoordinatorLink> link, std::string job,
    uint64_t client,
    std::shared_ptr<OpenCalls> calls = std::make_shared<OpenCalls>(),
    WaitReport report = nullptr);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CLIENT_STORE_CLIENT_H_
