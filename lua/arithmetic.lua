-- Exact instants and durations. Numbers here are doubles, exact below 2^53, so
-- nanoseconds since the epoch are carried as two numbers: whole seconds
-- (0 to 2^33) and nanoseconds (0 to 1e9 - 1). A negative duration has negative
-- seconds, to which its nanoseconds are added.
local E9 = 1000000000

local function sub(s1, n1, s2, n2)
  if n1 < n2 then return s1 - s2 - 1, n1 + E9 - n2 end
  return s1 - s2, n1 - n2
end

local function add(s1, n1, s2, n2)
  local n = n1 + n2
  if n >= E9 then return s1 + s2 + 1, n - E9 end
  return s1 + s2, n
end

-- (s1, n1) > (s2, n2)
local function after(s1, n1, s2, n2)
  return s1 > s2 or (s1 == s2 and n1 > n2)
end

-- TOLERANCE, in nanoseconds, is how far a state may lie ahead of `now` before the clock is
-- assumed to have gone back; the core prepends its definition (kClockToleranceNs).

-- The lifetime of a key whose state matters for (s, n): milliseconds, rounded up, at least 1, plus
-- the margin of the plan. Adds 2, since the server counts from a millisecond that it rounds down
-- and may have read before the script began.
local margin_ms = 0
local function life(s, n)
  local ms = s * 1000 + math.ceil(n / 1000000) + 2 + margin_ms
  if ms < 1 then ms = 1 end
  return ms
end

-- The start of the window of width (ps, pn) that holds (s, n), aligned to the
-- epoch.
local function floor_to(s, n, ps, pn)
  if pn == 0 then return s - s % ps, 0 end
  if ps == 0 and E9 % pn == 0 then return s, n - n % pn end
  -- The remainder by long division, one bit of the seconds at a time.
  local us, un = 1, 0
  if ps == 0 then us, un = 0, E9 % pn end
  local rs, rn = 0, 0
  local bit = 8589934592
  while bit >= 1 do
    rs, rn = add(rs, rn, rs, rn)
    if not after(ps, pn, rs, rn) then rs, rn = sub(rs, rn, ps, pn) end
    if s % (bit * 2) >= bit then
      rs, rn = add(rs, rn, us, un)
      if not after(ps, pn, rs, rn) then rs, rn = sub(rs, rn, ps, pn) end
    end
    bit = bit / 2
  end
  if ps == 0 then
    rn = (rn + n % pn) % pn
  else
    rs, rn = add(rs, rn, 0, n)
    if not after(ps, pn, rs, rn) then rs, rn = sub(rs, rn, ps, pn) end
  end
  return sub(s, n, rs, rn)
end
