-- KEYS: one per item. ARGV: runs of items that are asked for alike; a run is
--   count, lease in us, expiry in ms, redrive, must exist (1 or 0), holder, head and tail of a new record
-- and then one argument per item: owner, and fingerprint if it has one.
-- Answer: the clock in us (7 bytes), then for each item a letter:
--   A made and acquired, X absent, F not a record, and, followed by the expiry left in ms (7 bytes, where
--   the record is finished), the record's length (4 bytes) and the record:
--   M the asker's, R not the asker's, N other fingerprint
local us, ms = clock()
local now7, seen, out = pack7(ms), read(), {}
local values, ttls, created = {}, {}, {}

local function answer(letter, i, r, v)
  local left = 0
  if r.state == Done or r.state == Failed then left = max(0, call('PTTL', KEYS[i])) end
  return letter .. pack7(left) .. pack4(#v) .. v
end

-- claim decides about an existing record; the same decisions in the same order as memstore's.
local function claim(i, v, who, lease, ttl, redrive, holder)
  local r = decode(v)
  if not r then return 'F' end
  local owner, fp = sub(who, 1, 16), sub(who, 17)
  if r.fp ~= '' and fp ~= '' and r.fp ~= fp then return answer('N', i, r, v) end
  if r.owner == owner then -- the same call again: its reply was lost
    if r.lease then
      r.lease = us + lease
      v = encode(r)
      values[i], ttls[i] = v, ttl
    end
    return answer('M', i, r, v)
  end
  local higher = redrive > r.redrive
  if owned(r) then
    if r.lease and us < r.lease then return answer('R', i, r, v) end
    if r.state == InProgress and (r.crashes == 0 or r.alone) then r.crashes = r.crashes + 1 end
  elseif r.state == Done or (r.state == Failed and not higher) then
    return answer('R', i, r, v)
  end
  if r.state ~= Condemned or higher then r.state = InProgress end
  if higher then r.redrive, r.attempts, r.crashes = redrive, 0, 0 end
  if fp ~= '' then r.fp = fp end
  r.epoch = max(r.epoch + 1, ms)
  r.owner, r.holder, r.alone, r.lease = owner, holder, false, us + lease
  v = encode(r)
  values[i], ttls[i] = v, ttl
  return answer('M', i, r, v)
end

local a, i = 1, 0
while i < #KEYS do
  local count, lease, ttl, redrive = ARGV[a] + 0, ARGV[a + 1] + 0, ARGV[a + 2], ARGV[a + 3] + 0
  local absent, holder = ARGV[a + 4] == '0' and 'A' or 'X', ARGV[a + 5]
  local head, tail = ARGV[a + 6] .. now7, pack7(us + lease) .. ARGV[a + 7]
  a = a + 8
  for _ = 1, count do
    i = i + 1
    local v = seen[i]
    if v then
      out[i] = claim(i, v, ARGV[a], lease, ttl, redrive, holder)
    else
      out[i] = absent
      if absent == 'A' then
        values[i], ttls[i], created[i] = head .. ARGV[a] .. tail, ttl, true
      elseif call('EXISTS', KEYS[i]) == 1 then
        out[i] = 'F' -- another type
      end
    end
    a = a + 1
  end
end
for k in pairs(write(values, ttls, created)) do out[k] = 'F' end
return pack7(us) .. table.concat(out)
