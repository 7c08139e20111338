package scenario

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"graze/chaos/disk"
)

// ChunkSuffix ends the names of the files that hold chunks: those that rot, and that a
// failing disk can't read.
const ChunkSuffix = ".seg"

// makeDisk makes the disk that the node's state folder is on: one in memory, and
// before it one that can fail, if it is to.
func (n *node) makeDisk(fails bool) error {
	n.store = n.state
	if fails {
		n.store = n.state + ".disk"
		if err := os.Mkdir(n.store, 0o700); err != nil {
			return err
		}
	}
	size := fmt.Sprintf("size=%d,mode=0700", n.cluster.spec.Disk)
	err := unix.Mount("graze-chaos", n.store, "tmpfs", 0, size)
	if err != nil || !fails {
		return err
	}
	n.disk, err = startDisk(n.cluster.binary, n.store, n.state)
	return err
}

// A failingDisk is the process of a disk that can fail.
type failingDisk struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// startDisk starts a disk with the content of a folder, and waits until it is there.
func startDisk(binary, folder, dir string) (*failingDisk, error) {
	d := &failingDisk{cmd: exec.Command(binary, "chaos", "disk", folder, dir)}
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt by the terminal is not for it
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	d.out = bufio.NewScanner(out)
	return d, d.answer()
}

// answer waits until the disk has done what it was told.
func (d *failingDisk) answer() error {
	if !d.out.Scan() {
		return errors.Join(errors.New("the process of a failing disk has ended"), d.out.Err())
	}
	return nil
}

// set says what is wrong with the disk.
func (d *failingDisk) set(f disk.Fault) error {
	if _, err := fmt.Fprintln(d.in, f); err != nil {
		return err
	}
	return d.answer()
}

// close takes the disk away.
func (d *failingDisk) close() error {
	return errors.Join(d.in.Close(), d.cmd.Wait())
}
