// What Envoy's rate limit service reads and writes: protobuf and JSON.
#include <limits>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/envoy/json_codec.h"
#include "server/envoy/wire_codec.h"

namespace tidegate::server::envoy {
namespace {

using protozero::pbf_reader;
using protozero::pbf_writer;
using ::testing::HasSubstr;

template <typename Write>
std::string Message(Write write) {
  std::string bytes;
  pbf_writer writer(bytes);
  write(writer);
  return bytes;
}

std::string EntryOf(const std::string& key, const std::string& value) {
  return Message([&](pbf_writer& w) {
    w.add_string(1, key);
    w.add_string(2, value);
  });
}

// A request of one descriptor with one entry; `more` adds fields to the descriptor.
template <typename More>
std::string RequestWith(More more) {
  return Message([&](pbf_writer& w) {
    w.add_string(1, "edge");
    w.add_message(2, Message([&](pbf_writer& d) {
                    d.add_message(1, EntryOf("user", "42"));
                    more(d);
                  }));
  });
}

std::string Plain() {
  return RequestWith([](pbf_writer&) {});
}

std::string Reason(const std::string& bytes) {
  RateLimitRequest request;
  const absl::Status status = ParseWire(bytes, &request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(WireRequest, HasItsDomainDescriptorsAndHits) {
  const std::string bytes = Message([](pbf_writer& w) {
    w.add_message(2, Message([](pbf_writer& d) {
                    d.add_message(1, EntryOf("user", "42"));
                    d.add_message(1, EntryOf("path", ""));
                    d.add_message(2, Message([](pbf_writer& limit) {
                                    limit.add_uint32(1, 7);
                                    limit.add_enum(2, 3);
                                  }));
                    d.add_message(3, Message([](pbf_writer& hits) { hits.add_uint64(1, 9); }));
                    d.add_bool(4, true);
                  }));
    w.add_string(1, "edge");
    w.add_uint32(3, 5);
    w.add_message(2, Message([](pbf_writer& d) { d.add_message(1, EntryOf("a", "b")); }));
  });
  RateLimitRequest request;
  ASSERT_TRUE(ParseWire(bytes, &request).ok());
  EXPECT_EQ(request.domain, "edge");
  ASSERT_EQ(request.descriptors.size(), 2u);
  const Descriptor& first = request.descriptors[0];
  ASSERT_EQ(first.entries.size(), 2u);
  EXPECT_EQ(first.entries[0].key, "user");
  EXPECT_EQ(first.entries[0].value, "42");
  EXPECT_EQ(first.entries[1].value, "");
  ASSERT_TRUE(first.limit.has_value());
  EXPECT_EQ(first.limit->requests_per_unit, 7u);
  EXPECT_EQ(first.limit->unit, Unit::kHour);
  EXPECT_TRUE(first.is_negative_hits);
  EXPECT_EQ(request.HitsOf(first), 9u);
  EXPECT_EQ(request.HitsOf(request.descriptors[1]), 5u);
}

TEST(WireRequest, CountsOneHitIfNoneIsGiven) {
  RateLimitRequest request;
  const std::string bytes = Plain();
  ASSERT_TRUE(ParseWire(bytes, &request).ok());
  EXPECT_EQ(request.HitsOf(request.descriptors[0]), 1u);
}

TEST(WireRequest, PeeksIfADescriptorGivesZeroHits) {
  const std::string bytes = RequestWith([](pbf_writer& d) { d.add_message(3, std::string()); });
  RateLimitRequest request;
  ASSERT_TRUE(ParseWire(bytes, &request).ok());
  EXPECT_EQ(request.HitsOf(request.descriptors[0]), 0u);
}

TEST(WireRequest, SkipsUnknownFieldsAndKnownOnesOfAnotherType) {
  const std::string bytes = Plain() + Message([](pbf_writer& w) {
                              w.add_string(99, "new");
                              w.add_fixed64(98, 1);
                              w.add_string(3, "hits of another type");
                            });
  RateLimitRequest request;
  EXPECT_TRUE(ParseWire(bytes, &request).ok());
  EXPECT_EQ(request.hits_addend, 0u);
}

TEST(WireRequest, IsRefusedIfItIsCutWithinAField) {
  const std::string whole = Plain();
  const std::string domain_alone = Message([](pbf_writer& w) { w.add_string(1, "edge"); });
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const std::string reason = Reason(whole.substr(0, cut));
    const bool is_between = cut == 0 || cut == domain_alone.size();
    EXPECT_EQ(reason.find("not a RateLimitRequest") == std::string::npos, is_between)
        << cut << reason;
  }
}

TEST(WireRequest, IsRefusedWithAReason) {
  EXPECT_THAT(Reason(""), HasSubstr("the domain is empty"));
  EXPECT_THAT(Reason(Message([](pbf_writer& w) { w.add_string(1, "edge"); })),
              HasSubstr("there is no descriptor"));
  EXPECT_THAT(Reason(Plain() + Message([](pbf_writer& w) { w.add_uint64(3, uint64_t{1} << 32); })),
              HasSubstr("hits_addend is 4294967296; expected at most 4294967295"));
  EXPECT_THAT(Reason(RequestWith([](pbf_writer& d) {
                d.add_message(3, Message([](pbf_writer& h) { h.add_uint64(1, (1ULL << 32) + 1); }));
              })),
              HasSubstr("descriptor 0 has hits_addend 4294967297; expected at most 4294967296"));
  const auto with_limit = [](uint64_t count, uint64_t unit) {
    return RequestWith([&](pbf_writer& d) {
      d.add_message(2, Message([&](pbf_writer& limit) {
                      limit.add_uint64(1, count);
                      limit.add_uint64(2, unit);
                    }));
    });
  };
  EXPECT_THAT(Reason(with_limit(5, 0)), HasSubstr("descriptor 0 has no unit"));
  EXPECT_THAT(Reason(with_limit(5, 8)), HasSubstr("the unit is 8; expected 1 to 7"));
  EXPECT_THAT(Reason(with_limit(uint64_t{1} << 40, 1)), HasSubstr("requests_per_unit is"));
}

TEST(WireRequest, IsBounded) {
  std::string many = Message([](pbf_writer& w) { w.add_string(1, "edge"); });
  for (size_t i = 0; i <= RateLimitRequest::kMostDescriptors; ++i) {
    many += Message([](pbf_writer& w) { w.add_message(2, std::string()); });
  }
  EXPECT_THAT(Reason(many), HasSubstr("more than 256 descriptors"));
  EXPECT_THAT(Reason(RequestWith([](pbf_writer& d) {
                for (size_t i = 0; i < RateLimitRequest::kMostEntries; ++i)
                  d.add_message(1, std::string());
              })),
              HasSubstr("more than 64 entries"));
}

RateLimitResponse Response() {
  RateLimitResponse response;
  response.overall_code = Code::kOverLimit;
  response.statuses.push_back(
      {Code::kOverLimit, CurrentLimit{5, Unit::kMinute, "a \"name\"\n"}, 0, 1'500'000'000});
  response.statuses.push_back({});
  response.response_headers.emplace_back("X-RateLimit-Limit", "5");
  response.has_quota_mode = true;
  response.quota_mode_violations.push_back(1);
  return response;
}

TEST(WireResponse, HasTheFieldsOfTheProto) {
  const std::string bytes = WriteWire(Response());
  pbf_reader reader(bytes);
  std::vector<uint32_t> tags;
  while (reader.next()) {
    tags.push_back(reader.tag());
    if (tags.size() == 1) {
      EXPECT_EQ(reader.get_enum(), 2);
    } else if (tags.size() == 2) {
      pbf_reader status = reader.get_message();
      ASSERT_TRUE(status.next(1));
      EXPECT_EQ(status.get_enum(), 2);
      ASSERT_TRUE(status.next(2));
      pbf_reader limit = status.get_message();
      ASSERT_TRUE(limit.next(1));
      EXPECT_EQ(limit.get_uint32(), 5u);
      ASSERT_TRUE(limit.next(2));
      EXPECT_EQ(limit.get_enum(), 2);
      ASSERT_TRUE(limit.next(3));
      EXPECT_EQ(limit.get_string(), "a \"name\"\n");
      ASSERT_TRUE(status.next(4));
      pbf_reader duration = status.get_message();
      ASSERT_TRUE(duration.next(1));
      EXPECT_EQ(duration.get_int64(), 1);
      ASSERT_TRUE(duration.next(2));
      EXPECT_EQ(duration.get_int32(), 500'000'000);
    } else {
      reader.skip();
    }
  }
  EXPECT_THAT(tags, ::testing::ElementsAre(1, 2, 2, 3, 6));
}

// Statuses and headers are written into memory of a size that is known before.
TEST(WireResponse, HoldsTheLargestNumbersAndLongNames) {
  constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();
  const std::string name(1000, 'n');
  RateLimitResponse response;
  for (int i = 0; i < 300; ++i) {
    response.statuses.push_back({Code::kOverLimit, CurrentLimit{kMost, Unit::kWeek, name}, kMost,
                                 std::numeric_limits<int64_t>::min()});
    response.response_headers.emplace_back(name, name);
  }
  const std::string bytes = WriteWire(response);
  pbf_reader reader(bytes);
  size_t statuses = 0, headers = 0;
  while (reader.next()) {
    if (reader.tag() == 2) {
      pbf_reader status = reader.get_message();
      ASSERT_TRUE(status.next(2));
      pbf_reader limit = status.get_message();
      ASSERT_TRUE(limit.next(1));
      EXPECT_EQ(limit.get_uint32(), kMost);
      ASSERT_TRUE(limit.next(3));
      EXPECT_EQ(limit.get_string(), name);
      ASSERT_TRUE(status.next(3));
      EXPECT_EQ(status.get_uint32(), kMost);
      ASSERT_TRUE(status.next(4));
      pbf_reader duration = status.get_message();
      ASSERT_TRUE(duration.next(1));
      EXPECT_EQ(duration.get_int64(), std::numeric_limits<int64_t>::min() / 1'000'000'000);
      ++statuses;
    } else if (reader.tag() == 3) {
      pbf_reader header = reader.get_message();
      ASSERT_TRUE(header.next(2));
      EXPECT_EQ(header.get_string(), name);
      ++headers;
    } else {
      reader.skip();
    }
  }
  EXPECT_EQ(statuses, 300U);
  EXPECT_EQ(headers, 300U);
}

TEST(JsonResponse, FollowsTheJsonMappingOfProto3) {
  EXPECT_EQ(WriteJson(Response()),
            R"({"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":)"
            R"({"requestsPerUnit":5,"unit":"MINUTE","name":"a \"name\"\u000a"},"limitRemaining":0,)"
            R"("durationUntilReset":"1.500s"},{"code":"OK"}],)"
            R"("responseHeadersToAdd":[{"key":"X-RateLimit-Limit","value":"5"}],)"
            R"("dynamicMetadata":{"quotaModeEnabled":true,"quotaModeViolations":[1]}})");
}

TEST(JsonResponse, WritesMetadataBesideWhatTheQuotasSay) {
  RateLimitResponse response;
  auto metadata = Metadata::Parse(R"({"b":[1,2.5,1e30,true,null,"\"q\""],"a":{"c":{}},"d":[]})");
  ASSERT_TRUE(metadata.ok()) << metadata.status();
  response.metadata.Merge(*metadata);
  const std::string written =
      R"("metadata":{"a":{"c":{}},"b":[1,2.5,1e+30,true,null,"\"q\""],"d":[]})";
  EXPECT_THAT(WriteJson(response), HasSubstr("\"dynamicMetadata\":{" + written + "}"));
  response.has_quota_mode = true;
  EXPECT_THAT(WriteJson(response), HasSubstr(written + R"(,"quotaModeEnabled":true}})"));
  for (const char* json : {"[]", "5", "{", ""}) EXPECT_FALSE(Metadata::Parse(json).ok()) << json;
}

TEST(JsonResponse, WritesDurationsWithAsManyDigitsAsNeeded) {
  const auto duration = [](int64_t ns) {
    RateLimitResponse response;
    response.statuses.push_back({Code::kOk, std::nullopt, 0, ns});
    const std::string json = WriteJson(response);
    const size_t at = json.find("\"durationUntilReset\":\"") + 22;
    return json.substr(at, json.find('"', at) - at);
  };
  EXPECT_EQ(duration(0), "0s");
  EXPECT_EQ(duration(60'000'000'000), "60s");
  EXPECT_EQ(duration(5'000'000), "0.005s");
  EXPECT_EQ(duration(1'000'007'000), "1.000007s");
  EXPECT_EQ(duration(1'000'000'007), "1.000000007s");
}

std::string JsonReason(std::string_view text) {
  RateLimitRequest request;
  const absl::Status status = ParseJson(text, &request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text << status;
  return std::string(status.message());
}

TEST(JsonRequest, TakesTheNamesOfJsonAndOfTheProto) {
  for (
      const std::string_view text : {
          R"({"domain":"edge","hitsAddend":3,"descriptors":[{"entries":[{"key":"user","value":"é"}],
               "limit":{"requestsPerUnit":"7","unit":"HOUR"},"hitsAddend":"9","isNegativeHits":true}]})",
          R"({"domain":"edge","hits_addend":3,"descriptors":[{"entries":[{"key":"user","value":"é"}],
               "limit":{"requests_per_unit":7.0,"unit":3},"hits_addend":9,"is_negative_hits":true}]})",
      }) {
    RateLimitRequest request;
    const absl::Status status = ParseJson(text, &request);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(request.domain, "edge");
    EXPECT_EQ(request.hits_addend, 3u);
    ASSERT_EQ(request.descriptors.size(), 1u);
    const Descriptor& descriptor = request.descriptors[0];
    ASSERT_EQ(descriptor.entries.size(), 1u);
    EXPECT_EQ(descriptor.entries[0].value, "é");
    EXPECT_EQ(descriptor.limit->requests_per_unit, 7u);
    EXPECT_EQ(descriptor.limit->unit, Unit::kHour);
    EXPECT_EQ(descriptor.hits_addend, 9u);
    EXPECT_TRUE(descriptor.is_negative_hits);
  }
}

TEST(JsonRequest, TakesNullAsAMissingField) {
  RateLimitRequest request;
  const absl::Status status = ParseJson(
      R"({"domain":"edge","hitsAddend":null,"descriptors":[{"entries":[],"limit":null}]})",
      &request);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(request.descriptors[0].limit.has_value());
}

TEST(JsonRequest, IsRefusedWithAReason) {
  const auto descriptor = [](std::string_view fields) {
    return std::string(R"({"domain":"d","descriptors":[{)") + std::string(fields) + "}]}";
  };
  EXPECT_THAT(JsonReason(""), HasSubstr("the body is not JSON"));
  EXPECT_THAT(JsonReason("{\"domain\":\"\xff\"}"), HasSubstr("the body is not JSON"));
  EXPECT_THAT(JsonReason("[]"), HasSubstr("a RateLimitRequest is []; expected an object"));
  EXPECT_THAT(JsonReason("{}"), HasSubstr("the domain is empty"));
  EXPECT_THAT(JsonReason(R"({"domain":"d"})"), HasSubstr("there is no descriptor"));
  EXPECT_THAT(JsonReason(R"({"domain":5})"), HasSubstr("the domain is 5; expected a text"));
  EXPECT_THAT(JsonReason(R"({"domains":"d"})"), HasSubstr("'domains' is not a field"));
  EXPECT_THAT(JsonReason(R"({"domain":"d","domain":"e"})"), HasSubstr("given twice"));
  EXPECT_THAT(JsonReason(R"({"hitsAddend":1,"hits_addend":1})"), HasSubstr("given twice"));
  EXPECT_THAT(JsonReason(R"({"domain":"d","descriptors":{}})"), HasSubstr("expected a list"));
  EXPECT_THAT(JsonReason(R"({"hitsAddend":-1})"), HasSubstr("hitsAddend is -1; expected a whole"));
  EXPECT_THAT(JsonReason(R"({"hitsAddend":1.5})"), HasSubstr("hitsAddend is 1.5"));
  EXPECT_THAT(JsonReason(R"({"hitsAddend":" 1"})"), HasSubstr("hitsAddend is"));
  EXPECT_THAT(JsonReason(R"({"hitsAddend":1e300})"), HasSubstr("hitsAddend is"));
  EXPECT_THAT(JsonReason(R"({"hitsAddend":4294967296})"), HasSubstr("0 to 4294967295"));
  EXPECT_THAT(JsonReason(descriptor(R"("hitsAddend":4294967297)")),
              HasSubstr("descriptor 0 has hits_addend 4294967297"));
  EXPECT_THAT(JsonReason(descriptor(R"("entries":[{"key":1}])")), HasSubstr("the key is 1"));
  EXPECT_THAT(JsonReason(descriptor(R"("limit":{"unit":"FORTNIGHT"})")), HasSubstr("the unit is"));
  EXPECT_THAT(JsonReason(descriptor(R"("limit":{"unit":8})")), HasSubstr("0 to 7"));
  EXPECT_THAT(JsonReason(descriptor(R"("limit":{"requestsPerUnit":1})")), HasSubstr("has no unit"));
  EXPECT_THAT(JsonReason(descriptor(R"("isNegativeHits":1)")), HasSubstr("true or false"));
}

TEST(JsonRequest, ErrorsShowOnlyTheBeginningOfALongValue) {
  std::string name;
  while (name.size() < 1000) name += "é";
  const std::string reason = JsonReason("{\"" + name + "\":1}");
  EXPECT_LT(reason.size(), 200u);
  // The reason is part of a JSON text itself, so no character is cut in half.
  RateLimitRequest request;
  EXPECT_THAT(std::string(ParseJson(WriteJsonError(reason), &request).message()),
              HasSubstr("'error' is not a field"));
}

}  // namespace
}  // namespace tidegate::server::envoy
