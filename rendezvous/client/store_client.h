// StoreClient: the Store that the coordinator keeps.

#ifndef WEFT_RENDEZVOUS_CLIENT_STORE_CLIENT_H_
#define WEFT_RENDEZVOUS_CLIENT_STORE_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "weft/rendezvous/client/open_calls.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/store.h"

namespace weft::rendezvous {

// Is told of a Wait that lasts longer than 2 s, and again each time that it has
// lasted twice as long, and of its end if it was told before: "Wait for key K
// of the store still waits after 2s: nobody has set it". `weft run` reads these
// lines: launch/stuck. Called on the thread that waits; must not block.
using WaitReport = std::function<void(absl::string_view text)>;

// `client` is a member's incarnation; its changes are made once. Once `calls`
// have ended, every operation ends with their status. `timers` must outlive the
// store. A null `report`: none. What roll calls wait for they tell themselves.
std::unique_ptr<Store> MakeStoreClient(
    TimerSource& timers, std::shared_ptr<CoordinatorLink> link, std::string job,
    uint64_t client,
    std::shared_ptr<OpenCalls> calls = std::make_shared<OpenCalls>(),
    WaitReport report = nullptr);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CLIENT_STORE_CLIENT_H_
