package testenv

import "syscall"

// childAttributes let the kernel end a server whose test was killed, or ran into go test's
// time limit, and so never came to its clean-up; and keep the terminal's interrupt from it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
