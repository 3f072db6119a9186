-- The units of a bucket that nodes may still spend (cpp/core/leases/centre.h), for which the centre
-- charged them when it granted them. While some are out, the bucket does not refill below what is
-- out, so that no interval has more admissions than the burst and what comes back in it.
--
-- Value: with the flag 32 a bucket's fields are followed by 7 bytes of the end of the current slot
--   and 5 of its length, microseconds, and 6 each of the units that were granted in this slot and in
--   the one before. Without units out there are no such fields.
local SLOTS = 32
local SLOTS_SIZE = 24
-- The longest slot, microseconds. Leases are no longer than 10 s.
local LONGEST_SLOT = 60000000

-- Whether (s, n, f) > (S, N, F).
local function deeper(s, n, f, S, N, F)
  return s > S or (s == S and (n > N or (n == N and f > F)))
end

-- (s, n, f) + (S, N, F), without adding two fractions, whose sum may be beyond 2^53.
local function plus(s, n, f, S, N, F, denominator)
  s, n = add(s, n, S, N)
  if f >= denominator - F then
    s, n = add(s, n, 0, 1)
    return s, n, f - (denominator - F)
  end
  return s, n, f + F
end

local held
-- The functions, which are defined by the first call: nodes hold units of few keys, and a script
-- defines its functions anew each time.
local function holding()
  if held then return held end
  held = {}

  -- (s, n, f) - (S, N, F), which is not greater.
  function held.minus(s, n, f, S, N, F, denominator)
    s, n = sub(s, n, S, N)
    if f >= F then return s, n, f - F end
    s, n = sub(s, n, 0, 1)
    return s, n, f + (denominator - F)
  end

  -- units * T, exact; `unit` is {s, n, f, denominator}.
  function held.time_of(units, unit)
    local s, n, f, denominator = unit[1], unit[2], unit[3], unit[4]
    local rs, rn, rf = 0, 0, 0
    while units > 0 do
      if units % 2 == 1 then rs, rn, rf = plus(rs, rn, rf, s, n, f, denominator) end
      units = math.floor(units / 2)
      if units > 0 then s, n, f = plus(s, n, f, s, n, f, denominator) end
    end
    return rs, rn, rf
  end

  -- The slots at the end of a value; none if they cannot be ours.
  function held.of(value)
    local finish, length, current, previous =
      struct.unpack('>I7I5I6I6', value, #value - SLOTS_SIZE + 1)
    if length < 1 or length > LONGEST_SLOT or finish > LAST_SECOND * 1000000 then return nil end
    return {finish = finish, length = length, current = current, previous = previous}
  end

  function held.packed(slots)
    return struct.pack('>I7I5I6I6', slots.finish, slots.length, slots.current, slots.previous)
  end

  -- The usage `used`, {s, n, f}, or that of `units` units `ago` microseconds ago, if that is more,
  -- but no more than `depth`: units that are out since the limit was larger owe nothing.
  function held.raised(used, units, ago, unit, depth)
    local s, n, f = held.time_of(units, unit)
    local as = math.floor(ago / 1000000)
    local an = (ago - as * 1000000) * 1000
    if s < as or (s == as and n < an) then return used end
    s, n = sub(s, n, as, an)
    if depth and deeper(s, n, f, depth[1], depth[2], depth[3]) then s, n, f = unpack(depth) end
    if not deeper(s, n, f, used[1], used[2], used[3]) then return used end
    return {s, n, f}
  end

  -- Ends the slots that are over and caps the usage. Returns the usage, and the slots if units are
  -- still out.
  function held.settled(slots, now, used, unit, depth)
    if slots.finish > now + slots.length + TOLERANCE / 1000 then
      -- The clock went back.
      slots.finish = now + slots.length
      slots.current, slots.previous = slots.current + slots.previous, 0
    end
    if now >= slots.finish then
      used = held.raised(used, slots.current + slots.previous, now - slots.finish, unit, depth)
      slots.finish = slots.finish + slots.length
      slots.current, slots.previous = 0, slots.current
    end
    if now >= slots.finish then
      return held.raised(used, slots.previous, now - slots.finish, unit, depth)
    end
    local out = slots.current + slots.previous
    if out == 0 then return used end
    return held.raised(used, out, 0, unit, depth), slots
  end

  -- Applies what a node reports about a slot: units that it spent, and units that it gives back.
  -- Slots that are over are ignored. Returns the usage.
  function held.heard(slots, finish, spent, given, used, unit)
    local name = 'current'
    if finish ~= slots.finish then
      if finish ~= slots.finish - slots.length then return used end
      name = 'previous'
    end
    slots[name] = slots[name] - math.min(slots[name], spent)
    local back = math.min(slots[name], given)
    if back == 0 then return used end
    slots[name] = slots[name] - back
    local s, n, f = held.time_of(back, unit)
    return {held.minus(used[1], used[2], used[3], s, n, f, unit[4])}
  end

  -- Counts granted units, which nodes may spend for `length` microseconds.
  function held.granted(slots, now, units, length)
    if not slots or slots.current + slots.previous == 0 then
      return {finish = now + length, length = length, current = units, previous = 0}
    end
    if length > slots.length then
      slots.finish, slots.length = now + length, length
      slots.current, slots.previous = slots.current + slots.previous, 0
    end
    slots.current = slots.current + units
    return slots
  end

  -- The usage for as long as which the key must live.
  function held.longest(slots, now, used, unit)
    if not slots or slots.current + slots.previous == 0 then return used end
    used = held.raised(used, slots.current + slots.previous, now - slots.finish, unit)
    return held.raised(used, slots.current, now - slots.finish - slots.length, unit)
  end
  return held
end
