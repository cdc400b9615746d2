// Package chaos has no code of its own: its tests run consumer processes against real
// servers, kill and stop them, and check what came of every message.
package chaos
