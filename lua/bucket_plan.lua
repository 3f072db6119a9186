-- A hit on buckets without ids, all or none, by the server's TIME: a short script in place of
-- lua/plan.lua.
--
-- Instants and durations are two numbers, whole microseconds and parts of one. A microsecond has
-- 1000 * denominator parts, which the core keeps below 2^52.
--
-- KEYS: one for each limit, all of one hash slot.
-- ARGV[1] numbers of 7 bytes, big-endian: the milliseconds that keys are kept after their state no
--   longer matters; then for each limit seven: depth (burst * T), microseconds and parts; cost * T,
--   the same; denominator; T, microseconds and parts.
-- Value: as in lua/bucket.lua.
-- Reply: the instant of the call, microseconds; 1 if all limits pass, else 0; then for each limit
--   its state before, microseconds and parts, both 0 if fresh. If this script does not understand
--   a state, plan.lua applies the plan: then an array of one, its reply.
-- The core replaces TOLERANCE_US by kClockToleranceNs, and PLAN_LUA by a function of KEYS and ARGV,
-- which is plan.lua with bucket.lua. Only the calls that need it make it.
local call, floor, pack, unpack = redis.call, math.floor, struct.pack, struct.unpack
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local numbers = ARGV[1]
local margin = unpack('>I7', numbers)
local reply, after = {now, 1}, {}
for i = 1, #KEYS do
  local depth, depth_parts, cost, cost_parts, denominator =
    unpack('>I7I7I7I7I7', numbers, 49 * i - 41)
  local value = redis.pcall('GET', KEYS[i])
  local tat, parts = 0, 0
  if value then
    tat = type(value) == 'string' and tonumber(value) or -1
    if tat == -1 and (#value == 11 or #value == 18) then
      local format, s, n = unpack('>I2I5I4', value)
      local fraction = 0
      if #value == 18 then format, fraction = format - FRACTION, unpack('>I7', value, 12) end
      if format == FORMAT and n < E9 then
        tat = s * 1000000 + floor(n / 1000)
        parts = n % 1000 * denominator + math.min(fraction, denominator - 1)
      end
    end
    -- The remainder of an infinity and of no number is no number.
    if tat % 1 ~= 0 or tat < 0 or tat > LAST_SECOND * 1000000 then
      local function exact(us, rest, each)
        local s, fraction = math.floor(us / 1000000), rest % each
        return s, (us - s * 1000000) * 1000 + (rest - fraction) / each, fraction
      end
      local words = {'hit', time[1], time[2] * 1000, '1', margin, ''}
      for j = 1, #KEYS do
        local n1, n2, n3, n4, each, n5, n6 = unpack('>I7I7I7I7I7I7I7', numbers, 49 * j - 41)
        local a = 12 * j - 5
        words[a] = 'bucket'
        words[a + 1], words[a + 2], words[a + 3] = exact(n1, n2, each)
        words[a + 4], words[a + 5] = each, '0'
        words[a + 6], words[a + 7], words[a + 8] = exact(n3, n4, each)
        words[a + 9], words[a + 10] = '0', 0
        words[a + 11] = table.concat({exact(n5, n6, each)}, ' ') .. ' 0 0'
      end
      return {PLAN_LUA(KEYS, words)}
    end
  end
  local used, used_parts = cost, cost_parts
  if tat >= now then
    used, used_parts = tat - now + cost, parts + cost_parts
    if used_parts >= 1000 * denominator then
      used, used_parts = used + 1, used_parts - 1000 * denominator
    end
  end
  after[i] = {used, used_parts, denominator, false}
  if used > depth or (used == depth and used_parts > depth_parts) then
    reply[2] = 0
    -- Further ahead than the clock allows (step.h): moved back.
    local ahead = tat - now - TOLERANCE_US
    if ahead > depth or (ahead == depth and parts > depth_parts) then
      after[i] = {depth, depth_parts, denominator, true}
    end
  end
  reply[2 * i + 1] = tat
  reply[2 * i + 2] = parts
end
for i = 1, #KEYS do
  local state = after[i]
  if reply[2] == 1 or state[4] then
    local used, parts, denominator = state[1], state[2], state[3]
    local value = now + used
    if parts > 0 then
      local s, fraction = floor(value / 1000000), parts % denominator
      local n = (value - s * 1000000) * 1000 + (parts - fraction) / denominator
      if fraction > 0 then
        value = pack('>I2I5I4I7', FORMAT + FRACTION, s, n, fraction)
      else
        value = pack('>I2I5I4', FORMAT, s, n)
      end
    end
    call('SET', KEYS[i], value, 'PX', floor(used / 1000) + margin + 3)
  end
end
return reply
