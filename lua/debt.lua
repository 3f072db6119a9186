-- What is needed of keys that owe: codes of debts (cpp/core/algorithms/debt.h), and multiples of a
-- period, for the algorithms whose debt is counted in periods.

-- The seconds of the longest period, within which what is owed is paid.
local LONGEST = 3155760000

local made
-- The functions, which are defined by the first call: few keys owe, and a script defines its
-- functions anew each time.
local function debts()
  if made then return made end
  made = {}

  -- The code of a number, which is rounded up.
  function made.code_of(number)
    local shift, unit = 0, 1
    while number >= 16 * unit do shift, unit = shift + 1, unit * 2 end
    return shift * 8 + math.ceil(number / unit)
  end

  function made.of_code(code)
    if code < 8 then return code end
    return (8 + code % 8) * 2 ^ (math.floor(code / 8) - 1)
  end

  -- The same as a duration.
  function made.time_of_code(code)
    local ns = made.of_code(code)
    local s = math.floor(ns / E9)
    if ns < s * E9 then s = s - 1 end
    return s, ns - s * E9
  end

  -- k * (s, n), exact, for up to 100 years.
  function made.times(k, s, n)
    local high = math.floor(k / 65536)
    local n1 = high * n
    local carried = math.floor(n1 / E9)
    local rest = (n1 - carried * E9) * 65536 + (k - high * 65536) * n
    local more = math.floor(rest / E9)
    return k * s + carried * 65536 + more, rest - more * E9
  end

  -- (s, n) / (ps, pn), rounded down.
  function made.quotient(s, n, ps, pn)
    local k = math.floor((s + n / E9) / (ps + pn / E9))
    -- Undoes a rounding error.
    local ts, tn = made.times(k, ps, pn)
    if after(ts, tn, s, n) then return k - 1 end
    ts, tn = add(ts, tn, ps, pn)
    if after(ts, tn, s, n) then return k end
    return k + 1
  end
  return made
end
