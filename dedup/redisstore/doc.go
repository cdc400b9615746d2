// Package redisstore is a dedup.Store on Redis >= 7.0 or Valkey.
package redisstore
