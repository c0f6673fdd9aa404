#include "weft/tensor/random.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/string_view.h"
#include "weft/base/error.h"
#include "weft/tensor/cuda/philox.h"
#include "weft/tensor/on_device.h"

namespace weft {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key) {
  const internal::PhiloxBlock block = internal::Philox(
      {{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  return {block.words[0], block.words[1], block.words[2], block.words[3]};
}

uint32_t Generator::NextU32() {
  Observe();
  const uint64_t index = position_ / 4;
  if (index != block_index_) {
    block_ = Philox4x32(
        {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
         static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
        {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    block_index_ = index;
  }
  return block_[position_++ % 4];
}

uint64_t Generator::NextU64() {
  const uint64_t low = NextU32();
  return low | static_cast<uint64_t>(NextU32()) << 32;
}

double Generator::NextDouble() {
  return static_cast<double>(NextU64() >> 11) * 0x1p-53;
}

// Box and Muller's pair without its sine: a number of the stream then depends
// on its position alone.
double Generator::NextNormal() {
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = std::sqrt(-2 * std::log(1 - NextDouble()));
  return radius * std::cos(kTwoPi * NextDouble());
}

// Multiplies instead of dividing, and draws again in the few cases that would
// favour some numbers. Source: Lemire, "Fast random integer generation in an
// interval", ACM TOMACS 29(1), 2019.
uint64_t Generator::NextBelow(uint64_t n) {
  const uint64_t unfair = -n % n;
  for (;;) {
    const auto product = static_cast<unsigned __int128>(NextU64()) * n;
    if (static_cast<uint64_t>(product) >= unfair) {
      return static_cast<uint64_t>(product >> 64);
    }
  }
}

Generator Generator::Fork(uint64_t index) const {
  // The child's stream is a block of the cipher under another counter, so that
  // it meets neither its parent's numbers nor, but by chance of 2^-64, a
  // sibling's.
  const std::array<uint32_t, 4> block = Philox4x32(
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
       static_cast<uint32_t>(~stream_), static_cast<uint32_t>(~stream_ >> 32)},
      {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  return Generator(seed_, static_cast<uint64_t>(block[1]) << 32 | block[0]);
}

void Generator::Seek(uint64_t position) {
  Observe();
  position_ = position;
}

uint64_t Generator::Skip(uint64_t count) {
  Observe();
  return std::exchange(position_, position_ + count);
}

namespace {

// What a kernel needs to draw what `generator` would: two numbers of the
// distribution, and the bits of seed, stream and position.
internal::Operation DrawnFrom(const char* name, const Generator& generator,
                              uint64_t position, double a, double b) {
  return {name,
          {a, b, __builtin_bit_cast(double, generator.seed()),
           __builtin_bit_cast(double, generator.stream()),
           __builtin_bit_cast(double, position)}};
}

// Fills a tensor of `shape` on `device` by draw(generator) of each element,
// which takes `words` 32-bit numbers.
template <typename T, typename Draw>
Tensor DrawEach(const Shape& shape, DType dtype, Device device,
                const char* name, double a, double b, uint64_t words,
                Generator& generator, Draw draw) {
  const Tensor result = Tensor::Empty(shape, dtype, device);
  if (device.is_cpu()) {
    for (T& element : result.span<T>()) element = draw(generator);
    return result;
  }
  if (result.numel() == 0) return result;
  // First of all: an observer may set the generator back here.
  const uint64_t position =
      generator.Skip(words * static_cast<uint64_t>(result.numel()));
  internal::OnDevice(
      DrawnFrom(name, generator, position, a, b),
      [draw, seed = generator.seed(), stream = generator.stream(),
       position](const Tensor& y) {
        // It draws for `generator`, whose observer knows. The thread may be the
        // caller's.
        GeneratorObserver* const observer = GeneratorObserver::Set(nullptr);
        const absl::Cleanup restore = [observer] {
          GeneratorObserver::Set(observer);
        };
        Generator own(seed, stream);
        own.Seek(position);
        for (T& element : y.span<T>()) element = draw(own);
      },
      result);
  return result;
}

}  // namespace

Tensor Uniform(const Shape& shape, double low, double high,
               Generator& generator, DType dtype, Device device) {
  if (!(low <= high && std::isfinite(high - low))) {
    ThrowInvalidArgument("Uniform: low is ", low, ", high is ", high,
                         "; wanted low <= high and a finite difference");
  }
  return VisitFloating(dtype, "Uniform", [&](auto type) {
    using T = typename decltype(type)::Type;
    return DrawEach<T>(
        shape, dtype, device, "Uniform", low, high, 2, generator,
        [low, high](Generator& from) {
          const T element =
              static_cast<T>(low + (high - low) * from.NextDouble());
          // Rounding may reach the open end.
          return element >= static_cast<T>(high) ? static_cast<T>(low)
                                                 : element;
        });
  });
}

Tensor Normal(const Shape& shape, double mean, double deviation,
              Generator& generator, DType dtype, Device device) {
  if (!(deviation >= 0)) {
    ThrowInvalidArgument("Normal: deviation is ", deviation,
                         "; wanted at least 0");
  }
  return VisitFloating(dtype, "Normal", [&](auto type) {
    using T = typename decltype(type)::Type;
    return DrawEach<T>(
        shape, dtype, device, "Normal", mean, deviation, 4, generator,
        [mean, deviation](Generator& from) {
          return static_cast<T>(mean + deviation * from.NextNormal());
        });
  });
}

Tensor Permutation(int64_t n, Generator& generator) {
  Tensor result = Tensor::Arange(n);
  int64_t* const order = result.data<int64_t>();
  for (int64_t i = n - 1; i > 0; --i) {
    std::swap(order[i],
              order[generator.NextBelow(static_cast<uint64_t>(i) + 1)]);
  }
  return result;
}

namespace {

// What numbers are drawn from, which is done on the CPU: the generator's place
// afterwards depends on it.
Tensor OnHost(const Tensor& x) {
  return x.To(Device::Cpu()).To(DType::kF64).Contiguous();
}

// The weights of one row, checked. Where all are small they come times a power
// of 2, which changes no draw: a quotient by one of them is then finite.
std::vector<double> WeightsOfRow(const double* row, int64_t classes,
                                 int64_t needed, absl::string_view where) {
  std::vector<double> weights(row, row + classes);
  int64_t positive = 0;
  double largest = 0;
  for (const double weight : weights) {
    if (!(weight >= 0) || std::isinf(weight)) {
      ThrowInvalidArgument(where, ": a weight of ", weight,
                           "; wanted finite ones of at least 0");
    }
    positive += weight > 0 ? 1 : 0;
    largest = std::max(largest, weight);
  }
  if (positive < needed) {
    ThrowInvalidArgument(where, ": ", positive,
                         " classes have a weight above 0; wanted ", needed,
                         " or more");
  }
  if (largest > 0 && largest < 1) {
    const int exponent = std::ilogb(largest);
    for (double& weight : weights) weight = std::scalbn(weight, -exponent);
  }
  return weights;
}

// Where a number of [0, sum of weights) falls.
class Wheel {
 public:
  explicit Wheel(const std::vector<double>& weights) : ends_(weights) {
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
    if (weights.empty() || std::isfinite(ends_.back())) return;
    // There are fewer than 2^64 classes.
    std::transform(weights.begin(), weights.end(), ends_.begin(),
                   [](double weight) { return std::scalbn(weight, -64); });
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
  }

  int64_t Turn(Generator& generator) const {
    const double number = generator.NextDouble() * ends_.back();
    // The first end above: a class of weight 0 ends where it begins.
    const auto found = std::upper_bound(ends_.begin(), ends_.end(), number);
    // By rounding the product may be the sum itself: then the last class that
    // has a weight.
    const auto last =
        std::lower_bound(ends_.begin(), ends_.end(), ends_.back());
    return std::min(found, last) - ends_.begin();
  }

 private:
  std::vector<double> ends_;
};

// The classes in the order of their exponential times of arrival, which is that
// of draws without replacement.
void DrawDistinct(const std::vector<double>& weights, int64_t samples,
                  Generator& generator, int64_t* out) {
  std::vector<std::pair<double, int64_t>> arrivals;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double time = -std::log(1 - generator.NextDouble());
    if (weights[i] > 0) {
      arrivals.emplace_back(time / weights[i], static_cast<int64_t>(i));
    }
  }
  std::partial_sort(arrivals.begin(), arrivals.begin() + samples,
                    arrivals.end());
  for (int64_t i = 0; i < samples; ++i) {
    out[i] = arrivals[static_cast<size_t>(i)].second;
  }
}

}  // namespace

Tensor Multinomial(const Tensor& weights, int64_t samples,
                   bool with_replacement, Generator& generator) {
  constexpr absl::string_view kWhere = "Multinomial";
  const bool fits = IsDifferentiable(weights.dtype()) &&
                    (weights.dim() == 1 || weights.dim() == 2);
  if (!fits || samples < 0) {
    ThrowInvalidArgument(kWhere, ": ", samples, " samples of ",
                         weights.Describe(),
                         "; wanted f32 or f64 [classes] or [n, classes]");
  }
  Shape shape = weights.shape();
  shape.back() = samples;
  const Tensor result = Tensor::Empty(shape, DType::kI64);
  const Tensor rows = OnHost(weights);
  const int64_t classes = weights.size(-1);
  const int64_t n = weights.dim() == 1 ? 1 : weights.size(0);
  for (int64_t i = 0; i < n; ++i) {
    int64_t* const out = result.data<int64_t>() + i * samples;
    const std::vector<double> row = WeightsOfRow(
        rows.data<double>() + i * classes, classes,
        with_replacement ? std::min<int64_t>(samples, 1) : samples, kWhere);
    if (!with_replacement) {
      DrawDistinct(row, samples, generator, out);
    } else if (samples > 0) {
      const Wheel wheel(row);
      for (int64_t j = 0; j < samples; ++j) out[j] = wheel.Turn(generator);
    }
  }
  return result.To(weights.device());
}

Tensor Categorical(const Tensor& logits, Generator& generator) {
  if (logits.dim() < 1 || !IsDifferentiable(logits.dtype())) {
    ThrowInvalidArgument("Categorical: logits are ", logits.Describe(),
                         "; wanted f32 or f64 [..., classes]");
  }
  Shape shape = logits.shape();
  shape.pop_back();
  const Tensor result = Tensor::Empty(shape, DType::kI64);
  const Tensor rows = OnHost(logits);
  const int64_t classes = logits.size(-1);
  std::vector<double> weights(static_cast<size_t>(classes));
  for (int64_t i = 0; i < result.numel(); ++i) {
    const double* const row = rows.data<double>() + i * classes;
    const double largest =
        classes > 0 ? *std::max_element(row, row + classes) : 0;
    for (int64_t j = 0; j < classes; ++j) {
      weights[static_cast<size_t>(j)] = std::exp(row[j] - largest);
    }
    result.data<int64_t>()[i] =
        Wheel(WeightsOfRow(weights.data(), classes, 1, "Categorical"))
            .Turn(generator);
  }
  return result.To(logits.device());
}

Tensor Bernoulli(const Shape& shape, double probability, Generator& generator,
                 Device device) {
  if (!(probability >= 0 && probability <= 1)) {
    ThrowInvalidArgument("Bernoulli: probability is ", probability,
                         "; wanted one in [0, 1]");
  }
  return DrawEach<bool>(shape, DType::kBool, device, "Bernoulli", probability,
                        0, 2, generator, [probability](Generator& from) {
                          return from.NextDouble() < probability;
                        });
}

}  // namespace weft
