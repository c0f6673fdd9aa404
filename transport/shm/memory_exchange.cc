#include "weft/transport/shm/memory_exchange.h"

#include <unistd.h>

#include <optional>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/status_macros.h"
#include "weft/net/address.h"

namespace weft::transport {
namespace {

// The names of sockets that take memory end so.
constexpr absl::string_view kSuffix = ".mem";

// Null: not a unix socket.
std::optional<std::string> PathBeside(const std::string& address) {
  const absl::StatusOr<net::Address> parsed = net::ParseAddress(address);
  if (!parsed.ok() || parsed->kind != net::Address::Kind::kUnix) {
    return std::nullopt;
  }
  return absl::StrCat(parsed->path, kSuffix);
}

// Whether `path` is a file of `directory` itself that a MemoryExchange makes.
bool IsMemorySocketOf(const std::string& directory, absl::string_view path) {
  return !directory.empty() &&
         absl::ConsumePrefix(&path, absl::StrCat(directory, "/")) &&
         absl::EndsWith(path, kSuffix) && !absl::StrContains(path, '/');
}

absl::Status NotHere() {
  return absl::UnimplementedError("this connection shares no memory");
}

// Guessed by nobody: it ties what came over the socket to a connection.
uint64_t NewToken() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

// A place among the memories, given back when it ends.
class MemoryExchange::Place {
 public:
  // REQUIRES: counted in rings_.
  explicit Place(MemoryExchange& exchange)
      : exchange_(exchange.shared_from_this()) {}
  Place(Place&&) = default;
  ~Place() {
    if (exchange_ != nullptr) --exchange_->rings_;
  }

 private:
  std::shared_ptr<MemoryExchange> exchange_;
};

std::shared_ptr<memory::Segment> MemoryExchange::Share(
    memory::Segment segment, Place place, MemoryBudget::Reservation counted) {
  struct Placed {
    memory::Segment segment;
    Place place;
    MemoryBudget::Reservation counted;
  };
  auto placed = std::make_shared<Placed>(
      Placed{std::move(segment), std::move(place), std::move(counted)});
  return {placed, &placed->segment};
}

void MemoryExchange::Open(const std::string& address, const std::string& name) {
  if (max_memories_ == 0) return;
  if (const auto beside = PathBeside(address); beside.has_value()) {
    // Nobody else is at the address.
    if (beside->size() <= net::LocalSocket::kMaxPath) (void)Note(Bind(*beside));
    return;
  }
  if (directory_.empty()) return;
  absl::Status bound = Bind(absl::StrCat(directory_, "/", name, kSuffix));
  if (absl::IsUnavailable(bound)) {
    // One of this name lives: of another job that has the same name.
    bound = Bind(absl::StrCat(directory_, "/", name, ".", absl::Hex(NewToken()),
                              kSuffix));
  }
  (void)Note(std::move(bound));
}

absl::Status MemoryExchange::Bind(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(
      socket_, net::LocalSocket::Bind(path, net::LocalSocket::Senders::kStay));
  path_ = path;
  return absl::OkStatus();
}

std::optional<std::string> MemoryExchange::PathTo(
    const Destination& peer) const {
  if (max_memories_ == 0) return std::nullopt;
  std::optional<std::string> path = PathBeside(peer.address);
  if (!path.has_value() && IsMemorySocketOf(directory_, peer.memory_socket)) {
    path = peer.memory_socket;
  }
  if (!path.has_value() || path->size() > net::LocalSocket::kMaxPath ||
      access(path->c_str(), F_OK) != 0) {
    return std::nullopt;
  }
  return path;
}

absl::StatusOr<OfferedRings> MemoryExchange::OfferRings(
    const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(Place place, Reserve());
  WEFT_ASSIGN_OR_RETURN(auto counted, Count(SharedRings::kRingBytes));
  absl::StatusOr<memory::Segment> segment = SharedRings::CreateMemory();
  if (!segment.ok()) return Note(segment.status());
  absl::StatusOr<net::EventFd> own = net::EventFd::Create();
  if (!own.ok()) return Note(own.status());
  absl::StatusOr<net::EventFd> peer = net::EventFd::Create();
  if (!peer.ok()) return Note(peer.status());
  const uint64_t token = NewToken();
  WEFT_ASSIGN_OR_RETURN(
      net::Descriptor offer,
      net::LocalSocket::Offer(path, token,
                              {segment->fd(), own->fd(), peer->fd()}));
  return OfferedRings{
      token,
      {Share(*std::move(segment), std::move(place), std::move(counted)),
       *std::move(own), *std::move(peer), true, CountBodies(),
       std::move(offer)}};
}

absl::StatusOr<SharedRings> MemoryExchange::TakeRings(uint64_t token) {
  if (!is_open()) return NotHere();
  WEFT_ASSIGN_OR_RETURN(auto descriptors, TakeAll(token, 3));
  WEFT_ASSIGN_OR_RETURN(Place place, Reserve());
  absl::StatusOr<memory::Segment> segment =
      SharedRings::MapMemory(descriptors[0].Release());
  if (!segment.ok()) return Note(segment.status());
  // The caller's own is this end's peer's.
  absl::StatusOr<net::EventFd> peer =
      net::EventFd::FromDescriptor(std::move(descriptors[1]));
  if (!peer.ok()) return Note(peer.status());
  absl::StatusOr<net::EventFd> own =
      net::EventFd::FromDescriptor(std::move(descriptors[2]));
  if (!own.ok()) return Note(own.status());
  // The caller has counted them.
  return SharedRings{Share(*std::move(segment), std::move(place), {}),
                     *std::move(own), *std::move(peer), false, CountBodies()};
}

void MemoryExchange::DropAbandoned() {
  if (is_open()) socket_->DropAbandoned();
}

// First of all, so that what cannot be used does not wait in the socket.
absl::StatusOr<std::vector<net::Descriptor>> MemoryExchange::TakeAll(
    uint64_t token, size_t descriptors) {
  absl::StatusOr<std::vector<net::Descriptor>> taken = socket_->Take(token);
  if (!taken.ok()) return Note(taken.status());
  if (taken->size() == descriptors) return taken;
  return Note(absl::InvalidArgumentError(
      absl::StrCat("wanted ", descriptors, " descriptors, ", taken->size(),
                   " were handed over")));
}

absl::StatusOr<MemoryExchange::Place> MemoryExchange::Reserve() {
  if (rings_.fetch_add(1) >= max_memories_) {
    rings_.fetch_sub(1);
    return Note(absl::ResourceExhaustedError(
        absl::StrCat(max_memories_,
                     " connections have shared memory already; more with "
                     "--shared-memories")));
  }
  return Place(*this);
}

absl::StatusOr<MemoryBudget::Reservation> MemoryExchange::Count(int64_t bytes) {
  if (budget_ == nullptr) return MemoryBudget::Reservation();
  auto counted = budget_->Reserve(bytes);
  if (!counted.ok()) return Note(counted.status());
  return counted;
}

std::function<absl::StatusOr<MemoryBudget::Reservation>()>
MemoryExchange::CountBodies() {
  return [self = shared_from_this()] {
    return self->Count(2 * BodyMemory::kBytes);
  };
}

// Said once: without shared memory all goes on, only slower.
absl::Status MemoryExchange::Note(absl::Status status) {
  if (!status.ok() && !noted_.exchange(true)) {
    WEFT_LOG(telemetry_.logger(), Warning,
             "connections within the host do without shared memory: ")
        << status.message();
  }
  return status;
}

}  // namespace weft::transport
