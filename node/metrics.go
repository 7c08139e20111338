package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"graze/chunkstore"
	"graze/copies"
	"graze/dht"
	"graze/fusefs"
	"graze/latency"
	"graze/origin"
	"graze/peer"
	"graze/scheduler"
	"graze/snapshotter"
)

// Metrics are read from the parts of a node when somebody asks for them. Their
// labels have few values, all known beforehand: never a digest, a name of an image
// or a node.

// A family is one metric with all values of its labels.
type family struct {
	name   string
	kind   familyKind
	help   string
	labels []string
	read   func(s *sample, e emitter)
}

type familyKind string

// The kinds of families, in Prometheus' words.
const (
	counter   familyKind = "counter"
	gauge     familyKind = "gauge"
	histogram familyKind = "histogram"
)

// A sample is what the parts of a node say at one moment.
type sample struct {
	sched    scheduler.Stats
	store    chunkstore.Stats
	fuse     fusefs.Stats // of all mounts that there are and were
	mounts   int
	stale    int              // mounts whose tag the registry did not confirm
	safety   []copies.Status  // of the images that are mounted
	registry origin.HostStats // all hosts together
	host     peer.Stats
	gossip   dht.Stats
	outside  OutsideStats
	metadata MetadataStats
	seeds    struct{ images, spans, have int64 }
	snaps    snapshotter.Stats
}

// sample reads all parts of the node.
func (n *Node) sample() *sample {
	s := &sample{sched: n.sched.Stats()}
	if n.store != nil {
		s.store = n.store.Stats()
	}
	n.mu.Lock()
	s.mounts, s.fuse = len(n.mounts), n.gone
	for _, m := range n.mounts {
		now := m.server.Stats()
		s.fuse.Add(&now)
		if m.info.Stale {
			s.stale++
		}
	}
	s.metadata = n.metadata
	n.mu.Unlock()
	for ref := range n.mountedImages() {
		s.safety = append(s.safety, n.safety(ref))
	}
	for _, h := range n.client.Stats().Hosts {
		s.registry.Requests += h.Requests
		s.registry.Bytes += h.Bytes
		s.registry.Errors += h.Errors
		s.registry.Retries += h.Retries
		s.registry.Throttled += h.Throttled
		s.registry.Reresolved += h.Reresolved
	}
	if n.members != nil {
		s.host, s.gossip = n.members.host.Stats(), n.members.dht.Stats()
		if n.members.outside != nil {
			s.outside = n.members.outside.stats()
		}
	}
	if n.snaps != nil {
		s.snaps = n.snaps.Stats()
	}
	if n.seeds != nil {
		for _, one := range n.seeds.List() {
			s.seeds.images++
			s.seeds.spans += int64(one.Spans)
			s.seeds.have += int64(one.Have)
		}
	}
	return s
}

// A collector gives Prometheus the node's metrics.
type collector struct {
	node  *Node
	descs []*prometheus.Desc // as families
}

func newCollector(n *Node) *collector {
	c := &collector{node: n}
	for _, f := range families {
		c.descs = append(c.descs, prometheus.NewDesc(f.name, f.help, f.labels, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.node.sample()
	for i, f := range families {
		f.read(s, emitter{c.descs[i], f.kind, ch})
	}
}

// An emitter takes the values of one family.
type emitter struct {
	desc *prometheus.Desc
	kind familyKind
	ch   chan<- prometheus.Metric
}

// value gives one value, with those of the labels.
func (e emitter) value(v int64, labels ...string) {
	kind := prometheus.CounterValue
	if e.kind == gauge {
		kind = prometheus.GaugeValue
	}
	e.ch <- prometheus.MustNewConstMetric(e.desc, kind, float64(v), labels...)
}

// The buckets of histograms end at powers of two of a microsecond, which are
// bounds of package latency too: from 256 µs to 134 s.
const (
	firstBucket = 256 * time.Microsecond
	numBuckets  = 20
)

// durations gives one histogram.
func (e emitter) durations(h *latency.Histogram, labels ...string) {
	buckets := make(map[float64]uint64, numBuckets)
	for i := range numBuckets {
		buckets[(firstBucket << i).Seconds()] = 0
	}
	for upper, n := range h.Buckets {
		for i := range numBuckets {
			if le := firstBucket << i; upper <= le {
				buckets[le.Seconds()] += uint64(n)
			}
		}
	}
	e.ch <- prometheus.MustNewConstHistogram(e.desc, uint64(h.Count), h.Sum.Seconds(), buckets, labels...)
}
