-- Applies one call of a reservation in place of plan.lua, to all limits or to none: reserves
-- units, settles them at what was used, or raises them. Whoever takes the record of a reservation
-- settles it. Taking it and correcting the count are one script, so a call that is made twice
-- corrects once.
--
-- KEYS: for each limit its key, as for plan.lua; then for each limit the record; then for each
--   limit the hash of its open reservations that are given back when their life is over.
-- ARGV[1] the operation: reserve; settle; raise; hold, which reserves units that are given back
--   when the life of their records is over; or undo, which settles units that were charged without
--   a record, and makes the records that are missing.
-- ARGV[2] to [6] as for plan.lua, ARGV[6] never empty.
-- ARGV[7] milliseconds: for reserve how long a record lives; for settle how long a settled record
--   is kept at most, for callers that ask again; for undo how long the records are kept.
-- Then for each limit:
--   what is done to its key: for settle charge, refund or none, about the difference; else hit
--   for settle the units that the record must hold, for which the arguments hold; else 0
--   the units that are reserved or were used
--   for settle the instant from which the reserved units no longer count, s, ns; else 0, 0
--   its algorithm and the arguments of it, as for plan.lua, for what is done
-- Value of a record: o and the units while it is open, s and the units once it is settled. While a
--   record that is given back is open, it is in the hash of its limit, under its id: the units;
--   the end of its life in milliseconds; the instants until which the units count and at which
--   they were charged, each as s, ns. The field next is the first end of these lives. Each call
--   gives back the units of those that are over.
-- Reply, all integers but the states of quotas:
--   1; or 0 if nothing was done: a limit or a record refused, or a state lies too far ahead
--   the instant of the call, s, ns
--   for each limit its state: before the call, but for settle after it; with 8 numbers each as for
--     plan.lua
--   for each limit what was found of its record, as Found in cpp/include/tidegate/reservation.h;
--     the units of the record; and for settle the units that are charged now
local undo = op == 'undo'
if undo then op = 'settle' end
local holds = op == 'hold'
if holds then op = 'reserve' end
local life_ms = tonumber(ARGV[7])
local count = #KEYS / 3
local now_ms = now_s * 1000 + math.floor(now_n / 1000000)
local NOTHING = 0
local OPEN = 1
local AGAIN = 2
local SETTLED = 3
local OTHER = 4

local function text(kind, units)
  return kind .. string.format('%.0f', units)
end

-- What is left of the life of a record, in milliseconds.
local function left(key)
  return math.max(1, redis.call('PTTL', key))
end

-- How long a hash is kept after the last life in it, so that its reservations can be given back.
local KEPT_MS = 86400000

local function entry_of(value)
  local entry = {}
  for word in string.gmatch(value or '', '%S+') do entry[#entry + 1] = tonumber(word) end
  return #entry == 6 and entry or nil
end

-- Whether nobody has charged a key of a bucket since, that would have counted nothing from an
-- instant on: then the instant is also as late as the numbers of the limit were then.
local function stands(key, s, n)
  local value = redis.call('GET', key) or ''
  local us = tonumber(value)
  if us then
    local whole = math.floor(us / 1000000)
    return not after(whole, (us - whole * 1000000) * 1000, s, n)
  end
  if #value < 18 then return false end
  local _, at_s, at_n = struct.unpack('>I2I5I4', value)
  return not after(at_s, at_n, s, n)
end

-- Gives back as many of the units, charged at an instant, as still count.
local function give_back(i, p, units, until_s, until_n, admitted_s, admitted_n)
  local name, at = p.name, p.at
  if name ~= 'log' and not after(until_s, until_n, now_s, now_n) then return end
  local kept = {}
  for word = at, at + p.algorithm.args - 1 do kept[word] = ARGV[word] end
  if name == 'bucket' then
    local s, n, f = holding().time_of(units, p.algorithm.unit_of(at))
    local left_s, left_n = sub(until_s, until_n, now_s, now_n)
    if after(s, n, left_s, left_n) and not stands(KEYS[i], until_s, until_n) then
      s, n, f = left_s, left_n, 0
    end
    ARGV[at + 5], ARGV[at + 6], ARGV[at + 7] = s, n, f
  elseif name == 'log' then
    ARGV[at + 3], ARGV[at + 4], ARGV[at + 5] = units, admitted_s, admitted_n
  elseif name == 'quota' then
    ARGV[at + 1] = units
  else
    ARGV[at + (name == 'fixed' and 4 or 3)] = units
  end
  p.algorithm.refund(KEYS[i], at, now_s, now_n, p.algorithm.read(KEYS[i], at, now_s, now_n))
  for word, value in pairs(kept) do ARGV[word] = value end
end

-- Gives back what nobody has settled in time, and notes the first of the lives that are left.
local function sweep(i, p)
  local next_ms = tonumber(redis.call('HGET', p.open, 'next') or '')
  if not next_ms or next_ms > now_ms then return end
  local first
  local fields = redis.call('HGETALL', p.open)
  for f = 1, #fields, 2 do
    local e = fields[f] ~= 'next' and entry_of(fields[f + 1])
    if e and e[2] <= now_ms then
      redis.call('HDEL', p.open, fields[f])
      give_back(i, p, e[1], e[3], e[4], e[5], e[6])
    elseif e then
      first = math.min(first or e[2], e[2])
    end
  end
  if first then
    redis.call('HSET', p.open, 'next', first)
  else
    redis.call('DEL', p.open)
  end
end

-- Notes an open reservation that is given back.
local function hold(p, entry)
  redis.call('HSET', p.open, p.id, table.concat(entry, ' '))
  local next_ms = tonumber(redis.call('HGET', p.open, 'next') or '')
  if not next_ms or entry[2] < next_ms then redis.call('HSET', p.open, 'next', entry[2]) end
  local ms = math.max(redis.call('PTTL', p.open), entry[2] - now_ms + KEPT_MS)
  redis.call('PEXPIRE', p.open, ms)
end

-- Until when the units that were just charged count, if nobody else charges the key.
local function counted_until(p, state)
  if p.name == 'bucket' then
    local s, n = add(now_s, now_n, state.after[1], state.after[2])
    return add(s, n, 0, state.after[3] > 0 and 1 or 0)
  end
  if p.name == 'fixed' then return state.es, state.en end
  if p.name == 'sliding' then
    return add(state.ss, state.sn, tonumber(ARGV[p.at]), tonumber(ARGV[p.at + 1]))
  end
  -- The units of a quota count until the next period; a log knows units by their instants.
  local until_s = LAST_SECOND
  for _, edge in pairs(state.terms and state.terms.edges or {}) do
    if edge > now_s then until_s = math.min(until_s, edge) end
  end
  return until_s, 0
end

-- All is read before anything is written, but for what is given back first.
local reply = {1, now_s, now_n}
local plan = {}
local a = 8
for i = 1, count do
  local p = {
    act = ARGV[a], units = tonumber(ARGV[a + 2]), until_s = tonumber(ARGV[a + 3]),
    until_n = tonumber(ARGV[a + 4]), name = ARGV[a + 5], at = a + 6, record = KEYS[count + i],
    open = KEYS[2 * count + i], id = string.sub(KEYS[count + i], -32), found = NOTHING, held = 0,
  }
  p.algorithm = algorithms[p.name]
  sweep(i, p)
  p.state = p.algorithm.read(KEYS[i], p.at, now_s, now_n)
  if p.state.behind and not confirmed then reply[1] = 0 end
  if op == 'reserve' then
    p.found = OPEN
  else
    local kind, held = string.match(redis.call('GET', p.record) or '', '^([os])(%d+)$')
    if not kind then
      p.entry = entry_of(redis.call('HGET', p.open, p.id))
      if p.entry then kind, held = 'o', p.entry[1] end
    end
    -- No reservation holds, or is raised to, more than a limit can count.
    local most = tonumber(held or 0) + (op == 'settle' and 0 or p.units)
    if kind and most < 9007199254740992 then
      p.held = tonumber(held)
      if kind == 's' then
        p.found = p.held == p.units and AGAIN or SETTLED
      elseif op == 'settle' and p.held ~= tonumber(ARGV[a + 1]) then
        p.found = OTHER
      else
        p.found = OPEN
      end
    elseif undo then
      p.held, p.found = tonumber(ARGV[a + 1]), OPEN
    end
  end
  local refused = refuses(i, p.state)
  if op ~= 'settle' and (refused or p.found ~= OPEN) then reply[1] = 0 end
  a = p.at + p.algorithm.args
  if p.act == 'charge' or p.state.oversize then a = a + p.algorithm.more end
  plan[i] = p
end

local function charge(i, p)
  local charged = p.state.allowed
  if charged and p.state.oversize then p.algorithm.take(KEYS[i], p.at, now_s, now_n, p.state) end
  if charged or p.state.behind then
    p.algorithm.write(KEYS[i], p.at, now_s, now_n, p.state, charged)
  end
  if not charged then  -- in shadow, without room
    if op == 'reserve' then p.found = NOTHING end
    return
  end
  p.held = p.held + p.units
  if holds or p.entry then
    local until_s, until_n = counted_until(p, p.state)
    local e = p.entry or {0, now_ms + life_ms, 0, 0, now_s, now_n}
    if after(until_s, until_n, e[3], e[4]) then e[3], e[4] = until_s, until_n end
    e[1] = text('', p.held)
    hold(p, e)
    return
  end
  local ms = op == 'reserve' and life_ms or left(p.record)
  redis.call('SET', p.record, text('o', p.held), 'PX', ms)
end

-- Gives back as much of the difference as still counts.
local function refund(i, p)
  if p.name ~= 'log' then
    if not after(p.until_s, p.until_n, now_s, now_n) then return end
    local s, n = sub(p.until_s, p.until_n, now_s, now_n)
    if p.name == 'bucket' and after(tonumber(ARGV[p.at + 5]), tonumber(ARGV[p.at + 6]), s, n) and
       not stands(KEYS[i], p.until_s, p.until_n) then
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
    refund(i, p)
  end
  if p.entry then redis.call('HDEL', p.open, p.id) end
  local ms = undo and life_ms or math.min(life_ms, p.entry and p.entry[2] - now_ms or left(p.record))
  redis.call('SET', p.record, text('s', p.units), 'PX', ms)
end

local width
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
  if #p.state == 8 then width = 8 end
end
local size = 3
for i = 1, count do
  local state = plan[i].state
  for j = 1, width or #state do reply[size + j] = state[j] or 0 end
  size = size + (width or #state)
end
for i = 1, count do
  local p = plan[i]
  reply[size + 1], reply[size + 2], reply[size + 3] = p.found, p.held, p.charged or 0
  size = size + 3
end
return reply
