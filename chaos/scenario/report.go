package scenario

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Report is what came of a scenario.
type Report struct {
	Name, About, Guards string

	Took    time.Duration
	Events  []Event
	Samples []Sample
	Checks  []Check
	Totals  Totals

	RegistryBytes int64 // of layers, that the registry has sent
	RegistryOnce  int64 // of them, those that it had not sent before
}

// An Event is a step that was taken.
type Event struct {
	At   time.Duration
	What string
}

// A Check is something that must hold.
type Check struct {
	Name string
	OK   bool
	Seen string // what was measured
}

// Totals sum up what readers have seen.
type Totals struct {
	Reads, Errors, Wrong int
	Bytes                int64
	Median, P99, Slowest time.Duration
}

// sampleLength is the stretch of time of a Sample.
const sampleLength = 200 * time.Millisecond

// A Sample is what happened in a stretch of time.
type Sample struct {
	At       time.Duration // its begin
	Reads    int           // files that were read to the end
	Errors   int
	Slowest  time.Duration // of those reads
	Requests int           // at the registry, refused ones too
	Bytes    int64         // from the registry
}

// OK reports whether all has held that must.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Checks, func(c Check) bool { return !c.OK })
}

// check adds a check.
func (r *Report) check(name string, ok bool, seen string, args ...any) {
	r.Checks = append(r.Checks, Check{Name: name, OK: ok, Seen: fmt.Sprintf(seen, args...)})
}

// totals sums up reads.
func totals(reads []read) (t Totals) {
	var took []time.Duration
	for _, r := range reads {
		t.Reads++
		switch {
		case r.err != nil:
			t.Errors++
		case r.wrong:
			t.Wrong++
		}
		if r.file != "" && r.err == nil {
			took = append(took, r.took)
		}
	}
	if len(took) > 0 {
		slices.Sort(took)
		t.Median, t.P99, t.Slowest = took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	}
	return t
}

// samples returns what happened when.
func (p *play) samples(reads []read) []Sample {
	list := make([]Sample, time.Since(p.begin)/sampleLength+1)
	for i := range list {
		s := &list[i]
		s.At = time.Duration(i) * sampleLength
		s.Requests, s.Bytes = p.cluster.ledger.between(s.At, s.At+sampleLength)
	}
	for _, r := range reads {
		i := min(int((r.at+r.took)/sampleLength), len(list)-1)
		if r.err != nil || r.wrong {
			list[i].Errors++
			continue
		}
		list[i].Reads++
		list[i].Slowest = max(list[i].Slowest, r.took)
	}
	return list
}

// timelineRows is how many stretches of time a timeline has at most.
const timelineRows = 24

// Write prints the verdict and a timeline.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	verdict := "PASSED"
	if !r.OK() {
		verdict = "FAILED"
	}
	fmt.Fprintf(&b, "%s: %s, %.1f s\n%s\n\n", r.Name, verdict, r.Took.Seconds(), r.About)
	for _, c := range r.Checks {
		mark := "ok  "
		if !c.OK {
			mark = "FAIL"
		}
		fmt.Fprintf(&b, "%s %s: %s\n", mark, c.Name, c.Seen)
	}
	fmt.Fprintf(&b, "     reads: %d, half of them within %v, 99 of 100 within %v, all within %v\n\n", r.Totals.Reads,
		r.Totals.Median.Round(time.Microsecond), r.Totals.P99.Round(time.Millisecond), r.Totals.Slowest.Round(time.Millisecond))
	fmt.Fprintf(&b, "%8s %7s %7s %10s %9s %9s  %s\n", "seconds", "reads", "errors", "slowest ms", "requests", "KiB", "step")
	many := len(r.Events) > manyEvents
	for _, row := range r.rows() {
		if many {
			row.steps = nil
		}
		fmt.Fprintf(&b, "%8.1f %7d %7d %10d %9d %9d  %s\n", row.At.Seconds(), row.Reads, row.Errors, row.Slowest.Milliseconds(), row.Requests, row.Bytes>>10, strings.Join(row.steps, "; "))
	}
	if many {
		r.writeCounts(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// manyEvents is more than fit into a timeline.
const manyEvents = 4 * timelineRows

// writeCounts writes how often what was done.
func (r *Report) writeCounts(b *strings.Builder) {
	counts := make(map[string]int)
	for _, e := range r.Events {
		counts[e.What]++
	}
	fmt.Fprintf(b, "\n%8s  step\n", "times")
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(b, "%8d  %s\n", counts[what], what)
	}
}

// A row is a stretch of the timeline.
type row struct {
	Sample
	steps []string
}

// joined returns the samples, each the sum of as many as there must be for no more
// than most of them, and the length of one.
func (r *Report) joined(most int) (list []Sample, length time.Duration) {
	each := max(1, (len(r.Samples)+most-1)/most)
	for i, s := range r.Samples {
		if i%each == 0 {
			list = append(list, Sample{At: s.At})
		}
		last := &list[len(list)-1]
		last.Reads += s.Reads
		last.Errors += s.Errors
		last.Requests += s.Requests
		last.Bytes += s.Bytes
		last.Slowest = max(last.Slowest, s.Slowest)
	}
	return list, time.Duration(each) * sampleLength
}

// rows returns the timeline in few stretches.
func (r *Report) rows() []row {
	samples, length := r.joined(timelineRows)
	list := make([]row, len(samples))
	for i, s := range samples {
		list[i].Sample = s
	}
	for _, e := range r.Events {
		i := min(int(e.At/length), len(list)-1)
		list[i].steps = append(list[i].steps, e.What)
	}
	return list
}
