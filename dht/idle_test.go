package dht

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"graze/chunk"
)

// A countedTransport counts what a node sends by real sockets.
type countedTransport struct {
	*memberlist.NetTransport
	bytes, packets *atomic.Uint64
}

func (t countedTransport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	t.bytes.Add(uint64(len(b)))
	t.packets.Add(1)
	return t.NetTransport.WriteToAddress(b, a)
}

func (t countedTransport) DialAddressTimeout(a memberlist.Address, d time.Duration) (net.Conn, error) {
	conn, err := t.NetTransport.DialAddressTimeout(a, d)
	if err != nil {
		return nil, err
	}
	return countedConn{conn, t.bytes}, nil
}

type countedConn struct {
	net.Conn
	bytes *atomic.Uint64
}

func (c countedConn) Write(p []byte) (int, error) {
	c.bytes.Add(uint64(len(p)))
	return c.Conn.Write(p)
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(uint64(n)) // the other side, which accepted, does not count
	return n, err
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// BenchmarkIdle runs a cluster in which nothing happens, on real sockets; each
// iteration is one second. It needs -benchtime of some seconds, such as 60x.
func BenchmarkIdle(b *testing.B) {
	const n = 200
	var bytes, packets atomic.Uint64
	before, goroutines := heap(), runtime.NumGoroutine()
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	var nodes []*Cluster
	done := make(chan error, n)
	for i := range n {
		ip := fmt.Sprintf("127.1.%d.%d", i/200, i%200+1)
		net, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{ip}, BindPort: 17946, Logger: (&gossipLog{log: discard}).logger(),
		})
		if err != nil {
			b.Fatal(err)
		}
		c, err := New(Member{
			ID:   chunk.PeerID(fmt.Sprintf("12D3KooWAbCdEfGhJkLmNpQrStUvWxYz0123456789AbCdEf%04d", i)),
			Name: fmt.Sprintf("host-%d.example", i), Bulk: ip + ":7001", P2P: []string{"/ip4/" + ip + "/tcp/7002"},
			Rack: fmt.Sprintf("rack%d", i/20), Ready: true,
		}, Config{
			Key: testKey, Bind: ip + ":17946", Join: []string{"127.1.0.1:17946", "127.1.0.2:17946"},
			Transport: countedTransport{net, &bytes, &packets},
		})
		if err != nil {
			b.Fatal(err)
		}
		nodes = append(nodes, c)
		go func() { done <- c.Run(ctx) }()
	}
	start := time.Now()
	limit := time.After(5 * time.Minute)
	for _, c := range nodes {
		for changed := c.Changed(); len(c.View().Members()) != n; changed = c.Changed() {
			select {
			case <-changed:
			case <-limit: // so busy a machine takes nodes for dead that are not
				b.Fatalf("only %d members", len(c.View().Members()))
			}
		}
	}
	converged := time.Since(start)
	<-time.After(10 * time.Second) // what the joins have left in the queues
	bytes.Store(0)
	packets.Store(0)
	cpu := cpuTime(b)
	seconds := 0.0
	for b.Loop() {
		<-time.After(time.Second)
		seconds++
	}
	b.ReportMetric(converged.Seconds(), "s-to-converge")
	each := func(v float64, unit string) { b.ReportMetric(v/n, unit) }
	each((cpuTime(b)-cpu).Seconds()*1e3/seconds, "cpu-ms/s/node")
	each(float64(bytes.Load())/seconds, "B/s/node")
	each(float64(packets.Load())/seconds, "packets/s/node")
	each(float64(runtime.NumGoroutine()-goroutines), "goroutines/node")
	each((heap()-before)/1024, "KiB/node")
	stop()
	for range n {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	<-time.After(10 * time.Second) // probes that memberlist has begun
}
