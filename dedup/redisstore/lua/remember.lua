-- KEYS: one per item. ARGV: for each item the token, how long the copy may stand in ms, counted from
-- the moment at which the token was placed, and the copy.
-- Answer: one letter an item: K kept, R refused: that token stands there no more, or its time is over.
local us = clock()
local seen, out = read(), {}

for i = 1, #KEYS do
  local token, span, copy = ARGV[3 * i - 2], ARGV[3 * i - 1] + 0, ARGV[3 * i]
  out[i] = 'R'
  if seen[i] == char(1, 1) .. token then
    -- The moment is part of the token, so a call that was long under way gains no time by it. A
    -- clock that was set back gains none either.
    local left = math.min(span, span - floor((us - unpack7(token, 10)) / 1000) - 1)
    if left > 0 then
      call('SET', KEYS[i], copy, 'PX', left)
      out[i] = 'K'
    end
  end
end
return table.concat(out)
