-- KEYS: one per item. ARGV: runs of items that are asked for alike; a run is
--   count, lease in us, expiry in ms, alone (1 or 0), head and tail of the record as it was claimed
-- and then one argument per item: epoch, owner, and fingerprint if it has one.
-- Answer: one letter an item: O extended, L made again, S superseded, F not a record.
local us = clock()
local seen, out = read(), {}
local values, ttls, created = {}, {}, {}

local function extend(i, v, who, lease, ttl, alone, fresh)
  local r = decode(v)
  if not r then return 'F' end
  local answer = 'O'
  if r.state ~= Done and r.epoch < unpack7(who, 1) then -- the store went back in time
    r, answer = decode(fresh), 'L'
  end
  if not owned(r) or not r.lease or r.owner ~= sub(who, 8, 23) then return 'S' end
  if alone and r.state == InProgress then r.alone = true end
  r.lease = us + lease
  values[i], ttls[i] = encode(r), ttl
  return answer
end

local a, i = 1, 0
while i < #KEYS do
  local count, lease, ttl, alone = ARGV[a] + 0, ARGV[a + 1] + 0, ARGV[a + 2], ARGV[a + 3] == '1'
  local head, tail = ARGV[a + 4], ARGV[a + 5]
  local lease7 = pack7(us + lease)
  a = a + 6
  for _ = 1, count do
    i = i + 1
    local v, who = seen[i], ARGV[a]
    local start = head .. who
    if not v then
      out[i], created[i] = 'L', true
      v = start .. lease7 .. tail
      extend(i, v, who, lease, ttl, alone, v)
    elseif not alone and sub(v, 1, #start) == start and sub(v, #start + 8) == tail and #v >= #start + 7 then
      out[i], values[i], ttls[i] = 'O', start .. lease7 .. tail, ttl
    else
      out[i] = extend(i, v, who, lease, ttl, alone, start .. lease7 .. tail)
    end
    a = a + 1
  end
end
for k in pairs(write(values, ttls, created)) do out[k] = 'F' end
return table.concat(out)
