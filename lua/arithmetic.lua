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
-- assumed to have gone back; the core replaces it by kClockToleranceNs.

-- The lifetime of a key whose state matters for (s, n): milliseconds, rounded up, at least 1, plus
-- the margin of the plan. Adds 2, since the server counts from a millisecond that it rounds down
-- and may have read before the script began.
local margin_ms = 0
local function life(s, n)
  local ms = s * 1000 + math.ceil(n / 1000000) + 2 + margin_ms
  if ms < 1 then ms = 1 end
  return ms
end
