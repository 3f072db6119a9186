-- The probe: finds out by a write whether the server works again. A server that is full, a replica,
-- or short of replicas still answers PING.
--
-- KEYS[1]: a key of the caller's slot that holds no limit; it expires at once.
-- ARGV[1]: the number of this probe.
-- Reply: that number, so that no other reply is taken for it.
redis.call('SET', KEYS[1], '', 'PX', 1)
return tonumber(ARGV[1])
