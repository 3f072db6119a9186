-- sliding-log and concurrency: the instants at which admitted units stop counting (admission +
-- period, admission + lease), oldest first.
--
-- In a release, refund or extension the algorithm of a concurrency limit is `places`, or
--   `late_places` by the decision of the hit, which are the same but for units_of().
-- Value: the format (value.lua); how many of the entries at the front have expired, 4 bytes, and with
--   the flag 1, for a key that owes, in their highest 11 bits the code of the nanoseconds by which
--   the last entry is later than a period from the charge (value.lua); then the entries, 5 bytes of seconds and 4 of nanoseconds each.
--   Entries are appended and looked up by binary search, so that a call on a
--   long log moves few bytes; the front is cut off when it is the larger part.
-- ARGV, 6: period s, ns; count; cost; and for a release, and for a refund if it is known, the
--   instant of the admission, s, ns (else 0, 0); for extend too.
-- State in the reply, 6: newest s, ns; alive, and what is owed; 1 if instants had to be lowered because the clock
--   went back; the instant at which enough units end for this cost, s, ns, or the first end if the
--   call passes or never can pass. All 0 if fresh. For charge the instants are those after it.
-- A unit that is owed takes the place of the first entry, a period later (algorithms/log.h).
local log = {args = 6, more = 1}

-- The bytes before the entries.
local HEAD = 6
-- A log has at most a million entries that count, and the expired ones are the smaller part.
local MOST_ENTRIES = 2000000
-- The unit of the code beside the number of expired entries.
local CODE = 2097152

local function entry(key, i)
  local at = HEAD + 9 * i
  local s, n = struct.unpack('>I5I4', redis.call('GETRANGE', key, at, at + 8))
  if s > LAST_SECOND or n >= E9 then refuse('', 'a log', 1) end
  return s, n
end

-- Entry number i, as late as the clock allows.
local function entry_of(key, state, i)
  if state.clamp and i >= state.clamp then return state.clamp_s, state.clamp_n end
  local es, en = entry(key, i)
  if state.back_s then return sub(es, en, state.back_s, state.back_n) end
  return es, en
end

-- The first of the entries from `low` on whose instant is after (s, n).
local function first_after(key, low, size, s, n)
  local high = size
  while low < high do
    local middle = math.floor((low + high) / 2)
    local es, en = entry(key, middle)
    if after(es, en, s, n) then high = middle else low = middle + 1 end
  end
  return low
end

-- Writes the bytes `entries` as the whole log.
local function store(key, entries, now_s, now_n, code)
  if #entries == 0 then
    redis.call('DEL', key)
    return
  end
  local es, en = struct.unpack('>I5I4', string.sub(entries, -9))
  local front = '\129\0\0\0\0\0'
  if code and code > 0 then front = struct.pack('>I2I4', FORMAT + DEBT, code * CODE) end
  redis.call('SET', key, front .. entries, 'PX', life(sub(es, en, now_s, now_n)))
end

-- The bytes of entries, each moved by `move`, which is add or sub, and (ts, tn).
local function moved_by(entries, move, ts, tn)
  local parts = {}
  for at = 1, #entries, 9 do
    local es, en = struct.unpack('>I5I4', entries, at)
    parts[#parts + 1] = struct.pack('>I5I4', move(es, en, ts, tn))
  end
  return table.concat(parts)
end

local shifted

-- Puts the instant at which the entry number `freeing` ends into the state.
local function note_freeing(key, state, freeing)
  if state[3] == 0 then return end
  state[5], state[6] = entry_of(key, state, freeing)
  if after(state[5], state[6], state[1], state[2]) then refuse('', 'a log', 1) end
end

-- The units that are owed: each has made an entry a period later, the first ones first.
local function note_owed(key, state, end_s, end_n, ps, pn)
  local os, on = entry_of(key, state, state.first)
  local each = 0
  if after(os, on, end_s, end_n) then
    local ds, dn = sub(os, on, end_s, end_n)
    each = debts().quotient(ds, dn, ps, pn)
    local ts, tn = debts().times(each, ps, pn)
    if after(ds, dn, ts, tn) then each = each + 1 end
  end
  local es, en = add(end_s, end_n, debts().times(each, ps, pn))
  if state.back_s then es, en = add(es, en, state.back_s, state.back_n) end
  local at = first_after(key, state.first, state.size, es, en)
  state.owed = each * state.alive + state.size - at
end

function log.read(key, a, now_s, now_n)
  local bytes = redis.call('STRLEN', key)
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local count, cost = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local end_s, end_n = add(now_s, now_n, ps, pn)
  local state = {
    0, 0, 0, 0, 0, 0, es = end_s, en = end_n, size = 0, first = 0, head = 0, alive = 0, owed = 0,
    code = 0, allowed = false,
  }
  if bytes > 0 then
    local front = redis.call('GETRANGE', key, 0, HEAD - 1)
    local size, format, head = (bytes - HEAD) / 9, 0, 0
    if size >= 1 then format, head = struct.unpack('>I2I4', front) end
    if format == FORMAT + DEBT then
      state.code = math.floor(head / CODE)
      format, head = FORMAT, head % CODE
      if state.code < 1 or state.code > 511 then format = 0 end
    end
    if format ~= FORMAT or size % 1 ~= 0 or size > MOST_ENTRIES or head >= size then
      refuse(front, 'a log', 2)
    end
    local ns, nn = entry(key, size - 1)
    local ms, mn = end_s, end_n
    if state.code > 0 then ms, mn = add(ms, mn, debts().time_of_code(state.code)) end
    local ts, tn = add(ms, mn, 0, TOLERANCE)
    if after(ns, nn, ts, tn) then
      state.behind = true
      state[4] = 1
      if state.code > 0 then
        -- All are moved alike, so that the key owes as much.
        state.back_s, state.back_n = sub(ns, nn, ms, mn)
      else
        state.clamp, state.clamp_s, state.clamp_n = first_after(key, head, size, ms, mn), ms, mn
      end
      ns, nn = ms, mn
    end
    local fs, fn = now_s, now_n
    if state.back_s then fs, fn = add(fs, fn, state.back_s, state.back_n) end
    local first = first_after(key, head, size, fs, fn)
    local alive = size - first
    -- Entries that count are never older than the newest.
    if alive > 0 and not after(ns, nn, now_s, now_n) then refuse('', 'a log', 1) end
    state.size, state.first, state.head, state.alive = size, first, head, alive
    state[3] = alive
    if state.code > 0 and alive > 0 and after(ns, nn, end_s, end_n) then
      note_owed(key, state, end_s, end_n, ps, pn)
      state[3] = alive + state.owed
    end
    if alive > 0 then state[1], state[2] = ns, nn end
    local freeing = first
    if cost <= count then freeing = first + math.max(alive + cost - count, 1) - 1 end
    note_freeing(key, state, freeing)
    if alive > 0 and after(ns, nn, end_s, end_n) then state.es, state.en = ns, nn end
  end
  state.allowed = state[3] + cost <= count
  return state
end

-- All entries that count; those that are later than the clock allows as late as that.
local function counting(key, state)
  if state.first == state.size then return '' end
  if not state.clamp then
    local entries = redis.call('GETRANGE', key, HEAD + 9 * state.first, -1)
    if not state.back_s then return entries end
    return moved_by(entries, sub, state.back_s, state.back_n)
  end
  local kept = ''
  if state.clamp > state.first then
    kept = redis.call('GETRANGE', key, HEAD + 9 * state.first, HEAD + 9 * state.clamp - 1)
  end
  local clamped = struct.pack('>I5I4', state.clamp_s, state.clamp_n)
  return kept .. string.rep(clamped, state.size - math.max(state.clamp, state.first))
end

function log.write(key, a, now_s, now_n, state, charge)
  local added = ''
  if charge then
    added = string.rep(struct.pack('>I5I4', state.es, state.en), tonumber(ARGV[a + 3]))
  end
  if charge and state.more and state.more > 0 then
    local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
    local entries = counting(key, state) .. added
    local part = state.more % (#entries / 9)
    entries = shifted(entries, (state.more - part) / (#entries / 9), part, ps, pn)
    local ns, nn = struct.unpack('>I5I4', string.sub(entries, -9))
    local ds, dn = sub(ns, nn, add(now_s, now_n, ps, pn))
    store(key, entries, now_s, now_n, ds < 0 and 0 or debts().code_of(ds * E9 + dn))
    return
  end
  if state.behind then
    store(key, counting(key, state) .. added, now_s, now_n, not charge and state.code or 0)
    return
  end
  if charge and state.code > 0 then
    store(key, counting(key, state) .. added, now_s, now_n)
    return
  end
  if state.first * 2 >= state.size or state.size < 16 then
    local kept = ''
    if state.first < state.size then
      kept = redis.call('GETRANGE', key, HEAD + 9 * state.first, -1)
    end
    store(key, kept .. added, now_s, now_n)
    return
  end
  if state.first > state.head then
    redis.call('SETRANGE', key, 2, struct.pack('>I4', state.first))
  end
  redis.call('APPEND', key, added)
  redis.call('PEXPIRE', key, life(sub(state.es, state.en, now_s, now_n)))
end

if not plain then
  -- The same by k periods, which makes them earlier if k is negative.
  local function moved(entries, k, ps, pn)
    if k == 0 or #entries == 0 then return entries end
    return moved_by(entries, k > 0 and add or sub, debts().times(math.abs(k), ps, pn))
  end

  -- InstantRing::Shift() for the bytes of all entries that count.
  function shifted(entries, periods, part, ps, pn)
    local split = 9 * part
    if part < 0 then split = #entries + split end
    local front, back = string.sub(entries, 1, split), string.sub(entries, split + 1)
    if part < 0 then
      return moved(back, periods - 1, ps, pn) .. moved(front, periods, ps, pn)
    end
    return moved(back, periods, ps, pn) .. moved(front, periods + 1, ps, pn)
  end

  function log.take(key, a, now_s, now_n, state)
    local room = math.max(0, tonumber(ARGV[a + 2]) - state.alive)
    local most = math.max(0, room + tonumber(ARGV[a + 6]) - state.owed)
    local units = math.min(tonumber(ARGV[a + 3]), most)
    local in_room = math.min(units, room)
    ARGV[a + 3], state.more = in_room, units - in_room
    local n = state.alive + in_room
    if n == 0 then return 0 end
    -- The last and the first entry after the charge.
    local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
    local function later(i, periods)
      local es, en = state.es, state.en
      if i < state.alive then es, en = entry_of(key, state, state.first + i) end
      return add(es, en, debts().times(periods, ps, pn))
    end
    local part = state.more % n
    local periods = (state.more - part) / n
    state[5], state[6] = later(part, periods)
    if part > 0 then part, periods = part - 1, periods + 1 else part = n - 1 end
    state[1], state[2] = later(part, periods)
    return units
  end

  -- When units admitted at the given instant stop counting.
  local function end_of(a)
    return add(tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]),
               tonumber(ARGV[a]), tonumber(ARGV[a + 1]))
  end

  -- Removes the units that were admitted at the given instant; without one, the newest units.
  function log.refund(key, a, now_s, now_n, state)
    if ARGV[a + 4] ~= '0' or ARGV[a + 5] ~= '0' then
      local es, en = end_of(a)
      if not after(es, en, now_s, now_n) then return end
      if state.owed == 0 then return log.release(key, a, now_s, now_n, state) end
    end
    if state.owed > 0 then
      local entries, back = counting(key, state), math.min(tonumber(ARGV[a + 3]), state.owed)
      local part = back % state.alive
      entries = shifted(entries, -(back - part) / state.alive, -part,
                        tonumber(ARGV[a]), tonumber(ARGV[a + 1]))
      local rest = math.min(tonumber(ARGV[a + 3]) - back, state.alive)
      store(key, string.sub(entries, 1, #entries - 9 * rest), now_s, now_n, state.code)
      return
    end
    local n = math.min(tonumber(ARGV[a + 3]), state.alive)
    if n == 0 then return end
    local kept = ''
    if state.head < state.size - n then
      kept = redis.call('GETRANGE', key, HEAD + 9 * state.head, HEAD + 9 * (state.size - n) - 1)
    end
    store(key, kept, now_s, now_n)
  end

  -- UnitsOf() in algorithms/log.h, for the entries from state.head on.
  local function units_of(key, a, now_s, now_n, state, es, en)
    local name, n = ARGV[a - 1], math.min(tonumber(ARGV[a + 3]), state.size - state.head)
    local es1, en1 = sub(es, en, 0, 1)
    local at = first_after(key, state.head, state.size, es1, en1)
    local fs, fn = add(now_s, now_n, 0, TOLERANCE)
    if name == 'log' or after(tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]), fs, fn) then
      return math.min(at, state.size - n), n
    end
    local most = name == 'late_places' and TOLERANCE or 0
    local behind = first_after(key, at, state.size, add(es, en, 0, most)) - at
    if behind > 0 then return at, math.min(n, behind) end
    n = math.min(n, at - first_after(key, state.head, at, sub(es1, en1, 0, most)))
    return at - n, n
  end

  -- The log without the units admitted at the given instant, and how many those are; nil if they
  -- have ended or are gone.
  local function without(key, a, now_s, now_n, state)
    local es, en = end_of(a)
    if state.size == 0 or not after(es, en, now_s, now_n) then return nil end
    local from, n = units_of(key, a, now_s, now_n, state, es, en)
    if n == 0 then return nil end
    local front, back = '', ''
    if from > state.head then
      front = redis.call('GETRANGE', key, HEAD + 9 * state.head, HEAD + 9 * from - 1)
    end
    if from + n < state.size then
      back = redis.call('GETRANGE', key, HEAD + 9 * (from + n), -1)
    end
    return front .. back, n
  end

  -- Ends the leases of units admitted at the given instant, unless they have ended. While units are
  -- owed, forgets the newest ones instead.
  function log.release(key, a, now_s, now_n, state)
    if state.owed > 0 then return log.refund(key, a, now_s, now_n, state) end
    local kept = without(key, a, now_s, now_n, state)
    if kept then store(key, kept, now_s, now_n) end
  end

  -- Has the leases of units admitted at the given instant end a period from now. If they have
  -- ended, the units are taken again if there is room. Entries that a clock left far ahead stay.
  function log.extend(key, a, now_s, now_n, state)
    if state.behind then return end
    local kept, n = without(key, a, now_s, now_n, state)
    if not kept then
      if state.allowed then log.write(key, a, now_s, now_n, state, true) end
      return
    end
    store(key, kept .. string.rep(struct.pack('>I5I4', state.es, state.en), n), now_s, now_n)
  end
end
