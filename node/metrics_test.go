package node

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ctdsnapshots "github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"graze/latency"
	"graze/snapshotter"
)

var update = flag.Bool("update", false, "rewrite the list of metrics in the documents")

// openMember opens a node that is alone in its cluster. It does not run.
func openMember(t *testing.T, cfg Config) *Node {
	t.Helper()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte(NewClusterKey()), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.State = filepath.Join(dir, "state")
	cfg.StoreLimit = 8 << 20
	cfg.Cluster = &ClusterConfig{KeyFile: key, Bulk: "127.0.0.1:0", Gossip: "127.0.0.1:0", P2P: "127.0.0.1:0", Seed: true, Outside: true}
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// labelsOf gathers the metrics of a node and returns the values of each label of
// each family: "class: backfill, demand".
func labelsOf(t *testing.T, n *Node) map[string]string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(newCollector(n)); err != nil {
		t.Fatal(err)
	}
	got, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, f := range got {
		values := make(map[string][]string)
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if list := values[l.GetName()]; !slices.Contains(list, l.GetValue()) {
					values[l.GetName()] = append(list, l.GetValue())
				}
			}
		}
		var text []string
		for _, name := range families[slices.IndexFunc(families, func(x family) bool { return x.name == f.GetName() })].labels {
			slices.Sort(values[name])
			text = append(text, name+": "+strings.Join(values[name], ", "))
		}
		all[f.GetName()] = strings.Join(text, "; ")
	}
	return all
}

// unit returns what a metric counts in.
func unit(name string) string {
	name = strings.TrimSuffix(name, "_total")
	switch {
	case strings.HasSuffix(name, "_bytes"):
		return "bytes"
	case strings.HasSuffix(name, "_seconds"):
		return "s"
	}
	return "1"
}

// The document for operators lists all metrics, as they are.
func TestMetricsAreDocumented(t *testing.T) {
	n := openMember(t, Config{})
	defer n.Close()
	labels := labelsOf(t, n)
	var want strings.Builder
	want.WriteString("| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n")
	for _, f := range families {
		if _, ok := labels[f.name]; !ok {
			t.Errorf("%s is not exported", f.name)
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s | %s |\n", f.name, f.kind, unit(f.name), labels[f.name], strings.TrimSuffix(f.help, "."))
	}
	const file, begin, end = "../docs/operations.md", "<!-- metrics -->\n", "<!-- end of metrics -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no list of metrics", file)
	}
	if got == want.String() {
		return
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("the list in %s is not that of the metrics; run go test ./node -run MetricsAreDocumented -update\n%s", file, cmp.Diff(got, want.String()))
}

// The number of series does not depend on what a node does: labels are enums.
func TestMetricNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range families {
		if seen[f.name] || !strings.HasPrefix(f.name, "graze_") || f.help == "" {
			t.Errorf("metric %q is there twice, or has a bad name or no meaning", f.name)
		}
		seen[f.name] = true
		if (f.kind == counter) != strings.HasSuffix(f.name, "_total") || (f.kind == histogram) != strings.HasSuffix(f.name, "_seconds") {
			t.Errorf("%s is a %s", f.name, f.kind)
		}
		for _, l := range f.labels {
			if !slices.Contains([]string{"op", "result", "source", "class", "cause", "kind", "state", "way", "answer", "reason"}, l) {
				t.Errorf("%s has the label %s, whose values may be many", f.name, l)
			}
		}
	}
}

// What containerd is answered is counted by its reason.
func TestReasonsAreCounted(t *testing.T) {
	n := openMember(t, Config{Containerd: &ContainerdConfig{Socket: filepath.Join(t.TempDir(), "sock"), Policies: []string{"registry.example/** pull"}}})
	defer n.Close()
	ctx := namespaces.WithNamespace(t.Context(), "default")
	for i, image := range []string{"registry.example/a:1", "registry.example/b:1", ""} {
		labels := map[string]string{
			"containerd.io/snapshot.ref":           fmt.Sprintf("sha256:%064d", i),
			"containerd.io/snapshot/cri.image-ref": image,
		}
		if _, err := n.snaps.Prepare(ctx, fmt.Sprintf("extract-%d", i), "", ctdsnapshots.WithLabels(labels)); err != nil {
			t.Fatal(err)
		}
	}
	srv := httptest.NewServer(n.monitor(false))
	defer srv.Close()
	_, body := get(t, srv.URL+"/metrics")
	for reason, want := range map[snapshotter.Reason]int{snapshotter.ByPolicy: 2, snapshotter.Unnamed: 1, snapshotter.Lazy: 0} {
		line := fmt.Sprintf("graze_containerd_layers_total{reason=%q} %d\n", reason, want)
		if !strings.Contains(body, line) {
			t.Errorf("no %q among the metrics", line)
		}
	}
}

func TestDurationBuckets(t *testing.T) {
	var h latency.Histogram
	for _, d := range []time.Duration{time.Microsecond, 200 * time.Microsecond, 300 * time.Microsecond, time.Second, time.Hour} {
		h.Add(d)
	}
	ch := make(chan prometheus.Metric, 1)
	emitter{prometheus.NewDesc("x_seconds", "x", nil, nil), histogram, ch}.durations(&h)
	reg := prometheus.NewRegistry()
	reg.MustRegister(fixed{<-ch})
	got, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	x := got[0].GetMetric()[0].GetHistogram()
	if x.GetSampleCount() != 5 || x.GetSampleSum() < 3601 || len(x.GetBucket()) != numBuckets {
		t.Errorf("histogram %v", x)
	}
	for i, b := range x.GetBucket() {
		want := uint64(2)
		switch le := b.GetUpperBound(); {
		case le > 1:
			want = 4
		case le > 0.0004:
			want = 3
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("bucket %d, up to %g s, has %d, want %d", i, b.GetUpperBound(), b.GetCumulativeCount(), want)
		}
	}
}

// fixed is a collector of one metric.
type fixed struct{ m prometheus.Metric }

func (f fixed) Describe(ch chan<- *prometheus.Desc) { ch <- f.m.Desc() }
func (f fixed) Collect(ch chan<- prometheus.Metric) { ch <- f.m }

// get asks a path, and returns the status and the body.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestMonitorBeforeTheNodeRuns(t *testing.T) {
	n := openMember(t, Config{})
	defer n.Close()
	srv := httptest.NewServer(n.monitor(false))
	defer srv.Close()
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 200, "/debug/pprof/": 404, "/": 404} {
		if got, body := get(t, srv.URL+path); got != want {
			t.Errorf("%s: status %d, want %d: %.100s", path, got, want, body)
		}
	}
}

func TestMonitor(t *testing.T) {
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := probe.Addr().String()
	if err := probe.Close(); err != nil {
		t.Fatal(err)
	}
	n := openMember(t, Config{Monitor: MonitorConfig{Listen: addr, Profile: true}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if status, _ := get(t, "http://"+addr+"/healthz"); status != 0 {
			t.Error("it answers after the node's end")
		}
	}()
	limit := time.After(time.Minute)
	for {
		status, body := get(t, "http://"+addr+"/readyz")
		if status == 200 {
			break
		}
		select {
		case <-limit:
			t.Fatalf("not ready: %d %s", status, body)
		case err := <-done:
			done <- err
			t.Fatal("it has ended: ", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	status, body := get(t, "http://"+addr+"/metrics")
	for _, want := range []string{
		"graze_members{state=\"ready\"} 1\n", "graze_store_limit_bytes 8.388608e+06\n", "go_goroutines ", "process_resident_memory_bytes ",
	} {
		if status != 200 || !strings.Contains(body, want) {
			t.Errorf("status %d; no %q among the metrics", status, want)
		}
	}
	if status, body := get(t, "http://"+addr+"/debug/pprof/goroutine?debug=1"); status != 200 || !strings.Contains(body, "serveMonitor") {
		t.Errorf("profile: status %d, %.100s", status, body)
	}
}
