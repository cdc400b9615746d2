package redisstore

// DecodeCopy is decodeCopy for the fuzz test.
var DecodeCopy = decodeCopy
