package scenario

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// metricsAddr is where a node tells its metrics, on its own machine.
const metricsAddr = "127.0.0.1:7948"

// usageEvery is how often it is looked at what nodes use.
const usageEvery = time.Second

// A use is what a node uses at a moment.
type use struct {
	memory      int64 // resident, in bytes
	descriptors int64
	goroutines  int64
	disk        int64 // bytes
}

// use returns what the node uses.
func (n *node) use(ctx context.Context) (u use, err error) {
	n.mu.Lock()
	p := n.proc
	n.mu.Unlock()
	if p == nil {
		return u, fmt.Errorf("%s does not run", n.name)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		return u, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(n.state, &fs); err != nil {
		return u, err
	}
	u.descriptors = int64(len(fds))
	u.disk = int64(fs.Blocks-fs.Bfree) * fs.Bsize
	metrics, err := n.metrics(ctx)
	u.memory, u.goroutines = int64(metrics["process_resident_memory_bytes"]), int64(metrics["go_goroutines"])
	return u, err
}

// metrics returns the node's metrics that have no labels.
func (n *node) metrics(ctx context.Context) (map[string]float64, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = n.machine.Do(func() (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}}
	ctx, cancel := context.WithTimeout(ctx, usageEvery)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	all := make(map[string]float64)
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		name, value, _ := strings.Cut(sc.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			all[name] = v
		}
	}
	return all, sc.Err()
}

// watchUse looks again and again, until ctx is done, at what nodes use. Those that
// don't answer at a moment, as they are being restarted, are left out then.
func (p *play) watchUse(ctx context.Context) {
	tick := time.NewTicker(usageEvery)
	defer tick.Stop()
	for {
		for _, n := range p.cluster.nodes {
			if u, err := n.use(ctx); err == nil {
				p.uses[n.name] = append(p.uses[n.name], u)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// judgeUse judges whether what nodes use is bounded: the middle value of the last
// third of the time is not far above that of the third before.
func (p *play) judgeUse(r *Report) {
	const mib = 1 << 20
	for _, kind := range []struct {
		name  string
		of    func(use) int64
		unit  int64
		slack int64 // by which it may rise beside a quarter
	}{
		{"memory in MiB", func(u use) int64 { return u.memory }, mib, 24 * mib},
		{"descriptors", func(u use) int64 { return u.descriptors }, 1, 32},
		{"goroutines", func(u use) int64 { return u.goroutines }, 1, 100},
		{"disk in MiB", func(u use) int64 { return u.disk }, mib, 8 * mib},
	} {
		ok, seen := true, []string(nil)
		for _, n := range p.cluster.nodes {
			list := p.uses[n.name]
			if len(list) < 9 {
				ok = false
				seen = append(seen, n.name+" has hardly answered")
				continue
			}
			third := len(list) / 3
			before, last := middle(list[third:2*third], kind.of), middle(list[2*third:], kind.of)
			ok = ok && last <= before+before/4+kind.slack
			seen = append(seen, fmt.Sprintf("%d → %d", before/kind.unit, last/kind.unit))
		}
		r.check(kind.name+" of each node bounded", ok, "%s", strings.Join(seen, ", "))
	}
}

// middle returns the median of what f says of uses.
func middle(list []use, f func(use) int64) int64 {
	values := make([]int64, len(list))
	for i, u := range list {
		values[i] = f(u)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
