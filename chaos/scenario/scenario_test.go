package scenario

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"graze/chaos"
)

var update = flag.Bool("update", false, "write the golden files anew")

// least is the least that a scenario needs.
const least = "name: x\nsteps: [{mount: true}]\n"

func TestBuiltin(t *testing.T) {
	names := Names()
	if len(names) < 12 {
		t.Errorf("there are %d scenarios", len(names))
	}
	for i, name := range names {
		s, err := Builtin(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if s.About == "" || s.Guards == "" || s.Off.Seeds == nil && len(s.Off.Settings) == 0 {
			t.Errorf("%s does not say what it is about, or what turns it off", name)
		}
		if strings.HasPrefix(name, "outage-") != (i < 6) && i < 6 {
			t.Errorf("%s comes before outages", name)
		}
	}
	if _, err := Builtin("no-such"); err == nil {
		t.Error("a scenario that is not there")
	}
}

func TestParse(t *testing.T) {
	s, err := Parse([]byte(least + "image: {size: 2MiB}\nlimit: 1m30s\n"))
	if err != nil {
		t.Fatal(err)
	}
	if s.Cluster.Nodes != 8 || s.Cluster.Racks != 2 || s.Image.Size != 2<<20 || s.Limit != Duration(90*time.Second) {
		t.Errorf("%+v", s)
	}
	for name, text := range map[string]string{
		"nothing":           "",
		"no name":           "steps: [{mount: true}]",
		"no steps":          "name: x",
		"unknown":           least + "speed: 1",
		"two things":        "name: x\nsteps: [{mount: true, kill: true}]",
		"no thing":          "name: x\nsteps: [{at: 1s}]",
		"back in time":      "name: x\nsteps: [{at: 2s, mount: true}, {at: 1s, kill: true}]",
		"bad nodes":         "name: x\nsteps: [{nodes: many, mount: true}]",
		"node out of range": "name: x\nsteps: [{nodes: 3-8, mount: true}]",
		"bad fault":         "name: x\nsteps: [{registry: {fault: {kind: sing}}}]",
		"bad door":          "name: x\nsteps: [{registry: {door: ajar}}]",
		"no such rack":      "name: x\nsteps: [{rack: {rack: 2, cut: true}}]",
		"bad share":         "name: x\nsteps: [{read: {share: 2}}]",
		"fresh once":        "name: x\nsteps: [{read: {fresh: true}}]",
		"bad signal":        "name: x\nsteps: [{restart: {signal: hup}}]",
		"bad disk":          "name: x\nsteps: [{disk: round}]",
		"bad duration":      least + "limit: long",
		"bad size":          least + "image: {size: -1}",
		"bad mark":          least + "expect: {windows: [{from: begin, to: then}]}",
		"all late":          least + "cluster: {nodes: 2, late: 2}",
		"too many nodes":    least + "cluster: {nodes: 1000}",
		"settings of none":  least + "cluster: {some: [{nodes: 99}]}",
	} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestNodes(t *testing.T) {
	c := &Cluster{Nodes: 8, Racks: 2, Seeds: 1, Late: 2}
	for names, want := range map[Nodes][]int{
		"":         {0, 1, 2, 3, 4, 5},
		"all":      {0, 1, 2, 3, 4, 5},
		"late":     {6, 7},
		"seeds":    {0, 1},
		"plain":    {2, 3, 4, 5, 6, 7},
		"rack 1":   {1, 3, 5, 7},
		"every 3":  {2, 5},
		"5, 2-3,3": {2, 3, 5},
	} {
		got, err := names.in(c)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v\n%s", names, err, diff)
		}
	}
}

func TestOff(t *testing.T) {
	seeds := 0
	s := &Scenario{
		Cluster: Cluster{Nodes: 2, Racks: 1, Seeds: 1, Settings: map[string]any{"a": 1, "b": 1}, Some: []Some{{Nodes: "1", Settings: map[string]any{"b": 3}}}},
		Off:     Change{Seeds: &seeds, Settings: map[string]any{"b": 2, "cluster.key-file": ""}},
	}
	off := s.turnedOff()
	if off.Cluster.Seeds != 0 || !off.Cluster.alone() || s.Cluster.alone() || s.Cluster.Settings["b"] != 1 {
		t.Errorf("%+v", off.Cluster)
	}
	if off.Cluster.settings(0)["b"] != 2 || off.Cluster.settings(1)["b"] != 3 {
		t.Error("settings of some nodes are not those")
	}
}

func TestStretch(t *testing.T) {
	s := &Scenario{Limit: Duration(time.Minute), Steps: []Step{{At: Duration(time.Second), Wait: &Wait{For: Duration(2 * time.Second)}}}}
	long := s.stretched(10)
	if long.Steps[0].At != Duration(10*time.Second) || long.Steps[0].Wait.For != Duration(20*time.Second) || s.Steps[0].Wait.For != Duration(2*time.Second) {
		t.Errorf("%+v", long.Steps[0])
	}
}

func TestLedger(t *testing.T) {
	blob := strings.Repeat("x", 1000)
	l := newLedger(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(blob))
	}))
	for _, ranges := range []string{"bytes=0-99", "bytes=50-149", "bytes=900-999", "bytes=0-9"} {
		req := httptest.NewRequest(http.MethodGet, "/v2/x/blobs/sha256:1", nil)
		req.Header.Set("Range", ranges)
		l.ServeHTTP(httptest.NewRecorder(), req)
	}
	l.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodHead, "/v2/x/manifests/1", nil))
	l.refused(2)
	if all, once := l.egress([]string{"sha256:1"}); all != 310 || once != 250 {
		t.Errorf("%d bytes, %d of them once", all, once)
	}
	if requests, sent := l.between(0, time.Hour); requests != 7 || sent != 310 {
		t.Errorf("%d requests, %d bytes", requests, sent)
	}
}

// report returns one that has all that a report can have.
func report() *Report {
	r := &Report{
		Name: "sample", About: "Two <nodes> & a registry.", Guards: "nothing", Took: time.Second,
		Events:  []Event{{0, "mount on nodes all"}, {500 * time.Millisecond, "registry: refuse"}},
		Samples: make([]Sample, 6),
		Totals:  totals([]read{{file: "a", took: time.Millisecond}, {file: "b", took: 3 * time.Millisecond}, {err: errors.New("no")}, {file: "c", wrong: true}}),
	}
	for i := range r.Samples {
		r.Samples[i] = Sample{At: time.Duration(i) * sampleLength, Reads: i, Requests: 1, Bytes: 1024, Slowest: time.Millisecond}
	}
	r.Samples[3].Errors = 2
	r.check("no wrong bytes", false, "%d files were wrong", 1)
	r.check("errors ≤ 1", true, "1 of 4")
	return r
}

func TestReport(t *testing.T) {
	var text bytes.Buffer
	if err := report().Write(&text); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "report.txt")
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(golden, text.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text.String()); diff != "" {
		t.Error(diff)
	}
	if report().OK() {
		t.Error("a report with a failed check is OK")
	}
}

// TestHTML checks that the page is well formed and refers to nothing else.
func TestHTML(t *testing.T) {
	var page bytes.Buffer
	if err := report().WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"src=", "href=", "url(", "@import"} {
		if strings.Contains(page.String(), ref) {
			t.Errorf("the page has %q", ref)
		}
	}
	d := xml.NewDecoder(&page)
	bars := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			bars++
		}
	}
	if bars == 0 {
		t.Error("there are no plots")
	}
}

func TestReadFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	in := `{"path":"a","sum":"` + empty + `"}{"path":"a","sum":"00"}{"path":"b"}`
	var out bytes.Buffer
	if err := ReadFiles(dir, strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 3 {
		t.Errorf("%d results", n)
	}
	if strings.Count(out.String(), `"wrong":true`) != 1 || strings.Count(out.String(), `"err":`) != 1 {
		t.Error(out.String())
	}
	if err := ReadFiles(dir, strings.NewReader("nonsense"), io.Discard); err == nil {
		t.Error("no error for what is no task")
	}
}

func TestControl(t *testing.T) {
	behind := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") })
	gate, err := chaos.NewGate("127.0.0.1:0", func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	c := &Control{Faults: chaos.NewRegistry(behind, 1), Gate: gate}
	put := func(text string) int {
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/", strings.NewReader(text)))
		return w.Code
	}
	status := func() int {
		w := httptest.NewRecorder()
		c.Faults.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/x/manifests/1", nil))
		return w.Code
	}
	if code := put("{fault: {kind: status, status: 503}}"); code != http.StatusOK || status() != http.StatusServiceUnavailable {
		t.Errorf("a fault is answered with %d, and is not there", code)
	}
	for _, bad := range []string{"{fault: {kind: sing}}", "{door: ajar}", "{color: red}", "["} {
		if code := put(bad); code != http.StatusBadRequest {
			t.Errorf("%s: %d", bad, code)
		}
	}
	if code := put("{}"); code != http.StatusOK || status() != http.StatusOK {
		t.Errorf("no fault is answered with %d, or there still is one", code)
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if !strings.Contains(w.Body.String(), `"Requests":2`) {
		t.Error(w.Body.String())
	}
}

func TestSoakIsTheSameForASeed(t *testing.T) {
	a, b := Soak(3, time.Minute), Soak(3, time.Minute)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
	if err := a.check(); err != nil {
		t.Error(err)
	}
	if cmp.Equal(a.Steps, Soak(4, time.Minute).Steps) {
		t.Error("another seed gives the same faults")
	}
}

func TestOnNodesThatRun(t *testing.T) {
	there := Running{Sockets: []string{"a", "b"}, Registry: "http://registry.example", Listen: "127.0.0.1:5000"}
	s, err := Builtin("outage-flapping")
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.on(there)
	if err != nil {
		t.Fatal(err)
	}
	if two.Cluster.Nodes != 2 || two.Expect.Reads != s.Expect.Reads/4 || s.Cluster.Nodes != 8 {
		t.Errorf("%+v", two)
	}
	if _, err := s.on(Running{Sockets: there.Sockets, Registry: "registry.example"}); err == nil {
		t.Error("a registry without a URL")
	}
	for _, name := range []string{"rack-lost", "liar", "disk-rot", "rolling-restart"} {
		s, err := Builtin(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.on(there); err == nil {
			t.Errorf("%s can be played on nodes that run", name)
		}
	}
	if _, err := Play(t.Context(), s, Config{Binary: "none", Running: there, Off: true}); err == nil {
		t.Error("something can be turned off of nodes that run")
	}
}
