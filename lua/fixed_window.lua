-- fixed-window: a count for each window aligned to the epoch or the calendar.
--
-- Value: the format (value.lua); the end of the window, 5 bytes of seconds and 4 of nanoseconds;
--   the units used, 7 bytes. With the flag 1, for a key that owes, the window is the last one that
--   the debt reaches, and 2 bytes follow with the code of the windows before it, which are full.
-- ARGV, 5: period s, ns; months in a calendar window (0: the period applies);
--   count; cost. For lease, 8 more: see given_to().
-- State in the reply, 4: end s, ns, used, the code; all 0 if fresh.
local fixed = {args = 5, more = 1, of_lease = 8}

-- Days since the epoch of the first day of a month (counted from January 1970).
-- Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", days_from_civil.
local function days_of(months)
  local year = 1970 + math.floor(months / 12)
  local month = months % 12 + 1
  if month <= 2 then year = year - 1 end
  local era = math.floor(year / 400)
  local yoe = year - era * 400
  local doy = math.floor((153 * ((month + 9) % 12) + 2) / 5)
  return era * 146097 + yoe * 365 + math.floor(yoe / 4) - math.floor(yoe / 100) + doy - 719468
end

-- The first month of the calendar window that holds s.
local function first_month(s, months_each)
  local day = math.floor(s / 86400)
  -- Too early by a month at most, never too late.
  local month = math.floor(day / 31)
  while days_of(month + 1) <= day do month = month + 1 end
  return month - month % months_each
end

-- Windows that would end after LAST_SECOND end then.
local function calendar_window(first, months_each)
  return math.min(days_of(first) * 86400, LAST_SECOND),
         math.min(days_of(first + months_each) * 86400, LAST_SECOND)
end

local function window_at(a, s, n)
  if ARGV[a + 2] ~= '0' then
    local months = tonumber(ARGV[a + 2])
    local start, stop = calendar_window(first_month(s, months), months)
    return start, 0, stop, 0
  end
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local ss, sn = floor_to(s, n, ps, pn)
  return ss, sn, add(ss, sn, ps, pn)
end

-- The window that follows the one that begins at (ss, sn) by k; one before it if k is negative.
local function window_after(a, ss, sn, k)
  local months = tonumber(ARGV[a + 2])
  if months > 0 then
    local start, stop = calendar_window(first_month(ss, months) + k * months, months)
    return start, 0, stop, 0
  end
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local ts, tn = debts().times(math.abs(k), ps, pn)
  if k < 0 then ss, sn = sub(ss, sn, ts, tn) else ss, sn = add(ss, sn, ts, tn) end
  return ss, sn, add(ss, sn, ps, pn)
end

-- Reads a state that owes, whose last window begins at (ls, ln), after now.
local function read_owing(a, now_s, now_n, state, ls, ln)
  local months, count = tonumber(ARGV[a + 2]), math.max(1, tonumber(ARGV[a + 3]))
  local ss, sn, es, en = window_at(a, now_s, now_n)
  local full
  if months > 0 then
    full = (first_month(ls, months) - first_month(ss, months)) / months
  else
    local ds, dn = sub(ls, ln, ss, sn)
    full = debts().quotient(ds, dn, tonumber(ARGV[a]), tonumber(ARGV[a + 1]))
  end
  local most = math.min(debts().of_code(state[4]), math.floor((9007199254740991 - state[3]) / count))
  if full > most then
    full = most
    local fs, fn, ge, gn = window_after(a, ls, ln, -most)
    local ds, dn = sub(fs, fn, now_s, now_n)
    if after(ds, dn, 0, TOLERANCE) then
      state.behind = true
    else
      es, en = ge, gn
    end
  end
  state.owes = true
  state.es, state.en = es, en
  state.used = math.min(state[3] + full * tonumber(ARGV[a + 3]),
                        debts().quotient(LONGEST, 0, tonumber(ARGV[a]), tonumber(ARGV[a + 1])) * count)
end

-- Returns when the window that ends at `es`, `en` began.
local function begin_of(a, es, en)
  if ARGV[a + 2] ~= '0' then return window_at(a, es - 1, 0) end
  return sub(es, en, tonumber(ARGV[a]), tonumber(ARGV[a + 1]))
end

function fixed.read(key, a, now_s, now_n)
  local value = redis.call('GET', key)
  local es, en, used, code = 0, 0, 0, 0
  if value then
    local format = 0
    if #value == 18 then format, es, en, used = struct.unpack('>I2I5I4I7', value) end
    if #value == 20 then
      format, es, en, used, code = struct.unpack('>I2I5I4I7I2', value)
      format = format == FORMAT + DEBT and code > 0 and code < 512 and FORMAT or 0
    end
    -- Units are exact below 2^53.
    if format ~= FORMAT or es > LAST_SECOND or en >= E9 or used >= 9007199254740992 then
      refuse(value, 'a fixed window', 2)
    end
  end
  local state = {es, en, used, code, es = 0, en = 0, used = 0, allowed = false}
  if after(es, en, now_s, now_n) then
    local ss, sn = begin_of(a, es, en)
    if code > 0 and after(ss, sn, now_s, now_n) then
      read_owing(a, now_s, now_n, state, ss, sn)
      state.allowed = tonumber(ARGV[a + 4]) <= tonumber(ARGV[a + 3]) - state.used
      return state
    end
    local ds, dn = sub(ss, sn, now_s, now_n)
    if after(ds, dn, 0, TOLERANCE) then
      state.behind = true
      ss, sn, es, en = window_at(a, now_s, now_n)
    end
  else
    used = 0
    local ss, sn
    ss, sn, es, en = window_at(a, now_s, now_n)
  end
  state.es, state.en, state.used = es, en, used
  state.allowed = ARGV[a + 3] - used >= tonumber(ARGV[a + 4])
  return state
end

function fixed.write(key, a, now_s, now_n, state, charge)
  local used = state.used
  if charge then used = used + ARGV[a + 4] end
  local es, en = state.es, state.en
  local count = state.owes and tonumber(ARGV[a + 3]) or 0
  local value
  if used > count and count > 0 then
    local full = math.floor((used - 1) / count)
    local ss, sn = begin_of(a, es, en)
    ss, sn, es, en = window_after(a, ss, sn, full)
    value = struct.pack('>I2I5I4I7I2', FORMAT + DEBT, es, en, used - full * count, debts().code_of(full))
  else
    value = struct.pack('>I2I5I4I7', FORMAT, es, en, used)
  end
  redis.call('SET', key, value, 'PX', life(sub(es, en, now_s, now_n)))
end

if not plain then
  function fixed.take(key, a, now_s, now_n, state)
    local count = tonumber(ARGV[a + 3])
    local room = math.max(0, count + tonumber(ARGV[a + 5]) - state.used)
    local units = math.min(tonumber(ARGV[a + 4]), room)
    state.owes = state.owes or (units > 0 and state.used + units > count)
    ARGV[a + 4] = units
    return units
  end

  -- Applies what a node reports with its question.
  function fixed.hear(key, a, now_s, now_n, state)
    local given = given_to(a + 5, state.es, state.en)
    if given == 0 or state.owes or state.behind then return end
    state.used = state.used - math.min(state.used, given)
    state[3], state.changed = state.used, true
    state.allowed = tonumber(ARGV[a + 4]) <= tonumber(ARGV[a + 3]) - state.used
  end

  -- Grants at most half of the room, unless the call was refused. Returns how many units.
  function fixed.lease(key, a, now_s, now_n, state, charged, passed)
    local units = 0
    if charged then state.used = state.used + tonumber(ARGV[a + 4]) end
    if passed and not state.behind then
      local room = math.max(0, tonumber(ARGV[a + 3]) - state.used)
      units = math.min(tonumber(ARGV[a + 5]), math.floor(room / 2))
      state.used = state.used + units
    end
    if charged or units > 0 or state.changed or state.behind then
      fixed.write(key, a, now_s, now_n, state, false)
    end
    return units
  end

  function fixed.refund(key, a, now_s, now_n, state)
    if not after(state[1], state[2], now_s, now_n) then return end
    state.used = state.used - math.min(state.used, tonumber(ARGV[a + 4]))
    fixed.write(key, a, now_s, now_n, state, false)
  end
end
