// Members of a roll call, and what its state says of them.

#ifndef WEFT_RENDEZVOUS_CORE_ROLL_CALL_MEMBERS_H_
#define WEFT_RENDEZVOUS_CORE_ROLL_CALL_MEMBERS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "weft/rendezvous/core/roll_call_core.h"
#include "weft/rendezvous/member.h"

namespace weft::rendezvous {

inline constexpr absl::Duration kSecond = absl::Seconds(1);

inline Member MemberOf(int id, uint32_t life,
                       const std::string& role = "trainer") {
  Member member;
  member.name = absl::StrCat(role, id);
  member.role = role;
  member.rank = id;
  member.key = {static_cast<uint32_t>(id), MakeEpoch(1, life)};
  return member;
}

inline RollEntry EntryOf(const Member& member, uint64_t ticket) {
  return {member.name, member.role, member.rank, member.key, ticket};
}

inline RollTerms TermsOf(int min, int max,
                         absl::Duration last_call = absl::InfiniteDuration()) {
  RollTerms terms;
  terms.selector = "role=trainer";
  terms.min = min;
  terms.max = max;
  terms.last_call = last_call;
  return terms;
}

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_ROLL_CALL_MEMBERS_H_
