// The only program that the suite on a real container runtime runs: it waits, or ends at once with what it is told.
//
// Without arguments it ends at SIGTERM. `exit N` ends at once with that code, `stubborn` ignores
// SIGTERM, so that only the kubelet's SIGKILL ends it.
package main

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "exit" {
		code, err := strconv.Atoi(os.Args[2])
		if err != nil {
			code = 64
		}
		os.Exit(code)
	}
	end := make(chan os.Signal, 1)
	if len(os.Args) == 2 && os.Args[1] == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	}
	// As process 1 of a pod it is the parent of orphans; it reaps them.
	children := make(chan os.Signal, 8)
	signal.Notify(children, syscall.SIGCHLD)
	for {
		select {
		case <-end:
			return
		case <-children:
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}
