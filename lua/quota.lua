-- quota: units of calendar periods, carried units and top-ups. Restates cpp/core/quotas/step.h.
--
-- Value: the format (value.lua); period, 4 bytes; its end, 5 (seconds); the limit that the base was
--   granted for, 7; units used in the period, 7; the soft events that have happened, 1, plus 128 if
--   the count in force when the value was written is not that limit; how many ages of carried units
--   follow, 1; then that count, 7, if it is not the limit. Then grants, each its units and how many
--   of them are spent, 7 and 7: the base; the carried ones, newest first; top-ups in the order in
--   which they are spent, each with its expiry, 5 (2^40 - 1: never), and its priority + 100, 1. The
--   base of a key that owes has more spent than units.
-- ARGV, 3: count; cost; the terms as bytes: the number of the first period below, 4; how long the
--   state of an idle key is kept, 5; the periods that carried units last, 1; the most units
--   carried of one period, 7; and in percent of the limit, 1; whether the base of a new key is
--   prorated, 1; the number of former counts, 1, and if there are some, the seconds of the longest
--   period, 4, and each of them, the oldest first, 7, with the instant at which it ended, as below;
--   then the beginnings of periods around now, which the calendar of the core knows: seconds +
--   2^33, 5 each.
-- top_up has three more words at the end of ARGV: units, expiry, priority.
-- State in the reply, 1: the value without its format; empty if fresh.
local quota = {args = 3, more = 1}

local MOST_USED = 4503599627370496
local MOST_LIMIT = 281474976710655
local MOST_TOP_UPS = 16

-- a * b / c, rounded down, for b <= c < 2^26 and a < 2^53.
local function share(a, b, c)
  local rest = a % c
  local product = rest * b
  return (a - rest) / c * b + (product - product % c) / c
end

local function read_terms(text)
  local t = {edges = {}, former = {}}
  local at, former
  t.first, t.kept, t.lasting, t.most, t.percent, t.prorated, former, at =
    struct.unpack('>I4I5I1I7I1I1I1', text)
  if former > 0 then t.longest, at = struct.unpack('>I4', text, at) end
  for i = 1, former do
    local count, ended
    count, ended, at = struct.unpack('>I7I5', text, at)
    t.former[i] = {count = count, ended = ended - 8589934592}
  end
  local number = t.first
  while at <= #text do
    local edge
    edge, at = struct.unpack('>I5', text, at)
    t.edges[number] = edge - 8589934592
    number = number + 1
  end
  t.last = number - 1
  return t
end

local function read_grant(value, at, most_owed)
  local units, spent
  units, spent, at = struct.unpack('>I7I7', value, at)
  if spent - units > (most_owed or 0) or units > MOST_USED then refuse('', 'a quota', 1) end
  return {units = units, spent = spent}, at
end

local function read_state(value)
  local s = {carried = {}, top_ups = {}}
  if value == '' then return s end
  local ages, at
  if #value < 39 then refuse('', 'a quota', 1) end
  s.period, s.ends, s.limit, s.used, s.events, ages, at =
    struct.unpack('>I4I5I7I7I1I1', value)
  s.count = s.limit
  if s.events >= 128 then
    if #value < 46 then refuse('', 'a quota', 1) end
    s.events = s.events - 128
    s.count, at = struct.unpack('>I7', value, at)
  end
  local rest = #value - at - 13 - 14 * ages
  if rest < 0 or rest % 20 ~= 0 or rest > 20 * MOST_TOP_UPS or ages > 12 or s.period == 0 or
     s.limit > MOST_LIMIT or s.count > MOST_LIMIT or s.used > MOST_USED then
    refuse('', 'a quota', 1)
  end
  s.base, at = read_grant(value, at, MOST_USED)
  for i = 1, ages do s.carried[i], at = read_grant(value, at) end
  local sum = 0
  for i = 1, rest / 20 do
    local grant
    grant, at = read_grant(value, at)
    grant.expires, grant.priority, at = struct.unpack('>I5I1', value, at)
    s.top_ups[i] = grant
    sum = sum + grant.units
  end
  if sum > MOST_USED then refuse('', 'a quota', 1) end
  return s
end

local function each_grant(s, visit)
  visit(s.base)
  for _, grant in ipairs(s.carried) do visit(grant) end
  for _, grant in ipairs(s.top_ups) do visit(grant) end
end

local function sum_left(s)
  local sum = 0
  each_grant(s, function(grant) sum = sum + grant.units - grant.spent end)
  return sum
end

local function forgotten_at(t, s)
  local at = s.ends + t.kept
  for _, grant in ipairs(s.top_ups) do
    if grant.units > grant.spent then at = math.max(at, grant.expires) end
  end
  return at
end

local function carried_of(t, limit, left)
  return math.min(left, t.most, share(limit, t.percent, 100))
end

local function resize_carried(t, s)
  for i = #s.carried, t.lasting + 1, -1 do s.carried[i] = nil end
  for i = #s.carried + 1, t.lasting do s.carried[i] = {units = 0, spent = 0} end
end

local function settled(grant)
  grant.units, grant.spent = math.max(0, grant.units - grant.spent), 0
  return grant
end

-- The count in force at an instant.
local function count_at(t, count, at)
  for _, former in ipairs(t.former) do
    if at < former.ended then return former.count end
  end
  return count
end

-- Whether the quota had the count of the state in the state's period.
local function is_recorded(t, s, count)
  local since = 0
  for _, former in ipairs(t.former) do
    if former.count == s.count and since < s.ends and former.ended > s.ends - t.longest then
      return true
    end
    since = former.ended
  end
  return s.count == count and since < s.ends
end

-- Raises the limit and the base to a count that is in force from `at` on.
local function raise(s, count, at, starts, ends)
  if count > s.limit then
    s.base.units = s.base.units + share(count - s.limit, ends - math.max(at, starts), ends - starts)
    s.limit = count
  end
end

-- The same for the recorded counts in the part of a period up to `till`.
local function raise_as_recorded(t, s, count, till, starts, ends)
  for i, former in ipairs(t.former) do
    local at = former.ended
    if at > starts and at < ends and at <= till then
      local following = t.former[i + 1]
      raise(s, following and following.count or count, at, starts, ends)
    end
  end
end

-- Gives the base that a period without calls has at `till`.
local function grant_untouched(t, s, count, till, starts, ends)
  s.limit = count_at(t, count, starts)
  s.base = {units = s.limit, spent = 0}
  raise_as_recorded(t, s, count, till, starts, ends)
end

local function begin(t, s, count, now_s, starts, ends)
  if t.prorated == 1 then
    s.limit = count_at(t, count, now_s)
    s.base = {units = share(s.limit, ends - math.max(now_s, starts), ends - starts), spent = 0}
  else
    grant_untouched(t, s, count, now_s, starts, ends)
  end
  s.used, s.events = 0, 0
  s.carried, s.top_ups = {}, {}
end

local function roll(t, s, count, recorded, period)
  local changed = recorded and #t.former > 0
  local carried = {}
  for i = 1, math.min(period - s.period - 1, t.lasting) do
    local missed = {limit = s.count, base = {units = s.count}}
    if changed then
      local starts, ends = t.edges[period - i], t.edges[period - i + 1]
      grant_untouched(t, missed, count, ends, starts, ends)
    end
    carried[i] = {units = carried_of(t, missed.limit, missed.base.units), spent = 0}
  end
  if #carried < t.lasting then
    if changed then
      local starts, ends = t.edges[s.period], t.edges[s.period + 1]
      raise_as_recorded(t, s, count, ends, starts, ends)
    end
    carried[#carried + 1] = {units = carried_of(t, s.limit, math.max(0, s.base.units - s.base.spent)),
                               spent = 0}
  end
  for _, grant in ipairs(s.carried) do
    if #carried >= t.lasting then break end
    carried[#carried + 1] = settled(grant)
  end
  s.carried = carried
  local first = count_at(t, count, t.edges[period])
  if not recorded then first = math.min(first, s.count) end
  s.base = {units = first, spent = 0}
  s.limit, s.used, s.events = first, 0, 0
  for _, grant in ipairs(s.top_ups) do settled(grant) end
end

-- Brings the state forward to now; returns whether it lies further ahead than the clock allows, and
-- whether it was fresh.
local function bring_forward(t, s, count, now_s, now_n)
  local period = t.first
  if now_s < t.edges[t.first] then period = t.last end
  while period < t.last and t.edges[period + 1] <= now_s do period = period + 1 end
  -- One more period than needed, since a state may lie in the period after that of now.
  if period + t.lasting + 2 > t.last then
    error("TIDEGATE the server's clock is too far from the host's for the periods of a quota")
  end
  local behind = false
  local recorded = s.period and is_recorded(t, s, count)
  local fresh = not s.period or forgotten_at(t, s) <= now_s
  if fresh then
    begin(t, s, count, now_s, t.edges[period], t.edges[period + 1])
    recorded = false
  elseif s.period < period then
    roll(t, s, count, recorded, period)
  elseif s.period > period then
    local starts = t.edges[s.period]
    behind = s.period + t.lasting + 1 > t.last or after(starts, 0, add(now_s, now_n, 0, TOLERANCE))
    if not behind then period = s.period end
  end
  local starts, ends = t.edges[period], t.edges[period + 1]
  s.period, s.ends = period, ends
  resize_carried(t, s)
  if recorded then raise_as_recorded(t, s, count, now_s, starts, ends) end
  s.count = count_at(t, count, now_s)
  raise(s, s.count, now_s, starts, ends)
  local kept = {}
  for _, grant in ipairs(s.top_ups) do
    if grant.expires > now_s then kept[#kept + 1] = grant end
  end
  s.top_ups = kept
  return behind, fresh
end

-- The grants in the order in which they are spent.
local function in_order(t, s)
  if #s.top_ups == 0 and #s.carried == 0 then return {s.base} end
  local order, next_top_up = {}, 1
  local function add_top_ups(priority, before)
    while true do
      local top_up = s.top_ups[next_top_up]
      if not top_up or top_up.priority > priority or
         (top_up.priority == priority and top_up.expires >= before) then
        return
      end
      order[#order + 1] = top_up
      next_top_up = next_top_up + 1
    end
  end
  local function add_grant(grant, age)
    add_top_ups(100, t.edges[s.period + #s.carried - age + 1])
    order[#order + 1] = grant
  end
  local ages = #s.carried
  if ages > 0 then add_grant(s.carried[ages], ages) end
  add_grant(s.base, ages)
  for age = ages - 1, 1, -1 do add_grant(s.carried[age], age) end
  add_top_ups(201, 0)
  return order
end

local function note_events(s)
  local total = s.used + math.max(0, sum_left(s))
  if total == 0 then return end
  if s.used >= total - share(total, 20, 100) and s.events % 2 == 0 then s.events = s.events + 1 end
  if s.used >= total and s.events < 2 then s.events = s.events + 2 end
end

local function store(key, t, s, now_s, now_n)
  local flags = s.count == s.limit and s.events or s.events + 128
  local ages = #s.carried
  local parts = {
    struct.pack('>I2I4I5I7I7I1I1', FORMAT, s.period, s.ends, s.limit, s.used, flags, ages),
  }
  if s.count ~= s.limit then parts[2] = struct.pack('>I7', s.count) end
  each_grant(s, function(grant)
    parts[#parts + 1] = struct.pack('>I7I7', grant.units, grant.spent)
    if grant.expires then
      parts[#parts + 1] = struct.pack('>I5I1', grant.expires, grant.priority)
    end
  end)
  local forgotten = forgotten_at(t, s)
  if forgotten == 1099511627775 then
    redis.call('SET', key, table.concat(parts))
  else
    redis.call('SET', key, table.concat(parts), 'PX', life(sub(forgotten, 0, now_s, now_n)))
  end
end

function quota.read(key, a, now_s, now_n)
  local value = redis.call('GET', key) or ''
  if value ~= '' then
    if #value < 3 or struct.unpack('>I2', value) ~= FORMAT then refuse(value, 'a quota', 1) end
    value = string.sub(value, 3)
  end
  local state = {value, terms = read_terms(ARGV[a + 2])}
  state.quota = read_state(value)
  state.behind, state.fresh =
    bring_forward(state.terms, state.quota, tonumber(ARGV[a]), now_s, now_n)
  state.left = sum_left(state.quota)
  state.allowed = tonumber(ARGV[a + 1]) <= state.left
  return state
end

function quota.take(key, a, now_s, now_n, state)
  local most = math.min(state.left + tonumber(ARGV[a + 3]), MOST_USED - state.quota.used)
  ARGV[a + 1] = math.max(0, math.min(tonumber(ARGV[a + 1]), most))
  return ARGV[a + 1]
end

function quota.write(key, a, now_s, now_n, state, charge)
  local s = state.quota
  if charge then
    local cost = tonumber(ARGV[a + 1])
    s.used = math.min(s.used + cost, MOST_USED)
    for _, grant in ipairs(in_order(state.terms, s)) do
      local units = math.min(cost, math.max(0, grant.units - grant.spent))
      grant.spent = grant.spent + units
      cost = cost - units
    end
    s.base.spent = s.base.spent + cost  -- what is owed
    note_events(s)
  end
  store(key, state.terms, s, now_s, now_n)
end

function quota.refund(key, a, now_s, now_n, state)
  local s = state.quota
  local left = math.min(tonumber(ARGV[a + 1]), s.used)
  if left == 0 then return end
  s.used = s.used - left
  local owed = math.min(left, math.max(0, s.base.spent - s.base.units))
  s.base.spent, left = s.base.spent - owed, left - owed
  local order = in_order(state.terms, s)
  for i = #order, 1, -1 do
    local back = math.min(left, order[i].spent)
    order[i].spent = order[i].spent - back
    left = left - back
  end
  store(key, state.terms, s, now_s, now_n)
end
quota.release = quota.refund

function quota.reset(key, a, now_s, now_n, state)
  local s = state.quota
  if state.fresh then return end
  s.base.spent, s.used, s.events = 0, 0, 0
  for _, grant in ipairs(s.carried) do settled(grant) end
  for _, grant in ipairs(s.top_ups) do settled(grant) end
  store(key, state.terms, s, now_s, now_n)
end

function quota.bring_forward(key, a, now_s, now_n, state)
  store(key, state.terms, state.quota, now_s, now_n)
end

-- The core computes from the state why a top-up was not added.
function quota.top_up(key, a, now_s, now_n, state)
  local s = state.quota
  local units, expires, priority =
    tonumber(ARGV[#ARGV - 2]), tonumber(ARGV[#ARGV - 1]), tonumber(ARGV[#ARGV])
  local kept, sum = {}, units
  for _, grant in ipairs(s.top_ups) do
    if grant.units > grant.spent then
      kept[#kept + 1] = grant
      sum = sum + grant.units
    end
  end
  if expires <= now_s or #kept >= MOST_TOP_UPS or sum > MOST_USED then return end
  local at = 1
  while kept[at] and (kept[at].priority < priority or
        (kept[at].priority == priority and kept[at].expires <= expires)) do
    at = at + 1
  end
  table.insert(kept, at, {units = units, spent = 0, expires = expires, priority = priority})
  s.top_ups = kept
  store(key, state.terms, s, now_s, now_n)
end
