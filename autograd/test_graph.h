// Small graphs for tests: leaves, seeds, and nodes with a function of the test.

#ifndef WEFT_AUTOGRAD_TEST_GRAPH_H_
#define WEFT_AUTOGRAD_TEST_GRAPH_H_

#include <functional>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/node.h"
#include "weft/autograd/variable.h"
#include "weft/base/error.h"
#include "weft/tensor/tensor.h"

namespace weft::testing {

inline Variable LeafOf(std::vector<float> values) {
  return Variable(Tensor::FromVector(values), /*requires_grad=*/true);
}

inline Gradient Seed(std::vector<float> values) {
  return Tensor::FromVector(values);
}

inline std::vector<float> GradOf(const Variable& x) {
  return x.grad().ToVector<float>();
}

inline BackwardOptions Retaining() {
  BackwardOptions options;
  options.retain_graph = true;
  return options;
}

// The Status that `statement` throws; OK if it throws none.
template <typename Statement>
absl::Status StatusOf(Statement statement) {
  try {
    statement();
  } catch (const Error& error) {
    return error.status();
  }
  return absl::OkStatus();
}

// A node whose backward is `body`. Counts how often it ran and was released.
class TestNode final : public Node {
 public:
  using Body = std::function<void(BackwardCall&)>;
  using Node::Kind;

  TestNode(Body body, std::initializer_list<const Variable*> inputs,
           uint32_t num_outputs = 1, Kind kind = Kind::kOperation)
      : Node(num_outputs, kind), body_(std::move(body)) {
    for (const Variable* input : inputs) AddEdge(input->edge());
  }
  absl::string_view name() const override { return "Test"; }
  void Apply(BackwardCall& call) override {
    ++runs;
    body_(call);
  }
  void ReleaseSaved() override { ++releases; }

  int runs = 0;
  int releases = 0;

 private:
  const Body body_;
};

// A variable with the value of `x`, recorded by a TestNode.
inline Variable Recorded(const Variable& x, TestNode::Body body) {
  return Variable(x.value(), NodePtr(new TestNode(std::move(body), {&x})));
}

inline void PassOn(BackwardCall& call) { call.inputs[0] = call.outputs[0]; }

}  // namespace weft::testing

#endif  // WEFT_AUTOGRAD_TEST_GRAPH_H_
