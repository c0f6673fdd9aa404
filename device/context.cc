#include "weft/device/context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/device/current.h"

namespace weft::device {

absl::StatusOr<std::shared_ptr<Context>> Context::Create(
    std::unique_ptr<Runtime> runtime, Options options) {
  if (runtime == nullptr) {
    return absl::InvalidArgumentError("Context: no runtime was given");
  }
  if (runtime->device_count() == 0) {
    return absl::UnavailableError("Context: the runtime has no device");
  }
  return std::shared_ptr<Context>(new Context(std::move(runtime), options));
}

Context::Context(std::unique_ptr<Runtime> runtime, const Options& options)
    : runtime_(std::move(runtime)), kind_(runtime_->kind()) {
  for (int index = 0; index < runtime_->device_count(); ++index) {
    allocators_.push_back(std::make_unique<CachingAllocator>(
        *runtime_, Device{kind_, index}, options.memory));
  }
}

absl::StatusOr<Stream> Context::CurrentStream(int index) {
  return device::CurrentStream(*runtime_, device(index));
}

absl::StatusOr<std::shared_ptr<Block>> Block::Allocate(Context& context,
                                                       int index,
                                                       int64_t bytes) {
  WEFT_ASSIGN_OR_RETURN(const Stream stream, context.CurrentStream(index));
  WEFT_ASSIGN_OR_RETURN(void* const address,
                        context.allocator(index).Allocate(bytes, stream));
  return std::shared_ptr<Block>(
      new Block(context.shared_from_this(), index, address, stream));
}

Block::Block(std::shared_ptr<Context> context, int index, void* address,
             Stream stream)
    : context_(std::move(context)),
      index_(index),
      address_(address),
      stream_(stream) {}

Block::~Block() { context_->allocator(index_).Free(address_); }

void Block::UsedOn(Stream stream) {
  if (stream == stream_) return;
  context_->allocator(index_).RecordStream(address_, stream);
}

}  // namespace weft::device
