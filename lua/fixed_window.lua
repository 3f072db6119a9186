-- fixed-window: a count for each window aligned to the epoch or the calendar.
--
-- Value: the format (value.lua); the end of the window, 5 bytes of seconds and 4 of nanoseconds;
--   the units used, 7 bytes.
-- ARGV, 5: period s, ns; months in a calendar window (0: the period applies);
--   count; cost.
-- State in the reply, 4: end s, ns, used, 0; all 0 if fresh.
local fixed = {args = 5}

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

-- Windows that would end after LAST_SECOND end then.
local function calendar_window(s, months_each)
  local day = math.floor(s / 86400)
  -- Too early by a month at most, never too late.
  local month = math.floor(day / 31)
  while days_of(month + 1) <= day do month = month + 1 end
  local first = month - month % months_each
  return math.min(days_of(first) * 86400, LAST_SECOND),
         math.min(days_of(first + months_each) * 86400, LAST_SECOND)
end

local function window_at(a, s, n)
  local months = tonumber(ARGV[a + 2])
  if months > 0 then
    local start, stop = calendar_window(s, months)
    return start, 0, stop, 0
  end
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local ss, sn = floor_to(s, n, ps, pn)
  return ss, sn, add(ss, sn, ps, pn)
end

function fixed.read(key, a, now_s, now_n)
  local value = redis.call('GET', key)
  local es, en, used = 0, 0, 0
  if value then
    local format = 0
    if #value == 18 then format, es, en, used = struct.unpack('>I2I5I4I7', value) end
    -- Units are exact below 2^53.
    if format ~= FORMAT or es > LAST_SECOND or en >= E9 or used >= 9007199254740992 then
      refuse(value, 'a fixed window', 1)
    end
  end
  local state = {es, en, used, 0}
  if after(es, en, now_s, now_n) then
    local ss, sn
    if tonumber(ARGV[a + 2]) > 0 then
      ss, sn = window_at(a, math.min(es - 1, 4611686018), 0)
    else
      ss, sn = sub(es, en, tonumber(ARGV[a]), tonumber(ARGV[a + 1]))
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
  state.allowed = tonumber(ARGV[a + 4]) <= tonumber(ARGV[a + 3]) - used
  return state
end

function fixed.take(key, a, now_s, now_n, state)
  local room = math.max(0, tonumber(ARGV[a + 3]) - state.used)
  ARGV[a + 4] = math.min(tonumber(ARGV[a + 4]), room)
  return ARGV[a + 4]
end

function fixed.write(key, a, now_s, now_n, state, charge)
  local used = state.used
  if charge then used = used + tonumber(ARGV[a + 4]) end
  redis.call('SET', key, struct.pack('>I2I5I4I7', FORMAT, state.es, state.en, used),
             'PX', life(sub(state.es, state.en, now_s, now_n)))
end

function fixed.refund(key, a, now_s, now_n, state)
  if not after(state[1], state[2], now_s, now_n) then return end
  state.used = state.used - math.min(state.used, tonumber(ARGV[a + 4]))
  fixed.write(key, a, now_s, now_n, state, false)
end
