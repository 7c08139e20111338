package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"graze/chaos/lab"
	agent "graze/node"
)

// A node is one of a cluster.
type node struct {
	name    string
	rack    int
	cluster *cluster
	machine *lab.Machine
	state   string       // folder, on a disk of its own
	store   string       // where that disk keeps its content: state, or behind it
	disk    *failingDisk // nil if it can't fail
	socket  string       // of the node's admin
	runs    bool         // it ran before the scenario, and goes on after it
	dir     string       // where the image is mounted

	mu      sync.Mutex
	proc    *lab.Process  // guarded by mu; nil: it does not run
	mounted string        // guarded by mu; the image's reference
	lives   int           // guarded by mu; how often it was killed
	dead    bool          // guarded by mu; it was killed, and nothing is mounted since
	files   []string      // guarded by mu; that fill the disk
	clock   time.Duration // guarded by mu; by which its time of day is wrong
}

// start runs the node and waits until it answers.
func (n *node) start(ctx context.Context) error {
	log, err := os.OpenFile(n.state+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(n.cluster.binary, "node", "--config", n.state+".toml")
	cmd.Stdout, cmd.Stderr = log, log
	p, err := n.machine.Start(cmd)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.proc = p
	offset := n.clock
	n.mu.Unlock()
	right := offset == 0
	return poll(ctx, func() error {
		select {
		case <-p.Exited():
			return fatal{fmt.Errorf("%s has ended: %v", n.name, p.Err())}
		default:
		}
		if !right { // for a moment it has no clock yet
			if err := p.SetClock(offset); err != nil {
				return err
			}
			right = true
		}
		_, err := n.stats(ctx)
		return err
	})
}

// keepsMounts reports whether the node's mounts outlive it.
func (n *node) keepsMounts() bool {
	return n.cluster.spec.Settings["keep-mounts"] == "keeper"
}

// kill ends the node as if its machine had lost power: its readers are gone, too.
func (n *node) kill() error {
	n.mu.Lock()
	n.lives++
	n.dead = true
	n.mu.Unlock()
	return n.end(unix.SIGKILL)
}

// end sends the node a signal, of which it ends, and waits for that. Its readers
// go on.
func (n *node) end(sig syscall.Signal) error {
	n.mu.Lock()
	p := n.proc
	n.proc = nil
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	_ = p.Signal(sig)
	var err error
	select {
	case <-p.Exited():
	case <-time.After(time.Minute):
		err = fmt.Errorf("%s did not end in a minute", n.name)
		_ = p.Signal(unix.SIGKILL)
		<-p.Exited()
	}
	if !n.keepsMounts() {
		_ = unix.Unmount(n.dir, unix.MNT_DETACH) // which may be dead
	}
	return err
}

// outOfMemory has the kernel kill the node for want of memory. Its readers go on.
func (n *node) outOfMemory() error {
	n.mu.Lock()
	p := n.proc
	n.mu.Unlock()
	if p == nil {
		return fmt.Errorf("%s does not run", n.name)
	}
	return errors.Join(p.OutOfMemory(), n.end(unix.SIGKILL))
}

// setClock has the node's time of day be wrong, also after it is started again.
func (n *node) setClock(offset time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clock = offset
	if n.proc == nil {
		return nil
	}
	return n.proc.SetClock(offset)
}

// signal sends the node a signal of which it does not end.
func (n *node) signal(sig syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil {
		return fmt.Errorf("%s does not run", n.name)
	}
	return n.proc.Signal(sig)
}

// running reports whether the node runs.
func (n *node) running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.runs || n.proc != nil
}

// life returns how often the node was killed, and whether it has been and nothing
// is mounted since.
func (n *node) life() (lives int, dead bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lives, n.dead
}

// ask calls f with the node's admin socket.
func (n *node) ask(f func(*agent.Remote) error) error {
	remote, err := agent.Dial(n.socket)
	if err != nil {
		return err
	}
	return errors.Join(f(remote), remote.Close())
}

// stats returns the node's figures.
func (n *node) stats(ctx context.Context) (s agent.Stats, err error) {
	err = n.ask(func(r *agent.Remote) error {
		s, err = r.Stats(ctx)
		return err
	})
	return s, err
}

// answerTime is how long a node has to say how it is doing at the end.
const answerTime = 15 * time.Second

// statsSoon is stats of a node that may be stuck.
func (n *node) statsSoon(ctx context.Context) (agent.Stats, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return n.stats(ctx)
}

// peers returns what the node knows of the cluster, itself included.
func (n *node) peers(ctx context.Context) (list []agent.PeerInfo, err error) {
	err = n.ask(func(r *agent.Remote) error {
		list, err = r.Peers(ctx)
		return err
	})
	return list, err
}

// mount mounts the image.
func (n *node) mount(ctx context.Context, ref string) error {
	err := n.ask(func(r *agent.Remote) error {
		_, err := r.Mount(ctx, ref, n.dir, agent.IndexOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mounted, n.dead = ref, false
	return nil
}

// unmount takes the mount away.
func (n *node) unmount() error {
	if err := unix.Unmount(n.dir, 0); err != nil {
		return fmt.Errorf("%s: unmount: %w", n.name, err)
	}
	return nil
}

// image returns what has been mounted, if something has.
func (n *node) image() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mounted
}

// fillDisk leaves no room on the node's disk.
func (n *node) fillDisk() error {
	name := filepath.Join(n.store, fmt.Sprintf("filler-%d", rand.Uint64()))
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.files = append(n.files, name)
	n.mu.Unlock()
	_, err = io.Copy(f, zeros{})
	if errors.Is(err, unix.ENOSPC) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// zeros is a reader without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// freeDisk takes away what fillDisk has written.
func (n *node) freeDisk() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, name := range n.files {
		errs = append(errs, os.Remove(name))
	}
	n.files = nil
	return errors.Join(errs...)
}

// corruptDisk makes bits of the chunks on the node's disk wrong, one in each
// 64 KiB.
func (n *node) corruptDisk() error {
	const stretch = 64 << 10
	return filepath.WalkDir(filepath.Join(n.store, "chunks"), func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ChunkSuffix {
			return err
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		fi, err := f.Stat()
		if err != nil {
			return err
		}
		var b [1]byte
		for off := rand.Int64N(stretch); off < fi.Size(); off += stretch {
			if _, err := f.ReadAt(b[:], off); err != nil {
				return err
			}
			b[0] ^= 1 << rand.IntN(8)
			if _, err := f.WriteAt(b[:], off); err != nil {
				return err
			}
		}
		return nil
	})
}

// abort takes the mount away, whoever reads it: their reads fail.
func (n *node) abort() {
	_ = unix.Unmount(n.dir, unix.MNT_FORCE) // which ends reads, also if it is busy
	_ = unix.Unmount(n.dir, unix.MNT_DETACH)
}

// close ends the node and takes its mount and disk away.
func (n *node) close() error {
	n.mu.Lock()
	p := n.proc
	n.proc = nil
	n.mu.Unlock()
	n.abort() // a keeper holds nothing then, and ends
	var err error
	if p != nil {
		err = endProcess(p)
	}
	n.abort() // what has been mounted meanwhile
	if n.runs {
		return err
	}
	if n.disk != nil {
		err = errors.Join(err, n.disk.close())
	}
	if e := unix.Unmount(n.store, unix.MNT_DETACH); e != nil && !errors.Is(e, unix.EINVAL) {
		err = errors.Join(err, fmt.Errorf("take a disk away: %w", e))
	}
	return err
}

// fatal wraps an error that waiting does not change.
type fatal struct{ error }

// poll calls f until it returns nil or ctx is done. Processes tell nobody what
// they have got to.
func poll(ctx context.Context, f func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if stop := (fatal{}); err == nil || errors.As(err, &stop) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w; at last: %w", context.Cause(ctx), err)
		}
	}
}
