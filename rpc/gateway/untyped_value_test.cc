#include "weft/rpc/gateway/untyped_value.h"

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/signature.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/tensor/codec.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

using Kind = Type::Kind;

// A parameter type that only its user knows.
struct Point {};

}  // namespace

template <>
struct Codec<Point> {
  static std::string TypeName() { return "example.Point<2>"; }
  static void Encode(Point, Encoder&) {}
  static absl::Status Decode(Decoder&, Point&) { return absl::OkStatus(); }
};

namespace {

enum class Colour : int16_t { kRed = 1, kBlue = -2 };

template <typename R, typename... P>
Signature SignatureOf() {
  auto signature =
      ParseSignature(absl::StrCat(TypeName<R>(), "(", TypeNames<P...>(), ")"));
  EXPECT_THAT(signature, IsOk());
  return *std::move(signature);
}

// `value` as the worker's function would return it, in untyped form.
template <typename T>
v1::Value Plain(const T& value) {
  Encoder encoder;
  encoder.Write(value);
  const Received result{*std::move(encoder).Finish(), false};
  v1::CallReply reply;
  EXPECT_THAT(DecodeUntyped(result, SignatureOf<T>(), &reply), IsOk());
  return reply.result();
}

// `value` as a function with one parameter of type T would get it.
template <typename T>
absl::StatusOr<T> Typed(const v1::Value& value) {
  v1::CallRequest request;
  *request.add_arguments() = value;
  absl::StatusOr<Slices> body = EncodeUntyped(request, SignatureOf<bool, T>());
  if (!body.ok()) return body.status();
  const Received received{*body, false};
  Decoder decoder(received);
  T typed{};
  const absl::Status status = decoder.Read(typed);
  if (!status.ok()) return status;
  EXPECT_THAT(decoder.AtEnd(), IsOk());
  return typed;
}

template <typename T>
void ExpectSameThere(const T& value) {
  const absl::StatusOr<T> back = Typed<T>(Plain(value));
  ASSERT_THAT(back, IsOk()) << TypeName<T>();
  EXPECT_EQ(*back, value) << TypeName<T>();
}

v1::Value Integer(int64_t integer) {
  v1::Value value;
  value.set_integer(integer);
  return value;
}

v1::Value Real(double real) {
  v1::Value value;
  value.set_real(real);
  return value;
}

TEST(Signature, IsReadAsTheCodecsWroteIt) {
  using Nested = std::map<std::string, std::vector<std::optional<int32_t>>>;
  const Signature signature =
      SignatureOf<std::tuple<Tensor, Nested>, Colour, v1::Value, Point>();
  ASSERT_EQ(signature.result.kind, Kind::kTuple);
  ASSERT_EQ(signature.result.of.size(), 2);
  EXPECT_EQ(signature.result.of[0].kind, Kind::kTensor);
  const Type& map = signature.result.of[1];
  EXPECT_EQ(map.kind, Kind::kMap);
  EXPECT_EQ(map.name, "map<string, vector<optional<i32>>>");
  EXPECT_EQ(map.of[1].of[0].of[0].kind, Kind::kSigned);
  EXPECT_EQ(map.of[1].of[0].of[0].bytes, 4);
  ASSERT_EQ(signature.parameters.size(), 3);
  EXPECT_TRUE(signature.parameters[0].is_enum);
  EXPECT_EQ(signature.parameters[0].bytes, 2);
  EXPECT_EQ(signature.parameters[1].kind, Kind::kMessage);
  EXPECT_EQ(signature.parameters[2].kind, Kind::kOther);
}

TEST(Signature, OtherTextsAreRefused) {
  std::string deep = "i32";
  for (int i = 0; i < 40; ++i) deep = absl::StrCat("vector<", deep, ">");
  for (const std::string& text :
       {std::string(), std::string("i32"), std::string("i32("),
        std::string("i32(i32"), std::string("i32(i32,i32)"),
        std::string("i32() "), std::string("(i32"), std::string("vector<i32()"),
        std::string("i32(,)"), deep + "()", std::string(5000, 'a') + "()"}) {
    EXPECT_THAT(ParseSignature(text),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

TEST(Plain, ValuesOfEachTypeComeBackTheSame) {
  ExpectSameThere(true);
  ExpectSameThere(int8_t{-128});
  ExpectSameThere(int16_t{-300});
  ExpectSameThere(std::numeric_limits<int32_t>::min());
  ExpectSameThere(std::numeric_limits<int64_t>::min());
  ExpectSameThere(std::numeric_limits<int64_t>::max());
  ExpectSameThere(uint8_t{255});
  ExpectSameThere(std::numeric_limits<uint64_t>::max());
  ExpectSameThere(1.5f);
  ExpectSameThere(-0.1);
  ExpectSameThere(Colour::kBlue);
  ExpectSameThere(std::string("gr\xc3\xbc\xc3\x9f"));
  ExpectSameThere(std::string("\xff not UTF-8"));
  ExpectSameThere(std::string(100000, 'a'));  // travels by reference
  ExpectSameThere(std::vector<int16_t>{-1, 2, 300});
  ExpectSameThere(std::vector<uint64_t>{~uint64_t{0}});
  ExpectSameThere(std::vector<float>(5000, 0.5f));
  ExpectSameThere(std::vector<double>{});
  ExpectSameThere(std::vector<bool>{true, false});
  ExpectSameThere(std::vector<Colour>{Colour::kRed, Colour::kBlue});
  ExpectSameThere(std::vector<std::string>{"a", ""});
  ExpectSameThere(std::map<std::string, int64_t>{{"a", 1}, {"b", -1}});
  ExpectSameThere(std::tuple<>());
  ExpectSameThere(std::make_pair(int64_t{7}, std::string("b")));
  ExpectSameThere(std::make_tuple(true, 2.0, std::vector<int8_t>{3}));
  ExpectSameThere(std::optional<int32_t>());
  ExpectSameThere(std::optional<int32_t>(4));
  ExpectSameThere(std::monostate());
  ExpectSameThere(std::variant<int64_t, std::string>(std::string("b")));
}

TEST(Plain, TensorsComeBackTheSame) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const v1::Value plain = Plain(x);
  EXPECT_EQ(plain.tensor().header().shape_size(), 2);
  const auto back = Typed<Tensor>(plain);
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->shape(), x.shape());
  EXPECT_EQ(back->span<float>(), x.span<float>());
  const auto undefined = Typed<Tensor>(Plain(Tensor()));
  ASSERT_THAT(undefined, IsOk());
  EXPECT_FALSE(undefined->defined());
}

TEST(Plain, MessagesTravelSerialised) {
  v1::Function message;
  message.set_name("f");
  const v1::Value plain = Plain(message);
  EXPECT_EQ(plain.message(), message.SerializeAsString());
  EXPECT_EQ(Typed<v1::Function>(plain)->name(), "f");
  v1::Value broken;
  broken.set_message("\xff");
  EXPECT_THAT(Typed<v1::Function>(broken),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Plain, NumbersMayBeWrittenAsTheyComeToHand) {
  EXPECT_EQ(*Typed<double>(Integer(-2)), -2.0);
  EXPECT_EQ(*Typed<uint8_t>(Integer(255)), 255);
  v1::Value natural;
  natural.set_natural(7);
  EXPECT_EQ(*Typed<int64_t>(natural), 7);
  v1::Value reals;
  reals.mutable_reals()->add_values(0.5);
  EXPECT_EQ(*Typed<std::vector<float>>(reals), std::vector<float>{0.5f});
  v1::Value list;
  *list.mutable_list()->add_values() = Integer(1);
  *list.mutable_list()->add_values() = Real(0.5);
  EXPECT_EQ(*Typed<std::vector<float>>(list), (std::vector<float>{1, 0.5f}));
}

TEST(Plain, NumbersThatDoNotFitAreRefused) {
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, "does not fit");
  EXPECT_THAT(Typed<int8_t>(Integer(128)), refused);
  EXPECT_THAT(Typed<int8_t>(Integer(-129)), refused);
  EXPECT_THAT(Typed<uint64_t>(Integer(-1)), refused);
  EXPECT_THAT(Typed<uint16_t>(Integer(65536)), refused);
  EXPECT_THAT(Typed<float>(Real(1e300)), refused);
  v1::Value natural;
  natural.set_natural(uint64_t{1} << 63);
  EXPECT_THAT(Typed<int64_t>(natural), refused);
  EXPECT_THAT(Typed<int64_t>(Real(1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "argument 1: wanted i64, found a real"));
}

TEST(Plain, AnotherTypeIsNamedWithWhereItIs) {
  v1::Value text;
  text.set_text("a");
  const auto wanted = [](const std::string& words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, words);
  };
  EXPECT_THAT(Typed<bool>(Integer(1)), wanted("wanted bool, found an integer"));
  EXPECT_THAT(Typed<double>(text), wanted("wanted f64, found a text"));
  EXPECT_THAT(Typed<std::string>(Real(1)), wanted("wanted string"));
  EXPECT_THAT(Typed<Tensor>(text), wanted("wanted tensor, found a text"));
  EXPECT_THAT(Typed<std::vector<int32_t>>(text), wanted("wanted vector<i32>"));
  EXPECT_THAT(Typed<std::vector<std::string>>(text), wanted("wanted vector"));
  EXPECT_THAT((Typed<std::map<int32_t, bool>>(text)), wanted("wanted map"));
  EXPECT_THAT((Typed<std::pair<int32_t, bool>>(text)), wanted("wanted (i32"));
  EXPECT_THAT((Typed<std::variant<bool>>(text)), wanted("wanted variant"));
  EXPECT_THAT(Typed<std::monostate>(text), wanted("wanted none"));
  v1::Value list;
  *list.mutable_list()->add_values() = text;
  EXPECT_THAT(Typed<std::vector<std::string>>(list), IsOk());
  *list.mutable_list()->add_values() = Integer(1);
  EXPECT_THAT(Typed<std::vector<std::string>>(list),
              wanted("argument 1: element 1: wanted string, found an integer"));
  EXPECT_THAT((Typed<std::tuple<std::string>>(list)), wanted("a list of 2"));
  v1::Value choice;
  choice.mutable_choice()->set_index(2);
  EXPECT_THAT((Typed<std::variant<bool, int32_t>>(choice)),
              wanted("no alternative 2"));
}

TEST(Plain, AnotherNumberOfArgumentsIsRefused) {
  v1::CallRequest request;
  *request.add_arguments() = Integer(1);
  EXPECT_THAT(EncodeUntyped(request, SignatureOf<bool, int32_t, int32_t>()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "wanted 2 arguments, found 1"));
}

TEST(Plain, AKeyThatComesTwiceIsRefusedByTheDecoder) {
  v1::Value map;
  for (int i = 0; i < 2; ++i) {
    v1::Entry* entry = map.mutable_map()->add_entries();
    *entry->mutable_key() = Integer(1);
    *entry->mutable_value() = Integer(i);
  }
  EXPECT_THAT((Typed<std::map<int32_t, int32_t>>(map)),
              StatusIs(absl::StatusCode::kInvalidArgument, "one key twice"));
}

TEST(Plain, TypesOfAUsersOwnAreRefusedByName) {
  EXPECT_THAT(CheckUntyped(SignatureOf<bool, std::vector<Point>>()),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "example.Point<2> has no untyped form"));
  EXPECT_THAT(CheckUntyped(SignatureOf<bool, std::vector<bool>>()), IsOk());
}

TEST(ParseUntyped, BoundsTheMemoryOfManySmallValues) {
  v1::CallRequest request;
  v1::List* list = request.add_arguments()->mutable_list();
  for (int i = 0; i < 100000; ++i) list->add_values()->set_integer(i);
  v1::CallRequest read;
  EXPECT_THAT(ParseUntyped({Bytes::Own(request.SerializeAsString())}, &read),
              IsOk());
  EXPECT_EQ(read.arguments(0).list().values_size(), 100000);
  for (int i = 0; i < 100000; ++i) list->add_values()->set_integer(i);
  EXPECT_THAT(
      ParseUntyped({Bytes::Own(request.SerializeAsString())}, &read),
      StatusIs(absl::StatusCode::kInvalidArgument, "more than 2^18 fields"));
}

TEST(ParseUntyped, RefusesDeepNestingAndTruncation) {
  v1::CallRequest request;
  v1::Value* value = request.add_arguments();
  for (int i = 0; i < 100; ++i) value = value->mutable_list()->add_values();
  v1::CallRequest read;
  EXPECT_THAT(ParseUntyped({Bytes::Own(request.SerializeAsString())}, &read),
              StatusIs(absl::StatusCode::kInvalidArgument, "nested too deep"));
  request.Clear();
  request.set_function("abc");
  request.add_arguments()->set_text("defg");
  const std::string whole = request.SerializeAsString();
  EXPECT_THAT(
      ParseUntyped({Bytes::Own(whole.substr(0, whole.size() - 1))}, &read),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace weft::rpc
