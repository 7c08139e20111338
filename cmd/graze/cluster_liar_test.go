package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	libp2p "github.com/libp2p/go-libp2p/core/peer"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	"golang.org/x/sync/errgroup"

	"graze/chunk"
	"graze/dht"
	"graze/peer"
	"graze/wire"
)

// liarEnv makes the test binary a node that is a member of a cluster, with a large
// share of it, and answers the others as it should not. It has the node's
// settings, as runLiar reads them.
const liarEnv = "GRAZE_TEST_LIAR"

// A deceiver speaks the encrypted way of the protocol as far as that is needed to be
// asked for chunks. What it answers is its kind.
type deceiver struct {
	id    libp2p.ID
	tls   *libp2ptls.Identity
	proof [32]byte
	lie   lie
}

// A lie answers one request, as it should not. After an error the connection is
// closed.
type lie func(id libp2p.ID, w io.Writer, q *wire.Request) error

// errHangUp is what ends a connection without a word.
var errHangUp = errors.New("hang up")

// lies are the kinds of liars.
var lies = map[string]lie{
	"bytes": eachWanted(func(w io.Writer, item, part int, size int32) error {
		return errors.Join(answerBytes(w, item, part, size), zeros(w, int64(size)))
	}),
	"length": eachWanted(func(w io.Writer, item, part int, size int32) error {
		return errors.Join(answerBytes(w, item, part, size+1), zeros(w, int64(size)+1))
	}),
	"truncates": eachWanted(func(w io.Writer, item, part int, size int32) error {
		return errors.Join(answerBytes(w, item, part, size), zeros(w, int64(size)/2), errHangUp)
	}),
	"dies": eachWanted(func(w io.Writer, item, part int, size int32) error {
		_ = errors.Join(answerBytes(w, item, part, size), zeros(w, int64(size)/2))
		os.Exit(0)
		return nil
	}),
	"stalls": func(libp2p.ID, io.Writer, *wire.Request) error {
		return forever(time.Hour, func() error { return nil })
	},
	"stalls-within": eachWanted(func(w io.Writer, item, part int, size int32) error {
		return errors.Join(answerBytes(w, item, part, size), zeros(w, int64(size)/2), forever(time.Hour, func() error { return nil }))
	}),
	"drips": eachWanted(func(w io.Writer, item, part int, size int32) error {
		return errors.Join(answerBytes(w, item, part, size), forever(100*time.Millisecond, func() error { return zeros(w, 1) }))
	}),
	"endless": func(_ libp2p.ID, w io.Writer, q *wire.Request) error {
		err := wire.WriteAnswer(w, &wire.Answer{Item: wire.All, Part: wire.All, Status: wire.Absent})
		return errors.Join(err, forever(0, func() error { return zeros(w, 1<<20) }))
	},
	"header": func(_ libp2p.ID, w io.Writer, q *wire.Request) error {
		_, err := w.Write([]byte{0xff, 0xff, 0xff, 0xff})
		return errors.Join(err, forever(0, func() error { return zeros(w, 1<<20) }))
	},
	"alive": func(_ libp2p.ID, w io.Writer, q *wire.Request) error {
		return forever(time.Second, func() error {
			return wire.WriteAnswer(w, &wire.Answer{Item: wire.All, Part: wire.All, Status: wire.Alive})
		})
	},
	"redirects": func(id libp2p.ID, w io.Writer, q *wire.Request) error {
		self := []wire.Holder{{ID: chunk.PeerID(id.String()), Addr: "10.77.0.1:7945"}}
		return errors.Join(
			wire.WriteAnswer(w, &wire.Answer{Item: wire.All, Part: wire.All, Status: wire.Redirect, Holders: self}),
			wire.WriteAnswer(w, &wire.Answer{Item: wire.All, Part: wire.All, Status: wire.End}))
	},
	"million": func(id libp2p.ID, w io.Writer, q *wire.Request) error {
		// Nobody reads more of it than its length.
		one, err := wire.AppendAnswer(nil, &wire.Answer{Item: wire.All, Part: wire.All, Status: wire.Redirect, Holders: []wire.Holder{{ID: "stranger", Addr: "10.77.0.1:7945"}}})
		if err != nil {
			return err
		}
		n := uint32(1e6 * len(one))
		_, err = w.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		return errors.Join(err, forever(0, func() error { _, err := w.Write(one); return err }))
	},
	"refuses": func(_ libp2p.ID, w io.Writer, q *wire.Request) error {
		return errors.Join(
			wire.WriteAnswer(w, &wire.Answer{Item: wire.All, Part: wire.All, Status: wire.Failed, Reason: strings.Repeat("\x1b[2J", 60)}),
			wire.WriteAnswer(w, &wire.Answer{Item: wire.All, Part: wire.All, Status: wire.End}))
	},
}

// eachWanted returns a lie that does something for each wanted chunk.
func eachWanted(f func(w io.Writer, item, part int, size int32) error) lie {
	return func(_ libp2p.ID, w io.Writer, q *wire.Request) error {
		for i := range q.Items {
			item := &q.Items[i]
			for part := range item.Span.Parts {
				if !item.Wants(part) {
					continue
				}
				if err := f(w, i, part, item.Span.Parts[part].Size); err != nil {
					return err
				}
			}
		}
		return wire.WriteAnswer(w, &wire.Answer{Item: wire.All, Part: wire.All, Status: wire.End})
	}
}

func answerBytes(w io.Writer, item, part int, size int32) error {
	return wire.WriteAnswer(w, &wire.Answer{Item: item, Part: part, Status: wire.Bytes, Size: size})
}

func zeros(w io.Writer, n int64) error {
	_, err := w.Write(make([]byte, n))
	return err
}

// forever calls f again and again, with pauses, until it fails.
func forever(pause time.Duration, f func() error) error {
	for {
		if err := f(); err != nil {
			return err
		}
		if pause > 0 {
			<-time.After(pause)
		}
	}
}

// serve answers the requests on one connection.
func (l *deceiver) serve(conn net.Conn) error {
	defer conn.Close()
	conf, keys := l.tls.ConfigForPeer("")
	conf.NextProtos = []string{"graze-bulk/1"}
	c := tls.Server(conn, conf)
	if err := c.Handshake(); err != nil {
		return err
	}
	client, err := libp2p.IDFromPublicKey(<-keys)
	if err != nil {
		return err
	}
	state := c.ConnectionState()
	session, err := state.ExportKeyingMaterial("EXPORTER-graze-cluster-key", nil, sha256.Size)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, sha256.Size)); err != nil { // the client's proof
		return err
	}
	mac := hmac.New(sha256.New, l.proof[:])
	for _, part := range []string{"server", string(session), string(client), string(l.id)} {
		io.WriteString(mac, part)
	}
	if _, err := c.Write(mac.Sum(nil)); err != nil {
		return err
	}
	for {
		q, err := wire.ReadRequest(c)
		if err == nil {
			err = l.lie(l.id, c, q)
		}
		if err != nil {
			return err
		}
	}
}

// runLiar is a liar's process. The settings are the cluster's key file, the
// address, the rack, a contact and the kind.
func runLiar(settings string) error {
	var keyFile, addr, rack, join, kind string
	if _, err := fmt.Sscan(settings, &keyFile, &addr, &rack, &join, &kind); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	key, err := peer.LoadClusterKey(keyFile)
	if err != nil {
		return err
	}
	private, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return err
	}
	l := &deceiver{proof: key.Derive("bulk proof"), lie: lies[kind]}
	if l.id, err = libp2p.IDFromPrivateKey(private); err != nil {
		return err
	}
	if l.tls, err = libp2ptls.NewIdentity(private); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", addr+":7945")
	if err != nil {
		return err
	}
	cluster, err := dht.New(
		dht.Member{ID: chunk.PeerID(l.id.String()), Name: liarName(kind), Bulk: addr + ":7945", Rack: rack, Weight: 200, Ready: true},
		dht.Config{Key: key.Derive("gossip"), Bind: addr + ":7946", Join: []string{join}, Jitter: -1})
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return cluster.Run(ctx) })
	g.Go(func() error {
		<-ctx.Done()
		return ln.Close()
	})
	g.Go(func() error {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return nil // it is told to end
			}
			go l.serve(conn)
		}
	})
	return g.Wait()
}

// liarName is what graze peers shows of a liar.
func liarName(kind string) string { return "liar-" + kind }

// startLiar adds a liar to a rack. The function that it returns has it say
// good-bye and end.
func (c *testCluster) startLiar(t testing.TB, rack int, kind string) (stop func()) {
	t.Helper()
	m := c.net.add(t, rack, fmt.Sprintf("10.77.%d.%d", rack, 100+len(c.net.machines)), c.shape.rate)
	cmd := exec.Command(os.Args[0])
	settings := []string{c.key, m.Addr, fmt.Sprintf("rack-%d", rack), c.nodes[0].Addr + ":7946", kind}
	cmd.Env = append(os.Environ(), liarEnv+"="+strings.Join(settings, " "))
	cmd.Stderr = os.Stderr
	p, err := m.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		_ = p.Signal(syscall.SIGTERM)
		select {
		case <-p.Exited():
		case <-time.After(patience):
			_ = p.Signal(syscall.SIGKILL)
			<-p.Exited()
		}
	}
	t.Cleanup(stop)
	return stop
}

// knows waits until all nodes know a member.
func (c *testCluster) knows(t testing.TB, ctx context.Context, name string) {
	t.Helper()
	each(t, c.nodes, func(n *clusterNode) error {
		return poll(ctx, func() error {
			_, err := n.peer(ctx, name)
			return err
		})
	})
}
