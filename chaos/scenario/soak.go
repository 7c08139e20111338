package scenario

import (
	"fmt"
	"math/rand/v2"
	"time"

	"graze/chaos"
)

// The rhythm of a soak: a fault lasts for faultTime, then all is well for calmTime.
const (
	faultTime = 4 * time.Second
	calmTime  = 3 * time.Second
	// warmUp is how long after the begin the first fault comes: the image is
	// complete by then.
	warmUp = 12 * time.Second
)

// Soak returns a scenario of random faults, one after the other, for so long. The
// same seed gives the same faults. An image is read all the time.
func Soak(seed uint64, length time.Duration) *Scenario {
	s := &Scenario{
		Name:   "soak",
		About:  fmt.Sprintf("Random faults of seed %d for %v, while an image is read all the time.", seed, length),
		Guards: "all that keeps readers from noticing, and what nodes use in bounds",
		Cluster: Cluster{
			Nodes: 4, Seeds: 1,
			Settings: map[string]any{
				"keep-mounts": "keeper", "metrics.listen": metricsAddr, "cluster.completion-rate": "", "cluster.tag-freshness": "1s",
				"store-limit": "40MiB", // is reached soon: what rots keeps its place until then
			},
			// Nodes that can't keep the image go on asking others for it.
			Some: []Some{{Nodes: "plain", Settings: map[string]any{"store-limit": "8MiB"}}},
		},
		Steps: []Step{
			{Mount: true}, {Read: &Read{}}, {Wait: &Wait{Reads: true, For: Duration(time.Second)}},
			{Read: &Read{Every: Duration(time.Second)}},
		},
		Expect: Expect{Slowest: Duration(time.Minute), Bounded: true},
		Limit:  Duration(length + 10*time.Minute),
	}
	s.setDefaults()
	rng := rand.New(rand.NewPCG(seed, 1))
	for at := warmUp; at+faultTime+calmTime <= length; at += faultTime + calmTime {
		begin, end := randomFault(rng, &s.Cluster)
		begin.At = Duration(at)
		s.Steps = append(s.Steps, begin)
		if end != nil {
			end.At = Duration(at + faultTime)
			s.Steps = append(s.Steps, *end)
		}
	}
	s.Steps = append(s.Steps, Step{At: Duration(length), Mark: "over"})
	return s
}

// randomFault returns the step that begins a fault, and the one that ends it unless
// it ends by itself.
func randomFault(rng *rand.Rand, c *Cluster) (begin Step, end *Step) {
	node := Nodes(fmt.Sprint(rng.IntN(c.Nodes)))
	rack := rng.IntN(c.Racks)
	// One disk alone can fail: those that can are slower.
	last := Nodes(fmt.Sprint(c.Nodes - 1))
	ahead, behind, right := Offset(400*24*time.Hour), Offset(-400*24*time.Hour), Offset(0)
	well := &Step{Registry: &Registry{}}
	yes, no := true, false
	switch rng.IntN(18) {
	case 0:
		return Step{Registry: &Registry{Door: chaos.Refuse}}, well
	case 1:
		return Step{Registry: &Registry{Door: chaos.Swallow}}, well
	case 2:
		return Step{Registry: &Registry{Fault: Fault{Kind: chaos.Status, Status: 503}}}, well
	case 3:
		return Step{Registry: &Registry{Fault: Fault{Kind: chaos.Status, Status: 429, RetryAfter: Duration(2 * time.Second)}}}, well
	case 4:
		return Step{Registry: &Registry{Fault: Fault{Kind: chaos.Flip, After: 64 << 10}}}, well
	case 5:
		return Step{Nodes: node, Link: "10mbit"}, &Step{Nodes: node, Link: c.Link}
	case 6:
		return Step{Split: &yes}, &Step{Split: &no}
	case 7:
		return Step{Nodes: node, Disk: DiskCorrupt}, nil
	case 8:
		return Step{Nodes: node, Restart: &Restart{Signal: "kill"}}, nil
	case 9:
		return Step{Nodes: node, Restart: &Restart{Signal: signalMemory}}, nil
	case 10:
		return Step{Rack: &Rack{Rack: rack, Cut: true}}, &Step{Rack: &Rack{Rack: rack}}
	case 11:
		return Step{Nodes: node, Freeze: true}, &Step{Nodes: node, Thaw: true}
	case 12:
		return Step{Nodes: node, Disk: DiskFull}, &Step{Nodes: node, Disk: DiskFreed}
	case 13:
		return Step{Nodes: last, Disk: DiskReadErrors}, &Step{Nodes: last, Disk: DiskWell}
	case 14:
		return Step{Nodes: last, Disk: DiskReadOnly}, &Step{Nodes: last, Disk: DiskWell}
	case 15:
		return Step{Nodes: node, Clock: &ahead}, &Step{Nodes: node, Clock: &right}
	case 16:
		return Step{Nodes: node, Clock: &behind}, &Step{Nodes: node, Clock: &right}
	}
	return Step{Nodes: node, Restart: &Restart{Signal: "term"}}, nil
}
