-- Applies a call of a reservation, all or none, in place of plan.lua: reserves units, settles them
-- at what was used, or raises them. Whoever takes the record of a reservation settles it; that and
-- the correction are one script, so a call that is made twice corrects once.
--
-- KEYS: one for each limit, as for plan.lua, and then for each of them the record.
-- ARGV[1] the operation: reserve, settle or raise.
-- ARGV[2] to [6] as for plan.lua.
-- ARGV[7] for reserve the milliseconds that a record lives, for settle those that a settled one is
--   kept at most, for callers that ask again.
-- Then for each limit: for settle what to do about the difference, charge, refund or none, else hit;
--   for settle the units that the record must hold, for which the arguments that follow were
--   computed (else 0); the units reserved or used; for settle the instant from which the units that
--   were reserved count no more, s, ns (else 0, 0); and its algorithm with its arguments as for
--   plan.lua, for what is to be done.
-- Value of a record: o and the units while it is open, s and the units once it is settled.
-- Reply, all integers but the states of quotas: 1, or 0 if nothing was done, since a limit or a
--   record refused, or since a state lies too far ahead; the instant of the call, s, ns; for each
--   limit its state, before the call, but for settle after it; and then for each limit what was
--   found of its record, as Found in cpp/include/tidegate/reservation.h, its units, and for settle
--   the units that are charged now.
local op = ARGV[1]
local now_s, now_n
if ARGV[2] == '' then
  local time = redis.call('TIME')
  now_s, now_n = tonumber(time[1]), tonumber(time[2]) * 1000
else
  now_s, now_n = tonumber(ARGV[2]), tonumber(ARGV[3])
end
local confirmed = ARGV[4] == '1'
margin_ms = tonumber(ARGV[5])
local shadows = ARGV[6]
local life_ms = tonumber(ARGV[7])
local count = #KEYS / 2
local NOTHING, OPEN, AGAIN, SETTLED, OTHER = 0, 1, 2, 3, 4

local function text(kind, units)
  return kind .. string.format('%.0f', units)
end

-- What is left of the life of a record, in milliseconds.
local function left(key)
  return math.max(1, redis.call('PTTL', key))
end

-- All is read before anything is written.
local reply = {1, now_s, now_n}
local plan = {}
local a = 8
for i = 1, count do
  local p = {
    act = ARGV[a], units = tonumber(ARGV[a + 2]), until_s = tonumber(ARGV[a + 3]),
    until_n = tonumber(ARGV[a + 4]), name = ARGV[a + 5], at = a + 6, record = KEYS[count + i],
    found = NOTHING, held = 0,
  }
  p.algorithm = algorithms[p.name]
  p.state = p.algorithm.read(KEYS[i], p.at, now_s, now_n)
  if p.state.behind and not confirmed then reply[1] = 0 end
  if op == 'reserve' then
    p.found = OPEN
  else
    local kind, held = string.match(redis.call('GET', p.record) or '', '^([os])(%d+)$')
    -- No reservation holds more than a limit can count.
    if kind and tonumber(held) + p.units < 9007199254740992 then
      p.held = tonumber(held)
      if kind == 's' then
        p.found = p.held == p.units and AGAIN or SETTLED
      elseif op == 'settle' and p.held ~= tonumber(ARGV[a + 1]) then
        p.found = OTHER
      else
        p.found = OPEN
      end
    end
  end
  if op ~= 'settle' then
    local refuses = not p.state.allowed and string.sub(shadows, i, i) ~= 's'
    if refuses or p.found ~= OPEN then reply[1] = 0 end
  end
  a = p.at + p.algorithm.args
  if p.act == 'charge' then a = a + p.algorithm.more end
  plan[i] = p
end

local function charge(i, p)
  local charged = p.state.allowed
  if charged or p.state.behind then
    p.algorithm.write(KEYS[i], p.at, now_s, now_n, p.state, charged)
  end
  if not charged then  -- in shadow, without room
    if op == 'reserve' then p.found = NOTHING end
    return
  end
  p.held = p.held + p.units
  local ms = op == 'reserve' and life_ms or left(p.record)
  redis.call('SET', p.record, text('o', p.held), 'PX', ms)
end

-- Gives back as much of the difference as still counts.
local function give_back(i, p)
  if p.name ~= 'log' then
    if not after(p.until_s, p.until_n, now_s, now_n) then return end
    local s, n = sub(p.until_s, p.until_n, now_s, now_n)
    if p.name == 'bucket' and after(tonumber(ARGV[p.at + 5]), tonumber(ARGV[p.at + 6]), s, n) then
      ARGV[p.at + 5], ARGV[p.at + 6], ARGV[p.at + 7] = s, n, 0
    end
  end
  p.algorithm.refund(KEYS[i], p.at, now_s, now_n, p.state)
end

local function settle(i, p)
  p.charged = p.found == OPEN and p.units or p.held
  if p.found ~= OPEN then return end
  if p.act == 'charge' then
    local units = p.algorithm.take(KEYS[i], p.at, now_s, now_n, p.state)
    if units > 0 or p.state.behind then
      p.algorithm.write(KEYS[i], p.at, now_s, now_n, p.state, units > 0)
    end
    p.charged = p.held + units
  elseif p.act == 'refund' then
    give_back(i, p)
  end
  redis.call('SET', p.record, text('s', p.units), 'PX', math.min(life_ms, left(p.record)))
end

local size = 3
for i = 1, count do
  local p = plan[i]
  if op == 'settle' then
    if reply[1] == 1 then settle(i, p) end
    -- A log's state depends on the cost.
    if p.name == 'log' then ARGV[p.at + 3] = '1' end
    p.state = p.algorithm.read(KEYS[i], p.at, now_s, now_n)
  elseif reply[1] == 1 then
    charge(i, p)
  elseif p.state.behind and confirmed then
    p.algorithm.write(KEYS[i], p.at, now_s, now_n, p.state, false)
  end
  for j = 1, #p.state do
    size = size + 1
    reply[size] = p.state[j]
  end
end
for i = 1, count do
  local p = plan[i]
  reply[size + 1], reply[size + 2], reply[size + 3] = p.found, p.held, p.charged or 0
  size = size + 3
end
return reply
