-- token-bucket and leaky-bucket: GCRA over an exact theoretical arrival time.
--
-- Value: the instant. If it is a whole number of microseconds since the epoch, that number in
--   decimal. Else the format (value.lua), 5 bytes of seconds and 4 of nanoseconds; with the flag 1
--   also 7 bytes of fraction in units of 1/denominator ns; and with the flag 2, for a limit with an
--   id, 4 bytes each of the count and the denominator that wrote it. The fraction then has a
--   denominator more for each period beyond the first that the burst and what is owed span
--   (Limit::span_parts()). With the flag 4, for a key without an id that owes, also 2 bytes of the
--   code of the nanoseconds beyond the burst (value.lua). While nodes hold units of the key, the
--   flags 1 and 32, and the fields of slots.lua at the end.
-- ARGV, 11: depth s, ns, fraction (burst * T); denominator; never (1 if the cost is beyond the
--   burst; for charge the units that are wanted); cost * T as s, ns, fraction (for charge T); for a
--   limit with an id its count (else 0), and what its fractions have more; and as one text what few
--   calls need: T as s, ns, fraction, and for a limit with an id its period, s, ns (else 0, 0).
--   For lease, 8 more: the units wanted, for how many microseconds, and for two slots the end, the
--   units spent and the units given back.
-- State in the reply, 4: s, ns, fraction as in the value, the count that wrote it (without an id
--   the code of what is owed); all 0 if fresh. 4 more if nodes hold units: the slots' end, length,
--   current, previous. Then it is the state with their cap, and after the reports of a lease.
local bucket = {args = 11, more = 3, of_lease = 8}

local FRACTION = 1
local COUNT = 2
local OWES = 4
-- The most periods that a burst is taken to span.
local MOST_SPAN = 100

-- Converts the duration of some units from one count and denominator to another. Rounds up. Exact
-- while the products are below 2^53.
local function scaled(s, n, f, count, denominator, to_count, to_denominator)
  if to_count == 0 or s * count / to_count > 8000000000 then return 8000000000, 0, 0 end
  local whole = math.floor(s * count / to_count)
  local rest = (s * count - whole * to_count) * E9 + n * count + f * count / denominator
  local ns = math.floor(rest / to_count)
  -- Subtracts less than any possible fraction, to undo a rounding error of the division.
  local parts = math.ceil((rest - ns * to_count) * to_denominator / to_count - 0.000001)
  if parts >= to_denominator then ns, parts = ns + 1, 0 end
  if parts < 0 then parts = 0 end
  local more = math.floor(ns / E9)
  return whole + more, ns - more * E9, parts
end

-- The time of one unit, as slots.lua takes it.
local function unit_of(a)
  local s, n, f = string.match(ARGV[a + 10], '(%d+) (%d+) (%d+)')
  return {s + 0, n + 0, f + 0, ARGV[a + 3] + 0}
end
bucket.unit_of = unit_of  -- for reserve.lua

-- The period of a limit with an id.
local function period_of(a)
  local s, n = string.match(ARGV[a + 10], '(%d+) (%d+)$')
  return s + 0, n + 0
end

-- Whether the cost has room within the depth.
local function judge(state, a, depth_s, depth_n, depth_f, denominator)
  if ARGV[a + 4] ~= '0' then return end
  local used = state.before
  local us, un, uf = plus(used[1], used[2], used[3], ARGV[a + 5] + 0, ARGV[a + 6] + 0,
                          ARGV[a + 7] + 0, denominator)
  state.after = {us, un, uf}
  state.allowed = not deeper(us, un, uf, depth_s, depth_n, depth_f)
end

-- Sets the slots of the reply, and `used` in the numbers of this limit. A usage that another number
-- of the id has written, and that nothing has changed, stays in the numbers of that one.
local function tell(state, a, now_s, now_n, used, slots)
  state.slots = slots
  if slots then
    state[5], state[6] = slots.finish, slots.length
    state[7], state[8] = slots.current, slots.previous
  end
  if state.count ~= ARGV[a + 8] + 0 and not state.owes then
    if used == state.before then return end
    -- What another number has counted beyond this burst owes nothing by this number.
    local depth = {ARGV[a] + 0, ARGV[a + 1] + 0, ARGV[a + 2] + 0}
    if deeper(used[1], used[2], used[3], depth[1], depth[2], depth[3]) then used = depth end
  end
  state.before = used
  state.count, state.denominator = ARGV[a + 8] + 0, ARGV[a + 3] + 0
  state.span_parts = ARGV[a + 9] + 0
  local s, n = add(now_s, now_n, used[1], used[2])
  state[1], state[2], state[3] = s, n, used[3] + state.span_parts
  if not state.owes then state[4] = state.count end
end

-- Takes off the units of slots that no grant can have made: the time of those that are out is within
-- the burst, or within as many periods as the burst that an earlier limit of the id had may span.
local function bound(slots, a, now_s)
  local most = ARGV[a] + ARGV[a + 1] / E9
  if ARGV[a + 8] ~= '0' then
    local ps, pn = period_of(a)
    most = math.max(most, MOST_SPAN * (ps + pn / E9))
  end
  local unit = unit_of(a)
  local each = unit[1] + (unit[2] + unit[3] / unit[4]) / E9
  if each == 0 then return end
  local units = math.floor(math.min(most, LAST_SECOND - now_s - 1) / each * 1.000001) + 1
  slots.current = math.min(slots.current, units)
  slots.previous = math.min(slots.previous, units - slots.current)
end

function bucket.read(key, a, now_s, now_n)
  local value = redis.call('GET', key)
  local s, n, f = 0, 0, 0
  local denominator, count = ARGV[a + 3] + 0, ARGV[a + 8] + 0
  local by_count, by_denominator = count, denominator  -- of the limit that wrote the state
  local code = 0
  local slots
  if value then
    local us = tonumber(value)
    local format, flags = 0, 0
    local whole = value
    if not us and #value >= 18 + SLOTS_SIZE then
      slots = holding().of(value)
      if slots then
        value, flags = string.sub(value, 1, -SLOTS_SIZE - 1), SLOTS
      end
    end
    if us then
      s = math.floor(us / 1000000)
      n = (us - s * 1000000) * 1000
      -- The remainder of an infinity and of no number is no number.
      if us >= 0 and us % 1 == 0 then format = FORMAT end
    elseif #value == 26 then
      format, s, n, f, by_count, by_denominator = struct.unpack('>I2I5I4I7I4I4', value)
      flags = flags + FRACTION + COUNT
      if count == 0 or by_denominator < 1 or by_denominator > by_count or
         f >= by_denominator * MOST_SPAN then
        format = 0
      end
    elseif #value == 18 then
      format, s, n, f = struct.unpack('>I2I5I4I7', value)
      flags = flags + FRACTION
      -- Another limit of the id, which carries the share used over, may have a larger denominator.
      f = math.min(f, denominator - 1)
    elseif #value == 20 and count == 0 then
      format, s, n, f, code = struct.unpack('>I2I5I4I7I2', value)
      flags = flags + FRACTION + OWES
      f = math.min(f, denominator - 1)
      if code < 1 or code > 511 then format = 0 end
    elseif #value == 11 then
      format, s, n = struct.unpack('>I2I5I4', value)
    end
    if format ~= FORMAT + flags or s > LAST_SECOND or n >= E9 then refuse(whole, 'a bucket', 64) end
  end
  local fraction = f % by_denominator
  local state = {
    s, n, f, code > 0 and code or value and by_count or 0, count = by_count,
    denominator = by_denominator, owes = code > 0, span_parts = f - fraction, before = false,
    after = false, allowed = false,
  }
  local depth_s, depth_n, depth_f = ARGV[a] + 0, ARGV[a + 1] + 0, ARGV[a + 2] + 0
  -- The usage, as a duration from now.
  local us, un, uf = 0, 0, 0
  if not after(now_s, now_n, s, n) and (s > 0 or n > 0) then
    us, un = sub(s, n, now_s, now_n)
    uf = fraction
    local ms, mn, mf = depth_s, depth_n, depth_f
    if code > 0 then ms, mn = add(ms, mn, debts().time_of_code(code)) end
    local ts, tn = add(ms, mn, 0, TOLERANCE)
    if deeper(us, un, uf, ts, tn, depth_f) then
      -- A limit that blocks everything keeps what another number of its id has counted.
      state.behind = depth_s > 0 or depth_n > 0 or depth_f > 0
      if count ~= 0 and state.behind then
        -- With an id, the burst that wrote the state may span more than this depth.
        local span = (f - fraction) / by_denominator + 1
        local ps, pn = period_of(a)
        ps, pn = ps * span, pn * span
        ps, pn = add(ps + math.floor(pn / E9), pn % E9, 0, TOLERANCE)
        state.behind = after(us, un, ts, tn) and after(us, un, ps, pn)
        -- More periods than the burst spans are those of a debt, or of a larger burst of the id.
        if span > ARGV[a + 9] / denominator + 1 then
          ms, mn = sub(ps, pn, 0, TOLERANCE)
          mf = 0
        end
      end
    end
    if state.behind then
      us, un, uf = ms, mn, mf
    elseif by_count ~= count then
      us, un, uf = scaled(us, un, uf, by_count, by_denominator, count, denominator)
    end
  end
  state.before = {us, un, uf}
  if slots then
    local now = now_s * 1000000 + math.floor(now_n / 1000)
    bound(slots, a, now_s)
    local depth = {depth_s, depth_n, depth_f}
    local used, left = holding().settled(slots, now, state.before, unit_of(a), depth)
    tell(state, a, now_s, now_n, used, left)
  end
  judge(state, a, depth_s, depth_n, depth_f, denominator)
  return state
end

-- The fields of a value, without slots. `owes`: whether usage beyond the burst is a debt, and not
-- that of a clock that was ahead.
local function encoded(a, s, n, used, count, denominator, span_parts, owes, slots)
  local format, f = FORMAT + (slots and SLOTS or 0), used[3]
  if count ~= 0 then
    return struct.pack('>I2I5I4I7I4I4', format + FRACTION + COUNT, s, n, f + span_parts, count,
                       denominator)
  end
  if owes then
    local depth_s, depth_n = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
    local depth_f = tonumber(ARGV[a + 2])
    if deeper(used[1], used[2], f, depth_s, depth_n, depth_f) then
      local os, on = sub(used[1], used[2], depth_s, depth_n)
      local ns = os * E9 + on
      if f > depth_f then ns = ns + 1 end
      return struct.pack('>I2I5I4I7I2', format + FRACTION + OWES, s, n, f, debts().code_of(ns))
    end
  end
  if slots or f > 0 then return struct.pack('>I2I5I4I7', format + FRACTION, s, n, f) end
  if n % 1000 == 0 then return s * 1000000 + n / 1000 end
  return struct.pack('>I2I5I4', FORMAT, s, n)
end

local function store(key, a, now_s, now_n, used, count, denominator, span_parts, owes, slots)
  if slots and slots.current + slots.previous == 0 then slots = nil end
  local s, n = add(now_s, now_n, used[1], used[2])
  local value = encoded(a, s, n, used, count, denominator, span_parts, owes, slots)
  if slots then
    value = value .. holding().packed(slots)
    used = holding().longest(slots, now_s * 1000000 + math.floor(now_n / 1000), used, unit_of(a))
  end
  -- The fraction is part of one more nanosecond.
  local ls, ln = add(used[1], used[2], 0, 1)
  redis.call('SET', key, value, 'PX', life(ls, ln))
end

function bucket.write(key, a, now_s, now_n, state, charge)
  local used = charge and state.after or state.before
  local count, denominator, span_parts = ARGV[a + 8] + 0, ARGV[a + 3] + 0, ARGV[a + 9] + 0
  if count ~= 0 and
     deeper(used[1], used[2], used[3], ARGV[a] + 0, ARGV[a + 1] + 0, ARGV[a + 2] + 0) then
    -- What is owed spans more periods than the burst.
    local ps, pn = period_of(a)
    local span = math.ceil((used[1] + used[2] / E9) / (ps + pn / E9) - 0.000001)
    span_parts = math.max(span_parts, (math.min(span, MOST_SPAN) - 1) * denominator)
  end
  -- A plain hit adds no debt.
  local owes = not plain or state.owes or state.slots
  store(key, a, now_s, now_n, used, count, denominator, span_parts, owes, state.slots)
end

if not plain then
  -- The units that fit between `used` and `most`, up to `wanted`, found bit by bit from the
  -- highest; and the usage with them.
  local function fitting(wanted, used, unit, most)
    local denominator = unit[4]
    local s, n, f = unit[1], unit[2], unit[3]
    local powers, power = {}, 1
    while power <= wanted do
      powers[#powers + 1] = {power, s, n, f}
      power = power * 2
      if power <= wanted then s, n, f = plus(s, n, f, s, n, f, denominator) end
    end
    local units = 0
    for i = #powers, 1, -1 do
      local p = powers[i]
      local us, un, uf = plus(used[1], used[2], used[3], p[2], p[3], p[4], denominator)
      if units + p[1] <= wanted and not deeper(us, un, uf, most[1], most[2], most[3]) then
        units, used = units + p[1], {us, un, uf}
      end
    end
    return units, used
  end

  -- Charges as many of the wanted units as may be charged.
  function bucket.take(key, a, now_s, now_n, state)
    local most = {ARGV[a + 11] + 0, ARGV[a + 12] + 0, ARGV[a + 13] + 0}
    local units
    units, state.after = fitting(tonumber(ARGV[a + 4]), state.before, unit_of(a), most)
    return units
  end

  -- Applies what a node reports with its question.
  function bucket.hear(key, a, now_s, now_n, state)
    for report = a + 13, a + 16, 3 do
      local slots = state.slots
      local spent, given = tonumber(ARGV[report + 1]), tonumber(ARGV[report + 2])
      if slots and (spent > 0 or given > 0) then
        local used = holding().heard(slots, tonumber(ARGV[report]), spent, given, state.before,
                                     unit_of(a))
        tell(state, a, now_s, now_n, used, slots)
        state.changed = true
      end
    end
    judge(state, a, tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]),
          tonumber(ARGV[a + 3]))
  end

  -- Grants at most half of the room, unless the call was refused. Returns how many units.
  function bucket.lease(key, a, now_s, now_n, state, charged, passed)
    local used = charged and state.after or state.before
    local units = 0
    if passed then
      local unit = unit_of(a)
      local most = {tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])}
      local wanted = tonumber(ARGV[a + 11])
      units = math.floor(fitting(2 * wanted, used, unit, most) / 2)
      if units > 0 then
        local s, n, f = holding().time_of(units, unit)
        used = {plus(used[1], used[2], used[3], s, n, f, unit[4])}
        local now = now_s * 1000000 + math.floor(now_n / 1000)
        state.slots = holding().granted(state.slots, now, units, tonumber(ARGV[a + 12]))
      end
    end
    if charged or units > 0 or state.changed or state.behind then
      state.after = used
      bucket.write(key, a, now_s, now_n, state, true)
    end
    return units
  end

  -- Here cost * T is for no more than the burst and max_debt, or for the whole cost if the limit
  -- has an id. Uses the numbers that wrote the state.
  function bucket.refund(key, a, now_s, now_n, state)
    local s, n, f = state[1], state[2], state[3] - state.span_parts
    if not after(s, n, now_s, now_n) and not (s == now_s and n == now_n and f > 0) then return end
    local bs, bn, bf = tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])
    local count, denominator = tonumber(ARGV[a + 8]), tonumber(ARGV[a + 3])
    if state.count ~= count then
      bs, bn, bf = scaled(bs, bn, bf, count, denominator, state.count, state.denominator)
    end
    s, n = sub(s, n, bs, bn)
    f = f - bf
    if f < 0 then
      f = f + state.denominator
      s, n = sub(s, n, 0, 1)
    end
    local used = {0, 0, 0}
    if after(s, n, now_s, now_n) or (s == now_s and n == now_n and f > 0) then
      s, n = sub(s, n, now_s, now_n)
      used = {s, n, f}
    end
    bucket.reset(key, a, now_s, now_n, state, used)
  end

  -- Leaves the key with `used`, or nothing, and what the units that are out need.
  function bucket.reset(key, a, now_s, now_n, state, used)
    used = used or {0, 0, 0}
    local slots = state.slots
    if slots then used = holding().raised(used, slots.current + slots.previous, 0, unit_of(a)) end
    if used[1] == 0 and used[2] == 0 and used[3] == 0 then
      redis.call('DEL', key)
      return
    end
    store(key, a, now_s, now_n, used, state.count, state.denominator, state.span_parts, state.owes,
          slots)
  end
  bucket.forget = bucket.reset
end
