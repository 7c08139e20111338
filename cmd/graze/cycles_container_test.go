package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A runningContainer is the client that waits for a container, whose program uses
// its files.
type runningContainer struct {
	ctd    *containerd
	id     string
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr *bytes.Buffer
	execs  int
}

// startRetry is how long a client waits before it tries again.
const startRetry = 200 * time.Millisecond

// start starts a container of one of the images, and returns when it uses the image.
// Its name is one of this test: runc knows the containers of each containerd.
func (c *cycles) start(ctx context.Context, i int) (*runningContainer, error) {
	img := c.images[i%len(c.images)]
	for try := 0; ; try++ {
		begin := time.Now()
		p, err := c.tryStart(ctx, img, fmt.Sprintf("%s-%d-%d", filepath.Base(c.node.state), i, try))
		if err == nil || !c.again(begin, err, &c.startedAgain) {
			return p, err
		}
		select {
		case <-time.After(startRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *cycles) tryStart(ctx context.Context, img cycleImage, id string) (*runningContainer, error) {
	p := &runningContainer{ctd: c.ctd, id: id, stderr: new(bytes.Buffer)}
	p.cmd = exec.CommandContext(ctx, c.ctd.program("ctr"), "--address", c.ctd.socket(), "run", "--rm", "--snapshotter", "graze", img.ref, id)
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, _ := p.out.ReadString('\n')
	sum, ok := strings.CutPrefix(line, "using ")
	if !ok {
		return nil, fmt.Errorf("start: %s%w", line, p.end())
	}
	if sum = strings.TrimSpace(sum); sum != img.sum {
		return nil, errors.Join(fmt.Errorf("the files have the sum %s, not %s", sum, img.sum), p.stop())
	}
	return p, nil
}

// hello runs another program in the container.
func (p *runningContainer) hello(ctx context.Context) error {
	p.execs++
	cmd := exec.CommandContext(ctx, p.ctd.program("ctr"), "--address", p.ctd.socket(), "task", "exec", "--exec-id", fmt.Sprint("hello-", p.execs), p.id, "/probe", "hello")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "hello\n") {
		return fmt.Errorf("exec says %q: %w", out, errors.Join(err, errors.New("not hello")))
	}
	return nil
}

// stop ends the container, which must have nothing to say. Its client passes signals
// on, but not from the moment on at which the program runs.
func (p *runningContainer) stop() error {
	kill := exec.Command(p.ctd.program("ctr"), "--address", p.ctd.socket(), "task", "kill", "--signal", "SIGTERM", p.id)
	if out, err := kill.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("%w: %s", err, out), p.cmd.Process.Kill(), p.end())
	}
	return p.end()
}

// end waits for the container's end.
func (p *runningContainer) end() error {
	out, _ := io.ReadAll(p.out)
	err := p.cmd.Wait()
	if err != nil || len(out) > 0 {
		return fmt.Errorf("the container ends (%v): %s%s", err, out, p.stderr)
	}
	return nil
}

// TestContainerRestart runs a container over the end of its node in each way: a
// program can be started in it meanwhile, and another container right after. No
// registry is needed for that.
func TestContainerRestart(t *testing.T) {
	containerds(t, func(t *testing.T, cfg containerdConfig) {
		c := newCycles(t, cfg)
		c.push(t, 0)
		ctx := t.Context()
		(&rig{reg: c.reg, ctd: c.ctd}).pullLazily(t, c.images[0].ref)
		p, err := c.start(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		c.reg.stop()
		for i, how := range []struct {
			name    string
			signal  syscall.Signal
			upgrade bool
		}{
			{"killed", syscall.SIGKILL, false},
			{"restarted", syscall.SIGTERM, false},
			{"restarted as another", syscall.SIGTERM, true},
			{"killed, and replaced", syscall.SIGKILL, true},
		} {
			c.end(t, how.signal)
			if how.upgrade {
				c.upgrade(t, c.node.binary)
			}
			said := make(chan error, 1)
			go func() { said <- p.hello(ctx) }()
			pause(t, 100*time.Millisecond)
			c.node.start(t)
			if err := <-said; err != nil {
				t.Errorf("%s: %v", how.name, err)
			}
			other, err := c.start(ctx, i+1)
			if err != nil {
				t.Errorf("%s: another container: %v", how.name, err)
				break
			}
			if err := other.stop(); err != nil {
				t.Errorf("%s: another container: %v", how.name, err)
			}
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		c.accounted(t)
		c.vanished(t)
	})
}
