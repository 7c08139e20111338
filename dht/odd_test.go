package dht

import (
	"log/slog"
	"testing"

	"github.com/hashicorp/memberlist"
)

// oddDelegate says of its node whatever it is told to.
type oddDelegate struct {
	delegate
	meta []byte
}

func (d oddDelegate) NodeMeta(int) []byte { return d.meta }

// startOdd starts a member with the given metadata.
func startOdd(t *testing.T, cfg Config, meta []byte) *memberlist.Memberlist {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	self := Member{ID: "odd"}
	conf, err := cfg.gossip(&self, oddDelegate{meta: meta}, newRoster(self, log), &gossipLog{log: log})
	if err != nil {
		t.Fatal(err)
	}
	list, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
