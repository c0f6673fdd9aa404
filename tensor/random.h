// Generator: random numbers that depend on a seed and a position, nothing else.
//
// Philox 4x32-10 is a block cipher of a counter: number n of seed s is the same
// on every machine, and a generator is saved and restored as two numbers.
//
//   Generator generator(options.seed);
//   Tensor weight = Uniform({out, in}, -bound, bound, generator);
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011.

#ifndef WEFT_TENSOR_RANDOM_H_
#define WEFT_TENSOR_RANDOM_H_

#include <array>
#include <cstdint>
#include <utility>

#include "weft/tensor/tensor.h"

namespace weft {

// The cipher itself: `counter` encrypted ten rounds with `key`.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key);

class Generator;

// Sees which generators are used on a thread, to repeat what they gave.
class GeneratorObserver {
 public:
  virtual ~GeneratorObserver() = default;
  // Called before a number is drawn from `generator`, or its position or value
  // is changed.
  virtual void OnDraw(Generator& generator) = 0;
  // `generator` ends.
  virtual void OnEnd(const Generator& generator) = 0;

  // Sets the observer of this thread; null: none. It is borrowed. Returns the
  // one before.
  static GeneratorObserver* Set(GeneratorObserver* observer) {
    return std::exchange(current_, observer);
  }

 private:
  friend class Generator;
  static inline thread_local GeneratorObserver* current_ = nullptr;
};

// Thread-safety: one thread at a time. Copy to repeat, Fork to share out.
class Generator {
 public:
  // Streams of one seed are independent.
  explicit Generator(uint64_t seed, uint64_t stream = 0)
      : seed_(seed), stream_(stream) {}
  Generator(const Generator&) = default;
  Generator& operator=(const Generator& other) {
    Observe();
    seed_ = other.seed_;
    stream_ = other.stream_;
    position_ = other.position_;
    block_index_ = other.block_index_;
    block_ = other.block_;
    return *this;
  }
  ~Generator() {
    if (GeneratorObserver::current_ != nullptr) {
      GeneratorObserver::current_->OnEnd(*this);
    }
  }

  uint32_t NextU32();
  uint64_t NextU64();
  double NextDouble();             // Uniform in [0, 1), 53 bits.
  double NextNormal();             // Mean 0, variance 1.
  uint64_t NextBelow(uint64_t n);  // Uniform in [0, n). REQUIRES: n > 0.

  // An independent generator of the same seed, the `index`-th child of this
  // stream: so that parts drawn by several threads do not depend on their
  // order.
  Generator Fork(uint64_t index) const;

  uint64_t seed() const { return seed_; }
  uint64_t stream() const { return stream_; }
  uint64_t position() const { return position_; }  // In 32-bit numbers.
  void Seek(uint64_t position);
  // Leaves out the next `count` numbers, which are drawn elsewhere. Returns the
  // position of the first of them.
  uint64_t Skip(uint64_t count);

 private:
  void Observe() {
    if (GeneratorObserver::current_ != nullptr) {
      GeneratorObserver::current_->OnDraw(*this);
    }
  }

  uint64_t seed_;
  uint64_t stream_;
  uint64_t position_ = 0;
  uint64_t block_index_ = ~uint64_t{0};  // block_'s; none yet.
  std::array<uint32_t, 4> block_{};
};

// f32 or f64, of `shape`. Uniform in [low, high); Normal by Box and Muller. On
// every device what the CPU draws, and the generator is left where the CPU
// leaves it; but Normal's logarithm and cosine there may be 2 units in the last
// place from the CPU's.
Tensor Uniform(const Shape& shape, double low, double high,
               Generator& generator, DType dtype = DType::kF32,
               Device device = Device::Cpu());
Tensor Normal(const Shape& shape, double mean, double deviation,
              Generator& generator, DType dtype = DType::kF32,
              Device device = Device::Cpu());

// i64 [n]: 0 ... n - 1 in random order, each order equally likely.
Tensor Permutation(int64_t n, Generator& generator);

// Class numbers drawn with probabilities proportional to `weights`, f32 or f64
// [classes] or [n, classes], finite and at least 0: i64 [samples] or [n,
// samples]. With replacement each draw is independent; without, no class comes
// twice in a row, and each is drawn among those that are left. Throws if a row
// has no weight above 0, or, without replacement, fewer than `samples`.
// Source: without replacement, Efraimidis, Spirakis, "Weighted random sampling
// with a reservoir", Inf. Process. Lett. 97, 2006.
Tensor Multinomial(const Tensor& weights, int64_t samples,
                   bool with_replacement, Generator& generator);

// One class for each row of `logits`, f32 or f64 [..., classes], with
// probabilities softmax(logits): i64 [...]. -infinity: never.
Tensor Categorical(const Tensor& logits, Generator& generator);

// bool: true with `probability`; on every device what the CPU draws.
Tensor Bernoulli(const Shape& shape, double probability, Generator& generator,
                 Device device = Device::Cpu());

}  // namespace weft

#endif  // WEFT_TENSOR_RANDOM_H_
