-- KEYS: one per item. ARGV: runs of items that end alike; a run is
--   count, state, lease in us, expiry while held in ms, expiry once finished in ms, has payload (1 or 0),
--   head and tail of the record as it was claimed, head and tail of the record as it is to become
--   (empty where that must be worked out here)
-- and then for each item: epoch, owner, and fingerprint if it has one; and its payload, which is the
-- result or the length-prefixed reason.
-- Answer: one letter an item: O finished, L finished though it was lost, S superseded, F not a record.
local us = clock()
local seen, out = read(), {}
local values, ttls, created = {}, {}, {}

-- apply is memstore's finish: it changes r and returns the letter, and the expiry if r is to be written.
local function apply(r, owner, state, payload, lease, held, finished)
  if r.owner ~= owner then return 'S' end
  if r.state == state or (r.state == Condemned and state == Released and not r.lease) then return 'O' end
  if not owned(r) or not r.lease then return 'S' end
  if r.state == Condemned then
    if state == Released then -- free for the next owner, and still condemned
      r.lease, r.holder = nil, ''
      return 'O', finished
    elseif state ~= Failed then
      return 'S'
    end
  end
  r.state, r.alone = state, false
  if state == Condemned then
    r.err, r.lease = sub(payload, 3), us + lease
    return 'O', held
  end
  if state == Done then
    r.attempts, r.crashes, r.err, r.result = 0, 0, '', payload
  elseif state == Retryable then
    r.attempts, r.crashes, r.err = r.attempts + 1, 0, sub(payload, 3)
  elseif state == Failed then
    r.err = sub(payload, 3)
  end
  r.lease, r.holder = nil, ''
  return 'O', finished
end

local function finish(i, v, who, state, payload, lease, held, finished, fresh)
  local r = v and decode(v)
  if v and not r then return 'F' end
  local lost = not r or (r.state ~= Done and r.epoch < unpack7(who, 1))
  if lost then r, created[i] = decode(fresh), not v end
  local letter, ttl = apply(r, sub(who, 8, 23), state, payload, lease, held, finished)
  if lost and letter == 'O' then letter, ttl = 'L', ttl or held end
  if ttl then values[i], ttls[i] = encode(r), ttl end
  return letter
end

local a, i = 1, 0
while i < #KEYS do
  local count, state, lease, held, finished = ARGV[a] + 0, ARGV[a + 1] + 0, ARGV[a + 2] + 0, ARGV[a + 3], ARGV[a + 4]
  local stride, head, tail, newhead, newtail = ARGV[a + 5] + 1, ARGV[a + 6], ARGV[a + 7], ARGV[a + 8], ARGV[a + 9]
  local lease7 = pack7(us + lease)
  a = a + 10
  for _ = 1, count do
    i = i + 1
    local v, who = seen[i], ARGV[a]
    local payload = stride == 2 and ARGV[a + 1] or ''
    local start = head .. who
    if v and newhead ~= '' and sub(v, 1, #start) == start and #v == #start + 7 + #tail and sub(v, #start + 8) == tail then
      out[i], values[i], ttls[i] = 'O', newhead .. who .. newtail .. payload, finished
    else
      out[i] = finish(i, v, who, state, payload, lease, held, finished, start .. lease7 .. tail)
    end
    a = a + stride
  end
end
for k in pairs(write(values, ttls, created)) do out[k] = 'F' end
return table.concat(out)
