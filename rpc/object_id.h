// ObjectId: what names an object that is kept for others: who keeps it, who had
// it made, and by which of their calls.
//
// Call ids count for each pair of (caller, callee), so only the three together
// are unique; with the incarnations in both keys, for ever. The id is known to
// the creator as soon as its call is numbered, before anything was sent: a
// reference may be passed on before its object exists. Calls by Serialized()
// are numbered when they leave, so Make and Remote refuse such targets.

#ifndef WEFT_RPC_OBJECT_ID_H_
#define WEFT_RPC_OBJECT_ID_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::rpc {

struct ObjectId {
  rendezvous::WorkerKey owner;
  rendezvous::WorkerKey creator;
  uint64_t call = 0;  // of the creator to the owner; 0: no object

  // "12 of 3@1.7 at 0@1.2".
  std::string ToString() const {
    return absl::StrCat(call, " of ", creator.ToString(), " at ",
                        owner.ToString());
  }

  friend bool operator==(const ObjectId& a, const ObjectId& b) {
    return a.call == b.call && a.owner == b.owner && a.creator == b.creator;
  }
  friend bool operator!=(const ObjectId& a, const ObjectId& b) {
    return !(a == b);
  }
  friend bool operator<(const ObjectId& a, const ObjectId& b) {
    return std::tie(a.owner, a.creator, a.call) <
           std::tie(b.owner, b.creator, b.call);
  }
  template <typename H>
  friend H AbslHashValue(H h, const ObjectId& id) {
    return H::combine(std::move(h), id.owner, id.creator, id.call);
  }
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_OBJECT_ID_H_
