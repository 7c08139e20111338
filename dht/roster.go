package dht

import (
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"graze/chunk"
)

const (
	maxLost  = 256       // addresses of members that were lost
	lostTime = time.Hour // how long they are worth a try
)

// A roster is the members as gossip reports them. Its methods of memberlist's
// EventDelegate run under memberlist's lock, so they only decode and note.
type roster struct {
	self   chunk.PeerID
	log    *slog.Logger
	signal chan struct{} // has one element when there is something new

	mu      sync.Mutex
	members map[chunk.PeerID]*entry // guarded by mu; self is always one of them
	lost    map[string]time.Time    // guarded by mu; gossip addresses of members that went
	peers   int                     // guarded by mu; confirmed members besides self
	changes uint64                  // guarded by mu; of what decides about homes
	stats   rosterStats             // guarded by mu
}

type rosterStats struct{ badMetadata, tooMany uint64 }

type entry struct {
	member Member
	past   past
}

func newRoster(self Member, log *slog.Logger) *roster {
	r := &roster{
		self:    self.ID,
		log:     log,
		signal:  make(chan struct{}, 1),
		members: make(map[chunk.PeerID]*entry),
		lost:    make(map[string]time.Time),
	}
	r.setLocked(self)
	return r
}

// setLocked puts m in the place of what is known of it.
func (r *roster) setLocked(m Member) {
	e := r.members[m.ID]
	if e == nil {
		if len(r.members) >= MaxMembers {
			r.stats.tooMany++
			return
		}
		e = new(entry)
		r.members[m.ID] = e
	}
	if e.past.now != m.effective() || e.member.Rack != m.Rack {
		e.past.note(m.effective(), time.Now())
		r.changes++
	}
	if wasPeer := e.member.ID != "" && !e.member.Unconfirmed; m.ID != r.self && !wasPeer && !m.Unconfirmed {
		r.peers++
	}
	e.member = m
	r.wake()
}

// wake tells the reader of signal that there is something new.
func (r *roster) wake() {
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

// NotifyJoin takes a member in.
func (r *roster) NotifyJoin(n *memberlist.Node) { r.update(n) }

// NotifyUpdate takes what a member now says of itself.
func (r *roster) NotifyUpdate(n *memberlist.Node) { r.update(n) }

func (r *roster) update(n *memberlist.Node) {
	m, err := decodeMetadata(n.Name, n.Meta)
	if err == nil {
		err = checkID(n.Name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.stats.badMetadata++
		r.log.Debug("member is ignored", "err", err)
		return
	}
	m.ID = chunk.PeerID(n.Name)
	m.Gossip = n.Address()
	delete(r.lost, m.Gossip)
	r.setLocked(m)
}

// NotifyLeave drops a member.
func (r *roster) NotifyLeave(n *memberlist.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := chunk.PeerID(n.Name)
	e := r.members[id]
	if id == r.self || e == nil || e.member.Unconfirmed {
		return
	}
	// The node may be dead, cut off, or have said good-bye: memberlist doesn't say.
	if len(r.lost) < maxLost {
		r.lost[n.Address()] = time.Now()
	}
	delete(r.members, id)
	r.peers--
	r.changes++
	r.wake()
}

// addUnconfirmed takes members of the last view in, as long as nothing is known
// of them.
func (r *roster) addUnconfirmed(members []Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range members {
		if r.members[m.ID] == nil {
			m.Unconfirmed = true
			r.setLocked(m)
		}
	}
}

// dropUnconfirmed drops the members that nobody has confirmed.
func (r *roster) dropUnconfirmed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, e := range r.members {
		if e.member.Unconfirmed {
			delete(r.members, id)
			r.changes++
		}
	}
	r.wake()
}

// alone reports whether gossip knows nobody else.
func (r *roster) alone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.peers == 0
}

// lostAddrs returns where members were that were lost in the last hour.
func (r *roster) lostAddrs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var addrs []string
	for a, t := range r.lost {
		if time.Since(t) > lostTime {
			delete(r.lost, a)
			continue
		}
		addrs = append(addrs, a)
	}
	return addrs
}

// live returns the gossip addresses of the confirmed members, with self's.
func (r *roster) live() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	addrs := make(map[string]bool, len(r.members))
	for _, e := range r.members {
		if !e.member.Unconfirmed {
			addrs[e.member.Gossip] = true
		}
	}
	return addrs
}

// others returns the gossip addresses of the confirmed members besides self.
func (r *roster) others() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var addrs []string
	for id, e := range r.members {
		if id != r.self && !e.member.Unconfirmed {
			addrs = append(addrs, e.member.Gossip)
		}
	}
	return addrs
}

// view makes a view of the members.
func (r *roster) view(old *View) *View {
	r.mu.Lock()
	members := make([]Member, 0, len(r.members))
	pasts := make([]past, 0, len(r.members))
	for _, e := range r.members {
		members = append(members, e.member)
		pasts = append(pasts, e.past)
	}
	changes := r.changes
	r.mu.Unlock()
	return newView(members, pasts, r.self, changes, old)
}
