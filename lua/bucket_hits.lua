-- Hits on buckets of one limit, each decided on its own: a short script for the most frequent
-- calls. For limits and costs of whole microseconds, by the server's TIME.
--
-- KEYS may repeat.
-- ARGV[1] depth (burst * T) and [2] cost * T, microseconds; [3] milliseconds that keys
--   are kept after their state no longer matters; then for each key its number of hits, or nothing
--   if each has one.
-- Value: the theoretical arrival time, microseconds since the epoch, decimal.
-- Reply, all integers: the instant of the call, microseconds; then for each key how many of its
--   hits pass, which are the first ones, and its state before, 0 if fresh. A state of -1 is one
--   that this script does not understand: then nothing was done, and plan.lua with bucket.lua must
--   be called.
-- The core replaces TOLERANCE_US by kClockToleranceNs.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local depth, cost = tonumber(ARGV[1]), tonumber(ARGV[2])
local margin = tonumber(ARGV[3]) + 3
local several = ARGV[4]
local reply = {now}
local n = 1
for i = 1, #KEYS do
  local key = KEYS[i]
  local value = redis.pcall('GET', key)
  local tat = 0
  if value then tat = type(value) == 'string' and tonumber(value) or -1 end
  -- The remainder of an infinity and of no number is no number.
  if tat % 1 ~= 0 or tat < 0 or tat > 9223372035000000 then tat = -1 end
  local used = 0
  if tat > now then used = tat - now end
  local passes = 0
  if tat >= 0 then
    -- Further ahead than the clock allows (step.h): moved back.
    if used > depth + TOLERANCE_US then
      redis.call('SET', key, now + depth, 'PX', math.floor(depth / 1000) + margin)
    elseif used + cost <= depth then
      passes = 1
      -- Exact: both are integers below 2^53.
      if several then passes = math.min(ARGV[i + 3] + 0, math.floor((depth - used) / cost)) end
      used = used + passes * cost
      redis.call('SET', key, now + used, 'PX', math.floor(used / 1000) + margin)
    end
  end
  reply[n + 1] = passes
  reply[n + 2] = tat
  n = n + 2
end
return reply
