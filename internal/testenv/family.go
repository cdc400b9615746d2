package testenv

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// children are the processes that a process has started and that have not ended, as /proc tells.
// Where there is no /proc there are none.
func children(parent int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var all []int
	for _, name := range stats {
		state, of, ok := readStat(name)
		if !ok || of != parent || state == "Z" {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// readStat reads the state and the parent of a process. The name before them, in brackets, may
// have blanks and brackets of its own.
func readStat(name string) (state string, parent int, ok bool) {
	stat, err := os.ReadFile(name)
	if err != nil {
		return "", 0, false
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return "", 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err == nil
}

func endedAlready(pid int) bool {
	state, _, ok := readStat("/proc/" + strconv.Itoa(pid) + "/stat")
	return !ok || state == "Z"
}

// killFamily kills a process and its children at one instant, as far as anybody can see: one that
// outlived its parent for a moment could still answer its client, and keeps the next start waiting.
func killFamily(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP) // a stopped process starts no further ones; an error means it has ended
	all := children(pid)
	for _, p := range append(all, pid) {
		_ = syscall.Kill(p, syscall.SIGKILL)
	}
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for _, p := range all {
		for !endedAlready(p) {
			<-again.C // nothing that was killed stays for long
		}
	}
}
