-- The first arguments of a call, ARGV[1] to [6], which plan.lua lists; reserve.lua has the same.
local op = ARGV[1]
local now_s, now_n
if ARGV[2] == '' then
  local time = redis.call('TIME')
  now_s, now_n = tonumber(time[1]), tonumber(time[2]) * 1000
else
  now_s, now_n = tonumber(ARGV[2]), tonumber(ARGV[3])
end
local confirmed = ARGV[4] == '1'
margin_ms = tonumber(ARGV[5])
local letters = ARGV[6]

local refuses
if not plain then
  -- Whether nothing of a key is used, by the state that its algorithm has read.
  local function unused(state)
    local used = state.before
    if used then return used[1] == 0 and used[2] == 0 and used[3] == 0 end
    return (state.used or state.alive or state.current + state.previous) == 0
  end

  -- Judges limit `i` by its letter. Returns whether it refuses the call.
  function refuses(i, state)
    local letter = string.sub(letters, i, i)
    if letter == 'o' or letter == 'p' then state.allowed, state.oversize = unused(state), true end
    return not state.allowed and letter ~= 's' and letter ~= 'p'
  end
end
