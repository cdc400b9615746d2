-- KEYS: one per item. ARGV: how long a token stands, in ms; then for each item 9 random bytes, and
-- its fingerprint if it has one.
-- Answer: the clock in us (7 bytes), then for each item a letter:
--   T nothing was known, and the token was placed: those 9 bytes and the clock
--   D done, followed by the copy's expiry left in ms (7 bytes), its length (4 bytes) and the copy
--   M another fingerprint, followed by the record's redrive number (4 bytes)
--   U a copy that cannot tell for this fingerprint; it stays, and no token was placed
--   F neither a copy nor a token; it was left alone
local us = clock()
local now7, seen, out = pack7(us), read(), {}

-- known looks at a copy; nil: as good as none, so a token may take its place.
local function known(i, v, fp)
  local flags = byte(v, 3)
  local print, p = '', 11
  if flags % 2 == 1 then print, p = sub(v, 11, 26), 27 end
  if fp ~= '' and print ~= fp then
    if print == '' then return nil end -- learned from one who had none: let this one's answer be kept
    if flags % 4 < 2 then return 'U' end
    return 'M' .. (flags >= 4 and sub(v, p, p + 3) or pack4(0))
  end
  return 'D' .. pack7(max(0, call('PTTL', KEYS[i]))) .. pack4(#v) .. v
end

for i = 1, #KEYS do
  local v, who = seen[i], ARGV[i + 1]
  local token, fp = sub(who, 1, 9) .. now7, sub(who, 10)
  local answer
  if not v then
    answer = call('SET', KEYS[i], char(1, 1) .. token, 'PX', ARGV[1], 'NX') and 'T' or 'F' -- F: another type
  else
    local version, kind = byte(v, 1, 2)
    if version == 1 and kind == 2 and #v >= 10 then
      answer = known(i, v, fp)
    elseif version ~= 1 or kind ~= 1 or #v ~= 18 then
      answer = 'F'
    end
    if not answer then
      call('SET', KEYS[i], char(1, 1) .. token, 'PX', ARGV[1])
      answer = 'T'
    end
  end
  out[i] = answer
end
return now7 .. table.concat(out)
