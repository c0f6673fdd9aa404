#include "weft/net/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/proto/reflection.pb.h"

namespace weft::net {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1alpha::FileDescriptorResponse;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

// Answers that may wait for a caller that reads slowly.
constexpr size_t kMaxWaiting = 16;

// The file and all that it imports.
void AddFile(const FileDescriptor& file, std::set<std::string>& added,
             FileDescriptorResponse& response) {
  std::deque<const FileDescriptor*> open = {&file};
  while (!open.empty()) {
    const FileDescriptor* next = open.front();
    open.pop_front();
    if (!added.insert(next->name()).second) continue;
    google::protobuf::FileDescriptorProto proto;
    next->CopyTo(&proto);
    response.add_file_descriptor_proto(proto.SerializeAsString());
    for (int i = 0; i < next->dependency_count(); ++i)
      open.push_back(next->dependency(i));
  }
}

void Fail(absl::StatusCode code, const std::string& message,
          ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(static_cast<int>(code));
  response.mutable_error_response()->set_error_message(message);
}

ServerReflectionResponse Answer(const ServerReflectionRequest& request,
                                const std::set<std::string>& services) {
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const FileDescriptor* file = nullptr;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kListServices:
      response.mutable_list_services_response();
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(
            service);
      }
      return response;
    case ServerReflectionRequest::kFileByFilename:
      file = DescriptorPool::generated_pool()->FindFileByName(
          request.file_by_filename());
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      file = DescriptorPool::generated_pool()->FindFileContainingSymbol(
          request.file_containing_symbol());
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      Fail(absl::StatusCode::kUnimplemented,
           "this request is not served: proto3 has no extensions", response);
      return response;
  }
  if (file == nullptr) {
    Fail(absl::StatusCode::kNotFound, "no such file or symbol", response);
  } else {
    std::set<std::string> added;
    AddFile(*file, added, *response.mutable_file_descriptor_response());
  }
  return response;
}

class ReflectionObserver final : public StreamObserver {
 public:
  ReflectionObserver(std::function<std::set<std::string>()> services,
                     std::unique_ptr<Stream> stream)
      : services_(std::move(services)), stream_(std::move(stream)) {}

  void OnMessage(Slices message) override {
    ServerReflectionRequest request;
    const Bytes whole = Flatten(message);
    if (!request.ParseFromArray(whole.data(), static_cast<int>(whole.size()))) {
      return stream_->Close(
          absl::InvalidArgumentError("not a ServerReflectionRequest"));
    }
    if (waiting_.size() >= kMaxWaiting) {
      return stream_->Close(absl::ResourceExhaustedError(
          "too many requests whose answers were not read"));
    }
    waiting_.push_back(
        {Bytes::Own(Answer(request, services_()).SerializeAsString())});
    WriteNext();
  }
  void OnWritten() override {
    writing_ = false;
    WriteNext();
  }
  void OnHalfClosed(Stream&) override {
    half_closed_ = true;
    WriteNext();
  }
  void OnClosed(absl::Status) override { stream_ = nullptr; }

 private:
  void WriteNext() {
    if (writing_) return;
    if (!waiting_.empty()) {
      writing_ = true;
      Slices next = std::move(waiting_.front());
      waiting_.pop_front();
      stream_->Write(std::move(next));
    } else if (half_closed_) {
      stream_->Close(absl::OkStatus());
    }
  }

  // All on the Loop.
  const std::function<std::set<std::string>()> services_;
  std::unique_ptr<Stream> stream_;
  std::deque<Slices> waiting_;
  bool writing_ = false;
  bool half_closed_ = false;
};

}  // namespace

Endpoint::StreamAcceptor ReflectionAcceptor(
    std::function<std::set<std::string>()> services) {
  return [services = std::move(services)](std::unique_ptr<Stream> stream)
             -> absl::StatusOr<std::shared_ptr<StreamObserver>> {
    const Peer& peer = stream->peer();
    if (!peer.is_local &&
        !(peer.identity.has_value() && peer.identity->role == "admin")) {
      return absl::PermissionDeniedError(absl::StrCat(
          "reflection is for unix sockets and role admin; this is ",
          peer.ToString()));
    }
    return std::make_shared<ReflectionObserver>(services, std::move(stream));
  };
}

}  // namespace weft::net
