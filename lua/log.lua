-- sliding-log and concurrency: the instants at which admitted units stop counting (admission +
-- period, admission + lease), oldest first.
--
-- Value: the format (value.lua); how many of the entries at the front have expired, 4 bytes; then
--   the entries, 5 bytes of seconds and 4 of nanoseconds each.
--   Entries are appended and looked up by binary search, so that a call on a
--   long log moves few bytes; the front is cut off when it is the larger part.
-- ARGV, 6: period s, ns; count; cost; and for a release, and for a refund if it is known, the
--   instant of the admission, s, ns (else 0, 0); for extend too.
-- State in the reply, 6: newest s, ns; alive; 1 if instants had to be lowered because the clock
--   went back; the instant at which enough units end for this cost, s, ns, or the first end if the
--   call passes, never can pass or is charge_up_to. All 0 if fresh.
local log = {args = 6}

-- The bytes before the entries.
local HEAD = 6
-- A log has at most a million entries that count, and the expired ones are the smaller part.
local MOST_ENTRIES = 2000000

local function entry(key, i)
  local at = HEAD + 9 * i
  local s, n = struct.unpack('>I5I4', redis.call('GETRANGE', key, at, at + 8))
  if s > LAST_SECOND or n >= E9 then refuse('', 'a log', 1) end
  return s, n
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
local function store(key, entries, now_s, now_n)
  if #entries == 0 then
    redis.call('DEL', key)
    return
  end
  local es, en = struct.unpack('>I5I4', string.sub(entries, -9))
  redis.call('SET', key, '\129\0\0\0\0\0' .. entries,
             'PX', life(sub(es, en, now_s, now_n)))
end

-- Puts the instant at which the entry number `freeing` ends into the state.
local function note_freeing(key, state, freeing)
  if state[3] == 0 then return end
  if state.clamp and freeing >= state.clamp then
    state[5], state[6] = state.end_s, state.end_n
  else
    state[5], state[6] = entry(key, freeing)
    if after(state[5], state[6], state[1], state[2]) then refuse('', 'a log', 1) end
  end
end

function log.read(key, a, now_s, now_n)
  local bytes = redis.call('STRLEN', key)
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local count, cost = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local end_s, end_n = add(now_s, now_n, ps, pn)
  local state = {
    0, 0, 0, 0, 0, 0, es = end_s, en = end_n, end_s = end_s, end_n = end_n,
    size = 0, first = 0, head = 0, allowed = false,
  }
  if bytes > 0 then
    local front = redis.call('GETRANGE', key, 0, HEAD - 1)
    local size, format, head = (bytes - HEAD) / 9, 0, 0
    if size >= 1 then format, head = struct.unpack('>I2I4', front) end
    if format ~= FORMAT or size % 1 ~= 0 or size > MOST_ENTRIES or head >= size then
      refuse(front, 'a log', 1)
    end
    local ns, nn = entry(key, size - 1)
    local ts, tn = add(end_s, end_n, 0, TOLERANCE)
    if after(ns, nn, ts, tn) then
      state.behind = true
      state[4] = 1
      state.clamp = first_after(key, head, size, end_s, end_n)
      ns, nn = end_s, end_n
    end
    local first = first_after(key, head, size, now_s, now_n)
    local alive = size - first
    -- Entries that count are never older than the newest.
    if alive > 0 and not after(ns, nn, now_s, now_n) then refuse('', 'a log', 1) end
    state.size, state.first, state.head = size, first, head
    state[3] = alive
    if alive > 0 then state[1], state[2] = ns, nn end
    local freeing = first
    if cost <= count then freeing = first + math.max(alive + cost - count, 1) - 1 end
    note_freeing(key, state, freeing)
    if alive > 0 and after(ns, nn, end_s, end_n) then state.es, state.en = ns, nn end
  end
  state.allowed = state[3] + cost <= count
  return state
end

function log.take(key, a, now_s, now_n, state)
  note_freeing(key, state, state.first)
  ARGV[a + 3] = math.min(tonumber(ARGV[a + 3]), math.max(0, tonumber(ARGV[a + 2]) - state[3]))
  return ARGV[a + 3]
end

function log.write(key, a, now_s, now_n, state, charge)
  local added = ''
  if charge then
    added = string.rep(struct.pack('>I5I4', state.es, state.en), tonumber(ARGV[a + 3]))
  end
  if state.clamp then
    local kept = ''
    if state.clamp > state.first then
      kept = redis.call('GETRANGE', key, HEAD + 9 * state.first, HEAD + 9 * state.clamp - 1)
    end
    local es, en = add(now_s, now_n, tonumber(ARGV[a]), tonumber(ARGV[a + 1]))
    local from = math.max(state.clamp, state.first)
    store(key, kept .. string.rep(struct.pack('>I5I4', es, en), state.size - from) .. added,
          now_s, now_n)
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

-- Removes the units that were admitted at the given instant; without one, the newest units.
function log.refund(key, a, now_s, now_n, state)
  if ARGV[a + 4] ~= '0' or ARGV[a + 5] ~= '0' then
    log.release(key, a, now_s, now_n, state)
    return
  end
  local n = math.min(tonumber(ARGV[a + 3]), state[3])
  if n == 0 then return end
  local kept = ''
  if state.head < state.size - n then
    kept = redis.call('GETRANGE', key, HEAD + 9 * state.head, HEAD + 9 * (state.size - n) - 1)
  end
  store(key, kept, now_s, now_n)
end

-- The log without the units admitted at the given instant, and how many those are; nil if their
-- lease has ended.
local function without(key, a, now_s, now_n, state)
  local es, en = add(tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]),
                     tonumber(ARGV[a]), tonumber(ARGV[a + 1]))
  if state.size == 0 or not after(es, en, now_s, now_n) then return nil end
  local es1, en1 = sub(es, en, 0, 1)
  local at = math.min(first_after(key, state.head, state.size, es1, en1), state.size - 1)
  local n = math.min(tonumber(ARGV[a + 3]), state.size - state.head)
  -- If fewer than n entries follow, the newest ones are removed.
  local from = math.max(state.head, math.min(at, state.size - n))
  local front, back = '', ''
  if from > state.head then
    front = redis.call('GETRANGE', key, HEAD + 9 * state.head, HEAD + 9 * from - 1)
  end
  if from + n < state.size then
    back = redis.call('GETRANGE', key, HEAD + 9 * (from + n), -1)
  end
  return front .. back, n
end

-- Ends the leases of units admitted at the given instant, unless they have ended.
function log.release(key, a, now_s, now_n, state)
  local kept = without(key, a, now_s, now_n, state)
  if kept then store(key, kept, now_s, now_n) end
end

-- Has the leases of units admitted at the given instant end a period from now. If they have ended,
-- the units are taken again if there is room. Entries that a clock left far ahead stay.
function log.extend(key, a, now_s, now_n, state)
  if state.behind then return end
  local kept, n = without(key, a, now_s, now_n, state)
  if not kept then
    if state.allowed then log.write(key, a, now_s, now_n, state, true) end
    return
  end
  store(key, kept .. string.rep(struct.pack('>I5I4', state.es, state.en), n), now_s, now_n)
end
