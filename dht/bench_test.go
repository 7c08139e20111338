package dht

import (
	"fmt"
	"log/slog"
	"testing"
)

var discard = slog.New(slog.DiscardHandler)

// mixed returns a crowd with a seed in each rack.
func mixed(n int) []Member {
	members := crowd(n)
	for i := 0; i < n; i += 20 {
		members[i].Role, members[i].Weight = Seed, SeedWeight
	}
	return members
}

func BenchmarkHomes(b *testing.B) {
	for _, n := range []int{200, 5000} {
		v := viewOf(mixed(n))
		buf := make([]*Member, 0, MaxHomes)
		for _, homes := range []int{1, 4} {
			b.Run(fmt.Sprintf("cluster/members=%d/homes=%d", n, homes), func(b *testing.B) {
				b.ReportAllocs()
				k := Key(1)
				for b.Loop() {
					k += 0x9e3779b97f4a7c15
					buf = v.AppendClusterHomes(buf[:0], k, homes)
				}
			})
			b.Run(fmt.Sprintf("rack/members=%d/homes=%d", n, homes), func(b *testing.B) {
				b.ReportAllocs()
				k := Key(1)
				for b.Loop() {
					k += 0x9e3779b97f4a7c15
					buf = v.AppendRackHomes(buf[:0], k, "rack5", homes)
				}
			})
		}
		b.Run(fmt.Sprintf("former/members=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			k := Key(1)
			for b.Loop() {
				k += 0x9e3779b97f4a7c15
				v.Former(k, 3)
			}
		})
	}
}

func BenchmarkView(b *testing.B) {
	for _, n := range []int{200, 5000} {
		members := mixed(n)
		r := newRoster(members[0], discard)
		for _, m := range members {
			r.setLocked(m)
		}
		old := r.view(nil)
		b.Run(fmt.Sprintf("members=%d/change=homes", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.view(nil)
			}
		})
		b.Run(fmt.Sprintf("members=%d/change=load", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.view(old)
			}
		})
	}
}

func BenchmarkMetadata(b *testing.B) {
	m := Member{Name: "host", Bulk: "10.1.2.3:7001", P2P: []string{"/ip4/10.1.2.3/tcp/7002"}, Rack: "r12", Weight: DefaultWeight, Ready: true}
	p, err := encodeMetadata(&m)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeMetadata("x", p); err != nil {
			b.Fatal(err)
		}
	}
}
