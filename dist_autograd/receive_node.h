// ReceiveNode: where the graph of this worker ends because a message came from
// another: its gradients go back the way the message came.

#ifndef WEFT_DIST_AUTOGRAD_RECEIVE_NODE_H_
#define WEFT_DIST_AUTOGRAD_RECEIVE_NODE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/gradient_sink.h"
#include "weft/autograd/node.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/core/message_set.h"

namespace weft::dist_autograd {

// The store of a distributed pass, as receive nodes see it.
class PassStore : public GradientSink {
 public:
  // Sends the gradients of the slots of `message` to its producer; undefined
  // ones too, so that it does not wait for them. Throws Error
  // kFailedPrecondition if the pass is of another context.
  virtual void SendGradients(ContextId context, const MessageId& message,
                             std::vector<Gradient> slots) = 0;
};

// Runs in each pass that reaches it, also if no gradient does: the producer
// waits for one message from each live receive node.
class ReceiveNode final : public Node {
 public:
  ReceiveNode(ContextId context, const MessageId& message, uint32_t num_slots,
              MessageSet lineage)
      : Node(num_slots, Kind::kAlways),
        context_(context),
        message_(message),
        lineage_(std::move(lineage)) {}

  absl::string_view name() const override { return "Receive"; }
  // Throws Error kFailedPrecondition in a pass that is not distributed.
  void Apply(BackwardCall& call) override;
  void ReleaseSaved() override {}

  ContextId context() const { return context_; }
  // The message itself and those from which its slots were made.
  const MessageSet& lineage() const { return lineage_; }

 private:
  const ContextId context_;
  const MessageId message_;
  const MessageSet lineage_;
};

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_RECEIVE_NODE_H_
