package dht

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
)

// start runs a node on real sockets at ip until the test ends or the returned
// function is called. It returns when the node listens.
func start(t *testing.T, id, ip string, cfg Config) (*Cluster, func()) {
	t.Helper()
	cfg.Bind = ip + ":0"
	cfg.Jitter = -1
	cfg.Leave = time.Second
	if cfg.Key == ([32]byte{}) {
		cfg.Key = testKey
	}
	c, err := New(Member{ID: chunk.PeerID(id), Name: id, Bulk: ip + ":7001", Rack: "r", Ready: true}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	halt := func() {
		stop()
		if !stopped {
			stopped = true
			if err := <-done; err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
	}
	t.Cleanup(halt)
	await(t, c, func(v *View) bool { return v.Self().Gossip != "" })
	return c, halt
}

// await waits for a view that is as ok wants it.
func await(t *testing.T, c *Cluster, ok func(v *View) bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		changed := c.Changed()
		if ok(c.View()) {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%s still sees %+v", c.self.ID, c.View().Members())
		}
	}
}

func members(n int) func(v *View) bool {
	return func(v *View) bool { return len(v.Members()) == n }
}

func TestSockets(t *testing.T) {
	a, _ := start(t, "a", "127.0.0.11", Config{})
	_, port, err := net.SplitHostPort(a.View().Self().Gossip)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "contacts")
	if err := os.WriteFile(file, []byte("# seeds\n\n"+a.View().Self().Gossip+" # the first\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	lookup := func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.99"), netip.MustParseAddr("127.0.0.11")}, nil
	}
	b, _ := start(t, "b", "127.0.0.12", Config{Join: []string{a.View().Self().Gossip}})
	c, _ := start(t, "c", "127.0.0.13", Config{JoinFile: file})
	d, stop := start(t, "d", "127.0.0.14", Config{Join: []string{"seeds.example:" + port}, Lookup: lookup})
	for _, node := range []*Cluster{a, b, c, d} {
		await(t, node, members(4))
		await(t, node, func(v *View) bool { return v.Epoch() == a.View().Epoch() })
	}
	m := *b.View().Member("d")
	m.Gossip = ""
	if diff := cmp.Diff(Member{ID: "d", Name: "d", Bulk: "127.0.0.14:7001", Rack: "r", Weight: DefaultWeight, Ready: true}, m); diff != "" {
		t.Error(diff)
	}
	d.SetReady(false)
	await(t, a, func(v *View) bool { return !v.Member("d").Ready })
	stop()
	for _, node := range []*Cluster{a, b, c} {
		await(t, node, members(3))
	}
}

// TestStrangers has a node with another key, and one without any, talk to a
// member.
func TestStrangers(t *testing.T) {
	a, _ := start(t, "a", "127.0.0.21", Config{})
	b, _ := start(t, "b", "127.0.0.22", Config{Join: []string{a.View().Self().Gossip}})
	await(t, b, members(2))
	stranger, _ := start(t, "stranger", "127.0.0.23", Config{Key: [32]byte{9}, Join: []string{a.View().Self().Gossip}})
	limit := time.Now().Add(time.Minute)
	for a.Stats().Refused == 0 || stranger.Stats().JoinErrors == 0 {
		if time.Now().After(limit) {
			t.Fatalf("stranger: %+v, member: %+v", stranger.Stats(), a.Stats())
		}
		await(t, a, members(2))
		<-time.After(10 * time.Millisecond)
	}
	for _, c := range []*Cluster{a, b} {
		if c.View().Member("stranger") != nil {
			t.Error("a node with another key is a member")
		}
	}
	if n := len(stranger.View().Members()); n != 1 {
		t.Errorf("a node with another key knows %d members", n)
	}

	conn, err := net.Dial("tcp", a.View().Self().Gossip)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// A label, and a state exchange in the clear.
	if _, err := conn.Write(append([]byte{244, byte(len(gossipLabel))}, gossipLabel+"\x06\x83\xa5Nodes\x00"...)); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	var got bytes.Buffer
	got.ReadFrom(conn)
	for _, secret := range []string{"127.0.0.2", "7001", "Nodes", "a\xa4"} {
		if strings.Contains(got.String(), secret) {
			t.Errorf("a node without key reads %q in %q", secret, got.String())
		}
	}
}

func TestRunFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.31:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c, err := New(Member{ID: "a"}, Config{Key: testKey, Bind: taken.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("error %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	good := Config{Key: testKey}
	for _, tt := range []struct {
		name string
		self Member
		cfg  Config
		want string
	}{
		{"no key", Member{ID: "a"}, Config{}, "no key"},
		{"no id", Member{}, good, "peer id"},
		{"id with other bytes", Member{ID: "a/b"}, good, "letters or digits"},
		{"bad rack", Member{ID: "a", Rack: "\n"}, good, "rack"},
		{"bad bulk", Member{ID: "a", Bulk: "x"}, good, "bulk"},
		{"bind name", Member{ID: "a"}, Config{Key: testKey, Bind: "host:1"}, "bind address"},
		{"bind port", Member{ID: "a"}, Config{Key: testKey, Bind: "10.0.0.1:x"}, "bind address"},
		{"advertise", Member{ID: "a"}, Config{Key: testKey, Advertise: "10.0.0.1:0"}, "port 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := New(tt.self, tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	c, err := New(Member{ID: "a", Role: Seed, Load: 9}, good)
	if err != nil {
		t.Fatal(err)
	}
	if m := c.View().Self(); m.Weight != SeedWeight || m.Load != 9 || m.Ready {
		t.Errorf("self is %+v", m)
	}
}

func TestContacts(t *testing.T) {
	errNone := errors.New("no such host")
	cfg := Config{
		Bind: "0.0.0.0:7946",
		Join: []string{"10.0.0.1", "10.0.0.1:7946", "10.0.0.2:1", "[2001:db8::1]:5", "2001:db8::2", "seeds", "seeds:99", "none", "host:0", "a b:1"},
		Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host != "seeds" {
				return nil, errNone
			}
			return []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("::ffff:10.1.0.2")}, nil
		},
	}
	got, err := cfg.contacts(t.Context())
	want := []string{
		"10.0.0.1:7946", "10.0.0.2:1", "[2001:db8::1]:5", "[2001:db8::2]:7946",
		"10.1.0.1:7946", "10.1.0.2:7946", "10.1.0.1:99", "10.1.0.2:99",
	}
	if !slices.Equal(got, want) {
		t.Errorf("contacts %q, want %q", got, want)
	}
	if !errors.Is(err, errNone) || !strings.Contains(err.Error(), "port") {
		t.Errorf("error %v", err)
	}
	cfg = Config{Bind: "0.0.0.0:7946", JoinFile: filepath.Join(t.TempDir(), "none"), Join: []string{"10.0.0.9:1"}}
	if got, err := cfg.contacts(t.Context()); len(got) != 1 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %q, %v", got, err)
	}
}

func TestContactFileIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "contacts")
	var b bytes.Buffer
	for i := range 2 * maxContacts {
		fmt.Fprintf(&b, "10.0.%d.%d:7946\n", i/256, i%256)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := readContacts(file); err != nil || len(got) != maxContacts {
		t.Errorf("%d contacts, %v", len(got), err)
	}
	if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 2*maxContactFile), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := readContacts(file); err == nil || len(got) != 0 {
		t.Errorf("a line of megabytes gives %d contacts, %v", len(got), err)
	}
}
