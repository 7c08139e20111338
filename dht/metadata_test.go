package dht

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/memberlist"
)

func TestMetadata(t *testing.T) {
	long := strings.Repeat("a", maxText)
	for _, tt := range []struct {
		name string
		m    Member
		size int
	}{
		{"least", Member{Weight: DefaultWeight}, 1},
		{"usual", Member{
			Name: "host-17.example", Bulk: "10.1.2.3:7001", P2P: []string{"/ip4/10.1.2.3/tcp/7002"},
			Rack: "r12", Zone: "eu-1a", Weight: DefaultWeight, Load: 77, Ready: true,
		}, 60},
		{"seed", Member{Name: "seed", Bulk: "[2001:db8::1]:7001", Role: Seed, Weight: SeedWeight, Ready: true}, 36},
		{"all at their limits", Member{
			Name: long, Rack: long, Zone: long, Bulk: strings.Repeat("b", maxAddr-6) + ":65535",
			P2P:  []string{"/ip4/10.1.2.3/tcp/1", "/ip6/2001:db8::1/tcp/2", "/dns4/" + strings.Repeat("c", 60) + "/tcp/3", "/ip4/10.1.2.4/tcp/4"},
			Role: Seed, Weight: 65535, Load: 255, Ready: true,
		}, 418},
		{"not ASCII", Member{Name: "größe", Rack: "é", Weight: 1}, 18},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := encodeMetadata(&tt.m)
			if err != nil {
				t.Fatal(err)
			}
			if len(p) != tt.size {
				t.Errorf("metadata has %d bytes, not %d", len(p), tt.size)
			}
			got, err := decodeMetadata("x", p)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.m, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestMetadataDropsAddresses has more libp2p addresses than fit.
func TestMetadataDropsAddresses(t *testing.T) {
	long := strings.Repeat("a", maxText)
	m := Member{Name: long, Rack: long, Zone: long, Bulk: strings.Repeat("b", maxAddr-6) + ":65535", Weight: 1}
	for range 4 {
		m.P2P = append(m.P2P, "/dns4/"+strings.Repeat("c", 80)+"/tcp/3")
	}
	p, err := encodeMetadata(&m)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeMetadata("x", p)
	if err != nil {
		t.Fatal(err)
	}
	if len(p) > memberlist.MetaMaxSize || len(got.P2P) != 2 || got.Bulk != m.Bulk {
		t.Errorf("%d bytes hold %d addresses", len(p), len(got.P2P))
	}
}

func TestMetadataRefusesToEncode(t *testing.T) {
	for _, tt := range []struct {
		name string
		m    Member
		want string
	}{
		{"long name", Member{Name: strings.Repeat("a", maxText+1), Weight: 1}, "name has 65 bytes"},
		{"rack that can't be printed", Member{Rack: "a\nb", Weight: 1}, "can't be printed"},
		{"zone not UTF-8", Member{Zone: "\xff", Weight: 1}, "not UTF-8"},
		{"bulk without port", Member{Bulk: "host", Weight: 1}, "bulk address"},
		{"bulk with port 0", Member{Bulk: "host:0", Weight: 1}, "port"},
		{"bad multiaddr", Member{P2P: []string{"10.0.0.1"}, Weight: 1}, "libp2p address"},
		{"role", Member{Role: 2, Weight: 1}, "role(2)"},
		{"weight", Member{}, "weight 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := encodeMetadata(&tt.m); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestBadMetadataIsRefused(t *testing.T) {
	for _, tt := range []struct{ name, p, want string }{
		{"empty", "", "version"},
		{"other version", "\x02", "version"},
		{"too long", "\x01" + strings.Repeat("x", memberlist.MetaMaxSize), "more than 512"},
		{"no length", "\x01\x01", "byte 1 is cut short"},
		{"cut", "\x01\x01\x05abcd", "byte 1 is cut short"},
		{"twice", "\x01\x07\x01a\x07\x01b", "field 7 at byte 4 is out of order"},
		{"falling", "\x01\x07\x01a\x01\x01b", "field 1 at byte 4 is out of order"},
		{"control character", "\x01\x02\x01\x1b", "can't be printed"},
		{"bulk", "\x01\x04\x03a:x", "port"},
		{"bulk without host", "\x01\x04\x03:80", "no host"},
		{"role", "\x01\x05\x01\x09", "unknown role"},
		{"weight of 0", "\x01\x06\x02\x00\x00", "not a weight"},
		{"weight of one byte", "\x01\x06\x01\x01", "not a weight"},
		{"load", "\x01\x07\x00", "not a load"},
		{"ready", "\x01\x08\x01\x01", "has a value"},
		{"multiaddr", "\x01\x09\x02\xff\xff", "libp2p address"},
		{"many multiaddrs", "\x01" + strings.Repeat("\x09\x05\x04\x0a\x00\x00\x01", 5), "too many"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := decodeMetadata("who", []byte(tt.p))
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), `"who"`) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	if m, err := decodeMetadata("who", []byte("\x01\x01\x01a\xf0\x02zz")); err != nil || m.Name != "a" {
		t.Errorf("with a field of a newer node: %+v, %v", m, err)
	}
}

func FuzzMetadata(f *testing.F) {
	f.Add([]byte("\x01"))
	m := Member{
		Name: "n", Bulk: "10.1.2.3:7001", P2P: []string{"/ip4/10.1.2.3/tcp/7002", "/ip6/::1/tcp/1"},
		Rack: "r", Zone: "z", Role: Seed, Weight: 7, Load: 77, Ready: true,
	}
	p, err := encodeMetadata(&m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	f.Fuzz(func(t *testing.T, p []byte) {
		keep := bytes.Clone(p)
		m, err := decodeMetadata("fuzz", p)
		if !bytes.Equal(p, keep) {
			t.Fatal("the decoder wrote to its input")
		}
		if err != nil {
			return
		}
		again, err := encodeMetadata(&m)
		if err != nil {
			t.Fatalf("%+v was read but can't be written: %v", m, err)
		}
		got, err := decodeMetadata("fuzz", again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, got); diff != "" {
			t.Error(diff)
		}
	})
}
