package fusefs

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watchInterval is how often a read that waits looks whether its mount is gone
// and, if it was interrupted, whether its caller is being killed.
const watchInterval = 200 * time.Millisecond

// A readContext is the context of one READ. It ends with the read, when the
// caller is being killed, or when the mount is taken away. Reads that are
// answered from memory or disk don't wait on it, so the goroutine that watches
// is only started by the first call of Done.
type readContext struct {
	fs     *filesystem
	cancel <-chan struct{} // closed by go-fuse when the kernel interrupts the request; of no use after end
	caller uint32          // thread for whom the kernel asks, as seen by who mounted; 0 if it can't be seen
	watch  sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	done  chan struct{}
	cause error // why it ended
	ended bool
}

// Deadline implements context.Context.
func (*readContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context.
func (*readContext) Value(any) any { return nil }

// Done implements context.Context.
func (c *readContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.ended {
			close(c.done)
		} else {
			done := c.done
			c.watch.Go(func() { c.watchCaller(done) })
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *readContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		return nil
	}
	return context.Canceled
}

// finish ends the context. The first cause is the one that counts.
func (c *readContext) finish(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.cause = true, cause
	if c.done != nil {
		close(c.done)
	}
}

// end ends the context with the read that it belongs to, and returns why it
// ended before; nil if it didn't.
func (c *readContext) end() error {
	c.finish(nil)
	c.watch.Wait()
	return c.cause
}

// watchCaller ends the context when there is reason to, and returns when it has
// ended.
//
// The kernel interrupts a request on any signal, once. Only if the caller is
// being killed the read may fail: otherwise a read(2) fails with EINTR, which
// programs don't expect of a file, and a page fault begins anew.
func (c *readContext) watchCaller(done <-chan struct{}) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	cancel, interrupted := c.cancel, false
	for {
		select {
		case <-done:
			return
		case <-c.fs.closing:
			c.finish(errClosing)
			return
		case <-cancel:
			cancel, interrupted = nil, true
		case <-tick.C:
		}
		switch {
		case c.fs.dead():
			c.finish(errClosing)
			return
		case interrupted && beingKilled(c.caller):
			c.finish(errInterrupted)
			return
		}
	}
}

// beingKilled reports whether a thread has SIGKILL pending, which is how the
// kernel ends a process for any deadly signal. A thread that can't be looked at
// counts as one: better an EINTR than a process that can't be killed.
func beingKilled(tid uint32) bool {
	if tid == 0 {
		return true
	}
	status, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/status")
	if err != nil {
		return true
	}
	const field = "\nSigPnd:\t"
	i := bytes.Index(status, []byte(field))
	if i < 0 {
		return true
	}
	digits, _, _ := bytes.Cut(status[i+len(field):], []byte("\n"))
	pending, err := strconv.ParseUint(string(digits), 16, 64)
	return err != nil || pending>>(unix.SIGKILL-1)&1 != 0
}
