-- sliding-window: two counters; the previous window is weighted by the share of it that still
-- overlaps.
--
-- Value: the format (value.lua); the end of the window after the current one, 5 bytes of seconds
--   and 4 of nanoseconds; the current and the previous units, 4 bytes each. With the flag 1, for a
--   key that owes, the window is the last one that the debt reaches, and in place of the previous
--   units is MARK and the code of the windows before it, which are full.
-- ARGV, 4: period s, ns; count; cost (both below 2^32). For lease, 8 more: see given_to().
-- State in the reply, 4: s, ns, current, previous; all 0 if fresh.
local sliding = {args = 4, more = 1, of_lease = 8}

-- kSlidingDebtMark.
local MARK = 4294966784

-- units * (s, n), exact, for units < 2^32 and s < 2^33. Returns three digits, of 2^16
-- seconds, of seconds and of nanoseconds, so that products compare digit by digit.
local function product(units, s, n)
  local high = math.floor(units / 65536)
  local low = units % 65536
  local n1 = high * n -- < 2^46
  local r = (n1 % E9) * 65536 + low * n -- < 2^47
  local carry = math.floor(r / E9)
  local rest = r % E9
  local top = high * s + math.floor(n1 / E9) -- < 2^50, as the next
  local bottom = low * s + carry
  return top + math.floor(bottom / 65536), bottom % 65536, rest
end

-- Whether a charge leaves `room` units or more for the weight of the previous window.
local function fits(a, now_s, now_n, state, room)
  if room < 0 then return false end
  if state.previous <= room then return true end
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local ls, ln = ps, pn
  if after(now_s, now_n, state.ss, state.sn) then
    ls, ln = sub(ps, pn, sub(now_s, now_n, state.ss, state.sn))
  end
  local t1, m1, l1 = product(state.previous, ls, ln)
  local t2, m2, l2 = product(room, ps, pn)
  return not (t1 > t2 or (t1 == t2 and (m1 > m2 or (m1 == m2 and l1 > l2))))
end

-- Reads a state that owes, whose last window begins at (ls, ln), after now.
local function read_owing(a, now_s, now_n, state, ls, ln)
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local count = math.max(1, tonumber(ARGV[a + 2]))
  local ss, sn = floor_to(now_s, now_n, ps, pn)
  local ds, dn = sub(ls, ln, ss, sn)
  local full = debts().quotient(ds, dn, ps, pn)
  local most = math.min(debts().of_code(state[4] - MARK), math.floor((9007199254740991 - state[3]) / count))
  if full > most then
    full = most
    local fs, fn = sub(ls, ln, debts().times(most, ps, pn))
    ds, dn = sub(fs, fn, now_s, now_n)
    if after(ds, dn, 0, TOLERANCE) then
      state.behind = true
    else
      ss, sn = fs, fn
    end
  end
  state.owes = true
  state.ss, state.sn, state.previous = ss, sn, 0
  state.current = math.min(state[3] + full * tonumber(ARGV[a + 2]),
                           debts().quotient(LONGEST, 0, ps, pn) * count)
end

function sliding.read(key, a, now_s, now_n)
  local value = redis.call('GET', key)
  local gs, gn, current, previous = 0, 0, 0, 0
  if value then
    local format = 0
    if #value == 19 then format, gs, gn, current, previous = struct.unpack('>I2I5I4I4I4', value) end
    if previous >= MARK and format == FORMAT + DEBT then format = FORMAT end
    if format ~= FORMAT or gs > LAST_SECOND or gn >= E9 then
      refuse(value, 'a sliding window', 2)
    end
  end
  local state = {
    gs, gn, current, previous, ss = 0, sn = 0, current = 0, previous = 0, allowed = false,
  }
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local ss, sn
  if after(gs, gn, now_s, now_n) then
    local es, en = sub(gs, gn, ps, pn)
    if previous >= MARK and tonumber(ARGV[a + 2]) < MARK then
      ss, sn = sub(es, en, ps, pn)
      if after(ss, sn, now_s, now_n) then
        read_owing(a, now_s, now_n, state, ss, sn)
        local room = ARGV[a + 2] - state.current - ARGV[a + 3]
        state.allowed = fits(a, now_s, now_n, state, room)
        return state
      end
      previous = tonumber(ARGV[a + 2])
    end
    if not after(es, en, now_s, now_n) then
      ss, sn, current, previous = es, en, 0, current
    else
      ss, sn = sub(es, en, ps, pn)
      local ds, dn = sub(ss, sn, now_s, now_n)
      if after(ds, dn, 0, TOLERANCE) then
        state.behind = true
        ss, sn = floor_to(now_s, now_n, ps, pn)
      end
    end
  else
    current, previous = 0, 0
    ss, sn = floor_to(now_s, now_n, ps, pn)
  end
  state.ss, state.sn, state.current, state.previous = ss, sn, current, previous
  local room = ARGV[a + 2] - current - ARGV[a + 3]
  state.allowed = fits(a, now_s, now_n, state, room)
  return state
end

function sliding.write(key, a, now_s, now_n, state, charge)
  local current, previous, format = state.current, state.previous, FORMAT
  if charge then current = current + ARGV[a + 3] end
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local ss, sn = state.ss, state.sn
  if state.owes then
    local count = tonumber(ARGV[a + 2])
    previous = count  -- what it was is not known any more
    if current > count and count > 0 then
      local full = math.floor((current - 1) / count)
      ss, sn = add(ss, sn, debts().times(full, ps, pn))
      current, previous, format = current - full * count, MARK + debts().code_of(full), FORMAT + DEBT
    end
  end
  local gs, gn = add(ss, sn, ps, pn)
  gs, gn = add(gs, gn, ps, pn)
  redis.call('SET', key, struct.pack('>I2I5I4I4I4', format, gs, gn, current, previous),
             'PX', life(sub(gs, gn, now_s, now_n)))
end

if not plain then
  -- The weight of the previous window, rounded up, is found by bisection.
  local function weight_of(a, now_s, now_n, state)
    local least, most = 0, state.previous
    while least < most do
      local middle = math.floor((least + most) / 2)
      if fits(a, now_s, now_n, state, middle) then
        most = middle
      else
        least = middle + 1
      end
    end
    return least
  end

  function sliding.take(key, a, now_s, now_n, state)
    local count = tonumber(ARGV[a + 2])
    local weight = weight_of(a, now_s, now_n, state)
    local room = math.max(0, count + tonumber(ARGV[a + 4]) - state.current - weight)
    local units = math.min(tonumber(ARGV[a + 3]), room)
    state.owes = state.owes or (units > 0 and state.current + units > count)
    ARGV[a + 3] = units
    return units
  end

  -- Applies what a node reports with its question: also of the window before, whose units count
  -- still.
  function sliding.hear(key, a, now_s, now_n, state)
    if state.owes or state.behind then return end
    local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
    local es, en = add(state.ss, state.sn, ps, pn)
    local current = math.min(state.current, given_to(a + 4, es, en))
    local previous = math.min(state.previous, given_to(a + 4, state.ss, state.sn))
    if current == 0 and previous == 0 then return end
    state.current, state.previous = state.current - current, state.previous - previous
    state.changed = true
    state[1], state[2] = add(es, en, ps, pn)
    state[3], state[4] = state.current, state.previous
    local room = ARGV[a + 2] - state.current - ARGV[a + 3]
    state.allowed = fits(a, now_s, now_n, state, room)
  end

  -- Grants at most half of the room, unless the call was refused. Returns how many units. The weight
  -- of the window before only falls until this one ends, so each of them has room whenever it is
  -- spent.
  function sliding.lease(key, a, now_s, now_n, state, charged, passed)
    local units, wanted = 0, tonumber(ARGV[a + 4])
    if charged then state.current = state.current + tonumber(ARGV[a + 3]) end
    if passed and wanted > 0 and not state.behind then
      local room = tonumber(ARGV[a + 2]) - state.current - weight_of(a, now_s, now_n, state)
      units = math.min(wanted, math.floor(math.max(0, room) / 2))
      state.current = state.current + units
    end
    if charged or units > 0 or state.changed or state.behind then
      sliding.write(key, a, now_s, now_n, state, false)
    end
    return units
  end

  function sliding.refund(key, a, now_s, now_n, state)
    if not after(state[1], state[2], now_s, now_n) then return end
    state.current = state.current - math.min(state.current, tonumber(ARGV[a + 3]))
    sliding.write(key, a, now_s, now_n, state, false)
  end
end
