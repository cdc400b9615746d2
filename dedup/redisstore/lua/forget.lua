-- KEYS: one. Answer: B a lease runs, else O: there is nothing any more.
local v = pcall_('GET', KEYS[1])
if type(v) == 'string' then
  local r = decode(v)
  if r and r.lease and clock() < r.lease then return 'B' end
end
call('DEL', KEYS[1])
return 'O'
