#include "redis/transport/system_authorities.h"

#include <cstdio>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace tidegate::redis {
namespace {

class SystemAuthoritiesTest : public ::testing::Test {
 protected:
  SystemAuthoritiesTest() { std::ofstream(there_) << "a certificate"; }
  ~SystemAuthoritiesTest() override { std::remove(there_.c_str()); }

  const std::string there_ = ::testing::TempDir() + "tidegate-authorities.pem";
  const std::string missing_ = there_ + ".missing";
};

TEST_F(SystemAuthoritiesTest, OpenSslsOwnPathComesFirst) {
  EXPECT_EQ(AuthoritiesElsewhere({missing_, there_}, {there_}), "");
}

TEST_F(SystemAuthoritiesTest, OtherwiseTheFirstPathThatExistsIsUsed) {
  EXPECT_EQ(AuthoritiesElsewhere({missing_, missing_}, {missing_, there_}), there_);
}

TEST_F(SystemAuthoritiesTest, NothingIsLoadedIfNoPathExists) {
  EXPECT_EQ(AuthoritiesElsewhere({missing_}, {missing_, missing_}), "");
}

}  // namespace
}  // namespace tidegate::redis
