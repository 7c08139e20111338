package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// useInterval is how long a user rests between its rounds.
const useInterval = 300 * time.Millisecond

// use reads all files in /data and runs a program of the image over and over, until
// it is told to end. What it reads must stay what it was at first.
func use() error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	first, err := sum()
	if err != nil {
		return err
	}
	fmt.Println("using", first)
	tick := time.NewTicker(useInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		if now, err := sum(); err != nil || now != first {
			return fmt.Errorf("the files have the sum %s, at first %s: %w", now, first, err)
		}
		if out, err := exec.Command("/probe", "hello").CombinedOutput(); err != nil || string(out) != "hello\n" {
			return fmt.Errorf("a program says %q: %w", out, err)
		}
	}
}

// sum returns the checksum of all bytes in /data, which are read anew: what the
// kernel has kept of them it forgets.
func sum() (string, error) {
	h := sha256.New()
	err := filepath.WalkDir("/data", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return err
		}
		_, err = io.Copy(h, f)
		return err
	})
	return fmt.Sprintf("%x", h.Sum(nil)), err
}
