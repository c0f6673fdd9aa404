// ByteBudget: how much memory may be held, for what waits or for rows.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_CORE_BYTE_BUDGET_H_
#define WEFT_PS_CORE_BYTE_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace weft::ps {

class ByteBudget : public std::enable_shared_from_this<ByteBudget> {
 public:
  // Holds a number of bytes of the budget until it is destroyed.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept { *this = std::move(other); }
    Hold& operator=(Hold&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Hold() {
      if (of_ != nullptr) of_->held_ -= bytes_;
    }

   private:
    friend class ByteBudget;
    Hold(std::shared_ptr<ByteBudget> of, int64_t bytes)
        : of_(std::move(of)), bytes_(bytes) {}

    std::shared_ptr<ByteBudget> of_;
    int64_t bytes_ = 0;
  };

  static std::shared_ptr<ByteBudget> Of(int64_t bytes) {
    return std::shared_ptr<ByteBudget>(new ByteBudget(bytes));
  }

  int64_t most() const { return most_; }
  int64_t held() const { return held_; }

  // Null if more than `most` would be held with it.
  std::optional<Hold> Take(int64_t bytes, int64_t most) {
    int64_t held = held_;
    do {
      if (bytes > most - held) return std::nullopt;
    } while (!held_.compare_exchange_weak(held, held + bytes));
    return Hold(shared_from_this(), bytes);
  }

  // Counts bytes that are held already, even beyond most().
  void Add(int64_t bytes) { held_ += bytes; }

 private:
  explicit ByteBudget(int64_t bytes) : most_(bytes) {}

  const int64_t most_;
  std::atomic<int64_t> held_{0};
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_BYTE_BUDGET_H_
