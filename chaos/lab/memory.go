package lab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hogLimit is how much memory a process shares with the hog that uses it up.
const hogLimit = 32 << 20

// killTime is how long the kernel has to kill a process for want of memory.
const killTime = 30 * time.Second

// OutOfMemory has the kernel kill the process for want of memory, and returns when
// it has ended. The process is put into a control group with little memory, beside
// another that wants more, and is the one that the kernel takes first. It needs the
// memory controller of control groups, of either version.
func (p *Process) OutOfMemory() (err error) {
	g, err := newMemoryGroup(fmt.Sprintf("graze-chaos-%d", p.PID()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.remove()) }()
	// The kernel takes the node first: that takes no privilege, as sparing the hog would.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.PID()), []byte("1000"), 0); err != nil {
		return err
	}
	hog := exec.Command("sh", "-c", "read go; exec tail /dev/zero") // tail keeps all of a line
	begin, err := hog.StdinPipe()
	if err != nil {
		return err
	}
	if err := hog.Start(); err != nil {
		return err
	}
	defer func() {
		_ = hog.Process.Kill()
		_ = hog.Wait() // it was killed, here or by the kernel
	}()
	if err := errors.Join(g.add(p.PID()), g.add(hog.Process.Pid)); err != nil {
		return err
	}
	if _, err := begin.Write([]byte("\n")); err != nil {
		return err
	}
	select {
	case <-p.Exited():
	case <-time.After(killTime):
		return fmt.Errorf("process %d was not killed for want of memory in %v", p.PID(), killTime)
	}
	if n, err := g.kills(); err != nil || n == 0 {
		return errors.Join(fmt.Errorf("process %d has ended, but not for want of memory: %v", p.PID(), p.Err()), err)
	}
	return nil
}

// A memoryGroup is a control group with little memory.
type memoryGroup struct {
	dir    string
	events string // file that counts what was killed
}

// newMemoryGroup makes a group.
func newMemoryGroup(name string) (*memoryGroup, error) {
	const root = "/sys/fs/cgroup"
	limit, g := "memory.limit_in_bytes", &memoryGroup{filepath.Join(root, "memory", name), "memory.oom_control"}
	if _, err := os.Stat(filepath.Join(root, "memory", limit)); err != nil {
		limit, g = "memory.max", &memoryGroup{filepath.Join(root, name), "memory.events"}
	}
	if err := os.Mkdir(g.dir, 0o700); err != nil {
		return nil, fmt.Errorf("limit memory: %w", err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, limit), []byte(strconv.Itoa(hogLimit)), 0); err != nil {
		err = fmt.Errorf("this machine can't limit the memory of a control group: %w", err)
		return nil, errors.Join(err, g.remove())
	}
	return g, nil
}

// add puts a process into the group.
func (g *memoryGroup) add(pid int) error {
	return os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// kills returns how many processes of the group were killed for want of memory.
func (g *memoryGroup) kills() (int, error) {
	f, err := os.Open(filepath.Join(g.dir, g.events))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if n, ok := strings.CutPrefix(sc.Text(), "oom_kill "); ok {
			return strconv.Atoi(n)
		}
	}
	return 0, errors.New("the kernel does not count what it kills for want of memory")
}

// remove takes the group away, as soon as all of its processes have gone.
func (g *memoryGroup) remove() error {
	for end := time.Now().Add(stopTime); ; {
		err := os.Remove(g.dir)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
		time.Sleep(10 * time.Millisecond) // the kernel tells nobody when it is empty
	}
}
