package scenario

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"graze/chaos"
)

// setDefaults fills in what a file leaves out.
func (s *Scenario) setDefaults() {
	c := &s.Cluster
	if c.Nodes == 0 {
		c.Nodes = 8
	}
	if c.Racks == 0 {
		c.Racks = min(2, c.Nodes)
	}
	if c.Link == "" {
		c.Link = "200mbit"
	}
	if c.Registry == "" {
		c.Registry = c.Link
	}
	if c.Disk == 0 {
		c.Disk = 256 << 20
	}
	if s.Image.Size == 0 {
		s.Image.Size = 16 << 20
	}
	if s.Image.Files == 0 {
		s.Image.Files = 200
	}
	if s.Limit == 0 {
		s.Limit = Duration(5 * time.Minute)
	}
	for _, step := range s.Steps {
		if w := step.Wait; w != nil && w.Within == 0 {
			w.Within = Duration(time.Minute)
		}
	}
}

// The most that a scenario may ask for: addresses and the host end there.
const (
	maxNodes = 200
	maxFiles = 100_000
)

// check returns what is wrong with a scenario.
func (s *Scenario) check() error {
	c := &s.Cluster
	switch {
	case s.Name == "":
		return errors.New("the scenario has no name")
	case c.Nodes < 1 || c.Nodes > maxNodes:
		return fmt.Errorf("a cluster has 1 to %d nodes, not %d", maxNodes, c.Nodes)
	case c.Racks < 1 || c.Racks > c.Nodes:
		return fmt.Errorf("%d nodes are in 1 to %d racks, not in %d", c.Nodes, c.Nodes, c.Racks)
	case c.Seeds < 0 || c.Late < 0 || c.Late >= c.Nodes:
		return errors.New("some nodes are there at the begin, and no number of them is negative")
	case s.Image.Files < 1 || s.Image.Files > maxFiles || int64(s.Image.Size) < int64(s.Image.Files):
		return fmt.Errorf("an image has 1 to %d files, and a byte at least for each", maxFiles)
	case len(s.Steps) == 0:
		return errors.New("the scenario has no steps")
	}
	for _, some := range c.Some {
		if _, err := some.Nodes.in(c); err != nil {
			return err
		}
	}
	marks := []string{beginMark, endMark}
	for i, step := range s.Steps {
		if err := step.check(c); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		if i > 0 && step.At < s.Steps[i-1].At {
			return fmt.Errorf("step %d is before the one that it follows", i+1)
		}
		if step.Mark != "" {
			marks = append(marks, step.Mark)
		}
	}
	for _, w := range s.Expect.Windows {
		if !slices.Contains(marks, w.From) || !slices.Contains(marks, w.To) {
			return fmt.Errorf("a window is from one mark to another, and %q or %q is none", w.From, w.To)
		}
	}
	return nil
}

// The marks that every scenario has.
const (
	beginMark = "begin"
	endMark   = "end"
)

// diskFaults are the faults of disks, and none.
var diskFaults = []DiskFault{"", DiskFull, DiskFreed, DiskCorrupt, DiskReadErrors, DiskReadOnly, DiskWell}

// fails reports whether a disk must be one that can fail.
func (f DiskFault) fails() bool { return f == DiskReadErrors || f == DiskReadOnly || f == DiskWell }

// failing returns the numbers of the nodes whose disks fail at some time.
func (s *Scenario) failing() (list []int) {
	for _, step := range s.Steps {
		if step.Disk.fails() {
			which, _ := step.Nodes.in(&s.Cluster) // it has been checked
			list = append(list, which...)
		}
	}
	return list
}

// check returns what is wrong with a step.
func (s *Step) check(c *Cluster) error {
	if _, err := s.Nodes.in(c); err != nil {
		return err
	}
	v, actions := reflect.ValueOf(s).Elem(), 0
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; name != "At" && name != "Nodes" && !v.Field(i).IsZero() {
			actions++
		}
	}
	if actions != 1 {
		return fmt.Errorf("it does %d things; each step does one", actions)
	}
	switch {
	case s.Registry != nil:
		return s.Registry.check()
	case s.Rack != nil && (s.Rack.Rack < 0 || s.Rack.Rack >= c.Racks):
		return fmt.Errorf("there is no rack %d", s.Rack.Rack)
	case s.Read != nil && (s.Read.Share < 0 || s.Read.Share > 1):
		return fmt.Errorf("share %v is not between 0 and 1", s.Read.Share)
	case s.Read != nil && s.Read.Fresh && s.Read.Every == 0:
		return errors.New("what is read once is not mounted anew; fresh goes with every")
	case s.Restart != nil && !slices.Contains([]string{"", "kill", "term", signalMemory}, s.Restart.Signal):
		return fmt.Errorf("a restart is by kill, term or oom, not by %q", s.Restart.Signal)
	case !slices.Contains(diskFaults, s.Disk):
		return fmt.Errorf("disks have no fault %q", s.Disk)
	}
	return nil
}

// check returns what is wrong with a fault of the registry.
func (r *Registry) check() error {
	if !slices.Contains([]chaos.Door{chaos.Open, chaos.Refuse, chaos.Swallow}, r.door()) {
		return fmt.Errorf("a registry's door is open, refuse or swallow, not %q", r.Door)
	}
	return r.Fault.chaos().Check()
}

// door returns whether the registry takes connections.
func (r *Registry) door() chaos.Door {
	if r.Door == "" {
		return chaos.Open
	}
	return r.Door
}

// in returns the numbers of the nodes that are named, in ascending order. The
// names are, with commas between them: "all", which leaves out late ones;
// "late"; "seeds", "plain", which are no seeds; "rack 1"; "every 3", the third
// and each third after it; "5"; "2-4".
func (n Nodes) in(c *Cluster) ([]int, error) {
	if n == "" {
		n = "all"
	}
	var list []int
	for word := range strings.SplitSeq(string(n), ",") {
		is, err := selector(strings.TrimSpace(word), c)
		if err != nil {
			return nil, err
		}
		for i := range c.Nodes {
			if is(i) && !slices.Contains(list, i) {
				list = append(list, i)
			}
		}
	}
	slices.Sort(list)
	return list, nil
}

// selector returns whether a word names a node.
func selector(word string, c *Cluster) (func(int) bool, error) {
	name, rest, _ := strings.Cut(word, " ")
	number, numberErr := strconv.Atoi(rest)
	switch {
	case word == "all":
		return func(i int) bool { return !c.late(i) }, nil
	case word == "late":
		return c.late, nil
	case word == "seeds":
		return c.seed, nil
	case word == "plain":
		return func(i int) bool { return !c.seed(i) }, nil
	case name == "rack" && numberErr == nil:
		return func(i int) bool { return i%c.Racks == number }, nil
	case name == "every" && numberErr == nil && number > 0:
		return func(i int) bool { return i%number == number-1 }, nil
	}
	first, last, isRange := strings.Cut(word, "-")
	if !isRange {
		last = first
	}
	from, err1 := strconv.Atoi(first)
	to, err2 := strconv.Atoi(last)
	if err := errors.Join(err1, err2); err != nil || from < 0 || to >= c.Nodes || from > to {
		return nil, fmt.Errorf("%q names no nodes; what does is all, late, seeds, plain, \"rack 0\", \"every 3\", 0 to %d and 1-2", word, c.Nodes-1)
	}
	return func(i int) bool { return from <= i && i <= to }, nil
}

// seed reports whether a node is a seed.
func (c *Cluster) seed(i int) bool { return i/c.Racks < c.Seeds }

// alone reports whether the nodes are none of a cluster: without a key they work
// alone.
func (c *Cluster) alone() bool { return c.Settings["cluster.key-file"] == "" }

// settings returns what the scenario sets of node i.
func (c *Cluster) settings(i int) map[string]any {
	all := maps.Clone(c.Settings)
	if all == nil {
		all = make(map[string]any)
	}
	for _, some := range c.Some {
		if list, err := some.Nodes.in(c); err == nil && slices.Contains(list, i) {
			maps.Copy(all, some.Settings)
		}
	}
	return all
}

// late reports whether a node is not there at the begin.
func (c *Cluster) late(i int) bool { return i >= c.Nodes-c.Late }
