-- The values of keys. A bucket without an id whose instant is a whole number of microseconds is
-- that number in decimal. Every other value begins with two bytes, the format and its flags; then
-- come the fields that the head of the algorithm's file lists, big-endian.
--
-- The format is 128 + its version. No text in UTF-8 begins with such a byte, so the text of another
-- program is not taken for a value of ours. The flags say which optional fields there are: a new
-- field gets a flag of its own, by which versions that do not know it see that they cannot read the
-- value.
--
-- Each number of a value is checked before it is used. A value that tidegate cannot have written,
-- or that a newer version wrote, is neither used nor changed: the script raises an error, and the
-- call is decided by `on_error`. An instant that is possible but lies too far ahead is that of a
-- clock that went back (cpp/include/tidegate/step.h).
local FORMAT = 33024 -- 129 and no flags, as a number of two bytes
-- The flag of a value of a key that owes, which has a code that says how far ahead the debt has put
-- it (cpp/core/algorithms/debt.h). Versions that know no debts refuse it.
local DEBT = 1

-- Whether the call is a hit of limits that only refuse what has no room. Such a hit needs few of
-- the functions, and a script defines its functions anew at each call, so the files define the
-- others only if it is not.
local plain = ARGV[1] == 'hit' and ARGV[6] == ''

-- The last second whose nanoseconds fit 64 bits.
local LAST_SECOND = 9223372035

-- Raises the error for a value that is not `what`, whose flags are all below `flags`.
local function refuse(value, what, flags)
  local format, has = string.byte(value, 1, 2)
  if has and (format > 129 and format < 192 or format == 129 and has >= flags) then
    error('TIDEGATE the value of a key has the format ' .. format - 128 .. ', flags ' .. has ..
          ', which a newer version of tidegate wrote; expected the format 1, flags below ' .. flags)
  end
  error('TIDEGATE the value of a key is not ' .. what)
end
