-- What a node that was leased units of a window reports with its question (lua/plan.lua). A window's
-- units are counted in it when they are granted, and are spent before it ends, so nothing else needs
-- to be known of them. ARGV from a on, 8, the same as for a bucket: the units wanted; for how many
-- microseconds, which is not used; and for two windows the end, microseconds, the units spent, which
-- is not used, and the units given back.
-- Returns the units given back to the window that ends at (es, en).
local given_to
if not plain then
  function given_to(a, es, en)
    local given = 0
    for report = a + 2, a + 5, 3 do
      if tonumber(ARGV[report]) == es * 1000000 + math.floor(en / 1000) then
        given = given + tonumber(ARGV[report + 2])
      end
    end
    return given
  end
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
