package lab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newNetwork makes a network that is gone after the test.
func newNetwork(t *testing.T, racks int) *Network {
	t.Helper()
	if err := Check(); err != nil {
		t.Skip(err)
	}
	n, err := NewNetwork(racks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

func add(t *testing.T, n *Network, rack int, addr string) *Machine {
	t.Helper()
	m, err := n.Add(rack, addr, "100mbit")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// reach has one machine send bytes to another, and returns how many came.
func reach(t *testing.T, from, to *Machine, n int) (int, error) {
	t.Helper()
	ln, err := to.Listen("tcp", to.Addr+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	sent := make(chan error, 1)
	go func() {
		sent <- from.Do(func() error {
			conn, err := net.DialTimeout("tcp", ln.Addr().String(), 300*time.Millisecond)
			if err != nil {
				ln.Close() // so that nobody waits for it
				return err
			}
			defer conn.Close()
			_, err = conn.Write(make([]byte, n))
			return err
		})
	}()
	conn, err := ln.Accept()
	if err != nil {
		return 0, <-sent
	}
	defer conn.Close()
	p, err := io.ReadAll(conn)
	if err == nil {
		err = <-sent
	}
	return len(p), err
}

func TestNetwork(t *testing.T) {
	n := newNetwork(t, 2)
	a, b := add(t, n, 0, "10.77.0.1"), add(t, n, 1, "10.77.1.1")
	out := add(t, n, Outside, "10.77.255.1")
	const size = 100_000
	if got, err := reach(t, a, b, size); err != nil || got != size {
		t.Fatalf("%d bytes, %v", got, err)
	}
	crossed, err := n.Crossed()
	if err != nil {
		t.Fatal(err)
	}
	if crossed[0].Sent < size || crossed[1].Received < size {
		t.Errorf("the links between racks have counted %+v", crossed)
	}
	if tr, err := a.Traffic(); err != nil || tr.Sent < size || tr.Received >= size {
		t.Errorf("the sender's link has counted %+v, %v", tr, err)
	}

	for _, row := range []struct {
		name         string
		fault        func(on bool) error
		works, fails [2]*Machine
	}{
		{"rack cut", func(on bool) error { return n.CutRack(1, on) }, [2]*Machine{a, out}, [2]*Machine{a, b}},
		{"racks split", n.Split, [2]*Machine{a, out}, [2]*Machine{a, b}},
		{"machine cut", a.Cut, [2]*Machine{b, out}, [2]*Machine{out, a}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if err := row.fault(true); err != nil {
				t.Fatal(err)
			}
			if _, err := reach(t, row.works[0], row.works[1], 10); err != nil {
				t.Error("what should work: ", err)
			}
			if _, err := reach(t, row.fails[0], row.fails[1], 10); err == nil {
				t.Error("what should fail works")
			}
			if err := row.fault(false); err != nil {
				t.Fatal(err)
			}
			if _, err := reach(t, row.fails[0], row.fails[1], 10); err != nil {
				t.Error("afterwards: ", err)
			}
		})
	}
	if err := a.SetRates("1mbit", "2mbit"); err != nil {
		t.Error(err)
	}
	if _, err := n.Add(2, "10.77.2.1", "1mbit"); err == nil {
		t.Error("a machine in a rack that is not there")
	}
}

func TestProcess(t *testing.T) {
	m := add(t, newNetwork(t, 1), 0, "10.77.0.1")
	var out bytes.Buffer
	cmd := exec.Command("ip", "-4", "-o", "addr", "show", "dev", "eth0")
	cmd.Stdout = &out
	p, err := m.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if p.Err() != nil || !strings.Contains(out.String(), m.Addr+"/16") {
		t.Errorf("%q, %v", out.String(), p.Err())
	}
	if p, err = m.Start(exec.Command("sleep", "1000")); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	<-p.Exited()
	if p.Err() == nil {
		t.Error("no word of the signal")
	}
	if _, err := m.Start(exec.Command("/no/such/program")); err == nil {
		t.Error("a program that is not there runs")
	}
}

// TestMain makes this program one that tells the time by the code that Go uses.
func TestMain(m *testing.M) {
	if os.Getenv("GRAZE_TEST_CLOCK") != "" {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			fmt.Println(time.Now().Unix())
		}
		return
	}
	os.Exit(m.Run())
}

// startSelf starts this program on a machine, with pipes.
func startSelf(t *testing.T, m *Machine) (p *Process, ask func() int64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GRAZE_TEST_CLOCK=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = m.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Signal(syscall.SIGKILL)
		<-p.Exited()
	})
	lines := bufio.NewScanner(out)
	return p, func() (now int64) {
		t.Helper()
		if _, err := io.WriteString(in, "\n"); err != nil || !lines.Scan() {
			t.Fatal("the process has ended: ", err)
		}
		if now, err = strconv.ParseInt(lines.Text(), 10, 64); err != nil {
			t.Fatal(err)
		}
		return now
	}
}

func TestClock(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("amd64 only")
	}
	p, ask := startSelf(t, add(t, newNetwork(t, 1), 0, "10.77.0.1"))
	const day = 24 * 60 * 60
	for _, days := range []int64{400, -400, 0} {
		if err := p.SetClock(time.Duration(days) * day * time.Second); err != nil {
			t.Fatal(err)
		}
		if off := ask() - time.Now().Unix(); off < days*day-day/2 || off > days*day+day/2 {
			t.Errorf("the clock is off by %d seconds, not by %d days", off, days)
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	g, err := newMemoryGroup("graze-chaos-test")
	if err != nil {
		t.Skip(err)
	}
	if err := g.remove(); err != nil {
		t.Fatal(err)
	}
	p, ask := startSelf(t, add(t, newNetwork(t, 1), 0, "10.77.0.1"))
	ask()
	if err := p.OutOfMemory(); err != nil {
		t.Fatal(err)
	}
	var status *exec.ExitError
	if !errors.As(p.Err(), &status) || status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process has ended otherwise: %v", p.Err())
	}
}
