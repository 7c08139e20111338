package keeper

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// firstInherited is the number of the first descriptor that systemd passes.
	firstInherited = 3
	// storePatience is how long systemd may take to take note of a message.
	storePatience = 10 * time.Second
)

// An Environment is what systemd has told the process in variables. See
// sd_listen_fds(3), sd_notify(3) and systemd.service(5).
type Environment struct {
	NotifySocket string // NOTIFY_SOCKET
	Store        string // FDSTORE: how many descriptors the store holds; set from systemd 254 on
	ListenPID    string // LISTEN_PID
	ListenFDs    string // LISTEN_FDS
	ListenNames  string // LISTEN_FDNAMES
}

// HasStore reports whether systemd says that it holds descriptors for us. It does
// not before version 254.
func (e Environment) HasStore() bool {
	n, err := strconv.Atoi(e.Store)
	return err == nil && n > 0 && e.NotifySocket != ""
}

// A Systemd is the descriptor store of the service that the process is. It is
// safe for concurrent use.
type Systemd struct {
	socket string
	held   map[string]*os.File
}

// OpenSystemd returns the descriptor store of the service, and takes the
// descriptors that systemd has passed to the process for whose names accept
// returns true. It must be called once.
func OpenSystemd(env Environment, accept func(name string) bool) (*Systemd, error) {
	if env.NotifySocket == "" {
		return nil, errors.New("systemd's descriptor store: NOTIFY_SOCKET is not set: is the process a service, with FileDescriptorStoreMax?")
	}
	s := &Systemd{socket: env.NotifySocket, held: make(map[string]*os.File)}
	for i, name := range env.inherited() {
		if accept(name) {
			fd := firstInherited + i
			unix.CloseOnExec(fd)
			s.held[name] = os.NewFile(uintptr(fd), name)
		}
	}
	return s, nil
}

// inherited returns the names of the descriptors that systemd has passed.
func (e Environment) inherited() []string {
	pid, err := strconv.Atoi(e.ListenPID)
	if err != nil || pid != os.Getpid() {
		return nil
	}
	n, err := strconv.Atoi(e.ListenFDs)
	names := strings.Split(e.ListenNames, ":")
	if err != nil || n != len(names) {
		return nil
	}
	return names
}

// Held returns the descriptors that systemd held when the process was started, by
// name. They are the caller's to close.
func (s *Systemd) Held() map[string]*os.File { return s.held }

// Put has systemd hold what f leads to, under a name: up to 64 small letters,
// digits and hyphens.
func (s *Systemd) Put(name string, f *os.File) error {
	if err := checkName(name); err != nil {
		return err
	}
	// Systemd would wait on the descriptor for its end, and be woken by each
	// request that goes through it.
	return s.notify("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, fdOf(f))
}

// Drop has systemd close what it holds under a name, if anything.
func (s *Systemd) Drop(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return s.notify("FDSTOREREMOVE=1\nFDNAME="+name, -1)
}

// Lost is never closed: what systemd holds it loses with the machine.
func (s *Systemd) Lost() <-chan struct{} { return nil }

// notify sends a message and waits until systemd has taken note of it: then it
// closes the pipe that comes with a second one.
func (s *Systemd) notify(text string, fd int) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = errors.Join(s.send(text, fd), s.send("BARRIER=1", fdOf(w)), w.Close())
	if err == nil {
		err = r.SetReadDeadline(time.Now().Add(storePatience))
	}
	if err != nil {
		return fmt.Errorf("systemd's descriptor store: %w", err)
	}
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("systemd's descriptor store: no answer for %v", storePatience)
	}
	return nil
}

// send sends a message, with the descriptor fd unless that is negative.
func (s *Systemd) send(text string, fd int) error {
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	var with []byte
	if fd >= 0 {
		with = unix.UnixRights(fd)
	}
	return unix.Sendmsg(socket, []byte(text), with, &unix.SockaddrUnix{Name: s.socket}, unix.MSG_NOSIGNAL)
}
