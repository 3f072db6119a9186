-- token-bucket and leaky-bucket: GCRA over an exact theoretical arrival time.
--
-- Value: the instant. Where it is a whole number of microseconds since the epoch, that,
--   decimal; else 5 bytes of seconds and 4 of nanoseconds, big-endian (the first byte is
--   no digit), and where it is no whole number of nanoseconds either, 7 bytes of
--   fraction in units of 1/denominator ns. Of a limit with an id always these 16 bytes, and 4
--   each of the count and the denominator that wrote them.
-- ARGV, 9: depth s, ns, fraction (burst * T); denominator; never (1 where the
--   cost is beyond the burst); cost * T as s, ns, fraction; the count of a limit with an id, else 0.
-- State in the reply, 4: s, ns, fraction, 0; all 0 where fresh. As this limit's count would have
--   written it.
local bucket = {args = 9}

-- What another count and denominator have written, as this limit's would have: the same units
-- used. What has no place in the fraction is rounded up. Exact while the products are below 2^53.
local function scaled(s, n, f, other, other_denominator, count, denominator, now_s, now_n)
  if after(now_s, now_n, s, n) or count == 0 then return s, n, 0 end
  local us, un = sub(s, n, now_s, now_n)
  if us * other / count > 8000000000 then return now_s + 8000000000, now_n, 0 end
  local whole = math.floor(us * other / count)
  local rest = (us * other - whole * count) * E9 + un * other + f * other / other_denominator
  local ns = math.floor(rest / count)
  -- Less than any fraction that is there: what the division of doubles leaves.
  local parts = math.ceil((rest - ns * count) * denominator / count - 0.000001)
  if parts >= denominator then ns, parts = ns + 1, 0 end
  if parts < 0 then parts = 0 end
  local more = math.floor(ns / E9)
  s, n = add(now_s, now_n, whole + more, ns - more * E9)
  return s, n, parts
end

-- (s, n, f) compared with (S, N, F): greater.
local function deeper(s, n, f, S, N, F)
  return s > S or (s == S and (n > N or (n == N and f > F)))
end

function bucket.read(key, a, now_s, now_n)
  local value = redis.call('GET', key)
  local s, n, f = 0, 0, 0
  local rescaled = false
  if value then
    if string.byte(value) >= 48 then
      local us = tonumber(value)
      s = math.floor(us / 1000000)
      n = (us - s * 1000000) * 1000
    elseif #value == 9 then
      s, n = struct.unpack('>I5I4', value)
    elseif #value == 16 then
      s, n, f = struct.unpack('>I5I4I7', value)
    elseif #value == 24 then
      local other, other_denominator
      local count, denominator = tonumber(ARGV[a + 8]), tonumber(ARGV[a + 3])
      s, n, f, other, other_denominator = struct.unpack('>I5I4I7I4I4', value)
      if other ~= count then
        rescaled = true
        s, n, f = scaled(s, n, f, other, other_denominator, count, denominator, now_s, now_n)
      end
    else
      error('TIDEGATE the value of a key is not a bucket')
    end
  end
  local state = {s, n, f, 0}
  local depth_s, depth_n, depth_f = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local denominator = tonumber(ARGV[a + 3])
  -- What is used, as a duration from now.
  local us, un, uf = 0, 0, 0
  if not after(now_s, now_n, s, n) and (s > 0 or n > 0) then
    us, un = sub(s, n, now_s, now_n)
    uf = f
    local ts, tn = add(depth_s, depth_n, 0, TOLERANCE)
    if deeper(us, un, uf, ts, tn, depth_f) then
      state.behind = true
      us, un, uf = depth_s, depth_n, depth_f
    end
  end
  state.before = {us, un, uf}
  if ARGV[a + 4] == '0' then
    local add_f = tonumber(ARGV[a + 7])
    us, un = add(us, un, tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6]))
    -- Without ever adding two fractions: their sum may be beyond 2^53.
    if uf >= denominator - add_f then
      uf = uf - (denominator - add_f)
      us, un = add(us, un, 0, 1)
    else
      uf = uf + add_f
    end
    state.after = {us, un, uf}
    state.allowed = not deeper(us, un, uf, depth_s, depth_n, depth_f)
  end
  -- Written anew, so that from here on it is given back at this limit's rate.
  state.rescaled = rescaled and not state.allowed
  return state
end

function bucket.write(key, a, now_s, now_n, state, charge)
  local used = charge and state.after or state.before
  local s, n = add(now_s, now_n, used[1], used[2])
  local value
  if ARGV[a + 8] ~= '0' then
    value = struct.pack('>I5I4I7I4I4', s, n, used[3], tonumber(ARGV[a + 8]), tonumber(ARGV[a + 3]))
  elseif used[3] == 0 and n % 1000 == 0 then
    value = s * 1000000 + n / 1000
  elseif used[3] == 0 then
    value = struct.pack('>I5I4', s, n)
  else
    value = struct.pack('>I5I4I7', s, n, used[3])
  end
  -- The fraction is part of one more nanosecond.
  local ls, ln = add(used[1], used[2], 0, 1)
  redis.call('SET', key, value, 'PX', life(ls, ln))
end

-- Here cost * T is that of min(cost, burst).
function bucket.refund(key, a, now_s, now_n, state)
  local s, n, f = state[1], state[2], state[3]
  if not after(s, n, now_s, now_n) and not (s == now_s and n == now_n and f > 0) then return end
  s, n = sub(s, n, tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6]))
  f = f - tonumber(ARGV[a + 7])
  if f < 0 then
    f = f + tonumber(ARGV[a + 3])
    s, n = sub(s, n, 0, 1)
  end
  if not after(s, n, now_s, now_n) and not (s == now_s and n == now_n and f > 0) then
    redis.call('DEL', key)
    return
  end
  s, n = sub(s, n, now_s, now_n)
  bucket.write(key, a, now_s, now_n, {before = {s, n, f}}, false)
end
