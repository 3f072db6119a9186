-- Multiples of a period, for the algorithms whose debt is counted in periods.

-- The seconds of the longest period, within which what is owed is paid.
local LONGEST = 3155760000

local times, quotient

-- Defines them, and what need_codes() does.
local function need_periods()
  need_codes()
  -- k * (s, n), exact, for up to 100 years.
  function times(k, s, n)
    local high = math.floor(k / 65536)
    local n1 = high * n
    local carried = math.floor(n1 / E9)
    local rest = (n1 - carried * E9) * 65536 + (k - high * 65536) * n
    local more = math.floor(rest / E9)
    return k * s + carried * 65536 + more, rest - more * E9
  end

  -- (s, n) / (ps, pn), rounded down.
  function quotient(s, n, ps, pn)
    local k = math.floor((s + n / E9) / (ps + pn / E9))
    -- Undoes a rounding error.
    local ts, tn = times(k, ps, pn)
    if after(ts, tn, s, n) then return k - 1 end
    ts, tn = add(ts, tn, ps, pn)
    if after(ts, tn, s, n) then return k end
    return k + 1
  end
end
if not plain then need_periods() end
