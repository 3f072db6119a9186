-- sliding-window: two counters; the previous window is weighted by the share of it that still
-- overlaps.
--
-- Value: the format (value.lua); the end of the window after the current one, 5 bytes of seconds
--   and 4 of nanoseconds; the current and the previous units, 4 bytes each.
-- ARGV, 4: period s, ns; count; cost (both below 2^32).
-- State in the reply, 4: s, ns, current, previous; all 0 if fresh.
local sliding = {args = 4}

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

function sliding.read(key, a, now_s, now_n)
  local value = redis.call('GET', key)
  local gs, gn, current, previous = 0, 0, 0, 0
  if value then
    local format = 0
    if #value == 19 then format, gs, gn, current, previous = struct.unpack('>I2I5I4I4I4', value) end
    if format ~= FORMAT or gs > LAST_SECOND or gn >= E9 then
      refuse(value, 'a sliding window', 1)
    end
  end
  local state = {gs, gn, current, previous}
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local ss, sn
  if after(gs, gn, now_s, now_n) then
    local es, en = sub(gs, gn, ps, pn)
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
  local room = tonumber(ARGV[a + 2]) - current - tonumber(ARGV[a + 3])
  state.allowed = fits(a, now_s, now_n, state, room)
  return state
end

-- Charges as many of the wanted units as fit, found by bisection.
function sliding.take(key, a, now_s, now_n, state)
  local free = tonumber(ARGV[a + 2]) - state.current
  local least, most = 0, math.min(tonumber(ARGV[a + 3]), math.max(0, free))
  while least < most do
    local middle = math.ceil((least + most) / 2)
    if fits(a, now_s, now_n, state, free - middle) then
      least = middle
    else
      most = middle - 1
    end
  end
  ARGV[a + 3] = least
  return least
end

function sliding.write(key, a, now_s, now_n, state, charge)
  local current = state.current
  if charge then current = current + tonumber(ARGV[a + 3]) end
  local ps, pn = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local gs, gn = add(state.ss, state.sn, ps, pn)
  gs, gn = add(gs, gn, ps, pn)
  redis.call('SET', key, struct.pack('>I2I5I4I4I4', FORMAT, gs, gn, current, state.previous),
             'PX', life(sub(gs, gn, now_s, now_n)))
end

function sliding.refund(key, a, now_s, now_n, state)
  if not after(state[1], state[2], now_s, now_n) then return end
  state.current = state.current - math.min(state.current, tonumber(ARGV[a + 3]))
  sliding.write(key, a, now_s, now_n, state, false)
end
