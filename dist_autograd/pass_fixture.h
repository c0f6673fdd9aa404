// PassFixture: agents of one process with references and contexts, for tests of
// passes over them. Its end checks that all tables are empty.

#ifndef WEFT_DIST_AUTOGRAD_PASS_FIXTURE_H_
#define WEFT_DIST_AUTOGRAD_PASS_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/scope.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd {

class PassFixture : public ::testing::Test {
 protected:
  explicit PassFixture(int workers = 4, const ContextsOptions& options = {},
                       const rpc::RanksOptions& ranks = {})
      : ranks_(workers, ranks) {
    for (int i = 0; i < workers; ++i) {
      references_.push_back(rref::References::Open(ranks_[i]).value());
      contexts_.push_back(Contexts::Open(ranks_[i], options).value());
    }
  }
  ~PassFixture() override {
    ExpectEmptyTables();
    for (const auto& contexts : contexts_) contexts->Close();
    for (const auto& references : references_) {
      EXPECT_THAT(references->Close(absl::Seconds(20)), testing::IsOk());
    }
  }

  rpc::Target To(int rank) { return ranks_[0].To(absl::StrCat("w", rank)); }

  int64_t OpenContexts(int worker) const {
    return contexts_[worker]->counts().contexts;
  }
  void ExpectEmptyTables() {
    for (size_t i = 0; i < contexts_.size(); ++i) {
      EXPECT_TRUE(testing::Becomes([&] {
        const Contexts::Counts counts = contexts_[i]->counts();
        return counts.contexts == 0 && counts.passes == 0;
      })) << "w"
          << i << " has contexts or passes left";
    }
  }
  static rpc::WorkerKey KeyOf(int rank) {
    return rpc::WorkerKey{static_cast<uint32_t>(rank), 1};
  }
  // All others take `dead` for dead, and it takes them for dead.
  void Kill(int dead) {
    for (size_t i = 0; i < contexts_.size(); ++i) {
      const int other = static_cast<int>(i);
      if (other == dead) continue;
      ranks_[other].PeerGone(KeyOf(dead), "killed");
      ranks_[dead].PeerGone(KeyOf(other), "killed");
    }
  }

  rpc::Ranks ranks_;
  std::vector<std::shared_ptr<rref::References>> references_;
  std::vector<std::shared_ptr<Contexts>> contexts_;
};

// A scalar of doubles.
inline Variable Scalar(double x, bool requires_grad = true) {
  return Variable(Tensor::Full({}, x, DType::kF64), requires_grad);
}
inline double Value(const weft::Gradient& g) {
  return g.ToDense().item<double>();
}

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_PASS_FIXTURE_H_
