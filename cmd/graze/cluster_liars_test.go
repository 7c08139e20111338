package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"graze/node"
)

// TestClusterLiars has members that answer as they must not, several kinds at a
// time, and more of a share of the chunks than the honest nodes. All readers get
// the right bytes within their deadline, and graze peers says of each liar what is
// wrong with it.
func TestClusterLiars(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 4, racks: 1, rate: "400mbit", origin: "400mbit", encrypt: true, top: `read-deadline = "20s"`})
	c.startAll(t, waiting(t))
	const protocol = "protocol"
	for _, row := range []struct {
		name  string
		kinds map[string]string // and a word of the reason that is given for the liar's state; "": it is called good
	}{
		{"wrong-answers", map[string]string{
			"bytes": "wrong bytes", "length": protocol, "endless": protocol, "header": protocol, "million": protocol,
			"redirects": "itself", "refuses": "",
		}},
		{"no-answers", map[string]string{
			"truncates": "broken", "dies": "", "stalls": "broke", "stalls-within": "broke", "drips": "broke", "alive": "no answer",
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			ctx := waiting(t)
			c.settle(t, ctx)
			var stops []func()
			for kind := range row.kinds {
				stops = append(stops, c.startLiar(t, 0, kind))
			}
			for kind := range row.kinds {
				c.knows(t, ctx, liarName(kind))
			}
			words := make(map[string][]string)
			var silent []string
			for round := range 4 { // who is asked for how much is a matter of luck
				c.readAmongLiars(t, ctx, fmt.Sprintf("%s-%d", row.name, round), words)
				silent = nil
				for kind, want := range row.kinds {
					said := func(s string) bool { return strings.Contains(s, want) }
					if want != "" && !slices.ContainsFunc(words[liarName(kind)], said) {
						silent = append(silent, fmt.Sprintf("%q of %s", want, kind))
					}
				}
				if silent == nil {
					break
				}
			}
			for _, name := range slices.Sorted(maps.Keys(words)) {
				t.Logf("%s: %s", name, words[name][0])
			}
			if silent != nil {
				t.Errorf("nobody says %s", strings.Join(silent, ", "))
			}
			var wg sync.WaitGroup
			for _, stop := range stops {
				wg.Go(stop)
			}
			wg.Wait()
		})
	}
}

// readAmongLiars has all nodes read a new image, and adds to words what they say
// of liars meanwhile.
func (c *testCluster) readAmongLiars(t *testing.T, ctx context.Context, name string, words map[string][]string) {
	t.Helper()
	img := c.reg.publish(t, name, clusterLayers(name, sized(4<<20)))
	reading, done := context.WithCancel(ctx)
	watched := c.watch(reading, liarName(""), words)
	begin := time.Now()
	mountAll(t, ctx, c.nodes, img)
	readAll(t, ctx, c.nodes, img)
	t.Logf("all have read after %.2f s", time.Since(begin).Seconds())
	done()
	<-watched
	c.unmountAll(t, ctx)
}

// watch looks at what nodes say of the members whose names begin so, until ctx is
// done, and adds all the states and reasons that they name to words. Then it
// closes the channel.
func (c *testCluster) watch(ctx context.Context, prefix string, words map[string][]string) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			for _, n := range c.nodes {
				list, err := n.peers(context.WithoutCancel(ctx))
				if err != nil {
					continue // it is busy
				}
				for _, p := range list {
					note(words, prefix, &p)
				}
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	}()
	return ended
}

// note adds a peer's state to words.
func note(words map[string][]string, prefix string, p *node.PeerInfo) {
	if !strings.HasPrefix(p.Name, prefix) || p.Reason == "" {
		return
	}
	reason, _, _ := strings.Cut(p.Reason, "not asked for") // which counts down
	if text := p.State + ": " + reason; len(words[p.Name]) < 8 && !slices.Contains(words[p.Name], text) {
		words[p.Name] = append(words[p.Name], text)
	}
}
