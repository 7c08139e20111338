package fusefs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// helpers are what the test binary can do as another process.
var helpers = map[string]func(args []string) error{
	"hello":   hello,
	"run":     run,
	"mmap":    mmapSum,
	"random":  mmapRandom,
	"direct":  readDirect,
	"read":    readAll,
	"openall": openAll,
	"serve":   serveForever,
	"wait":    wait,
	"poll":    poll,
	"kept":    serveKept,
	"resumed": serveResumed,
}

// hello shows that it runs, and as whom.
func hello([]string) error {
	fmt.Printf("hello from uid %d", os.Geteuid())
	return nil
}

// run runs a program, with hello as the helper. The server's process can't do
// that with a program on its own mount: the Go runtime stands still from the
// fork to the end of the exec.
func run(args []string) error {
	cmd := exec.Command(args[0])
	cmd.Env = append(os.Environ(), helperEnv+"=hello")
	out, err := cmd.CombinedOutput()
	fmt.Printf("%s", out)
	return err
}

// mmapSum prints the digest of a file that it reads as memory.
func mmapSum(args []string) error {
	p, err := mapFile(args[0])
	if err != nil {
		return err
	}
	fmt.Printf("%x", sha256.Sum256(p))
	return nil
}

// mmapRandom prints a byte of a mapped page that it reads without read-ahead,
// while signals arrive that the process handles.
func mmapRandom(args []string) error {
	p, err := mapFile(args[0])
	if err != nil {
		return err
	}
	if err := unix.Madvise(p, unix.MADV_RANDOM); err != nil {
		return err
	}
	defer handleSignals()()
	fmt.Println(p[4096])
	return nil
}

// readDirect prints the same byte, which it reads past the page cache.
func readDirect(args []string) error {
	fd, err := unix.Open(args[0], unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	p, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer handleSignals()()
	if _, err := unix.Pread(fd, p, 4096); err != nil {
		return err
	}
	fmt.Println(p[0])
	return nil
}

// handleSignals makes the process handle SIGUSR1, and prints the thread that
// the signals are to be sent to. The test sends them, because a page fault holds
// the Go runtime of this process up.
func handleSignals() (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGUSR1)
	runtime.LockOSThread()
	fmt.Println(unix.Gettid())
	return func() { signal.Stop(signals) }
}

func mapFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
}

// readAll prints the digest of a file.
func readAll(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	fmt.Printf("%x", h.Sum(nil))
	return nil
}

// openAll prints for each file whether it can be opened.
func openAll(args []string) error {
	for _, name := range args {
		f, err := os.Open(name)
		if err != nil {
			err = errors.Unwrap(err)
		} else {
			f.Close()
		}
		fmt.Printf("%v\n", err)
	}
	return nil
}

// serveForever mounts a tree and serves it until the process is killed.
func serveForever(args []string) error {
	tree := newTree()
	tree.file("/file", 0o644, []byte("alive"))
	s, err := Mount(args[0], tree, tree, Config{Source: testSource})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.Run(ctx)
}

// wait ends with its standard input.
func wait([]string) error {
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// poll polls a file of a mount: one that go-fuse has in every root for this.
func poll(args []string) error {
	fd, err := unix.Open(args[0]+"/.go-fuse-epoll-hack", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err
}
