-- Hits on buckets of one limit, each decided on its own: a short script for the most frequent
-- calls. For limits and costs of whole microseconds, by the server's TIME.
--
-- KEYS may repeat.
-- ARGV[1] seven numbers of 7 bytes, big-endian: depth (burst * T) and cost * T, microseconds;
--   milliseconds that keys are kept after their state no longer matters; T as s, ns, fraction; and
--   its denominator. Then for each key its number of hits, or nothing if each has one.
-- Value: as in lua/bucket.lua. This script itself understands only whole microseconds, in decimal.
-- Reply: the instant of the call, microseconds; then for each key how many of its hits pass, which
--   are the first ones, and its state before, 0 if fresh. If this script does not understand the
--   state, plan.lua decides the hits one by one, until one is refused: then the key has instead of
--   the first number an array, in which each hit has the reply of plan.lua, or the text of the
--   error that it raised. Later hits end like the last one there.
-- The core replaces TOLERANCE_US by kClockToleranceNs, and PLAN_LUA by a function of KEYS and ARGV,
-- which is plan.lua with bucket.lua. Only the calls that need it make it.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local depth, cost, margin = struct.unpack('>I7I7I7', ARGV[1])
local several = ARGV[2]
local reply = {now}
local n = 1
for i = 1, #KEYS do
  local key = KEYS[i]
  local value = redis.pcall('GET', key)
  local tat = 0
  if value then tat = type(value) == 'string' and tonumber(value) or -1 end
  local passes = 0
  -- The remainder of an infinity and of no number is no number.
  if tat % 1 ~= 0 or tat < 0 or tat > 9223372035000000 then
    local depth_s, cost_s = math.floor(depth / 1000000), math.floor(cost / 1000000)
    local s, ns, fraction, denominator = struct.unpack('>I7I7I7I7', ARGV[1], 22)
    local words = {
      'hit', time[1], time[2] * 1000, '1', margin, '',
      'bucket', depth_s, (depth - depth_s * 1000000) * 1000, 0, denominator, '0',
      cost_s, (cost - cost_s * 1000000) * 1000, 0, '0', 0,
      s .. ' ' .. ns .. ' ' .. fraction .. ' 0 0',
    }
    passes, tat = {}, 0
    for j = 1, several and ARGV[i + 1] + 0 or 1 do
      local good, answer = pcall(PLAN_LUA, {key}, words)
      passes[j] = answer
      if not good or answer[1] == 0 then break end
    end
  else
    local used = 0
    if tat > now then used = tat - now end
    -- Further ahead than the clock allows (step.h): moved back.
    if used > depth + TOLERANCE_US then
      redis.call('SET', key, now + depth, 'PX', math.floor(depth / 1000) + margin + 3)
    elseif used + cost <= depth then
      passes = 1
      -- Exact: both are integers below 2^53.
      if several then passes = math.min(ARGV[i + 1] + 0, math.floor((depth - used) / cost)) end
      used = used + passes * cost
      redis.call('SET', key, now + used, 'PX', math.floor(used / 1000) + margin + 3)
    end
  end
  reply[n + 1] = passes
  reply[n + 2] = tat
  n = n + 2
end
return reply
