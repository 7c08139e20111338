package fusefs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Unmount takes the mount of this package on dir away. If something uses it, it
// fails with an error that is ErrBusy; unless lazy is set: then the mount
// disappears from dir at once, and is served until the last user has left it.
func Unmount(dir string, lazy bool) error {
	at, err := ours(dir)
	if err == nil {
		err = unix.Unmount(at.Mountpoint, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) && lazy {
			err = unix.Unmount(at.Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		} else if errors.Is(err, unix.EBUSY) {
			err = ErrBusy
		}
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// Abort takes the mount of this package on dir away from all who use it: what
// they wait for fails with ECONNABORTED, what they ask later with ENOTCONN. It
// needs no answer of the mount's server, so that one which is stuck, or never
// comes back, can't keep anybody waiting.
func Abort(dir string) error {
	at, err := ours(dir)
	if err == nil {
		err = abort(at.Minor)
		// A server that runs has seen the end, and may be faster.
		if bad := unix.Unmount(at.Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); !errors.Is(bad, unix.EINVAL) {
			err = errors.Join(err, bad)
		}
	}
	if err != nil {
		return fmt.Errorf("unmount %s by force: %w", dir, err)
	}
	return nil
}

// Abort is the function of that name for the mount of a session, if that is still
// what its folder shows.
func (s *Session) Abort() error {
	if there, err := s.Mounted(); !there {
		return err
	}
	return Abort(s.Dir)
}

// Mounted reports whether the mount of a session, dead or alive, is what its folder
// shows.
func (s *Session) Mounted() (bool, error) {
	at, err := topMount(s.Dir)
	return err == nil && at != nil && at.Major == s.Major && at.Minor == s.Minor, err
}

// Discard takes a mount away of which nothing is known but its descriptor, wherever
// it is mounted. Kernels before Linux 6.16 don't tell which one that is: then it is
// an error, and the mount ends when the descriptor is closed, but stays in its place.
func Discard(device *os.File) error {
	fd := int(device.Fd())
	if ended(fd) {
		return nil // its number may be that of another by now
	}
	minor, err := connection(fd)
	if err != nil {
		return fmt.Errorf("take an unknown mount away: %w", err)
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != fsType || m.Major != 0 || m.Minor != minor, false
	})
	errs := []error{err, abort(minor)}
	for _, m := range mounts {
		errs = append(errs, unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH))
	}
	return errors.Join(errs...)
}

// connection returns the number of a descriptor's connection, which is also the
// device number of the file system.
func connection(fd int) (int, error) {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if text, ok := strings.CutPrefix(line, "fuse_connection:"); ok {
			return strconv.Atoi(strings.TrimSpace(text))
		}
	}
	return 0, errors.New("the kernel does not tell which mount a descriptor is of")
}

// ErrBusy is why a mount that is in use can't be taken away.
var ErrBusy = errors.New("it is in use (fuser -vm shows by whom)")

// ErrNotMounted: no mount of this package is there.
var ErrNotMounted = errors.New("no mount of graze is there")

// ours returns the mount on dir if it is of this package.
func ours(dir string) (*mountinfo.Info, error) {
	dir, err := resolve(dir)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: %w", ErrNotMounted, unix.ENOENT)
	} else if err != nil {
		return nil, err
	}
	switch at, err := topMount(dir); {
	case err != nil:
		return nil, err
	case at == nil:
		return nil, fmt.Errorf("%w: nothing is mounted", ErrNotMounted)
	case at.FSType != fsType:
		return nil, fmt.Errorf("%w, but one of type %s", ErrNotMounted, at.FSType)
	default:
		return at, nil
	}
}

// abort ends the connection of the file system with the device number 0:minor,
// if there is any. The kernel's control file system is mounted for this, but in
// no place, since not all hosts have it.
func abort(minor int) error {
	fsfd, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open fusectl: %w", err)
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return fmt.Errorf("open fusectl: %w", err)
	}
	root, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount fusectl: %w", err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat(root, filepath.Join(strconv.Itoa(minor), "abort"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // it has ended
	} else if err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("1")); err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	return nil
}
