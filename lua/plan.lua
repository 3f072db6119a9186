-- Applies a plan: every limit is evaluated, and all are charged or none. The core puts
-- arithmetic.lua and the algorithms that the plan needs before this file.
--
-- KEYS: one for each limit, all of one hash slot.
-- ARGV[1] the operation:
--   hit, peek, refund, release
--   lease, a hit of a node that wants units for later hits too
--   extend (of the leases of places)
--   top_up and bring_forward (of one quota)
--   charge, which charges what has been used and refuses nothing
--   reset, which leaves carried and topped-up units of quotas, and forget: both leave the units of
--   buckets that nodes hold, and delete the keys of other limits
-- ARGV[2], [3] the instant of the call, s and ns; both empty: the server's TIME.
-- ARGV[4] 1 if a state that lies further ahead than the clock allows may be moved back (see
--   cpp/include/tidegate/step.h).
-- ARGV[5] milliseconds that keys are kept after their state no longer matters.
-- ARGV[6] one letter for each limit, or empty for e of all:
--   e: none of the others
--   s: in shadow, so that it refuses nothing and is charged if it has room
--   o: a cost beyond the capacity passes when nothing of the key is used, and owes the rest
--   p: both
-- Then for each limit:
--   its algorithm (bucket, fixed, sliding, log, places, late_places, quota)
--   the arguments that the head of that file lists
--   for charge, o and p `more` arguments with the most that may be owed: of a bucket burst * T and
--   that, each as s, ns, fraction; else units
--   for lease `of_lease` arguments, of buckets and windows
-- Reply, all integers but the states of quotas:
--   1 if all limits pass, else 0; 1 for operations that decide nothing
--   the instant of the call, s, ns
--   for each limit its state before the call: 4 or 6 numbers or a text, as the head of its file
--   lists; the core computes the values of headers from it, by its pure step. If nodes hold units
--   of any of the keys, 8 for each limit, those that a state does not have being 0
--   for charge and lease, for each limit the units that it was charged or that it granted
-- Units: seconds and nanoseconds since the epoch.
local reply = {1, now_s, now_n}
local plan = {}
local width
local a = 7
for i = 1, #KEYS do
  local algorithm = algorithms[ARGV[a]]
  local state = algorithm.read(KEYS[i], a + 1, now_s, now_n)
  plan[i] = {algorithm, a + 1, state}
  local refused = not state.allowed
  if not plain then
    if op == 'lease' and algorithm.hear then algorithm.hear(KEYS[i], a + 1, now_s, now_n, state) end
    if op == 'charge' then
      plan[i][4] = algorithm.take(KEYS[i], a + 1, now_s, now_n, state)
    end
    refused = refuses(i, state) and op ~= 'charge'
  end
  if refused or (state.behind and not confirmed) then reply[1] = 0 end
  if #state == 8 then width = 8 end
  a = a + 1 + algorithm.args
  if not plain then
    if op == 'charge' or state.oversize then a = a + algorithm.more end
    if op == 'lease' then a = a + (algorithm.of_lease or 0) end
  end
end

local size = 3
for i = 1, #KEYS do
  local state = plan[i][3]
  for j = 1, width or #state do reply[size + j] = state[j] or 0 end
  size = size + (width or #state)
end

if op == 'hit' or op == 'lease' then
  local charge = reply[1] == 1
  for i = 1, #KEYS do
    local state = plan[i][3]
    -- A plan that is charged may have limits in shadow without room.
    local charged = charge and state.allowed
    local lease = op == 'lease' and plan[i][1].lease
    if op == 'lease' then reply[size + i] = 0 end
    if lease then
      reply[size + i] = lease(KEYS[i], plan[i][2], now_s, now_n, state, charged, charge)
    elseif charged or (state.behind and confirmed) then
      if charged and state.oversize then
        plan[i][1].take(KEYS[i], plan[i][2], now_s, now_n, state)
      end
      plan[i][1].write(KEYS[i], plan[i][2], now_s, now_n, state, charged)
    end
  end
elseif op == 'charge' then
  for i = 1, #KEYS do
    local state = plan[i][3]
    local units = reply[1] == 1 and plan[i][4] or 0
    if units > 0 or (state.behind and confirmed) then
      plan[i][1].write(KEYS[i], plan[i][2], now_s, now_n, state, units > 0)
    end
    reply[size + i] = units
  end
elseif op ~= 'peek' then
  for i = 1, #KEYS do
    local apply = plan[i][1][op]
    if (op == 'reset' or op == 'forget') and not apply then
      redis.call('DEL', KEYS[i])
    else
      apply(KEYS[i], plan[i][2], now_s, now_n, plan[i][3])
    end
  end
  reply[1] = 1
end
return reply
