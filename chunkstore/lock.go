package chunkstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lockDir takes the lock of the store in dir and writes our process id into the
// lock file. Closing the file gives the lock back; the kernel does so for a
// process that is killed. The lock belongs to the open file, so that it also
// keeps two stores of one process apart.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("in use by %s: stop it, or use another directory", lockHolder(f))
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	// A full disk must not keep a store from being opened; the id is only there
	// for the message above.
	if err != nil && !diskFull(err) {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockHolder says who wrote its process id into the lock file.
func lockHolder(f *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	if err != nil {
		return "another process"
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return "another process"
	}
	if pid == os.Getpid() {
		return fmt.Sprintf("this process (%d)", pid)
	}
	return fmt.Sprintf("process %d", pid)
}

// diskFull reports whether err means that the file system or our quota on it has
// no room.
func diskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
