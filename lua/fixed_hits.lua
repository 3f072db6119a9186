-- Hits on fixed windows, each decided on its own: a short script for the most frequent calls. For
-- periods of whole microseconds, by the server's TIME.
--
-- KEYS may repeat.
-- ARGV[1] milliseconds that keys are kept after their state no longer matters; then for each key
--   its period, microseconds; its count; the cost of its hits; then for each key the number of its
--   hits, or nothing if each has one.
-- Value: as in lua/fixed_window.lua.
-- Reply: the instant of the call, microseconds; then for each key how many of its hits pass, which
--   are the first ones, and its state before: the end of the window, microseconds, and the units
--   used, both 0 if fresh. If this script does not understand the state, plan.lua decides the hits
--   one by one, until one is refused: then the key has instead of the first number an array, as in
--   lua/bucket_hits.lua.
-- The core replaces TOLERANCE_US by kClockToleranceNs, and PLAN_LUA by a function of KEYS and ARGV,
-- which is plan.lua with fixed_window.lua. Only the calls that need it make it.
local call, try, floor = redis.call, redis.pcall, math.floor
local pack, unpack = struct.pack, struct.unpack
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local margin = ARGV[1] + 3
local several = ARGV[3 * #KEYS + 2]
local reply = {now}
local a, n = 2, 1
for i = 1, #KEYS do
  local key = KEYS[i]
  local period = ARGV[a] + 0
  local value = try('GET', key)
  local stop, used, known = 0, 0, 0
  if value then
    stop = -1
    if type(value) == 'string' and #value == 18 then
      local format, seconds, ns
      format, seconds, ns, known = unpack('>I2I5I4I7', value)
      -- Below 2^53 microseconds, and 2^53 units.
      if format == FORMAT and ns % 1000 == 0 and ns < 1000000000 and seconds < 9000000000 and
         known < 9007199254740992 then
        stop = seconds * 1000000 + ns / 1000
      end
    end
  end
  local before = stop
  if stop > now then
    used = known
    -- Further ahead than the clock allows (step.h).
    if stop - period > now + TOLERANCE_US then before = -1 end
  elseif stop >= 0 then
    stop = now - now % period + period
  end
  local passes = 0
  local cost, left = ARGV[a + 2] + 0, ARGV[a + 1] - used
  if before < 0 then
    local s = floor(period / 1000000)
    local words = {
      'hit', time[1], time[2] * 1000, '1', ARGV[1], '',
      'fixed', s, (period - s * 1000000) * 1000, '0', ARGV[a + 1], cost,
    }
    passes, before, known = {}, 0, 0
    for j = 1, several and ARGV[3 * #KEYS + 1 + i] + 0 or 1 do
      local good, answer = pcall(PLAN_LUA, {key}, words)
      passes[j] = answer
      if not good or answer[1] == 0 then break end
    end
  elseif cost <= left then
    passes = 1
    -- Exact: both are integers below 2^53.
    if several then passes = math.min(ARGV[3 * #KEYS + 1 + i] + 0, floor(left / cost)) end
    local seconds = floor(stop / 1000000)
    value = pack('>I2I5I4I7', FORMAT, seconds, (stop - seconds * 1000000) * 1000,
                 used + passes * cost)
    call('SET', key, value, 'PX', floor((stop - now) / 1000) + margin)
  end
  reply[n + 1] = passes
  reply[n + 2] = before
  reply[n + 3] = known
  a = a + 3
  n = n + 3
end
return reply
