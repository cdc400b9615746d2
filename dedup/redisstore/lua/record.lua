-- The record: shared by all scripts. Layout in doc.go.
local call, pcall_, byte, char, sub = redis.call, redis.pcall, string.byte, string.char, string.sub
local floor, max = math.floor, math.max
local InProgress, Done, Retryable, Failed, Released, Condemned = 2, 3, 4, 5, 6, 7

-- The server's clock in microseconds, and in milliseconds.
local function clock()
  local t = call('TIME')
  local us = t[1] * 1000000 + t[2]
  return us, floor(us / 1000)
end

local function pack7(n)
  return char(floor(n / 281474976710656) % 256, floor(n / 1099511627776) % 256, floor(n / 4294967296) % 256,
    floor(n / 16777216) % 256, floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
end

local function unpack7(s, p)
  local a, b, c, d, e, f, g = byte(s, p, p + 6)
  return ((((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256) + g
end

local function pack4(n)
  return char(floor(n / 16777216) % 256, floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
end

local function unpack4(s, p)
  local a, b, c, d = byte(s, p, p + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

-- decode returns nil for anything that encode cannot have written; it never raises.
local function decode(v)
  local n = #v
  if n < 26 then return nil end
  local version, state, flags = byte(v, 1, 3)
  if version ~= 1 or flags > 63 or state < InProgress or state > Condemned or byte(v, 4) > 31 then return nil end
  local r = {
    state = state, epoch = unpack7(v, 4), owner = sub(v, 11, 26), fp = '', attempts = 0, crashes = 0, redrive = 0,
    holder = '', err = '', alone = flags >= 32
  }
  local p = 27
  if flags % 2 >= 1 then
    if n < p + 15 then return nil end
    r.fp = sub(v, p, p + 15)
    p = p + 16
  end
  if flags % 4 >= 2 then
    if n < p + 6 then return nil end
    r.lease = unpack7(v, p)
    p = p + 7
  end
  if flags % 8 >= 4 then
    if n < p + 11 then return nil end
    r.attempts, r.crashes, r.redrive = unpack4(v, p), unpack4(v, p + 4), unpack4(v, p + 8)
    p = p + 12
  end
  if flags % 16 >= 8 then
    if n < p + 1 then return nil end
    local a, b = byte(v, p, p + 1)
    local last = p + 1 + a * 256 + b
    if n < last then return nil end
    r.holder = sub(v, p + 2, last)
    p = last + 1
  end
  if flags % 32 >= 16 then
    if n < p + 1 then return nil end
    local a, b = byte(v, p, p + 1)
    local last = p + 1 + a * 256 + b
    if n < last then return nil end
    r.err = sub(v, p + 2, last)
    p = last + 1
  end
  r.result = sub(v, p)
  if r.result ~= '' and state ~= Done then return nil end
  if (state == InProgress) ~= (r.lease ~= nil) and state ~= Condemned then return nil end
  return r
end

local function text(s)
  return char(floor(#s / 256), #s % 256) .. s
end

local function encode(r)
  local flags, s = 0, pack7(r.epoch) .. r.owner
  if r.fp ~= '' then flags, s = 1, s .. r.fp end
  if r.lease then flags, s = flags + 2, s .. pack7(r.lease) end
  if r.attempts + r.crashes + r.redrive > 0 then
    flags, s = flags + 4, s .. pack4(r.attempts) .. pack4(r.crashes) .. pack4(r.redrive)
  end
  if r.holder ~= '' then flags, s = flags + 8, s .. text(r.holder) end
  if r.err ~= '' then flags, s = flags + 16, s .. text(r.err) end
  if r.alone then flags = flags + 32 end
  return char(1, r.state, flags) .. s .. r.result
end

local function owned(r)
  return r.state == InProgress or r.state == Condemned
end

-- read returns the values of all keys; false where there is no string. A key of another type
-- is found out by the NX of the write.
local function read()
  return call('MGET', unpack(KEYS))
end

-- write makes the planned changes: values[i] under KEYS[i], ttls[i] in ms, created[i] where the
-- key was seen absent. It returns the set of keys that are not absent and no string either.
local function write(values, ttls, created)
  local foreign = {}
  for i = 1, #KEYS do
    local v = values[i]
    if v then
      if not created[i] then
        call('SET', KEYS[i], v, 'PX', ttls[i])
      elseif not call('SET', KEYS[i], v, 'PX', ttls[i], 'NX') then
        foreign[i] = true
      end
    end
  end
  return foreign
end
