-- KEYS: one. Answer: '' where there is nothing, else the clock in us and the expiry left in ms
-- (7 bytes each; 0 where it has none) and the record.
local v = call('GET', KEYS[1])
if not v then return '' end
local us = clock()
return pack7(us) .. pack7(max(0, call('PTTL', KEYS[1]))) .. v
