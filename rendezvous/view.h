// View: who is in the job, at one version.

#ifndef WEFT_RENDEZVOUS_VIEW_H_
#define WEFT_RENDEZVOUS_VIEW_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/rendezvous/member.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/rendezvous/world.h"

namespace weft::rendezvous {

// The names and values of a selector: "role=ps,zone=a". kInvalidArgument unless
// each part is a name, one '=' and a value.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseSelector(
    absl::string_view selector);

// Held as std::shared_ptr<const View>: a reader keeps the version that it
// looked at, while newer ones come.
//
// Thread-safety: immutable.
class View {
 public:
  View() = default;
  // REQUIRES: a world that World::Validate takes, or an empty one.
  View(Epoch version, World world, std::vector<Member> members,
       std::vector<Departed> departed, Epoch complete_at = 0);

  // Grows with each change, across restarts of the coordinator too.
  Epoch version() const { return version_; }
  const World& world() const { return world_; }
  const std::vector<Member>& members() const { return members_; }      // by id
  const std::vector<Departed>& departed() const { return departed_; }  // by id

  // Null if there is no such member now.
  const Member* Find(absl::string_view name) const;
  const Member* Find(WorkerKey key) const;

  // Members that match every "name=value" of `selector`, by id: the names role,
  // rank and name mean the member's own, others its labels. "" matches all.
  // kInvalidArgument as ParseSelector.
  absl::StatusOr<std::vector<const Member*>> Select(
      absl::string_view selector) const;

  // True for an incarnation that was declared gone or has been succeeded.
  bool IsGone(WorkerKey key) const;

  bool IsComplete() const { return Missing().empty(); }
  // Whether it is, or was at a version from `version` on: those who follow the
  // view are not told of each version.
  bool WasCompleteSince(Epoch version) const {
    return complete_at_ >= version || IsComplete();
  }
  // The members that have not joined: names in a fixed world, "2 more" in an
  // elastic one.
  std::vector<std::string> Missing() const;
  // "3/4 joined, missing trainer1"; of many the first 32 "and 5 more".
  std::string Summary() const;

 private:
  int Counted() const;  // members that are not admins

  Epoch version_ = 0;
  World world_;
  std::vector<Member> members_;
  std::vector<Departed> departed_;
  // The newest version at which a member came and all were there; 0: unknown.
  Epoch complete_at_ = 0;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_VIEW_H_
