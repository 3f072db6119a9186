// Which limit applies to a descriptor of Envoy's rate limit service, and the key that it counts by.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/envoy/descriptor_tree.h"

namespace tidegate::server::envoy {
namespace {

using ::testing::HasSubstr;
using Entries = std::vector<Entry>;
using Id = DescriptorTree::Id;

class Tree : public ::testing::Test {
 protected:
  Id Add(Id parent, DescriptorSpec spec) {
    const auto id = tree.AddDescriptor(parent, std::move(spec));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }
  Id AddLimit(Id parent, const std::string& key, std::optional<std::string> value,
              const std::string& limit) {
    return Add(parent, {.key = key, .value = std::move(value), .limits = {limit}});
  }
  std::string Refusal(DescriptorSpec spec) {
    const auto id = tree.AddDescriptor(edge, std::move(spec));
    EXPECT_FALSE(id.ok());
    return id.ok() ? "" : std::string(id.status().message());
  }
  // The limit that applies; empty if there is none.
  std::string LimitOf(const Entries& entries) const {
    const auto* const node = tree.Match("edge", entries).node;
    if (node == nullptr) return "";
    return node->spec.unlimited ? "unlimited" : node->limits[0].limit.ToString();
  }
  std::string KeyOf(const Entries& entries) const {
    return CountKey("edge", entries, tree.Match("edge", entries).node);
  }

  DescriptorTree tree;
  Id edge = *tree.AddDomain({.name = "edge"});
};

TEST_F(Tree, TakesAnExactValueThenWildcardsInOrderThenTheKeyAlone) {
  AddLimit(edge, "path", std::nullopt, "1/second");
  AddLimit(edge, "path", "/a*", "2/second");
  AddLimit(edge, "path", "/ab*", "3/second");
  AddLimit(edge, "path", "/abc", "4/second");
  EXPECT_EQ(LimitOf({{"path", "/abc"}}), "4/second");
  EXPECT_EQ(LimitOf({{"path", "/abd"}}), "2/second");  // not the longer prefix: the one before it
  EXPECT_EQ(LimitOf({{"path", "/a"}}), "2/second");
  EXPECT_EQ(LimitOf({{"path", "/b"}}), "1/second");
  EXPECT_EQ(LimitOf({{"path", ""}}), "1/second");
  EXPECT_EQ(LimitOf({{"other", "/abc"}}), "");
}

TEST_F(Tree, MatchesEachWildcardOfAValueWithAnyText) {
  AddLimit(edge, "path", "/api*v1", "1/second");
  AddLimit(edge, "path", "*foo*bar*baz", "2/second");
  AddLimit(edge, "path", "aa*aa", "3/second");
  for (const char* value : {"/api/x/v1", "/apiv1"})
    EXPECT_EQ(LimitOf({{"path", value}}), "1/second");
  for (const char* value : {"foobarbaz", "-foo-foo-bar-baz-baz", "foobarbarbaz"}) {
    EXPECT_EQ(LimitOf({{"path", value}}), "2/second") << value;
  }
  for (const char* value : {"aaaa", "aaaaa"}) EXPECT_EQ(LimitOf({{"path", value}}), "3/second");
  // What stands before a wildcard and after it does not overlap.
  for (const char* value : {"/api/v2", "x/apiv1", "foobaz", "barfoobaz", "foobarba", "aaa", ""}) {
    EXPECT_EQ(LimitOf({{"path", value}}), "") << value;
  }
}

TEST_F(Tree, TakesTheLimitAtTheDepthOfTheDescriptor) {
  const Id user = AddLimit(edge, "user", std::nullopt, "1/second");
  AddLimit(user, "path", std::nullopt, "2/second");
  EXPECT_EQ(LimitOf({{"user", "42"}}), "1/second");
  EXPECT_EQ(LimitOf({{"user", "42"}, {"path", "/"}}), "2/second");
  EXPECT_EQ(LimitOf({{"user", "42"}, {"path", "/"}, {"method", "GET"}}), "");
  EXPECT_EQ(LimitOf({{"path", "/"}, {"user", "42"}}), "");
  EXPECT_EQ(LimitOf({}), "");
}

TEST_F(Tree, DoesNotGoBackFromAValueToTheKeyAlone) {
  const Id any = Add(edge, {.key = "user"});
  AddLimit(any, "path", std::nullopt, "1/second");
  Add(edge, {.key = "user", .value = "root"});
  EXPECT_EQ(LimitOf({{"user", "42"}, {"path", "/"}}), "1/second");
  EXPECT_EQ(LimitOf({{"user", "root"}, {"path", "/"}}), "");
  EXPECT_EQ(LimitOf({{"user", "root"}}), "");
}

TEST_F(Tree, TakesWildcardsBelowTheFirstLevelToo) {
  const Id user = Add(edge, {.key = "user"});
  AddLimit(user, "path", "/a*", "2/second");
  EXPECT_EQ(LimitOf({{"user", "42"}, {"path", "/ab"}}), "2/second");
}

TEST_F(Tree, HasADomainForEachName) {
  const Id other = *tree.AddDomain({.name = "other"});
  AddLimit(other, "user", std::nullopt, "1/second");
  EXPECT_EQ(tree.Match("edge", Entries{{"user", "42"}}).node, nullptr);
  EXPECT_NE(tree.Match("other", Entries{{"user", "42"}}).node, nullptr);
  EXPECT_EQ(tree.Match("third", Entries{{"user", "42"}}).domain, nullptr);
}

TEST_F(Tree, DistinguishesKeysFromValues) {
  AddLimit(edge, "a_b", std::nullopt, "1/second");
  AddLimit(edge, "a", "b", "2/second");
  EXPECT_EQ(LimitOf({{"a_b", "c"}}), "1/second");
  EXPECT_EQ(LimitOf({{"a", "b"}}), "2/second");
}

TEST_F(Tree, CountsDifferentDescriptorsByDifferentKeys) {
  const std::vector<Entries> all = {
      {},
      {{"", ""}},
      {{"a", "b"}},
      {{"a_b", ""}},
      {{"a", "b_c"}},
      {{"a_b", "c"}},
      {{"a", "b"}, {"c", "d"}},
      {{"a", "b1:c1:d"}},
      {{"a1:b", "1:c1:d"}},
      {{"a", "b"}, {"", ""}},
      {{"ab", ""}},
  };
  std::vector<std::string> keys;
  for (const Entries& entries : all) {
    for (const char* domain : {"edge", "edg", "edge1:a"}) {
      keys.push_back(CountKey(domain, entries, nullptr));
    }
  }
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::unique(keys.begin(), keys.end()), keys.end());
}

TEST_F(Tree, CountsTheValuesOfASharedWildcardTogether) {
  const Id file =
      Add(edge, {.key = "file", .value = "a*", .limits = {"5/second"}, .share_threshold = true});
  AddLimit(file, "user", std::nullopt, "3/second");
  AddLimit(edge, "file", "b*", "5/second");
  EXPECT_EQ(KeyOf({{"file", "a1"}}), KeyOf({{"file", "a2"}}));
  EXPECT_NE(KeyOf({{"file", "b1"}}), KeyOf({{"file", "b2"}}));
  EXPECT_EQ(KeyOf({{"file", "a1"}, {"user", "1"}}), KeyOf({{"file", "a2"}, {"user", "1"}}));
  EXPECT_NE(KeyOf({{"file", "a1"}, {"user", "1"}}), KeyOf({{"file", "a1"}, {"user", "2"}}));
  EXPECT_NE(KeyOf({{"file", "a1"}}), CountKey("edge", Entries{{"file", "a*"}}, nullptr));
}

TEST_F(Tree, KnowsTheUnitsOfItsLimits) {
  const Id id = Add(edge, {.key = "k",
                           .limits = {"1/second", "1/minute", "1/hour", "1/day", "1/week",
                                      "1/30 days", "1/365 days", "1/month", "1/year", "1/2 days"}});
  std::vector<Unit> units;
  for (const NodeLimit& each : tree.nodes()[id].limits) units.push_back(each.shown.unit);
  EXPECT_THAT(units, ::testing::ElementsAre(Unit::kSecond, Unit::kMinute, Unit::kHour, Unit::kDay,
                                            Unit::kWeek, Unit::kMonth, Unit::kYear, Unit::kMonth,
                                            Unit::kYear, Unit::kUnknown));
}

TEST_F(Tree, KeepsUsageWhenANumberChanges) {
  const auto tag = [](const std::string& limit, Algorithm algorithm) {
    DescriptorTree other;
    const Id domain = *other.AddDomain({.name = "edge"});
    const Id id =
        *other.AddDescriptor(domain, {.key = "k", .limits = {limit}, .algorithm = algorithm});
    return other.nodes()[id].limits[0].limit.identity();
  };
  for (const Algorithm algorithm : {Algorithm::kFixedWindow, Algorithm::kTokenBucket}) {
    EXPECT_EQ(tag("5/second", algorithm), tag("50/second", algorithm));
    EXPECT_NE(tag("5/second", algorithm), tag("5/minute", algorithm));
  }
}

TEST_F(Tree, NamesMetricsByTheMatchAndByTheConfiguredValues) {
  const auto path = [&](Id id, const Entries& entries) {
    std::string metric;
    std::vector<const DescriptorTree::Node*> along;
    const DescriptorTree::Node& node = tree.nodes()[id];
    for (const auto* each = &node; each->parent != nullptr; each = each->parent) {
      along.insert(along.begin(), each);
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      along[i]->AppendMetric(entries[i], node.spec.detailed_metric, &metric);
    }
    return metric;
  };
  const Id route = Add(edge, {.key = "route", .value_to_metric = true});
  const Id method = Add(route, {.key = "method"});
  const Id user = AddLimit(method, "user", std::nullopt, "1/second");
  EXPECT_TRUE(tree.nodes()[user].has_own_metrics);
  EXPECT_EQ(tree.nodes()[user].path, "route.method.user");
  EXPECT_EQ(path(user, {{"route", "r"}, {"method", "GET"}, {"user", "7"}}), "route_r.method.user");

  const Id all = Add(edge, {.key = "all", .limits = {"1/second"}, .detailed_metric = true});
  EXPECT_EQ(path(all, {{"all", "v"}}), "all_v");
  const Id wild = AddLimit(edge, "w", "foo*", "1/second");
  EXPECT_FALSE(tree.nodes()[wild].has_own_metrics);
  EXPECT_EQ(tree.nodes()[wild].path, "w_foo*");
  const Id told =
      Add(edge, {.key = "t", .value = "foo*", .limits = {"1/second"}, .value_to_metric = true});
  EXPECT_EQ(path(told, {{"t", "foobar"}}), "t_foobar");
  const Id shared = Add(edge, {.key = "s",
                               .value = "foo*",
                               .limits = {"1/second"},
                               .share_threshold = true,
                               .value_to_metric = true});
  EXPECT_FALSE(tree.nodes()[shared].has_own_metrics);
  EXPECT_EQ(path(shared, {{"s", "foobar"}}), "s_foo*");
  const Id exact =
      Add(edge, {.key = "e", .value = "x", .limits = {"1/second"}, .detailed_metric = true});
  EXPECT_FALSE(tree.nodes()[exact].has_own_metrics);
}

TEST_F(Tree, RefusesDuplicates) {
  AddLimit(edge, "k", std::nullopt, "1/second");
  AddLimit(edge, "k", "v", "1/second");
  AddLimit(edge, "k", "v*", "1/second");
  for (const std::optional<std::string>& value :
       {std::optional<std::string>(), std::optional<std::string>("v"),
        std::optional<std::string>("v*")}) {
    const auto again = tree.AddDescriptor(edge, {.key = "k", .value = value});
    EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists);
  }
  EXPECT_EQ(tree.AddDomain({.name = "edge"}).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(Tree, RefusesInvalidDescriptors) {
  EXPECT_THAT(Refusal({.key = ""}), HasSubstr("the key is empty"));
  EXPECT_THAT(Refusal({.key = "k", .value = ""}), HasSubstr("the value is empty"));
  EXPECT_THAT(Refusal({.key = "k", .limits = {"1/second"}, .unlimited = true}),
              HasSubstr("unlimited and has limits"));
  EXPECT_THAT(Refusal({.key = "k", .value = "v", .share_threshold = true}),
              HasSubstr("a value that has a '*'"));
  EXPECT_THAT(Refusal({.key = "k", .replaces = {""}}), HasSubstr("is empty"));
  EXPECT_THAT(Refusal({.key = "k", .name = "n", .replaces = {"n"}}), HasSubstr("replaces itself"));
  EXPECT_THAT(Refusal({.key = "k", .limits = {"5/second", "6/second"}}),
              HasSubstr("'5/second' and '6/second' have the same period"));
  EXPECT_THAT(Refusal({.key = "k", .limits = {"5 a second"}}), HasSubstr("5 a second"));
  EXPECT_THAT(Refusal({.key = "k", .limits = {"4294967296/second"}}), HasSubstr("4294967295"));
  EXPECT_THAT(Refusal({.key = "k", .algorithm = Algorithm::kConcurrency}),
              HasSubstr("concurrency"));
  EXPECT_FALSE(tree.AddDomain({.name = ""}).ok());
  EXPECT_FALSE(tree.AddDescriptor(99, {.key = "k"}).ok());
}

}  // namespace
}  // namespace tidegate::server::envoy
