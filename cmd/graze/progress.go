package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// plainEvery is how often a line is printed for a piece of work where there is
// no terminal.
const plainEvery = 5 * time.Second

// A progress shows how far pieces of long work are: as bars on a terminal, as
// lines elsewhere. It is safe for concurrent use.
type progress struct {
	out  io.Writer
	bars *mpb.Progress // nil where out is no terminal

	mu    sync.Mutex // guards what follows
	tasks map[string]*task
}

// A task is one piece of work.
type task struct {
	bar     *mpb.Bar
	printed time.Time
	done    bool
}

// newProgress returns a progress that writes to out. Call close when the work
// is over.
func newProgress(out io.Writer) *progress {
	p := &progress{out: out, tasks: make(map[string]*task)}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bars = mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
	}
	return p
}

// update says that n of total bytes of the task called name are done.
func (p *progress) update(name string, n, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.tasks[name]
	if t == nil {
		t = &task{printed: time.Now()}
		if p.bars != nil {
			t.bar = p.bars.AddBar(total,
				mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR), decor.CountersKibiByte("% .1f / % .1f")),
				mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f"), decor.Name(" "), decor.AverageETA(decor.ET_STYLE_GO)))
		}
		p.tasks[name] = t
	}
	if t.bar != nil {
		t.bar.SetCurrent(n)
		return
	}
	finished := n >= total
	if t.done || !finished && time.Since(t.printed) < plainEvery {
		return
	}
	t.printed, t.done = time.Now(), finished
	fmt.Fprintf(p.out, "%s: %s of %s (%d %%)\n", name, size(n), size(total), 100*n/max(total, 1))
}

// close waits until the last state of the bars is on the terminal. Bars of work
// that did not end are given up.
func (p *progress) close() {
	if p.bars == nil {
		return
	}
	p.mu.Lock()
	for _, t := range p.tasks {
		if !t.bar.Completed() {
			t.bar.Abort(false)
		}
	}
	p.mu.Unlock()
	p.bars.Wait()
}
