package lab

import (
	"fmt"
	"net"
	"os/exec"
	"syscall"
)

// A Machine is a machine of a [Network].
type Machine struct {
	Addr string // its IPv4 address
	Rack int    // or Outside

	net  *Network
	ns   *namespace
	port string
}

// Do calls f on a thread that is on the machine. Sockets that f makes and
// processes that it starts are on it; goroutines that it starts are not.
func (m *Machine) Do(f func() error) error { return m.ns.do(f) }

// Listen listens on the machine.
func (m *Machine) Listen(network, addr string) (ln net.Listener, err error) {
	err = m.Do(func() (err error) {
		ln, err = net.Listen(network, addr)
		return err
	})
	return ln, err
}

// SetRates limits what the machine can send and receive, as tc(8) writes it.
func (m *Machine) SetRates(send, receive string) error {
	if err := m.ns.batch("tc", "qdisc change dev eth0 root "+limit(send)+"\n"); err != nil {
		return err
	}
	return m.net.bridges.batch("tc", fmt.Sprintf("qdisc change dev %s root %s\n", m.port, limit(receive)))
}

// Cut takes the machine's link away, or brings it back.
func (m *Machine) Cut(cut bool) error {
	return m.net.bridges.batch("ip", fmt.Sprintf("link set %s %s\n", m.port, upOrDown(!cut)))
}

// Traffic returns what the machine's link has carried.
func (m *Machine) Traffic() (Traffic, error) {
	ports, err := m.net.ports()
	return ports[m.port], err
}

// A Process is a process on a machine.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // set before exited is closed
}

// Start runs a program on the machine. It gets SIGTERM when the process that
// started it has ended, whatever ended that; SysProcAttr is set for this.
func (m *Machine) Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 2)
	go func() {
		started <- m.Do(func() error {
			// The signal comes when the thread ends that has started the process,
			// so it stays until that has ended.
			if cmd.SysProcAttr == nil {
				cmd.SysProcAttr = new(syscall.SysProcAttr)
			}
			cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
			cmd.SysProcAttr.Setpgid = true // an interrupt by the terminal is not for it
			if err := cmd.Start(); err != nil {
				return err
			}
			started <- nil
			p.err = cmd.Wait()
			close(p.exited)
			return nil
		})
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// PID returns the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends the process a signal.
func (p *Process) Signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns how the process has ended. It must not be called before that.
func (p *Process) Err() error { return p.err }
