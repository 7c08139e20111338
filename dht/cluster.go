package dht

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	coalesce  = 100 * time.Millisecond // between a change and the view that has it
	savePause = time.Second            // between a view and its copy on disk
	// Members of the last view that nobody confirms are dropped so long after the
	// first contact has told its state; or, if there is no contact, after start.
	confirmTime = 5 * time.Second
	aloneTime   = 2 * time.Minute
)

// A Cluster is the node's membership in the cluster.
type Cluster struct {
	cfg    Config
	self   Member // but for load and readiness
	roster *roster
	log    *gossipLog

	load        atomic.Uint32
	ready       atomic.Bool
	selfChanged chan struct{} // has one element when load or readiness were set

	view    atomic.Pointer[View]
	mu      sync.Mutex
	changed chan struct{} // guarded by mu; closed when the next view is there

	asked     chan struct{} // see Asked
	askedOnce sync.Once     // closes it

	lastContacts []string // of the last view; set by Run before it starts goroutines

	joins, joinErrors, views, announced, saveErrors atomic.Uint64
}

// New returns the membership of the node that self describes. It starts nothing
// and does no I/O. Until Run is called the view has only the node itself.
func New(self Member, cfg Config) (*Cluster, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if err := checkID(string(self.ID)); err != nil {
		return nil, err
	}
	if self.Weight == 0 {
		self.Weight = DefaultWeight
		if self.Role == Seed {
			self.Weight = SeedWeight
		}
	}
	self.Gossip, self.Unconfirmed = "", false
	if _, err := encodeMetadata(&self); err != nil {
		return nil, err
	}
	c := &Cluster{
		cfg:         cfg,
		self:        self,
		roster:      newRoster(self, cfg.Log),
		log:         &gossipLog{log: cfg.Log},
		selfChanged: make(chan struct{}, 1),
		changed:     make(chan struct{}),
		asked:       make(chan struct{}),
	}
	c.load.Store(uint32(self.Load))
	c.ready.Store(self.Ready)
	c.view.Store(c.roster.view(nil))
	return c, nil
}

// Run takes part in the cluster until ctx is done; then it says good-bye to the
// others and returns once all that it started has ended, but for a probe that
// memberlist may still wait for, some seconds at most. It fails only when it can't
// listen. Call it once.
func (c *Cluster) Run(ctx context.Context) error {
	c.loadLastView()
	conf, err := c.cfg.gossip(&c.self, delegate{c}, c.roster, c.log)
	if err != nil {
		return fmt.Errorf("gossip: %w", err)
	}
	list, err := memberlist.Create(conf)
	if err != nil {
		return fmt.Errorf("gossip: %w", err)
	}
	c.publish()

	var wg sync.WaitGroup
	wg.Go(func() { c.keepView(ctx) })
	wg.Go(func() { c.keepJoined(ctx, list) })
	wg.Go(func() { c.announce(ctx, list) })
	<-ctx.Done()
	leaveErr := list.Leave(c.cfg.Leave)
	err = list.Shutdown()
	wg.Wait()
	if leaveErr != nil {
		c.cfg.Log.Debug("not all members were told of the leave", "err", leaveErr)
	}
	if err != nil {
		return errors.Join(errors.New("gossip does not shut down"), err)
	}
	return nil
}

// Asked is closed once the view has others, of before or by an answer, or all the
// contacts that the node was given have been asked.
func (c *Cluster) Asked() <-chan struct{} { return c.asked }

func (c *Cluster) introduced() { c.askedOnce.Do(func() { close(c.asked) }) }

// current returns the node as it is now.
func (c *Cluster) current() *Member {
	m := c.self
	m.Load, m.Ready = uint8(c.load.Load()), c.ready.Load()
	return &m
}

// SetLoad sets the node's load, from 0 to 255. The others are told when it has
// changed by an eighth, at most every ten seconds.
func (c *Cluster) SetLoad(load uint8) {
	if c.load.Swap(uint32(load)) != uint32(load) {
		c.wakeSelf()
	}
}

// SetReady says whether the node can be a home. The others are told within
// seconds.
func (c *Cluster) SetReady(ready bool) {
	if c.ready.Swap(ready) != ready {
		c.wakeSelf()
	}
}

func (c *Cluster) wakeSelf() {
	select {
	case c.selfChanged <- struct{}{}:
	default:
	}
}

// View returns the cluster as it is known now. It never waits.
func (c *Cluster) View() *View { return c.view.Load() }

// Changed returns a channel that is closed when there is a view after the one
// that View returns at the moment. Who wants to miss nothing calls Changed before
// View. A new view need not have a new epoch.
func (c *Cluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// publish makes a view of the roster.
func (c *Cluster) publish() {
	v := c.roster.view(c.view.Load())
	if len(v.Members()) > 1 {
		defer c.introduced()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view.Store(v)
	close(c.changed)
	c.changed = make(chan struct{})
	c.views.Add(1)
}

// keepView publishes views and keeps the last one on disk, until ctx is done.
func (c *Cluster) keepView(ctx context.Context) {
	defer c.save()
	unconfirmed := time.NewTimer(aloneTime)
	defer unconfirmed.Stop()
	var save <-chan time.Time
	met := false
	for {
		select {
		case <-c.roster.signal:
			if !sleep(ctx, coalesce) {
				return
			}
			epoch := c.View().Epoch()
			c.publish()
			if save == nil && c.View().Epoch() != epoch {
				save = time.After(savePause)
			}
			if !met && !c.roster.alone() {
				met = true
				unconfirmed.Reset(confirmTime)
			}
		case <-unconfirmed.C:
			c.roster.dropUnconfirmed()
		case <-save:
			save = nil
			c.save()
		case <-ctx.Done():
			return
		}
	}
}

// save writes the view to disk, unless it has nobody: then the file's contacts
// are worth more.
func (c *Cluster) save() {
	v := c.View()
	if c.cfg.ViewFile == "" || len(v.Members()) == 1 {
		return
	}
	if err := writeLastView(c.cfg.ViewFile, v); err != nil {
		c.saveErrors.Add(1)
		c.cfg.Log.Warn("last view is not kept", "err", err)
	}
}

// loadLastView takes members and contacts from the last view.
func (c *Cluster) loadLastView() {
	if c.cfg.ViewFile == "" {
		return
	}
	members, saved, err := readLastView(c.cfg.ViewFile)
	if err != nil {
		c.cfg.Log.Warn("last view is ignored", "err", err)
		return
	}
	for _, m := range members[:min(len(members), maxContacts)] {
		c.lastContacts = append(c.lastContacts, m.Gossip)
	}
	if age := time.Since(saved); age >= 0 && age <= lastViewAge {
		c.roster.addUnconfirmed(members)
	}
}

// Stats counts what a cluster has done since it was made.
type Stats struct {
	Members     int    // in the view, with the node itself
	Unconfirmed int    // of them, those that gossip has not confirmed since the start
	Unready     int    // of them, those that are not ready
	BadMetadata uint64 // times that a member was ignored because its metadata can't be read
	TooMany     uint64 // times that a member was ignored because there are too many
	Refused     uint64 // packets and streams from nodes without the key
	Joins       uint64 // contacts asked
	JoinErrors  uint64 // contacts that didn't answer or are not known
	Views       uint64 // views published
	Announced   uint64 // changes of load or readiness told to the others
	SaveErrors  uint64 // failures to keep the last view
}

// Stats returns the counts.
func (c *Cluster) Stats() Stats {
	v := c.View()
	s := Stats{
		Members:    len(v.members),
		Refused:    c.log.refused.Load(),
		Joins:      c.joins.Load(),
		JoinErrors: c.joinErrors.Load(),
		Views:      c.views.Load(),
		Announced:  c.announced.Load(),
		SaveErrors: c.saveErrors.Load(),
	}
	for i := range v.members {
		if v.members[i].Unconfirmed {
			s.Unconfirmed++
		}
		if !v.members[i].Ready {
			s.Unready++
		}
	}
	c.roster.mu.Lock()
	defer c.roster.mu.Unlock()
	s.BadMetadata, s.TooMany = c.roster.stats.badMetadata, c.roster.stats.tooMany
	return s
}
