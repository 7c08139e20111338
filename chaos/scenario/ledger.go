package scenario

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"graze/chaos"
	"graze/chaos/lab"
)

// A ledger is in front of a registry, and notes when it was asked for what, and
// which bytes of which blobs it has sent.
type ledger struct {
	next  http.Handler
	begin time.Time

	mu    sync.Mutex
	asked []time.Duration       // guarded by mu; when requests came
	sent  []sending             // guarded by mu; bodies, when they ended
	parts map[string][]interval // guarded by mu; by digest
	lost  []time.Duration       // guarded by mu; when connections were refused
}

// A sending is the bytes of one body.
type sending struct {
	at    time.Duration
	bytes int64
}

// An interval is a part of a blob.
type interval struct{ from, to int64 }

func newLedger(next http.Handler) *ledger {
	return &ledger{next: next, begin: time.Now(), parts: make(map[string][]interval)}
}

// ServeHTTP implements http.Handler.
func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	l.asked = append(l.asked, time.Since(l.begin))
	l.mu.Unlock()
	counted := &chaos.CountedWriter{ResponseWriter: w}
	defer func() { l.note(r, counted) }() // also when the connection is cut on purpose
	l.next.ServeHTTP(counted, r)
}

// note takes down what was sent.
func (l *ledger) note(r *http.Request, w *chaos.CountedWriter) {
	if r.Method != http.MethodGet || w.Bytes == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = append(l.sent, sending{time.Since(l.begin), w.Bytes})
	if w.Status >= 300 || !strings.Contains(r.URL.Path, "/blobs/") {
		return
	}
	var from int64
	if first, ok := strings.CutPrefix(w.Header().Get("Content-Range"), "bytes "); ok {
		first, _, _ = strings.Cut(first, "-")
		from, _ = strconv.ParseInt(first, 10, 64)
	}
	digest := path.Base(r.URL.Path)
	l.parts[digest] = append(l.parts[digest], interval{from, from + w.Bytes})
}

// egress returns how many bytes of blobs were sent, and how many of them for the
// first time.
func (l *ledger) egress(digests []string) (all, once int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, digest := range digests {
		parts := slices.Clone(l.parts[digest])
		slices.SortFunc(parts, func(a, b interval) int { return int(a.from - b.from) })
		var end int64
		for _, p := range parts {
			all += p.to - p.from
			once += max(0, p.to-max(p.from, end))
			end = max(end, p.to)
		}
	}
	return all, once
}

// refused takes down how often machine's kernel has refused a connection so far.
func (l *ledger) refused(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for int64(len(l.lost)) < n {
		l.lost = append(l.lost, time.Since(l.begin))
	}
}

// between returns how many requests and refused connections there were between
// two times, and how many bytes were sent.
func (l *ledger) between(from, to time.Duration) (requests int, sent int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, times := range [][]time.Duration{l.asked, l.lost} {
		for _, at := range times {
			if from <= at && at < to {
				requests++
			}
		}
	}
	for _, s := range l.sent {
		if from <= s.at && s.at < to {
			sent += s.bytes
		}
	}
	return requests, sent
}

// refusals returns how many connections a machine has refused, as its kernel
// counts them.
func refusals(m *lab.Machine) (n int64, err error) {
	if m == nil {
		return 0, nil // this host refuses connections to others, too
	}
	var text []byte
	err = m.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	})
	if err != nil {
		return 0, err
	}
	var names []string
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) == 0 || fields[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		if i := slices.Index(names, "OutRsts"); i > 0 && i < len(fields) {
			return strconv.ParseInt(fields[i], 10, 64)
		}
	}
	return 0, fmt.Errorf("the kernel does not count resets")
}
