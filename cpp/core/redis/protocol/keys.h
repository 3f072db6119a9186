// The names of keys in Redis: PREFIX:LIMIT{KEY}.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_KEYS_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_KEYS_H_

#include <string>
#include <string_view>

#include "tidegate/limit.h"
#include "tidegate/store.h"

namespace tidegate::redis {

// The prefix that separates a limit's keys from those of other limits and scopes: the scope, and
// the text of the limit if that is short, else a digest of CountName().
std::string KeyPrefix(const Limit& limit, std::string_view scope);
// The key in Redis. Its hash tag is the caller's key if that is short and has no braces, else a
// digest of it.
std::string RedisKey(const BoundLimit& limit, std::string_view key);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_KEYS_H_
