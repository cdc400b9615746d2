package deduptest

const (
	claimDecoded = "local r = decode(v)\n  if not r then return 'F' end\n  local owner"
	anyRecord    = "r = { epoch = 0, owner = 'nobody at all...', fp = '', attempts = 0, crashes = 0, redrive = 0, holder = '', err = '', result = '', state = "
)

// redisMutants break what memory has not: bytes that may be garbage, a time to live beside the
// deadline, scripts with a short cut for what is as it was claimed.
var redisMutants = []mutant{
	{"Rule03", "does not compare the owner where a record is as it was claimed", []edit{
		{"local start = head .. who\n    if v and newhead", "local start = head .. (v and #v > 26 and sub(v, 4, 26) .. sub(who, 24) or who)\n    if v and newhead"},
	}},
	{"Rule08", "reads garbage as nothing", []edit{
		{claimDecoded, "local r = decode(v)\n  if not r then " + anyRecord + "Released } end\n  local owner"},
	}},
	{"Rule08", "reads garbage as done", []edit{
		{claimDecoded, "local r = decode(v)\n  if not r then\n    " + anyRecord + "Done }\n    v = encode(r)\n  end\n  local owner"},
	}},
	{"Rule08", "finishes garbage", []edit{
		{"if v and not r then return 'F' end", "if v and not r then r = decode(fresh) end"},
	}},
	{"Rule09", "derives the deadline from the time to live", []edit{
		{"if r.lease and us < r.lease then return answer('R'", "if r.lease and call('PTTL', KEYS[i]) > ttl - lease / 1000 then return answer('R'"},
	}},
	{"Rule10", "spoils the batch of a record that cannot be decoded", []edit{
		{claimDecoded, "local r = decode(v)\n  if not r then error('damaged') end\n  local owner"},
	}},
	{"Pinger", "finds fault with a server that is well", []edit{
		{"func (s *Store) Ping(ctx context.Context) error {", "func (s *Store) Ping(ctx context.Context) error {\n\tif ctx.Err() == nil {\n\t\treturn errors.ErrUnsupported\n\t}"},
	}},
}
