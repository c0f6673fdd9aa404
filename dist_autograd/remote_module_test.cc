#include "weft/dist_autograd/remote_module.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// x a + b in training; x a else.
class Affine : public nn::Module {
 public:
  Affine(double a, double b) {
    if (a == 0) throw Error(absl::InvalidArgumentError("a is 0"));
    a_ = AddParameter("a", Tensor::Full({}, a, DType::kF64));
    b_ = AddParameter("b", Tensor::Full({}, b, DType::kF64));
  }
  Variable Forward(const Variable& x) {
    const Variable y = Mul(x, a_);
    return is_training() ? Add(y, b_) : y;
  }

 private:
  Variable a_, b_;
};
WEFT_RPC_MODULE(Affine, double, double);

// At a third worker: what the module makes of 2.
double ForwardOfTwo(rpc::CallContext& call,
                    const RemoteModule<Affine>& module) {
  const Scope pass(*Contexts::Of(call.agent()).value());
  return module.Forward(pass, Variable(Tensor::Full({}, 2.0, DType::kF64)))
      .value()
      .value()
      .item<double>();
}
WEFT_RPC(ForwardOfTwo);

class RemoteModuleTest : public ::testing::Test {
 protected:
  RemoteModuleTest() {
    for (int i = 0; i < 3; ++i) {
      references_.push_back(rref::References::Open(ranks_[i]).value());
      contexts_.push_back(Contexts::Open(ranks_[i]).value());
    }
  }
  ~RemoteModuleTest() override {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(testing::Becomes([&] {
        const auto c = references_[i]->counts();
        return c.held + c.owned + c.open_children == 0 &&
               contexts_[i]->counts().contexts == 0;
      })) << "w"
          << i;
    }
    for (const auto& contexts : contexts_) contexts->Close();
    for (const auto& references : references_) {
      EXPECT_THAT(references->Close(absl::Seconds(20)), IsOk());
    }
  }
  static Variable Scalar(double x) {
    return Variable(Tensor::Full({}, x, DType::kF64), true);
  }

  rpc::Ranks ranks_{3};
  std::vector<std::shared_ptr<rref::References>> references_;
  std::vector<std::shared_ptr<Contexts>> contexts_;
};

TEST_F(RemoteModuleTest, ForwardAndBackwardAsALocalModule) {
  const auto module =
      RemoteModule<Affine>::Create(ranks_[0].To("w1"), 3.0, 1.0);
  ASSERT_THAT(module.status(), IsOk());
  EXPECT_EQ(module->owner().name(), "w1");
  const Variable x = Scalar(5.0);
  const Scope pass(*contexts_[0]);
  const auto y = module->Forward(pass, x);
  ASSERT_THAT(y.status(), IsOk());
  EXPECT_EQ(y->value().item<double>(), 16.0);
  ASSERT_THAT(pass.Backward(*y), IsOk());
  EXPECT_EQ(pass.GradientOf(x).ToDense().item<double>(), 3.0);
  const auto later = module->ForwardAsync(pass, x).Wait(absl::Seconds(30));
  ASSERT_THAT(later.status(), IsOk());
  EXPECT_EQ(later->value().item<double>(), 16.0);
}

TEST_F(RemoteModuleTest, ParametersAreReferencesAtTheOwner) {
  const auto module =
      RemoteModule<Affine>::Create(ranks_[0].To("w1"), 3.0, 1.0).value();
  const auto parameters = module.RemoteParameters();
  ASSERT_THAT(parameters.status(), IsOk());
  ASSERT_THAT(*parameters, SizeIs(2));
  for (const auto& parameter : *parameters) {
    EXPECT_EQ(parameter.owner().name(), "w1");
  }
}

TEST_F(RemoteModuleTest, ValuesOfParametersAreFetchedWithoutARecord) {
  const auto module =
      RemoteModule<Affine>::Create(ranks_[0].To("w1"), 3.0, 1.0).value();
  const auto parameters = module.RemoteParameters().value();
  EXPECT_EQ(ValueOf(parameters[0]).value().item<double>(), 3.0);
  EXPECT_EQ(ValueOfAsync(parameters[1])
                .Wait(testing::kPatience)
                .value()
                .item<double>(),
            1.0);
  EXPECT_EQ(contexts_[1]->counts().contexts, 0);
  // One of this worker, too; what it gets is a copy.
  const Variable own = Scalar(5.0);
  const auto here = LocalParameters(ranks_[0], {own}).value();
  const Tensor value = ValueOf(here[0]).value();
  own.value().Fill(6.0);
  EXPECT_EQ(value.item<double>(), 5.0);
  EXPECT_THAT(ValueOf(rref::RRef<Variable>()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "empty RRef"));
  // Fetch, which records nothing here, says what to do.
  EXPECT_THAT(rref::Fetch(parameters[0]).status(),
              StatusIs(absl::StatusCode::kInternal, "ValueOf"));
}

TEST_F(RemoteModuleTest, TrainAndEvalReachTheModule) {
  const auto module =
      RemoteModule<Affine>::Create(ranks_[0].To("w1"), 3.0, 1.0).value();
  ASSERT_THAT(module.Eval(), IsOk());
  {
    const Scope pass(*contexts_[0]);
    EXPECT_EQ(module.Forward(pass, Scalar(2.0)).value().value().item<double>(),
              6.0);
  }
  ASSERT_THAT(module.Train(), IsOk());
  const Scope pass(*contexts_[0]);
  EXPECT_EQ(module.Forward(pass, Scalar(2.0)).value().value().item<double>(),
            7.0);
}

TEST_F(RemoteModuleTest, TravelsToAnotherWorkerAndIsMadeFromAReference) {
  auto module =
      RemoteModule<Affine>::Create(ranks_[0].To("w1"), 3.0, 1.0).value();
  EXPECT_EQ(rpc::Call(ranks_[0].To("w2"), ForwardOfTwo, module).value(), 7.0);
  EXPECT_EQ(rpc::Call(ranks_[0].To("w1"), ForwardOfTwo, module).value(), 7.0);
  const RemoteModule<Affine> same(module.reference());
  module = RemoteModule<Affine>();
  EXPECT_EQ(rpc::Call(ranks_[0].To("w2"), ForwardOfTwo, same).value(), 7.0);
}

TEST_F(RemoteModuleTest, EmptyOneIsRefused) {
  const RemoteModule<Affine> empty;
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, "empty RRef");
  const Scope pass(*contexts_[0]);
  EXPECT_THAT(empty.Forward(pass, Scalar(2.0)).status(), refused);
  EXPECT_THAT(empty.RemoteParameters().status(), refused);
  EXPECT_THAT(empty.Eval(), refused);
  // The functions that every owner serves refuse it, too.
  EXPECT_THAT(rpc::Call(ranks_[0].To("w1"), internal::ParametersOf<Affine>,
                        rref::RRef<Affine>())
                  .status(),
              refused);
  EXPECT_THAT(rpc::Call(ranks_[0].To("w1"), internal::SetTraining<Affine>,
                        rref::RRef<Affine>(), true),
              refused);
}

TEST_F(RemoteModuleTest, ConstructorThatThrowsIsTheErrorOfCreate) {
  EXPECT_THAT(
      RemoteModule<Affine>::Create(ranks_[0].To("w1"), 0.0, 1.0).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "a is 0"));
}

}  // namespace
}  // namespace weft::dist_autograd
