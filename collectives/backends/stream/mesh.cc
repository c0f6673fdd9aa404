#include "weft/collectives/backends/stream/mesh.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {
namespace {

// A rank that waits asks all others what they do: first after this long...
constexpr absl::Duration kAskAfter = absl::Milliseconds(50);
// ...and then so often, by which it also finds out whether they live.
constexpr absl::Duration kAskInterval = absl::Seconds(1);
// After so many operations a rank says to all where it is: what they keep to be
// compared with its calls they can then forget.
constexpr int kTellAfter = 256;
// How often a rank opens a stream that was refused.
constexpr absl::Duration kOpenInterval = absl::Milliseconds(50);
// Answers that wait to be written to one rank. A rank asks a second time after
// a second.
constexpr int kMostAnswers = 256;
constexpr int64_t kChunkBytes = Inbox::kChunkBytes;

// Numbers on the wire: those below 16 are of the backend's own operations,
// whose sequence counts up to 0 from below.
uint64_t WireSequence(const Operation& operation) {
  return operation.sequence + 16;
}

Announcement OnWire(Announcement announcement) {
  announcement.sequence += 16;
  return announcement;
}

}  // namespace

Mesh::Mesh(MeshOptions options, Driver& driver)
    : options_(std::move(options)),
      driver_(driver),
      peers_(options_.size,
             Peer(std::max(options_.max_unasked_bytes, kMostUnaskedBytes))),
      called_(options_.size, options_.rank) {}

// --- The life of a group. ----------------------------------------------------

Frame Mesh::OwnHello() const {
  Frame hello;
  hello.kind = Frame::kHello;
  hello.code = static_cast<uint32_t>(rank());
  hello.sequence = static_cast<uint64_t>(size());
  hello.text = options_.group;
  return hello;
}

void Mesh::OnOpened(int peer,
                    std::shared_ptr<transport::Connection> connection) {
  {
    MutexLock lock(mu_);
    if (!peers_[peer].gone.ok()) return;  // closed already
    peers_[peer].connection = std::move(connection);
    Post(peer, OwnHello());
  }
  Flush();
}

absl::Status Mesh::OnHello(int peer,
                           std::shared_ptr<transport::Connection> connection) {
  {
    MutexLock lock(mu_);
    if (peer < 0 || peer >= rank()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", peer, " does not open streams to rank ", rank(),
                       " of group ", options_.group));
    }
    const std::string proven = connection->ProvenName();
    if (!proven.empty() && !options_.names.empty() &&
        proven != options_.names[peer]) {
      return absl::PermissionDeniedError(absl::StrCat(
          "rank ", peer, " of group ", options_.group, " should be ",
          options_.names[peer], ", and its certificate is of ", proven));
    }
    Peer& p = peers_[peer];
    if (p.has_stream) {
      return absl::AlreadyExistsError(absl::StrCat(
          "rank ", peer, " has a stream to rank ", rank(), " already"));
    }
    p.has_stream = true;
    p.connection = std::move(connection);
    p.heard = driver_.clock().Now();
    Post(peer, OwnHello());
  }
  Flush();
  return absl::OkStatus();
}

std::string Mesh::NameOf(int peer) const {
  return options_.names.empty() ? absl::StrCat("rank ", peer)
                                : options_.names[peer];
}

absl::Status Mesh::AwaitAll(Instant deadline,
                            const std::function<void(int peer)>& open) {
  Instant open_again_at = driver_.clock().Now();
  while (true) {
    Promise<void> waker(driver_);
    Future<void> woken = waker.future();
    std::vector<int> refused;
    const Instant now = driver_.clock().Now();
    {
      MutexLock lock(mu_);
      // The caller has a group that can be left for another, as the others have
      // who were quicker.
      if (!aborted_.ok()) return absl::OkStatus();
      std::vector<int> missing;
      for (int r = 0; r < size(); ++r) {
        const Peer& p = peers_[r];
        if (r == rank()) continue;
        const bool was_here = p.has_said_hello || r < rank();
        const bool has_come = p.has_said_hello && p.has_left;  // and gone again
        if (!p.gone.ok() && !has_come && (was_here || now >= deadline)) {
          return absl::UnavailableError(
              absl::StrCat("group ", options_.group, ": rank ", rank(),
                           " has no stream to rank ", r, " (", NameOf(r),
                           "): ", p.gone.ToString()));
        }
        if (!p.has_said_hello) {
          missing.push_back(r);
          if (!p.gone.ok()) refused.push_back(r);
        }
      }
      if (missing.empty()) return absl::OkStatus();
      if (now >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            "group ", options_.group, ": ", RankList(missing), " of ", size(),
            " opened no stream to rank ", rank(), " in time"));
      }
      if (!refused.empty() && now >= open_again_at) {
        open_again_at = now + kOpenInterval;
        for (const int r : refused) peers_[r].gone = absl::OkStatus();
      } else {
        refused.clear();
      }
      waiters_.push_back(std::move(waker));
    }
    // Their processes may not have got so far.
    for (const int r : refused) open(r);
    const Instant again = now < open_again_at ? open_again_at : deadline;
    woken.Wait(std::min(deadline, again) - now).IgnoreError();
  }
}

void Mesh::OnAbort(std::function<void(const absl::Status&)> hook) {
  absl::Status why;
  {
    MutexLock lock(mu_);
    abort_hook_ = hook;
    why = aborted_;
    is_hook_due_ = false;
  }
  if (!why.ok() && hook) hook(why);
}

void Mesh::Leave() {
  {
    MutexLock lock(mu_);
    has_left_ = true;
    abort_hook_ = nullptr;
    ReportIfUnheard();
    // A peer that receives the leave message first must know the cause.
    if (!aborted_.ok()) PostToAll(AbortFrame());
    Frame leave;
    leave.kind = Frame::kLeave;
    PostToAll(leave);
    for (int r = 0; r < size(); ++r) ReleaseIfOver(r);
  }
  Flush();
}

void Mesh::AwaitDelivery(Instant deadline) {
  while (true) {
    Promise<void> waker(driver_);
    Future<void> woken = waker.future();
    const Instant now = driver_.clock().Now();
    {
      MutexLock lock(mu_);
      const bool is_delivered =
          std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) {
            return p.connection == nullptr || p.knows_of_leave;
          });
      if (!has_left_ || is_delivered || now >= deadline) return;
      waiters_.push_back(std::move(waker));
    }
    woken.Wait(deadline - now).IgnoreError();
  }
}

void Mesh::ReleaseIfOver(int peer) {
  Peer& p = peers_[peer];
  const bool is_over =
      !p.gone.ok() || (has_left_ && p.has_left && p.knows_of_leave);
  if (!is_over || p.connection == nullptr) return;
  to_release_.push_back(std::move(p.connection));
  p.connection = nullptr;
  p.outbox.clear();
  p.answers = 0;
}

bool Mesh::is_over() const {
  MutexLock lock(mu_);
  if (!has_left_) return false;
  for (const Peer& p : peers_) {
    if (p.connection != nullptr) return false;
  }
  return true;
}

bool Mesh::HasLeft(int peer) const {
  MutexLock lock(mu_);
  return peers_[peer].has_left;
}

bool Mesh::IsSettled() const {
  MutexLock lock(mu_);
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) {
    if (p.connection == nullptr) return true;
    const bool has_written = !p.is_writing && p.outbox.empty();
    return has_written && (p.has_left || p.knows_of_leave);
  });
}

void Mesh::Drop() {
  {
    MutexLock lock(mu_);
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      if (peers_[r].gone.ok()) {
        peers_[r].gone = absl::CancelledError("this process ends its streams");
      }
      ReleaseIfOver(r);
    }
    WakeLocked();
  }
  Flush();
}

Frame Mesh::AbortFrame() const {
  Frame abort;
  abort.kind = Frame::kAbort;
  abort.code = static_cast<uint32_t>(aborted_.code());
  abort.text = std::string(aborted_.message());
  return abort;
}

void Mesh::AbortLocked(const absl::Status& why, bool tell) {
  if (!aborted_.ok()) return;
  aborted_ = why;
  is_hook_due_ = true;
  if (has_left_) ReportIfUnheard();
  if (tell) PostToAll(AbortFrame());
  WakeLocked();
}

void Mesh::ReportIfUnheard() {
  is_report_due_ = absl::IsFailedPrecondition(aborted_) && !is_heard_;
  is_heard_ = is_heard_ || is_report_due_;
}

void Mesh::Abort(const absl::Status& why) {
  {
    MutexLock lock(mu_);
    AbortLocked(why, /*tell=*/true);
    is_heard_ = true;  // the caller has an error of its own
  }
  Flush();
}

absl::Status Mesh::health() const {
  MutexLock lock(mu_);
  return Health();
}

// --- Writing. ----------------------------------------------------------------

void Mesh::Post(int peer, Frame frame, bool is_answer) {
  Peer& p = peers_[peer];
  if (p.connection == nullptr) return;
  p.outbox.push_back({Encode(std::move(frame)), is_answer});
  p.answers += is_answer;
  if (!p.is_writing) to_pump_.push_back(peer);
}

absl::Status Mesh::Answer(int peer, Frame frame) {
  if (peers_[peer].answers >= kMostAnswers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it asks, and does not read ", kMostAnswers, " answers"));
  }
  Post(peer, std::move(frame), /*is_answer=*/true);
  return absl::OkStatus();
}

void Mesh::PostToAll(const Frame& frame) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) Post(r, frame);
  }
}

void Mesh::Flush() {
  std::vector<int> peers;
  std::vector<std::shared_ptr<transport::Connection>> released;
  std::function<void(const absl::Status&)> hook;
  absl::Status why;
  std::string report;
  {
    MutexLock lock(mu_);
    peers.swap(to_pump_);
    released.swap(to_release_);
    if (is_report_due_) {
      is_report_due_ = false;
      report = absl::StrCat("group ", options_.group, ", which rank ", rank(),
                            " has left: ", aborted_.message());
    }
    if (is_hook_due_) {
      is_hook_due_ = false;
      hook = abort_hook_;
      why = aborted_;
    }
  }
  for (const int peer : peers) Pump(peer);
  if (hook) hook(why);
  if (!report.empty()) Report(options_.diagnosis, report);
}

void Mesh::Pump(int peer) {
  while (true) {
    std::shared_ptr<transport::Connection> connection;
    Slices message;
    {
      MutexLock lock(mu_);
      Peer& p = peers_[peer];
      if (p.is_writing || p.outbox.empty() || p.connection == nullptr) return;
      p.is_writing = true;
      connection = p.connection;
      message = std::move(p.outbox.front().message);
      p.answers -= p.outbox.front().is_answer;
      p.outbox.pop_front();
      WakeIfThereIsRoom(p);
    }
    using Written = transport::Connection::Written;
    const Written written = connection->Write(std::move(message));
    if (written == Written::kUnderWay) return;
    MutexLock lock(mu_);
    Peer& p = peers_[peer];
    p.is_writing = false;
    if (written == Written::kRefused) {  // it is closed
      p.outbox.clear();
      p.answers = 0;
    }
    WakeIfThereIsRoom(p);
  }
}

void Mesh::OnWritten(int peer) {
  {
    MutexLock lock(mu_);
    Peer& p = peers_[peer];
    p.is_writing = false;
    WakeIfThereIsRoom(p);
  }
  Pump(peer);
}

void Mesh::WakeIfThereIsRoom(const Peer& p) {
  const bool is_awaited =
      (p.sending != nullptr && p.outbox.size() < kMostQueued) ||
      (p.awaits_room && p.outbox.size() < kMostPartsQueued);
  if (is_awaited) WakeLocked();
}

void Mesh::WakeLocked() {
  ++events_;
  for (Promise<void>& waiter : waiters_) waiter.Set(absl::OkStatus());
  waiters_.clear();
}

// --- What arrives. -----------------------------------------------------------

void Mesh::OnClosed(int peer, const absl::Status& status) {
  {
    MutexLock lock(mu_);
    peers_[peer].is_writing = false;
    OnGone(peer, status.ok()
                     ? absl::UnavailableError("it has closed its stream")
                     : status);
    WakeLocked();
  }
  Flush();
}

void Mesh::OnMessage(int peer, const Slices& message) {
  absl::StatusOr<Frame> frame = Decode(message);
  {
    MutexLock lock(mu_);
    Peer& p = peers_[peer];
    if (!p.gone.ok()) return;  // its stream ends
    p.heard = driver_.clock().Now();
    const absl::Status taken =
        frame.ok() ? TakeFrame(peer, *std::move(frame)) : frame.status();
    if (!taken.ok()) OnGone(peer, taken);
    WakeLocked();
  }
  Flush();
}

Frame Mesh::FrameOf(Frame::Kind kind, const Announcement& mine, uint64_t tag) {
  Frame frame;
  frame.kind = kind;
  frame.tag = tag;
  frame.code = mine.is_refused;
  frame.sequence = mine.sequence;
  frame.fingerprint = mine.fingerprint;
  frame.text = mine.text;
  return frame;
}

absl::Status Mesh::TakeHello(int peer, const Frame& hello) {
  Peer& p = peers_[peer];
  if (p.has_said_hello) {
    return absl::InvalidArgumentError("it says who it is a second time");
  }
  if (hello.code != static_cast<uint32_t>(peer) ||
      hello.text != options_.group ||
      hello.sequence != static_cast<uint64_t>(size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted rank ", peer, " of the ", size(), " of group ",
                     options_.group, ", found rank ", hello.code, " of the ",
                     hello.sequence, " of group ", hello.text));
  }
  p.has_said_hello = true;
  return absl::OkStatus();
}

absl::Status Mesh::TakeFrame(int peer, Frame frame) {
  Peer& p = peers_[peer];
  switch (frame.kind) {
    case Frame::kHello:
      return TakeHello(peer, frame);
    case Frame::kAnnounce:
    case Frame::kStatus: {
      // Compared before the answer: if it differs, the asker hears that first.
      if (!frame.text.empty()) {
        WEFT_RETURN_IF_ERROR(
            Record(peer, {frame.sequence, frame.fingerprint, frame.code != 0,
                          std::move(frame.text)}));
      }
      if (frame.kind == Frame::kStatus) {
        p.answered = std::max(p.answered, std::min(frame.tag, p.asked));
        return absl::OkStatus();
      }
      const Announcement* const newest = called_.Last(rank());
      return Answer(peer, FrameOf(Frame::kStatus,
                                  newest == nullptr ? Announcement() : *newest,
                                  frame.tag));
    }
    case Frame::kPart: {
      if (!frame.text.empty()) {
        WEFT_RETURN_IF_ERROR(Record(peer, {frame.sequence, frame.fingerprint,
                                           false, std::move(frame.text)}));
      }
      const Announcement* const newest = called_.Last(rank());
      const absl::Status added =
          p.inbox.AddPart(frame, newest == nullptr ? 0 : newest->sequence);
      AckParts(peer);
      return added;
    }
    case Frame::kPartAck:
      return TakeAck(frame.total, p.parts_under_way);
    case Frame::kTransfer:
      return p.inbox.AddTransfer(frame);
    case Frame::kTransferAck:
      return TakeAck(frame.total, p.transfers_under_way);
    case Frame::kAbort: {
      const bool is_code = frame.code > 0 && frame.code <= 16;
      AbortLocked(
          absl::Status(is_code ? static_cast<absl::StatusCode>(frame.code)
                               : absl::StatusCode::kInternal,
                       frame.text),
          /*tell=*/false);
      return absl::OkStatus();
    }
    case Frame::kLeave: {
      if (p.has_left) {
        return absl::InvalidArgumentError("it leaves a second time");
      }
      p.has_left = true;
      called_.End(peer);
      Frame ack;
      ack.kind = Frame::kLeaveAck;
      Post(peer, std::move(ack));
      ReleaseIfOver(peer);
      return absl::OkStatus();
    }
    case Frame::kLeaveAck:
      if (!has_left_) {
        return absl::InvalidArgumentError(
            "it has heard that this rank leaves, which has not left");
      }
      p.knows_of_leave = true;
      ReleaseIfOver(peer);
      return absl::OkStatus();
  }
  return absl::InternalError("no kind of a frame");
}

void Mesh::OnGone(int peer, const absl::Status& why) {
  Peer& p = peers_[peer];
  if (p.gone.ok()) p.gone = why;
  // A stream that was refused is opened again.
  if (p.has_said_hello || p.has_stream) called_.End(peer);
  ReleaseIfOver(peer);
}

absl::Status Mesh::TakeAck(uint64_t bytes, int64_t& under_way) {
  if (bytes > static_cast<uint64_t>(under_way)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an ack is of ", bytes, " bytes, of ", under_way, " that were sent"));
  }
  under_way -= static_cast<int64_t>(bytes);
  return absl::OkStatus();
}

void Mesh::AckParts(int peer) {
  const int64_t bytes = peers_[peer].inbox.TakeDueAck();
  if (bytes == 0) return;
  Frame ack;
  ack.kind = Frame::kPartAck;
  ack.total = static_cast<uint64_t>(bytes);
  Post(peer, std::move(ack));
}

// --- What was called. --------------------------------------------------------

absl::Status Mesh::Record(int peer, Announcement announcement) {
  const absl::Status added = called_.Add(peer, std::move(announcement));
  if (absl::IsResourceExhausted(added)) return added;
  if (!added.ok()) AbortLocked(added, /*tell=*/true);
  return absl::OkStatus();
}

const Announcement* Mesh::FindOwn(uint64_t sequence) const {
  const Announcement* const own = called_.Last(rank());
  return own != nullptr && own->sequence == sequence ? own : nullptr;
}

absl::Status Mesh::Begin(const Operation& operation) {
  Announcement mine = OnWire(Announce(operation));
  absl::Status status;
  {
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(Health());
    const absl::Status compared = called_.Add(rank(), std::move(mine));
    if (!compared.ok()) {
      AbortLocked(compared, /*tell=*/true);
      status = Health();
    }
    if (++untold_ >= std::max(kTellAfter, size())) {
      untold_ = 0;
      PostToAll(FrameOf(Frame::kStatus, *called_.Last(rank())));
    }
  }
  Flush();
  return status;
}

absl::Status Mesh::AwaitCompared(Progress& progress) {
  progress.is_waiting = false;
  {
    MutexLock lock(mu_);
    ++asked_;
    for (int r = 0; r < size(); ++r) {
      Peer& p = peers_[r];
      if (!p.has_uncompared || p.connection == nullptr) continue;
      p.has_uncompared = false;
      p.asked = asked_;
      Post(r, FrameOf(Frame::kAnnounce, *called_.Last(rank()), asked_));
    }
  }
  Flush();
  while (true) {
    const uint64_t seen = events_.load();
    int awaited = -1;
    {
      MutexLock lock(mu_);
      WEFT_RETURN_IF_ERROR(Health());
      for (int r = 0; r < size() && awaited < 0; ++r) {
        if (peers_[r].answered < peers_[r].asked) awaited = r;
      }
      if (awaited < 0) return absl::OkStatus();
      WEFT_RETURN_IF_ERROR(CheckPeers(progress.operation, awaited));
    }
    WEFT_RETURN_IF_ERROR(AwaitProgress(progress, awaited, seen));
  }
}

void Mesh::Refuse(const Operation& operation, const absl::Status& why) {
  {
    MutexLock lock(mu_);
    called_.Add(rank(), OnWire(AnnounceRefusal(operation, why))).IgnoreError();
    PostToAll(FrameOf(Frame::kStatus, *called_.Last(rank())));
  }
  Flush();
}

std::string Mesh::AskWhoHasNotCalled(const Operation& operation) {
  std::string text;
  {
    MutexLock lock(mu_);
    const Announcement* mine = FindOwn(WireSequence(operation));
    if (mine != nullptr) PostToAll(FrameOf(Frame::kAnnounce, *mine));
    text = called_.DescribeRanksBefore(WireSequence(operation), rank());
  }
  Flush();
  return text;
}

std::string Mesh::DescribeWait(const Operation& operation, int peer) const {
  const std::string text =
      called_.DescribeRanksBefore(WireSequence(operation), rank());
  return text.empty() ? absl::StrCat("rank ", peer, " has sent nothing and ",
                                     called_.Describe(peer))
                      : text;
}

absl::Status Mesh::CheckPeers(const Operation& operation, int peer) {
  WEFT_RETURN_IF_ERROR(Health());
  WEFT_RETURN_IF_ERROR(called_.CheckRefusals(WireSequence(operation)));
  const Peer& p = peers_[peer];
  if (p.has_left) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", peer, " has left the group; it ", called_.Describe(peer)));
  }
  if (!p.gone.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", peer, " has ended (its stream: ", p.gone.message(), "); it ",
        called_.Describe(peer)));
  }
  return absl::OkStatus();
}

absl::Status Mesh::AwaitFailure(const Operation& operation, Instant until) {
  while (true) {
    const Instant now = driver_.clock().Now();
    Promise<void> waker(driver_);
    Future<void> woken = waker.future();
    {
      MutexLock lock(mu_);
      for (int r = 0; r < size(); ++r) {
        if (r != rank()) WEFT_RETURN_IF_ERROR(CheckPeers(operation, r));
      }
      if (now >= until) return Health();
      waiters_.push_back(std::move(waker));
    }
    woken.Wait(until - now).IgnoreError();
  }
}

// --- Messages of operations. -------------------------------------------------

bool Mesh::SendChunk(Progress& progress, const Outgoing& out, int64_t& sent) {
  const int64_t total = static_cast<int64_t>(out.bytes.size());
  const int64_t n = std::min(kChunkBytes, total - sent);
  const int64_t kept = n + (sent == 0 ? Inbox::kMessageBytes : 0);
  {
    MutexLock lock(mu_);
    Peer& p = peers_[out.to];
    if (p.connection == nullptr) return false;
    p.awaits_room = p.outbox.size() >= kMostPartsQueued;
    if (p.awaits_room) return false;
    if (p.parts_under_way + kept > Inbox::kPartWindow) return false;
    p.parts_under_way += kept;
  }
  Frame part;
  part.kind = Frame::kPart;
  part.sequence = WireSequence(progress.operation);
  part.tag = progress.sent[out.to];
  part.total = static_cast<uint64_t>(total);
  part.offset = static_cast<uint64_t>(sent);
  part.content = CopyOf(out.bytes.data() + sent, n);
  {
    MutexLock lock(mu_);
    if (const Announcement* mine = FindOwn(part.sequence); mine != nullptr) {
      part.fingerprint = mine->fingerprint;
      const bool is_first = progress.sent[out.to] == 0 && sent == 0;
      if (is_first) part.text = mine->text;
    }
    // Of a barrier, all ranks have called the same if it succeeds.
    if (progress.operation.verb != Verb::kBarrier) {
      peers_[out.to].has_uncompared = true;
    }
    Post(out.to, std::move(part));
  }
  Flush();
  sent += n;
  if (sent == total) ++progress.sent[out.to];
  return true;
}

absl::StatusOr<Mesh::Took> Mesh::TakeSome(Progress& progress,
                                          const Incoming& in) {
  const uint64_t sequence = WireSequence(progress.operation);
  std::deque<Bytes> content;
  uint64_t at = 0;
  {
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(Health());
    Message* const next = peers_[in.from].inbox.NextPart(sequence);
    AckParts(in.from);
    if (next == nullptr) return Took::kNothing;
    Message& message = *next;
    const Announcement* const mine = FindOwn(sequence);
    if (mine != nullptr && message.fingerprint != mine->fingerprint) {
      return Mismatch(
          in.from,
          absl::StrCat("another one (it ", called_.Describe(in.from), ")"),
          rank(), mine->text);
    }
    if (message.total != static_cast<uint64_t>(in.bytes)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the ranks called different operations: rank ", in.from, " sent ",
          message.total, " bytes, rank ", rank(), " wants ", in.bytes,
          "; rank ", in.from, " ", called_.Describe(in.from)));
    }
    if (message.content.empty() && message.total > 0) return Took::kNothing;
    content.swap(message.content);
    at = message.taken;
  }
  uint64_t bytes = 0;
  for (const Bytes& slice : content) {
    if (in.reader != nullptr) {
      in.reader->Feed(
          {reinterpret_cast<const std::byte*>(slice.data()), slice.size()});
    } else {
      memcpy(in.memory + at + bytes, slice.data(), slice.size());
    }
    bytes += slice.size();
  }
  content.clear();
  bool is_whole;
  {
    MutexLock lock(mu_);
    is_whole = peers_[in.from].inbox.TookOfPart(bytes);
    AckParts(in.from);
  }
  Flush();
  return is_whole ? Took::kAll : Took::kSome;
}

absl::Status Mesh::AwaitProgress(Progress& progress, int peer, uint64_t seen) {
  const Operation& operation = progress.operation;
  const absl::Duration report_after = options_.diagnosis.report_after;
  const Instant now = driver_.clock().Now();
  if (!progress.is_waiting) {
    progress.is_waiting = true;
    progress.waits_since = now;
    progress.report_at = now + report_after;
    progress.ask_at = now + std::min(kAskAfter, report_after / 2);
  }
  std::string report;
  Promise<void> waker(driver_);
  Future<void> woken = waker.future();
  {
    MutexLock lock(mu_);
    if (events_.load() != seen) return absl::OkStatus();
    if (now >= operation.deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", rank(),
                       " waited for others: ", DescribeWait(operation, peer)));
    }
    Peer& p = peers_[peer];
    if (now - std::max(p.heard, progress.waits_since) >= options_.dead_after) {
      OnGone(peer,
             absl::UnavailableError(absl::StrCat(
                 "silent for ", absl::FormatDuration(options_.dead_after))));
      return absl::OkStatus();
    }
    if (now >= progress.ask_at) {
      progress.ask_at = now + kAskInterval;
      const Announcement* mine = FindOwn(WireSequence(operation));
      if (mine != nullptr) PostToAll(FrameOf(Frame::kAnnounce, *mine));
    }
    if (now >= progress.report_at) {
      progress.report_at = Instant::Infinite();
      report = absl::StrCat(Describe(operation), ": rank ", rank(),
                            " still waits: ", DescribeWait(operation, peer));
    }
    waiters_.push_back(std::move(waker));
  }
  Flush();
  if (!report.empty()) Report(options_.diagnosis, report);
  const Instant until =
      std::min({progress.ask_at, progress.report_at, operation.deadline});
  woken.Wait(until - now).IgnoreError();
  return absl::OkStatus();
}

absl::Status Mesh::Exchange(Progress& progress,
                            const absl::optional<Outgoing>& out,
                            const absl::optional<Incoming>& in) {
  progress.sent.resize(size());
  progress.is_waiting = false;
  int64_t sent = 0;
  bool is_sent = !out.has_value();
  bool is_taken = !in.has_value();
  while (true) {
    const uint64_t seen = events_.load();
    bool has_moved = false;
    while (!is_sent && SendChunk(progress, *out, sent)) {
      has_moved = true;
      is_sent = sent == static_cast<int64_t>(out->bytes.size());
    }
    if (!is_taken) {
      WEFT_ASSIGN_OR_RETURN(const Took took, TakeSome(progress, *in));
      has_moved = has_moved || took != Took::kNothing;
      is_taken = took == Took::kAll;
    }
    if (is_sent && is_taken) return absl::OkStatus();
    if (has_moved) {
      progress.is_waiting = false;
      continue;
    }
    {
      MutexLock lock(mu_);
      absl::Status status;
      if (!is_taken) status = CheckPeers(progress.operation, in->from);
      if (!is_sent && status.ok()) {
        status = CheckPeers(progress.operation, out->to);
      }
      // An event that came meanwhile may be the one awaited.
      if (!status.ok() && events_.load() == seen) return status;
    }
    WEFT_RETURN_IF_ERROR(
        AwaitProgress(progress, is_taken ? out->to : in->from, seen));
  }
}

}  // namespace weft::collectives
