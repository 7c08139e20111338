// Command graze mounts container images that are not there yet: a file's bytes
// are fetched when they are first read.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"graze/node"
)

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { cancel(interruption{<-signals}) }()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// An interruption is the signal by which a command is ended. Who ends a node from a
// terminal wants nothing of it to be left; SIGTERM may mean that it will be back.
type interruption struct{ os.Signal }

func (i interruption) Error() string { return i.String() + " signal received" }

// Is implements errors.Is.
func (i interruption) Is(target error) bool {
	return target == context.Canceled || target == node.ErrTakeAway && i.Signal == os.Interrupt
}

// run executes one command and returns the process's exit code: 0 for success,
// 1 for a failure, 2 for arguments that can't be understood.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "graze:", err)
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", usage.command)
		return 2
	}
	return 1
}

// A usageError says that a command was called in the wrong way.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
