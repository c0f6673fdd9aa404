// Models of many kinds over virtual shards, on 1 and on several ranks: the bits
// of model and optimizer must be those of one rank. What is expected is what
// ddp/virtual_shards.h says.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/ddp/virtual_shards.h"
#include "weft/nn/attention.h"
#include "weft/nn/layers.h"
#include "weft/nn/norm.h"
#include "weft/optimizer/clip.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::testing::Not;
using weft::testing::IsOk;
using weft::testing::RunRanks;
using weft::testing::StatusIs;

constexpr absl::StatusCode kFailedPrecondition =
    absl::StatusCode::kFailedPrecondition;

// A model that knows its loss. `random` is what dropout draws from.
class Model : public nn::Module {
 public:
  // Undefined: this shard has none.
  virtual Variable Loss(int step, int shard, Generator data) = 0;
  // Parameters that the optimizer updates lazily.
  bool is_lazy = false;
};

using Make = std::function<std::unique_ptr<Model>(Generator& random)>;

struct Way {
  optimizer::RuleOptions rule = optimizer::SgdOptions{0.1};
  int shards = 8;
  std::vector<int> ranks = {2, 3, 5, 8};
  int steps = 3;
  int passes = 1;  // Backward, in each shard
  bool clips = false;
};

void AppendBits(const absl::btree_map<std::string, Tensor>& state,
                std::string* bits) {
  for (const auto& [name, tensor] : state) {
    const Tensor flat = tensor.Contiguous();
    absl::StrAppend(bits, name, " ");
    bits->append(static_cast<const char*>(flat.raw()),
                 static_cast<size_t>(flat.bytes()));
  }
}

absl::Status TrainRank(collectives::ProcessGroup& group, const Make& make,
                       const Way& way, std::string* bits) {
  Generator random(group.rank() == 0 ? 1 : 100 + group.rank());
  const auto model = make(random);
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      optimizer::Optimizer::Create(
          {{way.rule, model->TrainedParameters(), model->is_lazy}}));
  WEFT_ASSIGN_OR_RETURN(const auto shards, ddp::VirtualShards::Create(
                                               *model, group, {way.shards}));
  for (int step = 0; step < way.steps; ++step) {
    for (int s = shards->own().begin; s < shards->own().end; ++s) {
      WEFT_RETURN_IF_ERROR(shards->Begin(s));
      random = Generator(5).Fork(step).Fork(s);
      for (int pass = 0; pass < way.passes; ++pass) {
        const Variable loss =
            model->Loss(step, s, Generator(7).Fork(step).Fork(s).Fork(pass));
        if (loss.defined()) loss.Backward();
      }
      WEFT_RETURN_IF_ERROR(shards->End());
    }
    WEFT_RETURN_IF_ERROR(shards->Finish());
    if (way.clips) {
      WEFT_RETURN_IF_ERROR(
          optimizer::ClipGradNorm(model->Parameters(), 0.01).status());
    }
    WEFT_RETURN_IF_ERROR(optimizer->Step());
    optimizer->ZeroGrad();
  }
  WEFT_RETURN_IF_ERROR(shards->CheckInSync());
  AppendBits(model->StateDict(), bits);
  AppendBits(optimizer->StateDict(), bits);
  return absl::OkStatus();
}

std::vector<absl::Status> TrainOn(int ranks, const Make& make, const Way& way,
                                  std::vector<std::string>* bits) {
  bits->assign(ranks, "");
  collectives::LocalWorld world(ranks);
  return RunRanks(ranks, [&](int rank) -> absl::Status {
    collectives::GroupOptions options;
    options.timeout = absl::Seconds(60);
    const auto group =
        collectives::ProcessGroup::Create(world.Connect(rank), options);
    return TrainRank(*group, make, way, &(*bits)[rank]);
  });
}

// "So with the same batches in the same shards, 1, 2, 3 or 8 ranks get the same
// bits."
void ExpectSameBits(const Make& make, const Way& way = {}) {
  std::vector<std::string> one;
  ASSERT_THAT(TrainOn(1, make, way, &one), Each(IsOk()));
  for (const int ranks : way.ranks) {
    std::vector<std::string> found;
    ASSERT_THAT(TrainOn(ranks, make, way, &found), Each(IsOk())) << ranks;
    for (const std::string& bits : found) {
      EXPECT_EQ(bits == one[0], true) << "with " << ranks;
    }
  }
}

template <typename M>
std::unique_ptr<Model> MakeModel(Generator& random) {
  return std::make_unique<M>(random);
}

// --- Models. -----------------------------------------------------------------

Tensor Labels(int64_t n, int64_t classes, Generator& data) {
  Tensor labels = Tensor::Empty({n}, DType::kI64);
  for (int64_t i = 0; i < n; ++i) {
    labels.data<int64_t>()[i] = static_cast<int64_t>(data.NextBelow(classes));
  }
  return labels;
}

class Doubles final : public Model {
 public:
  explicit Doubles(Generator& random)
      : in_(3, 7, random, {true, DType::kF64}),
        out_(7, 2, random, {true, DType::kF64}) {
    AddModule("in", in_);
    AddModule("out", out_);
  }
  Variable Loss(int, int, Generator data) override {
    const Tensor x = Normal({5, 3}, 0, 1, data, DType::kF64);
    return CrossEntropy(out_.Forward(Tanh(in_.Forward(Variable(x)))),
                        Labels(5, 2, data));
  }

 private:
  nn::Linear in_, out_;
};

// f32, then f64, then f32; batch statistics of f64 between.
class Mixed final : public Model {
 public:
  explicit Mixed(Generator& random)
      : in_(3, 6, random),
        norm_(6, {{1e-5, true, DType::kF64}}),
        middle_(6, 6, random, {true, DType::kF64}),
        out_(6, 2, random) {
    AddModule("in", in_);
    AddModule("norm", norm_);
    AddModule("middle", middle_);
    AddModule("out", out_);
  }
  Variable Loss(int, int, Generator data) override {
    const Tensor x = Normal({5, 3}, 0, 1, data);
    const Variable wide = Cast(Tanh(in_.Forward(Variable(x))), DType::kF64);
    const Variable y = Tanh(middle_.Forward(norm_.Forward(wide)));
    return CrossEntropy(out_.Forward(Cast(y, DType::kF32)), Labels(5, 2, data));
  }

 private:
  nn::Linear in_;
  nn::BatchNorm norm_;
  nn::Linear middle_, out_;
};

// A scalar [], an empty [0, 3], one element [1], and one of ones of rank 5.
class OddShapes final : public Model {
 public:
  explicit OddShapes(Generator& random) {
    scalar_ = AddParameter("scalar", Normal({}, 0, 1, random));
    empty_ = AddParameter("empty", Tensor::Zeros({0, 3}));
    one_ = AddParameter("one", Normal({1}, 0, 1, random));
    ones_ = AddParameter("ones", Normal({1, 1, 1, 1, 1}, 0, 1, random));
    AddBuffer("nothing", Tensor::Zeros({0}));
    AddBuffer("number", Tensor::Scalar<float>(3));
  }
  Variable Loss(int, int, Generator data) override {
    const Variable x(Normal({4}, 0, 1, data));
    return Add(Sum(Tanh(Mul(Mul(x, scalar_), Add(one_, Reshape(ones_, {}))))),
               Sum(empty_));
  }

 private:
  Variable scalar_, empty_, one_, ones_;
};

class OneElement final : public Model {
 public:
  explicit OneElement(Generator& random) {
    w_ = AddParameter("w", Normal({}, 0, 1, random));
  }
  Variable Loss(int, int, Generator data) override {
    return Square(Add(w_, -data.NextNormal()));
  }

 private:
  Variable w_;
};

class OnlyEmpty final : public Model {
 public:
  explicit OnlyEmpty(Generator&) { w_ = AddParameter("w", Tensor::Zeros({0})); }
  Variable Loss(int, int, Generator) override { return Sum(w_); }

 private:
  Variable w_;
};

// The table is the weight of the output too; the output's bias is frozen.
class Tied final : public Model {
 public:
  explicit Tied(Generator& random)
      : table_(11, 4, random),
        out_(table_.weight(), random),
        frozen_(4, 4, random) {
    AddModule("table", table_);
    AddModule("out", out_);
    AddModule("frozen", frozen_);
    frozen_.Freeze();
  }
  Variable Loss(int, int, Generator data) override {
    return CrossEntropy(
        out_.Forward(frozen_.Forward(table_.Forward(Labels(6, 11, data)))),
        Labels(6, 11, data));
  }

 private:
  nn::Embedding table_;
  nn::Linear out_;
  nn::Linear frozen_;
};

class Transformer final : public Model {
 public:
  explicit Transformer(Generator& random)
      : words_(13, 8, random),
        before_({8}),
        attention_(8, 2, random),
        dropout_(0.2, random),
        after_({8}),
        wide_(8, 16, random),
        narrow_(16, 8, random),
        out_(8, 13, random) {
    AddModule("words", words_);
    AddModule("before", before_);
    AddModule("attention", attention_);
    AddModule("dropout", dropout_);
    AddModule("after", after_);
    AddModule("wide", wide_);
    AddModule("narrow", narrow_);
    AddModule("out", out_);
  }
  Variable Loss(int, int, Generator data) override {
    const Tensor text = Labels(2 * 5, 13, data).Reshape({2, 5});
    Variable x = words_.Forward(text);
    AttentionOptions causal;
    causal.is_causal = true;
    x = Add(x,
            dropout_.Forward(attention_.Forward(before_.Forward(x), causal)));
    x = Add(x, dropout_.Forward(
                   narrow_.Forward(Gelu(wide_.Forward(after_.Forward(x))))));
    return CrossEntropy(Reshape(out_.Forward(x), {10, 13}), text.Reshape({10}));
  }

 private:
  nn::Embedding words_;
  nn::LayerNorm before_;
  nn::MultiheadAttention attention_;
  nn::Dropout dropout_;
  nn::LayerNorm after_;
  nn::Linear wide_, narrow_, out_;
};

// Batch norm that keeps no statistics, and buffers that passes write to.
class Untracked final : public Model {
 public:
  explicit Untracked(Generator& random)
      : in_(3, 6, random), norm_(6, {{}, 0.1, false}), out_(6, 2, random) {
    AddModule("in", in_);
    AddModule("norm", norm_);
    AddModule("out", out_);
    seen_ = AddBuffer("seen", Tensor::Zeros({2}, DType::kF64), false);
    count_ = AddBuffer("count", Tensor::Zeros({}, DType::kI64));
  }
  Variable Loss(int, int shard, Generator data) override {
    seen_.tensor().data<double>()[1] += 0.1 * (shard + 1);
    count_.tensor().data<int64_t>()[0] += shard + 1;
    const Tensor x = Normal({5, 3}, 0, 1, data);
    return Add(CrossEntropy(
                   out_.Forward(Relu(norm_.Forward(in_.Forward(Variable(x))))),
                   Labels(5, 2, data)),
               seen_.tensor().data<double>()[1]);
  }

 private:
  nn::Linear in_;
  nn::BatchNorm norm_;
  nn::Linear out_;
  nn::Buffer seen_, count_;
};

// Bags of rows of f64, some empty; shards that use no row at all, or have no
// loss.
class Bags final : public Model {
 public:
  explicit Bags(Generator& random)
      : bags_(40, 3, BagMode::kMean, random,
              {TableGradient::kSparse, DType::kF64}),
        out_(3, 2, random, {true, DType::kF64}) {
    AddModule("bags", bags_);
    AddModule("out", out_);
    is_lazy = true;
  }
  Variable Loss(int step, int shard, Generator data) override {
    if ((step + shard) % 5 == 4) return Variable();
    const int64_t words = (step + shard) % 3 == 0 ? 0 : 7;
    Tensor offsets = Tensor::Zeros({3}, DType::kI64);
    if (words > 0) {
      offsets.data<int64_t>()[1] = 2;
      offsets.data<int64_t>()[2] = 7;  // an empty bag
    }
    const Tensor rows = Labels(words, 40, data);
    return CrossEntropy(out_.Forward(bags_.Forward(rows, offsets)),
                        Labels(3, 2, data));
  }

 private:
  nn::EmbeddingBag bags_;
  nn::Linear out_;
};

// --- Tests. ------------------------------------------------------------------

TEST(ModelsOverShards, OfDoublesHaveTheSameBits) {
  ExpectSameBits(MakeModel<Doubles>);
}
TEST(ModelsOverShards, OfBothFloatsHaveTheSameBits) {
  ExpectSameBits(MakeModel<Mixed>);
}
TEST(ModelsOverShards, OfOddShapesHaveTheSameBits) {
  ExpectSameBits(MakeModel<OddShapes>);
}
TEST(ModelsOverShards, OfOneElementHaveTheSameBits) {
  ExpectSameBits(MakeModel<OneElement>);
}
TEST(ModelsOverShards, OfNoElementHaveTheSameBits) {
  ExpectSameBits(MakeModel<OnlyEmpty>);
}
TEST(ModelsOverShards, ThatShareAParameterHaveTheSameBits) {
  ExpectSameBits(MakeModel<Tied>);
}
TEST(ModelsOverShards, TransformerWithDropoutHasTheSameBits) {
  Way way;
  way.rule = optimizer::AdamWOptions{0.01};
  ExpectSameBits(MakeModel<Transformer>, way);
}
TEST(ModelsOverShards, BatchNormWithoutStatisticsHasTheSameBits) {
  ExpectSameBits(MakeModel<Untracked>);
}
TEST(ModelsOverShards, SparseBagsHaveTheSameBits) {
  Way way;
  for (const optimizer::RuleOptions& rule :
       {optimizer::RuleOptions(optimizer::SgdOptions{0.1}),
        optimizer::RuleOptions(optimizer::AdamOptions{0.01}),
        optimizer::RuleOptions(optimizer::AdagradOptions{0.1})}) {
    way.rule = rule;
    ExpectSameBits(MakeModel<Bags>, way);
  }
}

TEST(ModelsOverShards, AnyOptimizerEndsWithTheSameBits) {
  Way way;
  way.ranks = {3};
  optimizer::SgdOptions momentum{0.1, 0.9};
  momentum.weight_decay = 0.01;
  momentum.nesterov = true;
  optimizer::AdamOptions adam;
  adam.weight_decay = 0.1;
  for (const optimizer::RuleOptions& rule :
       {optimizer::RuleOptions(momentum), optimizer::RuleOptions(adam),
        optimizer::RuleOptions(optimizer::FtrlOptions())}) {
    way.rule = rule;
    ExpectSameBits(MakeModel<Mixed>, way);
  }
}

TEST(ModelsOverShards, SeveralPassesAndClippedGradientsKeepTheBits) {
  Way way;
  way.passes = 3;
  way.clips = true;
  ExpectSameBits(MakeModel<Mixed>, way);
  way.rule = optimizer::SgdOptions{0.1};
  ExpectSameBits(MakeModel<Bags>, way);
}

TEST(ModelsOverShards, OneShardIsOneRanks) {
  Way way;
  way.shards = 1;
  way.ranks = {1};
  ExpectSameBits(MakeModel<Mixed>, way);
}
TEST(ModelsOverShards, ManyShardsOnFewRanksHaveTheSameBits) {
  Way way;
  way.shards = 64;
  way.ranks = {3, 7};
  way.steps = 2;
  ExpectSameBits(MakeModel<Mixed>, way);
  ExpectSameBits(MakeModel<Bags>, way);
}
TEST(ModelsOverShards, AsManyShardsAsRanksHaveTheSameBits) {
  Way way;
  way.shards = 16;
  way.ranks = {15, 16};
  way.steps = 2;
  ExpectSameBits(MakeModel<Mixed>, way);
}

// "kInvalidArgument on every rank: ... there is nothing to train"
class Parameters final : public nn::Module {
 public:
  explicit Parameters(bool is_frozen) {
    AddParameter("w", Tensor::Zeros({2}));
    if (is_frozen) Freeze();
  }
};

std::vector<absl::Status> CreateOn(
    int ranks,
    const std::function<absl::Status(collectives::ProcessGroup&)>& create) {
  collectives::LocalWorld world(ranks);
  return RunRanks(ranks, [&](int rank) {
    collectives::GroupOptions options;
    options.timeout = absl::Seconds(20);
    const auto group =
        collectives::ProcessGroup::Create(world.Connect(rank), options);
    return create(*group);
  });
}

TEST(VirtualShardsMisused, NothingToTrainIsAnErrorOnEveryRank) {
  for (const bool is_empty : {false, true}) {
    EXPECT_THAT(
        CreateOn(
            2,
            [&](collectives::ProcessGroup& group) {
              Parameters frozen(true);
              nn::Sequential empty;
              nn::Module& model =
                  is_empty ? static_cast<nn::Module&>(empty) : frozen;
              return ddp::VirtualShards::Create(model, group, {4}).status();
            }),
        Each(StatusIs(absl::StatusCode::kInvalidArgument)));
  }
}

TEST(VirtualShardsMisused, NumbersThatAreNotAllowedAreErrorsOnEveryRank) {
  for (const int shards :
       {0, -1, -8, 3, 1 << 13, std::numeric_limits<int>::max(),
        std::numeric_limits<int>::min()}) {
    EXPECT_THAT(CreateOn(2,
                         [&](collectives::ProcessGroup& group) {
                           Parameters model(false);
                           return ddp::VirtualShards::Create(model, group,
                                                             {shards})
                               .status();
                         }),
                Each(StatusIs(absl::StatusCode::kInvalidArgument)))
        << shards;
  }
  for (const int root : {-1, 2, 100}) {
    EXPECT_THAT(
        CreateOn(
            2,
            [&](collectives::ProcessGroup& group) {
              Parameters model(false);
              ddp::VirtualShards::Options options;
              options.root = root;
              return ddp::VirtualShards::Create(model, group, options).status();
            }),
        Each(Not(IsOk())))
        << root;
  }
}

// "Whose parameters and buffers all begin with."
TEST(VirtualShardsMisused, RootThatIsNotTheFirstGivesItsOwn) {
  EXPECT_THAT(
      CreateOn(
          3,
          [&](collectives::ProcessGroup& group) -> absl::Status {
            Generator random(group.rank() + 1);
            OddShapes model(random);
            model.StateDict()["number"].data<float>()[0] =
                static_cast<float>(group.rank());
            ddp::VirtualShards::Options options;
            options.root = 2;
            WEFT_RETURN_IF_ERROR(
                ddp::VirtualShards::Create(model, group, options).status());
            Generator wanted_random(3);
            OddShapes wanted(wanted_random);
            wanted.StateDict()["number"].data<float>()[0] = 2;
            std::string a, b;
            AppendBits(model.StateDict(), &a);
            AppendBits(wanted.StateDict(), &b);
            EXPECT_EQ(a == b, true) << group.rank();
            return absl::OkStatus();
          }),
      Each(IsOk()));
}

// "Ends a step that is not to be taken, also after its Finish: gradients are
// undefined then, and the buffers are those of the step's begin. Does nothing
// before the first Begin."
TEST(VirtualShardsMisused, AbandonedStepsLeaveNothing) {
  const auto train = [](bool abandons, std::string* bits) {
    return CreateOn(2, [=](collectives::ProcessGroup& group) -> absl::Status {
      Generator random(1);
      Untracked model(random);
      WEFT_ASSIGN_OR_RETURN(
          const auto optimizer,
          optimizer::Optimizer::Create(
              {{optimizer::SgdOptions{0.1}, model.NamedParameters()}}));
      WEFT_ASSIGN_OR_RETURN(const auto shards,
                            ddp::VirtualShards::Create(model, group, {4}));
      shards->Abandon();
      // Up to the end of shard `n` of this rank; with `is_open` not quite.
      const auto run = [&](int step, int n, bool is_open) -> absl::Status {
        for (int s = shards->own().begin; s < shards->own().begin + n; ++s) {
          WEFT_RETURN_IF_ERROR(shards->Begin(s));
          model.Loss(step, s, Generator(7).Fork(step).Fork(s)).Backward();
          if (is_open && s + 1 == shards->own().begin + n) break;
          WEFT_RETURN_IF_ERROR(shards->End());
        }
        return absl::OkStatus();
      };
      for (int step = 0; step < 3; ++step) {
        if (abandons) {
          for (const int n : {1, 2}) {
            for (const bool is_open : {false, true}) {
              WEFT_RETURN_IF_ERROR(run(step + 10, n, is_open));
              shards->Abandon();
            }
          }
          WEFT_RETURN_IF_ERROR(run(step + 20, 2, false));
          WEFT_RETURN_IF_ERROR(shards->Finish());
          shards->Abandon();
          shards->Abandon();
          for (const auto& parameter : model.NamedParameters()) {
            EXPECT_FALSE(parameter.variable.gradient().defined());
          }
        }
        WEFT_RETURN_IF_ERROR(run(step, 2, false));
        WEFT_RETURN_IF_ERROR(shards->Finish());
        WEFT_RETURN_IF_ERROR(optimizer->Step());
        optimizer->ZeroGrad();
      }
      if (group.rank() == 0) AppendBits(model.StateDict(), bits);
      return absl::OkStatus();
    });
  };
  std::string wanted, found;
  ASSERT_THAT(train(false, &wanted), Each(IsOk()));
  ASSERT_THAT(train(true, &found), Each(IsOk()));
  EXPECT_EQ(found == wanted, true);
}

// "After an error gradients are undefined and the buffers are those of the
// step's begin": and after a fault of this caller alone the step can be ended.
TEST(VirtualShardsMisused, PassThatThrowsCanBeAbandonedAndDoneAgain) {
  const auto train = [](bool throws, std::string* bits) {
    return CreateOn(2, [=](collectives::ProcessGroup& group) -> absl::Status {
      Generator random(1);
      Untracked model(random);
      WEFT_ASSIGN_OR_RETURN(const auto shards,
                            ddp::VirtualShards::Create(model, group, {4}));
      const auto run = [&](bool throws_now) -> absl::Status {
        for (int s = shards->own().begin; s < shards->own().end; ++s) {
          WEFT_RETURN_IF_ERROR(shards->Begin(s));
          const Variable loss = model.Loss(0, s, Generator(7).Fork(s));
          if (throws_now && s == 3) {
            return absl::DataLossError("bad batch");
          }
          loss.Backward();
          WEFT_RETURN_IF_ERROR(shards->End());
        }
        return absl::OkStatus();
      };
      if (throws) {
        const absl::Status status = run(true);
        EXPECT_EQ(status.ok(), group.rank() == 0);
        shards->Abandon();
      }
      WEFT_RETURN_IF_ERROR(run(false));
      WEFT_RETURN_IF_ERROR(shards->Finish());
      for (const auto& parameter : model.NamedParameters()) {
        if (group.rank() != 0) continue;
        AppendBits({{parameter.name, parameter.variable.grad()}}, bits);
      }
      if (group.rank() == 0) AppendBits(model.StateDict(), bits);
      return absl::OkStatus();
    });
  };
  std::string wanted, found;
  ASSERT_THAT(train(false, &wanted), Each(IsOk()));
  ASSERT_THAT(train(true, &found), Each(IsOk()));
  EXPECT_EQ(found == wanted, true);
}

// "kFailedPrecondition: not all own shards have run": on one rank only; the
// others wait for it until it has ended.
TEST(VirtualShardsMisused, FinishBeforeAllOwnShardsMayBeMadeGood) {
  EXPECT_THAT(
      CreateOn(
          2,
          [&](collectives::ProcessGroup& group) -> absl::Status {
            Generator random(1);
            OneElement model(random);
            WEFT_ASSIGN_OR_RETURN(const auto shards, ddp::VirtualShards::Create(
                                                         model, group, {4}));
            for (int s = shards->own().begin; s < shards->own().end; ++s) {
              if (group.rank() == 1) {
                EXPECT_THAT(shards->Finish(), StatusIs(kFailedPrecondition));
              }
              WEFT_RETURN_IF_ERROR(shards->Begin(s));
              model.Loss(0, s, Generator(s)).Backward();
              if (group.rank() == 1) {
                EXPECT_THAT(shards->Finish(), StatusIs(kFailedPrecondition));
              }
              WEFT_RETURN_IF_ERROR(shards->End());
            }
            WEFT_RETURN_IF_ERROR(shards->Finish());
            // A second one has no shards that have run.
            EXPECT_THAT(shards->Finish(), StatusIs(kFailedPrecondition));
            return absl::OkStatus();
          }),
      Each(IsOk()));
}

}  // namespace
}  // namespace weft::outside
