package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Check returns why no network can be made on this host, or nil.
func Check() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	for _, tool := range []string{"ip", "tc", "bridge"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%w; it is in the package iproute2", err)
		}
	}
	ns, err := newNamespace()
	if err != nil {
		return fmt.Errorf("network namespaces: %w", err)
	}
	defer ns.close()
	links := "link add probe0 type veth peer name probe1\nlink set probe0 up\nlink add bridge0 type bridge\n"
	if err := ns.batch("ip", links); err != nil {
		return fmt.Errorf("virtual links: %w", err)
	}
	if err := ns.batch("tc", "qdisc add dev probe0 root "+limit("1mbit")+"\n"); err != nil {
		return fmt.Errorf("limits on links: %w", err)
	}
	return nil
}

// A namespace is a network namespace without a name: it is gone once it is
// closed and no process is left in it.
type namespace struct{ file *os.File }

func newNamespace() (*namespace, error) {
	ns := new(namespace)
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if ns.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		return run(exec.Command("ip", "link", "set", "lo", "up"))
	})
	if err != nil && ns.file != nil {
		ns.close()
	}
	return ns, err
}

func (ns *namespace) close() { ns.file.Close() }

// path names the namespace for ip(8).
func (ns *namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd()) }

// do calls f on a thread that is in the namespace.
func (ns *namespace) do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// onThread calls f on a thread of its own, which ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocks: nobody else gets this thread
		done <- f()
	}()
	return <-done
}

// batch has ip(8), tc(8) or bridge(8) do what the lines of script say.
func (ns *namespace) batch(program, script string) error {
	return ns.do(func() error {
		c := exec.Command(program, "-batch", "-")
		c.Stdin = strings.NewReader(script)
		return run(c)
	})
}

// run runs a command whose output matters only if it fails.
func run(c *exec.Cmd) error {
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
	}
	return nil
}
