package disk

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain serves a disk where a test has started this program for it: who uses a
// disk must not serve it.
func TestMain(m *testing.M) {
	if folder := os.Getenv("GRAZE_TEST_DISK"); folder != "" {
		d, err := New(folder, ".seg")
		if err == nil {
			err = Serve(d, os.Args[1], os.Stdin, os.Stdout)
		}
		if err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// startDisk starts a disk for the rest of a test. It returns where it is, and what
// sets its fault.
func startDisk(t *testing.T) (dir string, set func(Fault)) {
	t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	} else {
		f.Close()
	}
	dir = t.TempDir()
	r, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.StartProcess(os.Args[0], []string{os.Args[0], dir}, &os.ProcAttr{
		Env: append(os.Environ(), "GRAZE_TEST_DISK="+t.TempDir()), Files: []*os.File{r, w, os.Stderr},
	})
	if err := errors.Join(err, r.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	answer := func() {
		if line, err := lines.ReadString('\n'); line != "ok\n" {
			t.Fatalf("the disk says %q, %v", line, err)
		}
	}
	t.Cleanup(func() {
		in.Close()
		if state, err := p.Wait(); err != nil || !state.Success() {
			t.Errorf("the disk's process: %v, %v", state, err)
		}
		out.Close()
	})
	answer()
	return dir, func(f Fault) {
		t.Helper()
		if _, err := io.WriteString(in, string(f)+"\n"); err != nil {
			t.Fatal(err)
		}
		answer()
	}
}

func TestFaults(t *testing.T) {
	dir, set := startDisk(t)
	weak, other := filepath.Join(dir, "a.seg"), filepath.Join(dir, "b")
	content := bytes.Repeat([]byte("graze"), 4*stretch/5)
	for _, name := range []string{weak, other} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(weak, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 100)
	if _, err := f.ReadAt(p, stretch); err != nil {
		t.Errorf("a disk that is well: %v", err)
	}

	set(ReadErrors)
	if _, err := f.ReadAt(p, stretch); !errors.Is(err, unix.EIO) {
		t.Errorf("a bad stretch is read: %v", err)
	}
	if _, err := f.ReadAt(p, 2*stretch); err != nil {
		t.Errorf("a good stretch: %v", err)
	}
	if got, err := os.ReadFile(other); err != nil || !bytes.Equal(got, content) {
		t.Errorf("a file of another name: %d bytes, %v", len(got), err)
	}

	set(ReadOnly)
	if _, err := f.ReadAt(p, stretch); err != nil {
		t.Errorf("a read-only disk can't be read: %v", err)
	}
	for name, err := range map[string]error{
		"write":  func() error { _, err := f.WriteAt(p, 0); return err }(),
		"create": os.WriteFile(filepath.Join(dir, "c"), nil, 0o600),
		"mkdir":  os.Mkdir(filepath.Join(dir, "d"), 0o700),
		"rename": os.Rename(other, other+"2"),
		"remove": os.Remove(other),
		"cut":    f.Truncate(1),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s on a read-only disk: %v", name, err)
		}
	}

	set(Well)
	if err := errors.Join(os.Rename(other, other+"2"), os.Remove(other+"2"), f.Truncate(1)); err != nil {
		t.Errorf("a disk that is well again: %v", err)
	}
}

func TestSet(t *testing.T) {
	d, err := New(t.TempDir(), ".seg")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Set("round"); err == nil {
		t.Error("a fault that there is not")
	}
}
