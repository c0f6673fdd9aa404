#include "weft/rendezvous/member.h"

#include <unistd.h>

#include "weft/base/check.h"

namespace weft::rendezvous {

uint64_t DrawIncarnation() {
  uint64_t drawn = 0;
  while (drawn == 0) WEFT_CHECK_EQ(getentropy(&drawn, sizeof drawn), 0);
  return drawn;
}

}  // namespace weft::rendezvous
