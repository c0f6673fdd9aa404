// BreakableContext: a context of gloo whose waits can be ended.
//
// gloo 0.5 does not wake a thread that waits for a message of which a part has
// been moved when its connection fails: it would wait for the operation's
// deadline.

#ifndef WEFT_COLLECTIVES_BACKENDS_GLOO_BREAKABLE_CONTEXT_H_
#define WEFT_COLLECTIVES_BACKENDS_GLOO_BREAKABLE_CONTEXT_H_

#include <memory>

#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/device.h"

namespace weft::collectives {

// Thread-safety: Break, any thread; else as gloo's.
class BreakableContext final : public ::gloo::rendezvous::Context {
 public:
  BreakableContext(int rank, int size);
  ~BreakableContext() override;

  // As connectFullMesh.
  void Connect(::gloo::rendezvous::Store& store,
               std::shared_ptr<::gloo::transport::Device> device);

  // Ends all waits of its buffers, now and from now on, with an IoException.
  // Does not wait.
  void Break();

  class Waits;

 private:
  const std::shared_ptr<Waits> waits_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_GLOO_BREAKABLE_CONTEXT_H_
