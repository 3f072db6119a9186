-- A hit on several buckets, all or none: a short script in place of lua/plan.lua. For limits and
-- costs of whole microseconds, by the server's TIME.
--
-- KEYS: one for each limit, all of one hash slot.
-- ARGV[1] milliseconds that keys are kept after their state no longer matters; then for
--   each limit depth (burst * T) and cost * T, microseconds.
-- Value, TOLERANCE_US and reply as in lua/bucket_hits.lua; 1 means that all limits pass.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local margin = tonumber(ARGV[1]) + 3
local reply = {now}
local used = {}
local passes = 1
for i = 1, #KEYS do
  local value = redis.pcall('GET', KEYS[i])
  local tat = 0
  if value then tat = type(value) == 'string' and tonumber(value) or -1 end
  -- The remainder of an infinity and of no number is no number.
  if tat % 1 ~= 0 or tat < 0 or tat > 9223372035000000 then tat = -1 end
  local ahead = 0
  if tat > now then ahead = tat - now end
  used[i] = ahead + ARGV[2 * i + 1]
  if tat < 0 then
    passes = -1
  elseif passes == 1 and used[i] > tonumber(ARGV[2 * i]) then
    passes = 0
  end
  reply[2 * i] = 0
  reply[2 * i + 1] = tat
end
if passes == 1 then
  for i = 1, #KEYS do
    reply[2 * i] = 1
    redis.call('SET', KEYS[i], now + used[i], 'PX', math.floor(used[i] / 1000) + margin)
  end
elseif passes == 0 then
  for i = 1, #KEYS do
    -- Further ahead than the clock allows (step.h): moved back.
    local depth = tonumber(ARGV[2 * i])
    if used[i] - ARGV[2 * i + 1] > depth + TOLERANCE_US then
      redis.call('SET', KEYS[i], now + depth, 'PX', math.floor(depth / 1000) + margin)
    end
  end
end
return reply
