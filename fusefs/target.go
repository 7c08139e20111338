package fusefs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// answerTimeout is how long a mount that is found at the target may take to
// show that it is alive.
const answerTimeout = 2 * time.Second

// Path returns dir as it stands in the mount table.
func Path(dir string) (string, error) {
	real, err := resolve(dir)
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	return real, nil
}

// resolve returns dir as it stands in the mount table, without symbolic links. It
// asks nothing of the file system that is mounted there, which may be dead, or
// served by this very process.
func resolve(dir string) (string, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return "", fmt.Errorf("%w; make it with mkdir -p", err)
	} else if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
}

// Clear takes dead mounts of this package away from dir, and says how many there
// were. It leaves alone what is alive, and what is not of this package.
func Clear(dir string) (int, error) {
	real, err := Path(dir)
	if err != nil {
		return 0, err
	}
	n, err := clearDead(real)
	if err != nil && !errors.Is(err, errAlive) {
		return n, fmt.Errorf("%s: %w", real, err)
	}
	return n, nil
}

// errAlive is why a mount is no dead one.
var errAlive = errors.New("it is the mount of a running graze; unmount that first")

func clearDead(dir string) (n int, err error) {
	for {
		at, err := topMount(dir)
		if err != nil || at == nil || at.FSType != fsType {
			return n, err
		}
		switch err := answers(dir); {
		case err == nil:
			return n, errAlive
		case !errors.Is(err, unix.ENOTCONN):
			return n, fmt.Errorf("a graze mount is there that does not answer ('graze umount --force' takes it away): %w", err)
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return n, fmt.Errorf("take a dead mount away: %w", err)
		}
		n++
	}
}

// clearTarget takes dead mounts of ours away from dir and fails if nothing can
// be mounted there.
func clearTarget(dir string, trace *Trace) error {
	n, err := clearDead(dir)
	if n > 0 {
		trace.warn("%s: took a mount away whose server had died", dir)
	}
	if err != nil {
		return err
	}
	switch info, err := os.Stat(dir); {
	case errors.Is(err, unix.ENOTCONN):
		return fmt.Errorf("a dead mount of another program is there: %w", err)
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("it is not a directory")
	}
	return nil
}

// answers asks the server of the mount on dir for something that the kernel
// never keeps. A server that is stopped lets the question wait, so the goroutine
// that asks can outlive the call by as long.
func answers(dir string) error {
	result := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		result <- unix.Statfs(dir, &st)
	}()
	select {
	case err := <-result:
		return err
	case <-time.After(answerTimeout):
		return fmt.Errorf("no answer in %v", answerTimeout)
	}
}

// topMount returns the mount that a path which leads to dir ends at, or nil if
// nothing is mounted on dir.
func topMount(dir string) (*mountinfo.Info, error) {
	// The package's own filter ends at the first, but later mounts lie over it.
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint != dir, false
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[len(all)-1], nil
}
