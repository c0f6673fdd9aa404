#include "weft/tensor/ops/einsum.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::ExpectSameOnDevice;

// The operands' letters and the result's; `b` is "-" if there is none.
struct Letters {
  std::string a, b, out;
};

const Letters kEquations[] = {
    {"ij", "-", "ji"},      {"ij", "-", "i"},         {"ij", "-", ""},
    {"", "-", ""},          {"ijk", "-", "kij"},      {"ijk", "-", "j"},
    {"ij", "jk", "ik"},     {"ij", "jk", "ki"},       {"ij", "kj", "ik"},
    {"ji", "jk", "ik"},     {"bij", "bjk", "bik"},    {"bij", "jk", "ikb"},
    {"i", "j", "ij"},       {"i", "j", ""},           {"i", "i", "i"},
    {"i", "i", ""},         {"ij", "ij", "ij"},       {"ij", "ij", ""},
    {"ij", "ij", "j"},      {"ijk", "j", "k"},        {"", "ij", "ji"},
    {"ij", "", "i"},        {"bthd", "bshd", "bhts"}, {"aB", "Bc", "ca"},
    {"ijk", "ljb", "ilkb"}, {"ab", "cd", "db"},
};

std::string TextOf(const Letters& e) {
  return e.b == "-" ? e.a + "->" + e.out : e.a + "," + e.b + "->" + e.out;
}

using Sizes = std::map<char, int64_t>;

Shape ShapeOf(const std::string& letters, const Sizes& sizes) {
  Shape shape;
  for (const char c : letters) shape.push_back(sizes.at(c));
  return shape;
}

// Calls visit(index of a, of b, of the result) for each value of all letters.
template <typename Visit>
void ForEachValue(const Letters& e, const Sizes& sizes, Visit&& visit) {
  std::string all;
  for (const auto& [letter, size] : sizes) {
    for (const std::string& letters : {e.a, e.b, e.out}) {
      if (letters.find(letter) == std::string::npos) continue;
      all.push_back(letter);
      break;
    }
  }
  ForEachIndex(ShapeOf(all, sizes), [&](const Shape& values) {
    const auto pick = [&](const std::string& letters) {
      Shape index;
      for (const char c : letters) {
        if (c != '-') index.push_back(values[all.find(c)]);
      }
      return index;
    };
    visit(pick(e.a), pick(e.b), pick(e.out));
  });
}

double& Element(const Tensor& x, const Shape& at) {
  int64_t offset = 0;
  for (size_t d = 0; d < at.size(); ++d) offset += at[d] * x.strides()[d];
  return x.data<double>()[offset];
}

TEST(Einsum, AndItsGradientsAgreeWithLoopsOverAllLetters) {
  Generator generator(1);
  const Sizes some = {{'a', 2}, {'b', 2}, {'c', 4}, {'d', 3},
                      {'h', 2}, {'i', 3}, {'j', 4}, {'k', 2},
                      {'l', 5}, {'s', 3}, {'t', 4}, {'B', 3}};
  Sizes one = some, none = some;
  one['j'] = one['b'] = 1;
  none['j'] = none['b'] = 0;
  for (const Letters& e : kEquations) {
    for (const Sizes& sizes : {some, one, none}) {
      for (const Lie lie : kLies) {
        const bool has_b = e.b != "-";
        const Tensor a =
            Integers(ShapeOf(e.a, sizes), DType::kF64, -4, 4, generator, lie);
        const Tensor b = has_b ? Integers(ShapeOf(e.b, sizes), DType::kF64, -4,
                                          4, generator, lie)
                               : Tensor::Ones({}, DType::kF64);
        const Tensor grad =
            Integers(ShapeOf(e.out, sizes), DType::kF64, -4, 4, generator, lie);
        const Tensor y = Tensor::Zeros(grad.shape(), DType::kF64);
        const Tensor to_a = Tensor::Zeros(a.shape(), DType::kF64);
        const Tensor to_b = Tensor::Zeros(b.shape(), DType::kF64);
        ForEachValue(e, sizes,
                     [&](const Shape& i, const Shape& j, const Shape& o) {
                       Element(y, o) += At(a, i) * At(b, j);
                       Element(to_a, i) += At(grad, o) * At(b, j);
                       Element(to_b, j) += At(grad, o) * At(a, i);
                     });
        const std::string text = TextOf(e);
        if (has_b) {
          ExpectSame(Einsum(text, a, b), y);
          ExpectSame(EinsumBackwardA(text, grad, b, a.shape()), to_a);
          ExpectSame(EinsumBackwardB(text, grad, a, b.shape()), to_b);
        } else {
          ExpectSame(Einsum(text, a), y);
          ExpectSame(EinsumBackward(text, grad, a.shape()), to_a);
        }
        if (HasFailure())
          FAIL() << text << ", layout " << static_cast<int>(lie);
      }
    }
  }
}

TEST(Einsum, RefusesEquationsThatAreNone) {
  const Tensor x = Tensor::Ones({2, 2});
  for (const char* const text :
       {"", "ij", "ij->", "->ij", "i j", "ij-ij", "ij>ij", "ij->ij->ij",
        "ij,->ij", "ij,jk", "i.->i", "i1->i", "ij->ii", "i...->i", "ij->,"}) {
    if (std::string(text) == "ij->") {
      EXPECT_EQ(Einsum(text, x).item<float>(), 4);  // The sum of all.
      continue;
    }
    EXPECT_EQ(CodeOf([&] { Einsum(text, x); }),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
  for (const char* const text :
       {"", "ij,jk", "ij->ij", "ij,jk->il", "ij,jj->i", "ij,jk,kl->il",
        "ij->,jk", "ij,jk->ik,", "i,jk->ik", "ij,jk->ikk"}) {
    EXPECT_EQ(CodeOf([&] { Einsum(text, x, x); }),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_EQ(CodeOf([&] { Einsum("ij,jk->ik", x, x.To(DType::kF64)); }),
            absl::StatusCode::kInvalidArgument);
}

// A gradient or a shape that the equation does not make.
TEST(EinsumBackward, RefusesWhatDoesNotFitTheEquation) {
  const auto of = [](const Shape& shape) { return Tensor::Ones(shape); };
  const std::function<void()> bad[] = {
      [&] {
        EinsumBackward("ij->i", of({2, 3}), {2, 3});
      },
      [&] {
        EinsumBackward("ij->i", of({}), {2, 3});
      },
      [&] {
        EinsumBackward("ij->i", of({3}), {2, 3});
      },
      [&] {
        EinsumBackward("ij->i", of({2}), {5, 2, 3});
      },
      [&] { EinsumBackward("ij->i", of({2}), {2}); },
      [&] {
        EinsumBackward("ij->i", of({1}), {2, 3});
      },
      [&] {
        EinsumBackwardA("ij,jk->ik", of({2}), of({3, 4}), {2, 3});
      },
      [&] {
        EinsumBackwardA("ij,jk->ik", of({2, 4}), of({3}), {2, 3});
      },
      [&] {
        EinsumBackwardA("ij,jk->ik", of({2, 4}), of({3, 4}), {2});
      },
      [&] {
        EinsumBackwardA("ij,jk->ik", of({2, 5}), of({3, 4}), {2, 3});
      },
      [&] {
        EinsumBackwardA("ij,jk->ik", of({2, 4}), of({3, 4}), {1, 3});
      },
      [&] {
        EinsumBackwardA("ij,jk->ik", of({1, 4}), of({3, 4}), {2, 3});
      },
      [&] {
        EinsumBackwardB("ij,jk->ik", of({2}), of({2, 3}), {3, 4});
      },
      [&] {
        EinsumBackwardB("ij,jk->ik", of({2, 4}), of({2, 3}), {3, 4, 1});
      },
      [&] {
        EinsumBackwardB("ij,jk->ik", of({5, 4}), of({2, 3}), {3, 4});
      },
      [&] {
        EinsumBackwardB("ij,jk->ik", of({2, 4}), of({2, 3}), {7, 4});
      },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
}

TEST(Einsum, IsTheSameOnADevice) {
  Generator generator(37);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor a = Reals({2, 3, 4}, dtype, generator);
    const Tensor b = Reals({2, 4, 5}, dtype, generator);
    const Tensor grad = Reals({5, 2, 3}, dtype, generator);
    for (const Lie lie : kLies) {
      ExpectSameOnDevice("Einsum", {a, b, grad}, [&](auto in) {
        const Tensor a = ThatLies(lie, in[0]), b = ThatLies(lie, in[1]);
        const Tensor grad = ThatLies(lie, in[2]);
        constexpr const char* kProducts = "bij,bjk->kbi";
        return std::vector<Tensor>{
            Einsum("bij->jbi", a),
            EinsumBackward("kbij->kbi", grad, {5, 2, 3, 4}),
            Einsum(kProducts, a, b),
            Einsum("bij->i", a),
            Einsum("bij,bjk->i", a, b),
            Einsum("bij,k->bijk", a, grad.Select(2, 0).Select(1, 1)),
            EinsumBackwardA(kProducts, grad, b, a.shape()),
            EinsumBackwardB(kProducts, grad, a, b.shape())};
      });
    }
  }
}

TEST(Einsum, OfTwoDevicesNamesBoth) {
  device::testing::SimulatedDevices devices(1);
  const Tensor x = Tensor::Ones({2, 2});
  const Tensor there = x.To(Device(devices.context(), 0));
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { Einsum("ij,jk->ik", x, there); },
           [&] {
             EinsumBackwardA("ij,jk->ik", there, x, {2, 2});
           },
           [&] {
             EinsumBackwardB("ij,jk->ik", x, there, {2, 2});
           }}) {
    EXPECT_THAT(Complaint(call),
                AllOf(HasSubstr("on simulated:0"), HasSubstr("on cpu")));
  }
}

}  // namespace
}  // namespace weft
