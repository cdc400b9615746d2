-- KEYS: one. Answer: '' where there is nothing, else when it expires by the server's clock, in ms
-- (7 bytes; 0 for never), and the record.
local v = call('GET', KEYS[1])
if not v then return '' end
return pack7(max(0, call('PEXPIRETIME', KEYS[1]))) .. v
