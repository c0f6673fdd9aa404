#include "weft/rpc/codec/codec.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/connection/wire.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {

struct Point {
  int32_t x = 0;
  std::string label;
};
template <>
struct Codec<Point> {
  static std::string TypeName() { return "test.Point"; }
  static void Encode(const Point& p, Encoder& e) { e.Write(p.x, p.label); }
  static absl::Status Decode(Decoder& d, Point& p) {
    return d.Read(p.x, p.label);
  }
};

// A type that holds itself: depth is up to the bytes.
struct Tree {
  std::vector<Tree> children;
};
template <>
struct Codec<Tree> {
  static std::string TypeName() { return "test.Tree"; }
  static void Encode(const Tree& t, Encoder& e) { e.Write(t.children); }
  static absl::Status Decode(Decoder& d, Tree& t) { return d.Read(t.children); }
};

namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

template <typename T>
Slices Encode(T&& value) {
  Encoder encoder;
  encoder.Write(std::forward<T>(value));
  return *std::move(encoder).Finish();
}

template <typename T>
absl::Status Decode(const Received& received, T& value) {
  Decoder decoder(received);
  WEFT_RETURN_IF_ERROR(decoder.Read(value));
  return decoder.AtEnd();
}

// Cuts the bytes into slices of `size`, as a network might.
Slices Cut(const Slices& slices, size_t size) {
  const Bytes whole = Flatten(slices);
  Slices cut;
  for (size_t i = 0; i < whole.size(); i += size) {
    cut.push_back(whole.subspan(i, size));
  }
  return cut;
}

template <typename T>
void ExpectRoundTrip(const T& value) {
  const Slices bytes = Encode(value);
  for (const size_t size : {1, 3, 1 << 20}) {
    T decoded{};
    ASSERT_THAT(Decode({Cut(bytes, size), false}, decoded), IsOk())
        << TypeName<T>();
    EXPECT_EQ(decoded, value) << TypeName<T>();
  }
  // Cut short, it is never accepted.
  const Bytes whole = Flatten(bytes);
  for (size_t n = 0; n < whole.size(); n += 1 + whole.size() / 100) {
    T decoded{};
    EXPECT_THAT(Decode({{whole.subspan(0, n)}, false}, decoded),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

enum class Color : uint8_t { kRed, kGreen };

TEST(Codec, ValuesSurviveTheJourney) {
  ExpectRoundTrip(int8_t{-5});
  ExpectRoundTrip(uint64_t{1} << 63);
  ExpectRoundTrip(-2.5);
  ExpectRoundTrip(true);
  ExpectRoundTrip(Color::kGreen);
  ExpectRoundTrip(std::string("h\0llo", 5));
  ExpectRoundTrip(std::string(10000, 'x'));
  ExpectRoundTrip(Bytes::Copy("bytes"));
  ExpectRoundTrip(std::vector<double>(1000, 1.5));
  ExpectRoundTrip(std::vector<bool>{true, false});
  ExpectRoundTrip(std::vector<std::vector<std::string>>{{"a"}, {}, {"b", ""}});
  ExpectRoundTrip(std::map<std::string, int64_t>{{"a", 1}, {"b", 2}});
  ExpectRoundTrip(std::unordered_map<int32_t, std::string>{{1, "x"}});
  ExpectRoundTrip(std::make_tuple(1, std::string("two"), 3.0f));
  ExpectRoundTrip(std::make_pair(std::string("k"), std::optional<int>(4)));
  ExpectRoundTrip(std::optional<std::string>());
  ExpectRoundTrip(std::variant<std::monostate, int64_t, std::string>("v"));
}

TEST(Codec, AUsersTypeTakesPart) {
  std::vector<Point> decoded;
  ASSERT_THAT(
      Decode({Encode(std::vector<Point>{{1, "a"}, {-2, "b"}}), false}, decoded),
      IsOk());
  ASSERT_EQ(decoded.size(), 2u);
  EXPECT_EQ(decoded[1].x, -2);
  EXPECT_EQ(decoded[1].label, "b");
}

TEST(Codec, ProtobufMessagesTravel) {
  v1::WorkerKey key;
  key.set_id(7);
  v1::WorkerKey decoded;
  ASSERT_THAT(Decode({Encode(key), false}, decoded), IsOk());
  EXPECT_EQ(decoded.id(), 7u);
  EXPECT_EQ(TypeName<v1::WorkerKey>(), "proto:weft.rpc.v1.WorkerKey");
  // A tag without its value, and one that no message has.
  for (const std::string bytes : {"\x08", "\xff\xff"}) {
    EXPECT_THAT(
        Decode({Encode(bytes), false}, decoded),
        StatusIs(absl::StatusCode::kInvalidArgument, "weft.rpc.v1.WorkerKey"));
  }
}

TEST(Codec, TypeNamesDoNotDependOnTheCompiler) {
  EXPECT_EQ((TypeName<std::map<std::string, std::vector<int64_t>>>()),
            "map<string, vector<i64>>");
  EXPECT_EQ((TypeName<std::variant<bool, std::optional<float>>>()),
            "variant<bool, optional<f32>>");
}

TEST(Codec, TensorsKeepShapeTypeAndElements) {
  const Tensor x = Tensor::FromVector<double>({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor y;
  ASSERT_THAT(Decode({Cut(Encode(x.Transpose(0, 1)), 7), false}, y), IsOk());
  EXPECT_EQ(y.shape(), (Shape{3, 2}));
  EXPECT_THAT(y.ToVector<double>(), ElementsAre(1, 4, 2, 5, 3, 6));
  ASSERT_THAT(Decode({Encode(Tensor()), false}, y), IsOk());
  EXPECT_FALSE(y.defined());
}

TEST(Codec, TensorsOfEachTypeAndAnyShapeTravel) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape :
         {Shape{}, Shape{0}, Shape{3, 0, 2}, Shape{2, 3}, Shape{50, 100}}) {
      const Tensor x = Tensor::Full(shape, 1, dtype);
      Tensor y;
      ASSERT_THAT(Decode({Encode(x), false}, y), IsOk());
      EXPECT_EQ(y.shape(), shape);
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_EQ(y.bytes(), x.bytes());
      EXPECT_TRUE(std::equal(static_cast<const char*>(x.raw()),
                             static_cast<const char*>(x.raw()) + x.bytes(),
                             static_cast<const char*>(y.raw())));
    }
  }
}

TEST(Codec, ViewsTravelAsTheirElementsAndNotAsTheirStorage) {
  const Tensor x = Tensor::Arange(1 << 20).View({1 << 10, 1 << 10});
  const struct {
    Tensor view;
    std::vector<int64_t> elements;
  } cases[] = {
      {x.Slice(0, 1, 2).Slice(1, 0, 3), {1024, 1025, 1026}},
      {x.Slice(1, 5, 6).Slice(0, 0, 2), {5, 1029}},
      {x.Select(0, 0).Slice(0, 7, 8).Expand({3}), {7, 7, 7}},
  };
  for (const auto& c : cases) {
    const Slices bytes = Encode(c.view);
    EXPECT_LT(TotalSize(bytes), 100u);
    Tensor y;
    ASSERT_THAT(Decode({bytes, false}, y), IsOk());
    EXPECT_EQ(y.shape(), c.view.shape());
    EXPECT_TRUE(y.is_contiguous());
    EXPECT_EQ(y.ToVector<int64_t>(), c.elements);
  }
}

TEST(Codec, ABorrowedTensorIsSentWhereItLiesAndWatched) {
  const Tensor x = Tensor::Full({4096}, 2);
  Encoder encoder;
  std::vector<Payload> borrowed;
  internal::EncodeBorrowed(x, encoder, borrowed);
  const Slices bytes = *std::move(encoder).Finish();
  ASSERT_EQ(bytes.size(), 2u);
  EXPECT_EQ(bytes[1].data(), x.raw());
  ASSERT_EQ(borrowed.size(), 1u);
  EXPECT_THAT(borrowed[0].Elements(), IsOk());
  x.Fill(3);
  EXPECT_THAT(borrowed[0].Elements(),
              StatusIs(absl::StatusCode::kDataLoss, "was written to"));
}

TEST(Codec, NonContiguousBorrowIsCopied) {
  const Tensor x = Tensor::Full({100, 100}, 2);
  for (const Tensor& tensor :
       {x.Transpose(0, 1).Slice(0, 0, 50), Tensor::Ones({4}), Tensor()}) {
    Encoder encoder;
    std::vector<Payload> borrowed;
    internal::EncodeBorrowed(tensor, encoder, borrowed);
    EXPECT_TRUE(borrowed.empty());
    Tensor y;
    ASSERT_THAT(Decode({*std::move(encoder).Finish(), false}, y), IsOk());
    EXPECT_EQ(y.defined(), tensor.defined());
  }
}

TEST(Codec, NestedContainersOfTensorsTravel) {
  using Nested = std::map<std::string, std::vector<std::optional<Tensor>>>;
  Nested value;
  value["w"] = {Tensor::Ones({2}), std::nullopt, Tensor::Full({5000}, 3)};
  Nested decoded;
  ASSERT_THAT(Decode({Encode(value), false}, decoded), IsOk());
  ASSERT_EQ(decoded["w"].size(), 3u);
  EXPECT_EQ(decoded["w"][1], std::nullopt);
  EXPECT_EQ(decoded["w"][2]->span<float>()[4999], 3);
  std::variant<Tensor, std::string, v1::WorkerKey> one = Tensor::Ones({3});
  decltype(one) back;
  ASSERT_THAT(Decode({Encode(one), false}, back), IsOk());
  EXPECT_EQ(std::get<Tensor>(back).numel(), 3);
}

TEST(Codec, AMovedTensorIsSentWithoutACopy) {
  Tensor x = Tensor::Full({4096}, 2);
  const void* memory = x.raw();
  const Slices bytes = Encode(std::move(x));
  ASSERT_EQ(bytes.size(), 2u);
  EXPECT_EQ(bytes[1].data(), memory);
}

TEST(Codec, ALargeTensorIsMadeOfTheMemoryItCameIn) {
  const Bytes whole = Flatten(Encode(Tensor::Full({4096}, 2)));
  std::shared_ptr<uint8_t> memory(
      static_cast<uint8_t*>(std::aligned_alloc(64, 64 * 1024)), std::free);
  std::memcpy(memory.get(), whole.data(), whole.size());
  const Slices slices = {Bytes::Wrap(memory.get(), whole.size(), memory)};
  Tensor y;
  ASSERT_THAT(Decode({slices, /*is_private=*/true}, y), IsOk());
  EXPECT_GE(static_cast<uint8_t*>(y.raw()), memory.get());
  EXPECT_LT(static_cast<uint8_t*>(y.raw()), memory.get() + whole.size());
  ASSERT_THAT(Decode({slices, /*is_private=*/false}, y), IsOk());
  EXPECT_FALSE(y.raw() >= memory.get() &&
               y.raw() < memory.get() + whole.size());
}

// ------------------------------------------------------------- hostile bytes

TEST(Codec, AnAnnouncedLengthIsNotBelieved) {
  Encoder encoder;
  encoder.Varint(uint64_t{1} << 60);
  const Received bytes{*std::move(encoder).Finish(), false};
  std::string text;
  EXPECT_THAT(Decode(bytes, text),
              StatusIs(absl::StatusCode::kInvalidArgument, "announced"));
  std::vector<std::string> texts;
  EXPECT_THAT(Decode(bytes, texts),
              StatusIs(absl::StatusCode::kInvalidArgument, "announced"));
  std::vector<double> numbers;
  EXPECT_THAT(Decode(bytes, numbers),
              StatusIs(absl::StatusCode::kInvalidArgument, "announced"));
}

TEST(Codec, DepthIsBounded) {
  Encoder encoder;
  for (int i = 0; i < 1000; ++i) encoder.Varint(1);
  encoder.Varint(0);
  Tree tree;
  EXPECT_THAT(Decode({*std::move(encoder).Finish(), false}, tree),
              StatusIs(absl::StatusCode::kInvalidArgument, "too deep"));
}

TEST(Codec, AByteDoesNotBecomeAKilobyte) {
  Encoder encoder;
  encoder.Varint(4 << 20);
  const std::string zeros(4 << 20, '\0');
  encoder.Raw(zeros.data(), zeros.size());
  std::vector<std::vector<std::string>> nested;
  EXPECT_THAT(Decode({*std::move(encoder).Finish(), false}, nested),
              StatusIs(absl::StatusCode::kInvalidArgument, "memory"));
}

TEST(Codec, ATensorOfAnotherSizeThanItsShapeIsRefused) {
  Encoder encoder;
  for (const uint64_t v : {0, 2, 1000, 1000}) encoder.Varint(v);
  encoder.AttachCopy("abcd", 4);
  Tensor tensor;
  EXPECT_THAT(Decode({*std::move(encoder).Finish(), false}, tensor),
              StatusIs(absl::StatusCode::kInvalidArgument, "4000000 bytes"));
  Encoder huge;
  for (const uint64_t v : {0, 3, 1 << 20, 1 << 20, 1 << 20}) huge.Varint(v);
  EXPECT_THAT(Decode({*std::move(huge).Finish(), false}, tensor),
              StatusIs(absl::StatusCode::kInvalidArgument, "2^47"));
}

// Changes, cuts or repeats some of `bytes`.
std::string Mutate(std::string bytes, std::mt19937_64& random) {
  for (int i = 1 + random() % 4; i > 0; --i) {
    const size_t at = bytes.empty() ? 0 : random() % bytes.size();
    switch (random() % 4) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, bytes.substr(at / 2, random() % 16));
        break;
      default:
        if (!bytes.empty()) bytes[at] ^= static_cast<char>(1 << random() % 8);
    }
  }
  return bytes;
}

TEST(Codec, MutatedValuesAreDecodedOrRefusedButNeverMore) {
  using Value =
      std::tuple<std::vector<std::string>, std::map<std::string, Tensor>, Tree,
                 std::variant<int64_t, std::optional<std::vector<double>>>,
                 v1::Hello>;
  Value value;
  std::get<0>(value) = {"a", "bc", std::string(300, 'd')};
  std::get<1>(value)["w"] = Tensor::Ones({3, 4});
  std::get<2>(value).children.resize(3);
  std::get<3>(value) = std::optional<std::vector<double>>({1, 2, 3});
  std::get<4>(value).set_job("job");
  const std::string good(Flatten(Encode(value)).view());
  std::mt19937_64 random(1);
  int64_t refused = 0;
  for (int i = 0; i < 100000; ++i) {
    const Slices bytes = {Bytes::Own(Mutate(good, random))};
    Value decoded;
    const absl::Status status = Decode({bytes, false}, decoded);
    if (status.ok()) continue;
    ++refused;
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_GT(refused, 50000);
}

// --------------------------------------------------------------------- wire

Slices OneOfEach() {
  BatchWriter batch;
  Hello hello;
  hello.job = "job";
  hello.name = "trainer0";
  hello.from = {1, 2};
  hello.to = {3, uint64_t{4} << 40};
  hello.registry = 5;
  hello.generation = 6;
  hello.resumes = true;
  batch.Add(hello);
  Welcome welcome;
  welcome.status = absl::AbortedError("later");
  welcome.limits.calls = 9;
  welcome.functions.emplace();
  (*welcome.functions)["ps::Push"] = {"void(tensor)", 10};
  batch.Add(welcome);
  Request request;
  request.id = 11;
  request.function = "ps::Push";
  request.signature = 12;
  request.deadline = Instant() + absl::Seconds(3);
  request.depth = 2;
  request.keeps_result = true;
  request.ordered_queue = 18;
  request.chain = "a > b";
  request.attachments.push_back({"a.kind", Bytes::Copy("its data")});
  request.body = {Bytes::Copy("body"), Bytes::Own(std::string(5000, 'y'))};
  batch.Add(request, Instant(), /*body_follows=*/false);
  Reply reply;
  reply.id = 13;
  reply.status = absl::NotFoundError("gone");
  reply.status.SetPayload("key", absl::Cord("value"));
  reply.refusal = Refusal::kUnknownFunction;
  batch.Add(reply, false);
  batch.Add(Ack{{{1, 4}, {7, 7}}, {{9, 9}}});
  batch.Add(Cancel{{{2, 3}}});
  batch.Add(Closed{{{2, 2}}, {{3, 3}}});
  batch.Add(Chunk{14, {Bytes::Own(std::string(2000, 'z'))}});
  batch.Add(Consumed{17});
  return std::move(batch).Finish();
}

TEST(Wire, MemoryMessagesOfEarlierVersionsAreIgnored) {
  for (const uint32_t kind : {1, 2, 3, 4, 5, 6}) {
    v1::Batch batch;
    batch.add_memories()->set_kind(kind);
    int frames = 0;
    const absl::Status status = ReadBatch(
        {Bytes::Own(batch.SerializeAsString())}, Instant(), [&](Frame&& frame) {
          frames += std::holds_alternative<Consumed>(frame) ? 1 : 100;
          return absl::OkStatus();
        });
    EXPECT_EQ(status.ok(), kind <= 5) << kind << status;
    EXPECT_EQ(frames, kind == 5 ? 1 : 0) << kind;
  }
}

TEST(Wire, IsTheProtobufThatItsFileSays) {
  v1::Batch batch;
  ASSERT_TRUE(batch.ParseFromString(std::string(Flatten(OneOfEach()).view())));
  EXPECT_EQ(batch.hello().job(), "job");
  EXPECT_EQ(batch.hello().magic(), kMagic);
  EXPECT_EQ(batch.hello().to().epoch(), uint64_t{4} << 40);
  EXPECT_TRUE(batch.hello().resumes());
  EXPECT_EQ(batch.welcome().code(), 10);
  EXPECT_EQ(batch.welcome().calls(), 9);
  EXPECT_TRUE(batch.welcome().has_functions());
  ASSERT_EQ(batch.welcome().functions_size(), 1);
  EXPECT_EQ(batch.welcome().functions(0).signature(), "void(tensor)");
  EXPECT_EQ(batch.welcome().functions(0).digest(), 10u);
  ASSERT_EQ(batch.requests_size(), 1);
  EXPECT_EQ(batch.requests(0).function(), "ps::Push");
  EXPECT_EQ(batch.requests(0).timeout_us(), 3000000u);
  EXPECT_TRUE(batch.requests(0).keeps_result());
  EXPECT_EQ(batch.requests(0).ordered_queue(), 18u);
  EXPECT_EQ(batch.requests(0).body().size(), 5004u);
  ASSERT_EQ(batch.requests(0).attachments_size(), 1);
  EXPECT_EQ(batch.requests(0).attachments(0).kind(), "a.kind");
  EXPECT_EQ(batch.requests(0).attachments(0).data(), "its data");
  ASSERT_EQ(batch.replies_size(), 1);
  EXPECT_EQ(batch.replies(0).error(), "gone");
  EXPECT_EQ(batch.replies(0).details().at("key"), "value");
  ASSERT_EQ(batch.acks_size(), 1);
  EXPECT_THAT(batch.acks(0).ids(), ElementsAre(1, 4, 7, 7));
  EXPECT_THAT(batch.acks(0).confirm(), ElementsAre(9, 9));
  ASSERT_EQ(batch.cancels_size(), 1);
  EXPECT_THAT(batch.cancels(0).ids(), ElementsAre(2, 3));
  ASSERT_EQ(batch.closed_size(), 1);
  EXPECT_THAT(batch.closed(0).seen(), ElementsAre(2, 2));
  EXPECT_THAT(batch.closed(0).never(), ElementsAre(3, 3));
  ASSERT_EQ(batch.chunks_size(), 1);
  EXPECT_EQ(batch.chunks(0).data().size(), 2000u);
  ASSERT_EQ(batch.memories_size(), 1);
  EXPECT_EQ(batch.memories(0).kind(), 5u);
  EXPECT_EQ(batch.memories(0).position(), 17u);
  EXPECT_TRUE(batch.GetReflection()->GetUnknownFields(batch).empty());
}

TEST(Wire, RoundTripsInPiecesOfAnySize) {
  for (const size_t size : {1, 2, 13, 1 << 20}) {
    std::string kinds;
    ASSERT_THAT(ReadBatch(Cut(OneOfEach(), size), Instant(),
                          [&](Frame frame) {
                            kinds += std::to_string(frame.index());
                            if (auto* r = std::get_if<RequestFrame>(&frame)) {
                              EXPECT_EQ(r->request->chain, "a > b");
                              EXPECT_TRUE(r->request->keeps_result);
                              EXPECT_EQ(r->request->ordered_queue, 18u);
                              EXPECT_EQ(TotalSize(r->request->body), 5004u);
                            }
                            if (auto* w = std::get_if<Welcome>(&frame)) {
                              EXPECT_EQ(w->functions->at("ps::Push").digest,
                                        10u);
                            }
                            if (auto* r = std::get_if<ReplyFrame>(&frame)) {
                              EXPECT_EQ(r->reply->status, [] {
                                absl::Status s = absl::NotFoundError("gone");
                                s.SetPayload("key", absl::Cord("value"));
                                return s;
                              }());
                            }
                            return absl::OkStatus();
                          }),
                IsOk());
    EXPECT_EQ(kinds, "012345678");
  }
}

TEST(Wire, AStatusWithTooManyDetailsLosesSomeButIsRead) {
  Reply reply;
  reply.id = 1;
  reply.status = absl::AbortedError("no");
  for (int i = 0; i < 40; ++i) {
    reply.status.SetPayload(absl::StrCat("key", i), absl::Cord("v"));
  }
  BatchWriter batch;
  batch.Add(reply, /*body_follows=*/false);
  absl::Status read;
  EXPECT_THAT(ReadBatch(std::move(batch).Finish(), Instant(),
                        [&](Frame frame) {
                          read = std::get<ReplyFrame>(frame).reply->status;
                          return absl::OkStatus();
                        }),
              IsOk());
  EXPECT_EQ(read.message(), "no");
}

// Neither it nor its details are to be kept until a body comes that nobody
// reads.
TEST(Wire, AnErrorThatAnnouncesABodyIsRefused) {
  Reply reply;
  reply.id = 1;
  reply.status = absl::AbortedError("no");
  reply.body = {Bytes::Copy("x")};
  BatchWriter batch;
  batch.Add(reply, /*body_follows=*/true);
  EXPECT_THAT(
      ReadBatch(std::move(batch).Finish(), Instant(),
                [](Frame) { return absl::OkStatus(); }),
      StatusIs(absl::StatusCode::kInvalidArgument, "an error that has a body"));
}

// Before anything looks at who sent it.
TEST(Wire, MoreIntervalsThanAreKeptAreRefusedAsTheyAreRead) {
  const auto read = [](size_t intervals) {
    Ack ack;
    for (uint64_t id = 1; id <= intervals; ++id) {
      ack.ids.push_back(Interval{2 * id, 2 * id});
    }
    BatchWriter batch;
    batch.Add(ack);
    return ReadBatch(std::move(batch).Finish(), Instant(),
                     [](Frame) { return absl::OkStatus(); });
  };
  EXPECT_THAT(read(kMaxIntervals), IsOk());
  EXPECT_THAT(
      read(kMaxIntervals + 1),
      StatusIs(absl::StatusCode::kInvalidArgument, "too many intervals"));
}

TEST(Wire, MutatedBatchesAreReadOrRefusedButNeverMore) {
  const std::string good(Flatten(OneOfEach()).view());
  std::mt19937_64 random(2);
  int64_t refused = 0;
  for (int i = 0; i < 200000; ++i) {
    const Slices bytes =
        Cut({Bytes::Own(Mutate(good, random))}, 1 + random() % 8192);
    const absl::Status status =
        ReadBatch(bytes, Instant(), [](Frame) { return absl::OkStatus(); });
    if (status.ok()) continue;
    ++refused;
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_GT(refused, 50000);
}

}  // namespace
}  // namespace weft::rpc
