package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"graze/chaos"
	"graze/chaos/disk"
)

// A Scenario is what is played, and what must hold.
type Scenario struct {
	Name  string `yaml:"name"`
	About string `yaml:"about"` // a sentence or two

	// Guards names the mechanism that the scenario is about, and Off is what turns
	// it off.
	Guards string `yaml:"guards"`
	Off    Change `yaml:"off"`

	Cluster Cluster `yaml:"cluster"`
	Image   Image   `yaml:"image"`
	Steps   []Step  `yaml:"steps"`
	Expect  Expect  `yaml:"expect"`

	// Limit is how long it may take in all. Default: 5 minutes.
	Limit Duration `yaml:"limit"`
}

// A Change replaces settings of a scenario's cluster.
type Change struct {
	Settings map[string]any `yaml:"settings"`
	Seeds    *int           `yaml:"seeds"`
}

// String names what is turned off.
func (c Change) String() string {
	var list []string
	if c.Seeds != nil {
		list = append(list, fmt.Sprintf("seeds: %d", *c.Seeds))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Settings)) {
		list = append(list, fmt.Sprintf("%s: %q", name, fmt.Sprint(c.Settings[name])))
	}
	return strings.Join(list, ", ")
}

// A Cluster says what nodes there are.
type Cluster struct {
	Nodes    int    `yaml:"nodes"` // default 8
	Racks    int    `yaml:"racks"` // default 2; node i is in rack i modulo this
	Seeds    int    `yaml:"seeds"` // of each rack, its first nodes
	Link     string `yaml:"link"`  // rate of a node's link, as tc(8) writes it; default 200mbit
	Registry string `yaml:"registry"`
	Disk     Size   `yaml:"disk"` // of each node; default 256 MiB, in memory
	Late     int    `yaml:"late"` // of the nodes, the last ones, which a step starts

	// Settings are those of the nodes' file, by their names with dots:
	// "cluster.copies".
	Settings map[string]any `yaml:"settings"`
	Some     []Some         `yaml:"some"`
}

// A Some has other settings for some nodes.
type Some struct {
	Nodes    Nodes          `yaml:"nodes"`
	Settings map[string]any `yaml:"settings"`
}

// An Image says what the image that is read looks like. Its files don't compress.
type Image struct {
	Size  Size `yaml:"size"`  // default 16 MiB
	Files int  `yaml:"files"` // default 200
}

// A Step does one thing at a point in time.
type Step struct {
	At    Duration `yaml:"at"`    // since the scenario's begin
	Nodes Nodes    `yaml:"nodes"` // whom it is about; default all that are not late

	// One of these.
	Start    bool      `yaml:"start"`    // nodes that are late, or were killed
	Kill     bool      `yaml:"kill"`     // kill -9
	Restart  *Restart  `yaml:"restart"`  // one after the other
	Freeze   bool      `yaml:"freeze"`   // SIGSTOP
	Thaw     bool      `yaml:"thaw"`     // SIGCONT
	Mount    bool      `yaml:"mount"`    // the image
	Read     *Read     `yaml:"read"`     // files of the mounted image, until they are read
	Registry *Registry `yaml:"registry"` // what is wrong with it; {} ends that
	Rack     *Rack     `yaml:"rack"`     // is cut off
	Split    *bool     `yaml:"split"`    // racks from each other
	Link     string    `yaml:"link"`     // rate at which nodes can send
	Disk     DiskFault `yaml:"disk"`
	Clock    *Offset   `yaml:"clock"` // by which the time of day of nodes is wrong; 0s ends that
	Lie      bool      `yaml:"lie"`   // one more member, which serves wrong bytes
	Wait     *Wait     `yaml:"wait"`  // until something is so; later steps wait, too
	Mark     string    `yaml:"mark"`  // names this moment
}

// A Restart is a rolling one.
type Restart struct {
	Signal string   `yaml:"signal"` // "kill", "term" or "oom", for want of memory; default term
	Every  Duration `yaml:"every"`  // between two nodes
}

// A Read has files read and compared.
type Read struct {
	Share float64  `yaml:"share"` // of the files; default 1
	Own   bool     `yaml:"own"`   // each node another share
	Every Duration `yaml:"every"` // again and again, until the steps are over: each time the kernel has forgotten all
	Fresh bool     `yaml:"fresh"` // with every: the image is mounted anew each time, as for a container that starts
}

// A Registry is what is wrong with the registry.
type Registry struct {
	Door  chaos.Door `yaml:"door"` // default open
	Fault Fault      `yaml:"fault"`
}

// A Fault is a chaos.Fault in the form in which files have it.
type Fault struct {
	Kind       chaos.Kind    `yaml:"kind"`
	Of         chaos.Subject `yaml:"of"`
	Share      float64       `yaml:"share"`
	Delay      Duration      `yaml:"delay"`
	Rate       Size          `yaml:"rate"` // a second
	After      Size          `yaml:"after"`
	Status     int           `yaml:"status"`
	RetryAfter Duration      `yaml:"retry-after"`
	Requests   float64       `yaml:"requests"` // a second
	Lifetime   Duration      `yaml:"lifetime"`
}

// chaos returns the fault as package chaos has it.
func (f Fault) chaos() chaos.Fault {
	return chaos.Fault{
		Kind: f.Kind, Of: f.Of, Share: f.Share,
		Delay: time.Duration(f.Delay), Rate: int64(f.Rate), After: int64(f.After),
		Status: f.Status, RetryAfter: time.Duration(f.RetryAfter),
		Requests: f.Requests, Lifetime: time.Duration(f.Lifetime),
	}
}

// A Rack is one that is cut off, or comes back.
type Rack struct {
	Rack int  `yaml:"rack"`
	Cut  bool `yaml:"cut"`
}

// A DiskFault names what is wrong with the disks of nodes.
type DiskFault string

// The faults of disks.
const (
	DiskFull       DiskFault = "full"                     // nothing more can be written
	DiskFreed      DiskFault = "freed"                    // it can again
	DiskCorrupt    DiskFault = "corrupt"                  // bits of the chunks that are kept are wrong
	DiskReadErrors DiskFault = DiskFault(disk.ReadErrors) // half of what is kept can't be read
	DiskReadOnly   DiskFault = DiskFault(disk.ReadOnly)   // nothing can be written, removed or renamed
	DiskWell       DiskFault = DiskFault(disk.Well)       // it can be read and written again
)

// A Wait is for what a step needs.
type Wait struct {
	Reads   bool     `yaml:"reads"`   // until all reads that were begun, but repeated ones, have ended
	Copies  bool     `yaml:"copies"`  // until nodes report the image as safe without the registry
	Members int      `yaml:"members"` // until each node that runs knows so many
	For     Duration `yaml:"for"`     // and so long

	// Within is how long that may take, without For. What takes longer does not
	// hold, and ends the scenario. Default: a minute.
	Within Duration `yaml:"within"`
}

// Nodes names nodes of a cluster.
type Nodes string

// Expect is what must hold. Wrong bytes are never allowed.
type Expect struct {
	Errors     int      `yaml:"errors"`     // most reads and mounts that may fail
	Slowest    Duration `yaml:"slowest"`    // longest that a file may take to be read; 0: no bound
	Egress     float64  `yaml:"egress"`     // most that the registry may send of layers, as a multiple of what was sent once; 0: no bound
	Reads      int      `yaml:"reads"`      // fewest files that must have been read
	Stale      bool     `yaml:"stale"`      // mounts say that they are of the last known image
	Quarantine bool     `yaml:"quarantine"` // whoever got wrong bytes from the liar, and somebody did, avoids it
	Rotten     bool     `yaml:"rotten"`     // nodes have found chunks that were wrong on their disks
	Evicted    bool     `yaml:"evicted"`    // nodes have made room for other chunks
	Verified   bool     `yaml:"verified"`   // 'graze verify' finds nothing wrong in what the nodes keep
	Bounded    bool     `yaml:"bounded"`    // memory, descriptors, goroutines and disk of nodes don't grow; needs "metrics.listen": "127.0.0.1:7948"
	Windows    []Window `yaml:"windows"`    // of what reaches the registry
}

// A Window bounds what reaches the registry between two marks.
type Window struct {
	From, To string
	Requests float64 // most a second, refused connections too
	Bytes    Size    // most in all; 0: no bound
}

// A Duration is one in the form of "1m30s".
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(v *yaml.Node) error {
	parsed, err := time.ParseDuration(v.Value)
	if err != nil || parsed < 0 {
		return fmt.Errorf("line %d: %q is no duration, such as 30s", v.Line, v.Value)
	}
	*d = Duration(parsed)
	return nil
}

// An Offset is how much a clock is ahead, or behind with a minus: "24h", "-1h".
type Offset time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (o *Offset) UnmarshalYAML(v *yaml.Node) error {
	parsed, err := time.ParseDuration(v.Value)
	if err != nil {
		return fmt.Errorf("line %d: %q is no offset, such as 24h or -1h", v.Line, v.Value)
	}
	*o = Offset(parsed)
	return nil
}

// A Size is a number of bytes, in the form of "64MiB" or "100".
type Size int64

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Size) UnmarshalYAML(v *yaml.Node) error {
	text, shift := v.Value, 0
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if rest, ok := strings.CutSuffix(text, unit); ok {
			text, shift = rest, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
	if err != nil || n < 0 {
		return fmt.Errorf("line %d: %q is no number of bytes, such as 64MiB", v.Line, v.Value)
	}
	*s = Size(n << shift)
	return nil
}

// Load reads a scenario's file.
func Load(name string) (*Scenario, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	s, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// Parse reads a scenario.
func Parse(text []byte) (*Scenario, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	s := new(Scenario)
	if err := d.Decode(s); errors.Is(err, io.EOF) {
		return nil, errors.New("there is no scenario in it")
	} else if err != nil {
		return nil, err
	}
	s.setDefaults()
	return s, s.check()
}
