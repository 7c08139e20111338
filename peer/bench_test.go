package peer

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/chunk"
	"graze/wire"
)

// The benchmarks run the server in a process of its own, this binary started
// again, so that the CPU time of both ends can be told apart. The server gets
// its work by the environment and says where it is, and at the end of its
// standard input what CPU time it has used, on its standard output.
type benchConfig struct {
	Dir   string // with identity and key
	File  string
	Plain bool
	Raw   bool // no protocol: send the file's first n bytes for each n that is asked
}

type benchReady struct {
	ID    chunk.PeerID
	Addr  string
	Addrs []string
}

const benchEnv = "GRAZE_BENCH_SERVER"

func benchServer() {
	if err := serveBench(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveBench() error {
	var cfg benchConfig
	if err := json.Unmarshal([]byte(os.Getenv(benchEnv)), &cfg); err != nil {
		return err
	}
	f, err := os.Open(cfg.File)
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var ready benchReady
	if cfg.Raw {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		ready.Addr = l.Addr().String()
		go serveRaw(l, f)
	} else {
		id, err := LoadIdentity(filepath.Join(cfg.Dir, "identity"))
		if err != nil {
			return err
		}
		key, err := LoadClusterKey(filepath.Join(cfg.Dir, "key"))
		if err != nil {
			return err
		}
		h, err := New(Config{
			Identity: id, Key: key, Plain: cfg.Plain, Bulk: "127.0.0.1:0", P2P: []string{"/ip4/127.0.0.1/tcp/0"},
		}, handlerFunc(func(_ context.Context, _ chunk.PeerID, q *wire.Request, w *Responder) error {
			for i := range q.Items {
				part := q.Items[i].Span.Parts[0]
				if err := w.Bytes(i, 0, section{f, part.At, int64(part.Size)}); err != nil {
					return err
				}
			}
			return nil
		}))
		if err != nil {
			return err
		}
		ready = benchReady{h.ID(), h.BulkAddr(), h.Addrs()}
		go h.Run(ctx)
	}
	if err := json.NewEncoder(os.Stdout).Encode(ready); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(cpuTime().Nanoseconds())
	}
	return nil
}

type noMeter struct{}

func (noMeter) next(_ *link, left int64) int64 { return min(sendPiece, left) }
func (noMeter) wrote(int)                      {}

func serveRaw(l net.Listener, f *os.File) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			var n [8]byte
			raw := &link{tcp: conn.(*net.TCPConn)}
			for {
				if _, err := io.ReadFull(conn, n[:]); err != nil {
					return
				}
				s := section{f, 0, int64(binary.BigEndian.Uint64(n[:]))}
				if err := sendfile(raw, s, noMeter{}); err != nil {
					return
				}
			}
		}()
	}
}

func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A benchPeer is the server's process.
type benchPeer struct {
	benchReady
	in  io.Writer
	out *bufio.Reader
}

func startBench(b *testing.B, cfg benchConfig) *benchPeer {
	b.Helper()
	env, err := json.Marshal(cfg)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchEnv+"="+string(env))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { in.Close(); cmd.Wait() })
	p := &benchPeer{in: in, out: bufio.NewReader(out)}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		b.Fatal(err)
	}
	if err := json.Unmarshal(line, &p.benchReady); err != nil {
		b.Fatal(err)
	}
	return p
}

func (p *benchPeer) cpuTime(b *testing.B) time.Duration {
	io.WriteString(p.in, "\n")
	line, err := p.out.ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	ns, err := strconv.ParseInt(line[:len(line)-1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(ns)
}

const benchFile = 64 << 20

// benchRequest asks for n chunks of size bytes of the file.
func benchRequest(n, size int) *wire.Request {
	q := &wire.Request{Mode: wire.Held}
	for i := range n {
		at := int64(i*size) % benchFile
		id := chunk.BLAKE3.Sum(binary.BigEndian.AppendUint64(nil, uint64(at)))
		q.Items = append(q.Items, wire.Item{Span: chunk.Span{Parts: []chunk.Part{{Ref: chunk.Ref{ID: id, Size: int32(size)}, At: at}}}})
	}
	return q
}

// BenchmarkFetch moves chunks from the page cache of one process to the memory
// of another. GB/s are of wall time; srv and cli are CPU seconds per GB.
func BenchmarkFetch(b *testing.B) {
	dir := b.TempDir()
	cfg := benchConfig{Dir: dir, File: filepath.Join(dir, "file")}
	p := make([]byte, benchFile)
	for i := range p {
		p[i] = byte(i * i >> 8)
	}
	key := NewClusterKey()
	for name, b1 := range map[string][]byte{cfg.File: p, filepath.Join(dir, "key"): []byte(key.Text())} {
		if err := os.WriteFile(name, b1, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	for _, w := range []struct {
		name string
		way  Way
	}{{"tls", Encrypted}, {"plain", Plain}, {"stream", Stream}} {
		b.Run(w.name, func(b *testing.B) {
			cfg := cfg
			cfg.Plain = w.way == Plain
			server := startBench(b, cfg)
			client := start(b, key, nobody, func(c *Config) { c.Plain = cfg.Plain })
			if err := client.Learn(server.ID, server.Addrs); err != nil {
				b.Fatal(err)
			}
			to := Target{ID: server.ID}
			if w.way != Stream {
				to.Addr = server.Addr
			}
			fetch := func(buf []byte, n, size int) error {
				return client.Fetch(context.Background(), to, benchRequest(n, size), func(_ *wire.Answer, body io.Reader) error {
					_, err := io.ReadFull(body, buf[:size])
					return err
				})
			}
			benchSizes(b, server, fetch)
		})
	}
	b.Run("raw", func(b *testing.B) {
		cfg := cfg
		cfg.Raw = true
		server := startBench(b, cfg)
		conns := sync.Pool{New: func() any {
			conn, err := net.Dial("tcp", server.Addr)
			if err != nil {
				b.Error(err)
			}
			return conn
		}}
		benchSizes(b, server, func(buf []byte, n, size int) error {
			conn := conns.Get().(net.Conn)
			defer conns.Put(conn)
			for range n {
				if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, uint64(size))); err != nil {
					return err
				}
				if _, err := io.ReadFull(conn, buf[:size]); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func benchSizes(b *testing.B, server *benchPeer, fetch func(buf []byte, n, size int) error) {
	for _, s := range []struct {
		name           string
		n, size, conns int
	}{
		{"size=64KiB/conns=1", 1, 64 << 10, 1},
		{"size=1MiB/conns=1", 8, 1 << 20, 1},
		{"size=1MiB/conns=4", 8, 1 << 20, 4},
	} {
		b.Run(s.name, func(b *testing.B) {
			buf := make([]byte, s.size)
			if err := fetch(buf, s.n, s.size); err != nil { // the handshake
				b.Fatal(err)
			}
			b.SetBytes(int64(s.n * s.size))
			b.ReportAllocs()
			srv, cli := server.cpuTime(b), cpuTime()
			var took []time.Duration
			if s.conns == 1 {
				for b.Loop() {
					start := time.Now()
					if err := fetch(buf, s.n, s.size); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(start))
				}
			} else {
				b.SetParallelism(s.conns)
				b.RunParallel(func(pb *testing.PB) {
					buf := make([]byte, s.size)
					for pb.Next() {
						if err := fetch(buf, s.n, s.size); err != nil {
							b.Error(err)
						}
					}
				})
			}
			srv, cli = server.cpuTime(b)-srv, cpuTime()-cli
			gb := float64(b.N) * float64(s.n*s.size) / 1e9
			b.ReportMetric(srv.Seconds()/gb, "srv-s/GB")
			b.ReportMetric(cli.Seconds()/gb, "cli-s/GB")
			if s.n == 1 && len(took) > 0 {
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
			}
		})
	}
}
