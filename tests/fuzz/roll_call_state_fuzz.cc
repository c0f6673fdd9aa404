// roll_call_state: no text harms the reader of a roll call's value, nor who
// follows it.

#include "weft/rendezvous/core/roll_call_core.h"
#include "weft/rendezvous/view.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using rendezvous::RollCallCore;
using rendezvous::RollCallState;
using rendezvous::RollEntry;

RollEntry Self() {
  RollEntry self;
  self.name = "trainer1";
  self.role = "trainer";
  self.rank = 1;
  self.key = {1, 4294967297};
  self.ticket = 7;
  return self;
}

rendezvous::RollTerms Terms() {
  rendezvous::RollTerms terms;
  terms.selector = "role=trainer";
  terms.max = 3;
  return terms;
}

std::vector<std::string> Seeds() {
  return {"",
          "weft roll call 1\nround 2\nt 1 3 -1 role=trainer\n"
          "p trainer1 trainer 1 1 4294967297 7\n"
          "c 1 4294967303\nm trainer0 trainer 0 0 4294967297 1\n"
          "m trainer1 trainer 1 1 4294967297 5\n",
          "weft roll call 1\nround 9\nt 2 3 1000 role=trainer\n"
          "c 8 4294967303\nm trainer1 trainer 1 1 4294967297 7\n"};
}

std::vector<std::string> Words() {
  return {"\n",
          " ",
          "p ",
          "m ",
          "c ",
          "t ",
          "round ",
          "trainer0",
          "-1",
          "role=",
          "18446744073709551615"};
}

void Run(absl::string_view text) {
  const auto state = RollCallState::Decode(text);
  if (state.ok() && !text.empty()) {
    const auto again = RollCallState::Decode(state->Encode());
    Hold(again.ok() && again->Encode() == state->Encode());
  }
  const rendezvous::View view;
  RollCallCore core("g", Self(), Terms());
  const RollCallCore::Step step = core.OnRead(text, view, Instant());
  (void)core.Describe(view);
  // What it writes can be read, and what it returns has it.
  if (const auto* write = std::get_if<RollCallCore::Write>(&step)) {
    Hold(state.ok() && RollCallState::Decode(write->value).ok());
  } else if (const auto* roll = std::get_if<rendezvous::Roll>(&step)) {
    bool is_on = false;
    for (const RollEntry& entry : roll->entries) is_on |= entry == Self();
    Hold(is_on);
  }
  (void)core.OnGiveUp(text, view);
}

WEFT_FUZZ_TARGET(roll_call_state, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
