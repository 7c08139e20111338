package scenario

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Readers are processes of their own. Where one process read mounts and started
// nodes as well, the child that becomes the node would close the files that are
// open for reading, and the kernel would have it wait for the node that serves
// them: for itself.

// A task is a file that a reader is to read.
type task struct {
	Path string `json:"path"`
	Sum  string `json:"sum"` // what must be in it, SHA-256 in hexadecimal
}

// A result is what came of a task.
type result struct {
	Path  string        `json:"path"`
	Begin time.Time     `json:"begin"`
	Took  time.Duration `json:"took"`
	Wrong bool          `json:"wrong,omitempty"`
	Err   string        `json:"err,omitempty"`
}

// ReadFiles is what a reader does: it reads files below a folder, those that in
// names, one JSON object each, and writes what has come of each to out.
func ReadFiles(dir string, in io.Reader, out io.Writer) error {
	tasks := make(chan task)
	var mu sync.Mutex
	enc := json.NewEncoder(out) // guarded by mu
	var wg sync.WaitGroup
	for range readersOfNode {
		wg.Go(func() {
			for t := range tasks {
				r := t.read(dir)
				mu.Lock()
				_ = enc.Encode(r) // nobody listens any more, if it fails
				mu.Unlock()
			}
		})
	}
	var err error
	for dec := json.NewDecoder(in); ; {
		var t task
		if err = dec.Decode(&t); err != nil {
			break
		}
		tasks <- t
	}
	close(tasks)
	wg.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// read reads a file and compares it.
func (t task) read(dir string) result {
	r := result{Path: t.Path, Begin: time.Now()}
	sum, err := hashFile(filepath.Join(dir, t.Path))
	r.Took = time.Since(r.Begin)
	if err != nil {
		r.Err = err.Error()
	} else {
		r.Wrong = sum != t.Sum
	}
	return r
}

// hashFile reads a file and has the kernel forget it again.
func hashFile(name string) (string, error) {
	in, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return "", err
	}
	if err := unix.Fadvise(int(in.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return "", fmt.Errorf("%s: forget: %w", name, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// runReader has a process read files below dir, and calls f for each as soon as it
// is read. The end of ctx ends the process.
func runReader(ctx context.Context, binary, dir string, files []*file, f func(result)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "chaos", "reader", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt by the terminal is not for it
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		enc := json.NewEncoder(in)
		for _, f := range files {
			if enc.Encode(task{f.path, hex.EncodeToString(f.sum[:])}) != nil {
				break // it has ended, which is seen below
			}
		}
		in.Close()
	}()
	for dec := json.NewDecoder(out); ; {
		var r result
		if err := dec.Decode(&r); err != nil {
			break
		}
		f(r)
	}
	return cmd.Wait()
}
