package lab

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fakeClock is what replaces the process's own clock_gettime: it asks the kernel,
// and adds the seconds that stand behind it to the time of day. The monotonic
// clock, which is what timers go by, stays as it is.
//
//	mov eax, 228; syscall        clock_gettime(edi, rsi)
//	test edi, edi; jnz out       not CLOCK_REALTIME
//	test eax, eax; jnz out
//	mov rcx, [rip+10]; add [rsi], rcx
//	out: ret; nop; nop; nop
var fakeClock = []byte{
	0xb8, 0xe4, 0x00, 0x00, 0x00, 0x0f, 0x05,
	0x85, 0xff, 0x75, 0x0e,
	0x85, 0xc0, 0x75, 0x0a,
	0x48, 0x8b, 0x0d, 0x0a, 0x00, 0x00, 0x00, 0x48, 0x01, 0x0e,
	0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
}

// stopTime is how long a process has to stop in, and to leave the code that is
// replaced.
const stopTime = 5 * time.Second

// SetClock has the process's clock be wrong by so many seconds, ahead or behind;
// 0 ends that. Only this process is concerned, none that it starts. There is no
// namespace for the time of day: what is changed is the code in the process's
// memory by which it asks for it, which needs amd64.
func (p *Process) SetClock(offset time.Duration) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the clock of one process can be set on amd64 only, not on %s", runtime.GOARCH)
	}
	v, err := findClock(p.PID())
	if err != nil {
		return fmt.Errorf("clock of process %d: %w", p.PID(), err)
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", p.PID()), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	word := binary.LittleEndian.AppendUint64(nil, uint64(int64(offset/time.Second)))
	at := int64(v.clock) + int64(len(fakeClock))
	have := make([]byte, len(fakeClock))
	if _, err := mem.ReadAt(have, int64(v.clock)); err != nil {
		return err
	}
	if bytes.Equal(have, fakeClock) {
		_, err := mem.WriteAt(word, at)
		return err
	}
	return p.whileOutside(v, func() error {
		_, err := mem.WriteAt(append(bytes.Clone(fakeClock), word...), int64(v.clock))
		return err
	})
}

// A vdso is the code that the kernel maps into a process.
type vdso struct{ begin, end, clock uint64 }

// mapVDSO returns where the kernel has mapped its code. A process that is just being
// started may have none yet.
func mapVDSO(pid int) (v vdso, err error) {
	for end := time.Now().Add(stopTime); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil {
			return v, err
		}
		for line := range strings.Lines(string(maps)) {
			if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
				_, err := fmt.Sscanf(line, "%x-%x", &v.begin, &v.end)
				return v, err
			}
		}
	}
	return v, errors.New("the kernel gives it no code for the time (vDSO)")
}

// findClock returns where a process's code is that asks for the time.
func findClock(pid int) (v vdso, err error) {
	if v, err = mapVDSO(pid); err != nil {
		return v, err
	}
	code := make([]byte, v.end-v.begin)
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return v, err
	}
	defer mem.Close()
	if _, err := mem.ReadAt(code, int64(v.begin)); err != nil {
		return v, err
	}
	file, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return v, err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return v, err
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" && s.Size >= uint64(len(fakeClock)+8) {
			v.clock = v.begin + s.Value
			return v, nil
		}
	}
	return v, errors.New("the kernel's code for the time has no place for another")
}

// whileOutside calls f while the process stands still and none of its threads is
// within the code.
func (p *Process) whileOutside(v vdso, f func() error) error {
	for end := time.Now().Add(stopTime); time.Now().Before(end); {
		if err := p.Signal(unix.SIGSTOP); err != nil {
			return err
		}
		err := stands(p.PID(), v)
		if err == nil {
			err = f()
		}
		if e := p.Signal(unix.SIGCONT); e != nil {
			return errors.Join(err, e)
		}
		if !errors.Is(err, errBusy) {
			return err
		}
		time.Sleep(time.Millisecond) // the kernel tells nobody that a process has stopped but its parent
	}
	return fmt.Errorf("process %d did not stop in %v", p.PID(), stopTime)
}

var errBusy = errors.New("a thread runs")

// stands returns errBusy if a thread of a process runs, or is within the code.
func stands(pid int, v vdso) error {
	calls, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	if err != nil || len(calls) == 0 {
		return fmt.Errorf("process %d has no threads: %w", pid, os.ErrProcessDone)
	}
	for _, name := range calls {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		fields := strings.Fields(string(text))
		if len(fields) < 3 {
			return errBusy // "running"
		}
		pc, err := strconv.ParseUint(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
		if err != nil {
			return err
		}
		if v.begin <= pc && pc < v.end {
			return errBusy
		}
	}
	return nil
}
