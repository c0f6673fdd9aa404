// TokenBooks: a small library above rpc that keeps books of what travels, for
// tests: a Token is text that goes by an attachment, not by the arguments.

#ifndef WEFT_RPC_TESTING_TOKEN_BOOKS_H_
#define WEFT_RPC_TESTING_TOKEN_BOOKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/mutex.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/codec/codec.h"

namespace weft::rpc {

struct Token {
  std::string text;
  // The message that it was decoded from; for Encode, see Codec.
  CodecContext context = {};
};

// The books of one agent, which finds them by Local<TokenBooks>().
//
// Thread-safety: thread-safe.
class TokenBooks final : public AttachmentReceiver,
                         public std::enable_shared_from_this<TokenBooks> {
 public:
  static constexpr absl::string_view kKind = "test.tokens";

  // What became of one attachment that was staged here.
  struct Sent {
    std::string text;
    CodecContext context;  // when it was staged
    uint64_t call = 0;     // as OnOutcome says
    int told = 0;
    AttachmentOutcome outcome = AttachmentOutcome::kRefused;
  };

  static std::shared_ptr<TokenBooks> Open(Agent& agent, bool receives = true) {
    auto books = std::make_shared<TokenBooks>();
    agent.SetLocal(books);
    if (receives) agent.SetAttachmentReceiver(kKind, books).IgnoreError();
    return books;
  }

  // From now on what is taken settles when Release() is called; or not at all,
  // with an error of this code.
  void HoldBack(bool holds) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    holds_ = holds;
  }
  void SettleWith(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    settles_with_ = std::move(status);
  }
  // What is taken settles by a call of `agent`, as the ownership of a
  // reference would be confirmed by its owner.
  void ConfirmBy(std::function<Future<void>()> confirm)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    confirm_ = std::move(confirm);
  }
  void RefuseWith(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    refuses_with_ = std::move(status);
  }
  void Release() ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<Promise<void>> held;
    {
      MutexLock lock(mu_);
      held.swap(held_);
      holds_ = false;
    }
    for (Promise<void>& promise : held) promise.Set(absl::OkStatus());
  }

  std::vector<Sent> sent() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return sent_;
  }
  // "a delivered, b refused", in the order in which they were staged; "open"
  // where there is no outcome yet.
  std::string Outcomes() const ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<std::string> all;
    for (const Sent& one : sent()) {
      all.push_back(absl::StrCat(one.text, " ",
                                 one.told == 0 ? "open" : NameOf(one.outcome),
                                 one.told > 1 ? " twice" : ""));
    }
    return absl::StrJoin(all, ", ");
  }
  // The tokens taken here, with the call and the caller of each.
  std::vector<Token> taken() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return taken_;
  }
  int open_receipts() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return receipts_;
  }

  absl::StatusOr<std::unique_ptr<ReceivedAttachment>> Take(
      const CodecContext& context, const Bytes& bytes) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (!refuses_with_.ok()) return refuses_with_;
    taken_.push_back({std::string(bytes.view()), context});
    ++receipts_;
    return std::make_unique<Receipt>(*this, bytes);
  }

  // ---- For the codec.

  class Staged final : public Attachment {
   public:
    Staged(TokenBooks& books, const CodecContext& context)
        : books_(books.shared_from_this()), number_(books.Begin(context)) {}
    size_t Add(const std::string& text) {
      texts_.push_back(text);
      books_->SetText(number_, absl::StrJoin(texts_, "+"));
      return texts_.size() - 1;
    }
    absl::StatusOr<Bytes> Freeze() override {
      return Bytes::Own(absl::StrJoin(texts_, "+"));
    }
    void OnOutcome(uint64_t call, AttachmentOutcome outcome) override {
      books_->Tell(number_, call, outcome);
    }

   private:
    const std::shared_ptr<TokenBooks> books_;
    const size_t number_;
    std::vector<std::string> texts_;
  };

  class Receipt final : public ReceivedAttachment {
   public:
    Receipt(TokenBooks& books, const Bytes& bytes)
        : texts_(absl::StrSplit(bytes.view(), '+')),
          books_(books.shared_from_this()) {}
    ~Receipt() override { books_->EndReceipt(); }
    Future<void> Settled() override { return books_->Settle(); }
    const std::vector<std::string>& texts() const { return texts_; }

   private:
    const std::vector<std::string> texts_;
    const std::shared_ptr<TokenBooks> books_;
  };

 private:
  size_t Begin(const CodecContext& context) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    sent_.push_back({"", context});
    return sent_.size() - 1;
  }
  void SetText(size_t number, std::string text) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    sent_[number].text = std::move(text);
  }
  void Tell(size_t number, uint64_t call, AttachmentOutcome outcome)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    ++sent_[number].told;
    sent_[number].call = call;
    sent_[number].outcome = outcome;
  }
  void EndReceipt() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    --receipts_;
  }
  Future<void> Settle() ABSL_LOCKS_EXCLUDED(mu_) {
    std::function<Future<void>()> confirm;
    {
      MutexLock lock(mu_);
      confirm = confirm_;
    }
    if (confirm != nullptr) return confirm();
    MutexLock lock(mu_);
    if (!settles_with_.ok()) return MakeReady<void>(settles_with_);
    if (!holds_) return MakeReady();
    held_.emplace_back();
    return held_.back().future();
  }

  mutable Mutex mu_;
  bool holds_ ABSL_GUARDED_BY(mu_) = false;
  std::function<Future<void>()> confirm_ ABSL_GUARDED_BY(mu_);
  absl::Status settles_with_ ABSL_GUARDED_BY(mu_);
  absl::Status refuses_with_ ABSL_GUARDED_BY(mu_);
  std::vector<Promise<void>> held_ ABSL_GUARDED_BY(mu_);
  std::vector<Sent> sent_ ABSL_GUARDED_BY(mu_);
  std::vector<Token> taken_ ABSL_GUARDED_BY(mu_);
  int receipts_ ABSL_GUARDED_BY(mu_) = 0;
};

template <>
struct Codec<Token> {
  static std::string TypeName() { return "test.Token"; }
  static void Encode(const Token& token, Encoder& e) {
    const CodecContext& context = e.context();
    Attachment* const staged = e.Stage(TokenBooks::kKind, [&] {
      return std::make_unique<TokenBooks::Staged>(
          *context.agent->Local<TokenBooks>(), context);
    });
    if (staged == nullptr) return;
    e.Varint(static_cast<TokenBooks::Staged*>(staged)->Add(token.text));
    if (token.text == "unfit") {
      e.Fail(absl::InvalidArgumentError("an unfit token"));
    }
  }
  static absl::Status Decode(Decoder& d, Token& token) {
    uint64_t index = 0;
    WEFT_RETURN_IF_ERROR(d.Varint(index));
    auto* const receipt =
        static_cast<TokenBooks::Receipt*>(d.attachment(TokenBooks::kKind));
    if (receipt == nullptr || index >= receipt->texts().size()) {
      return Decoder::Malformed("a token without its attachment");
    }
    token = {receipt->texts()[index], d.context()};
    return absl::OkStatus();
  }
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_TESTING_TOKEN_BOOKS_H_
