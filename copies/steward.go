package copies

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// UseLease is how long an image counts as mounted on a node after the node has
	// said so. Nodes say it every UseRenewal.
	UseLease   = 45 * time.Second
	UseRenewal = 10 * time.Second
	// ShareLease is how long a share is kept after the steward has asked for it.
	ShareLease = 3 * time.Minute

	// busyRound is the pause between two rounds of an image that is not safe yet,
	// idleRound that of others.
	busyRound = 5 * time.Second
	idleRound = 45 * time.Second
	// maxImages bounds the images of a Steward and of a Keeper.
	maxImages = 1024
)

// ErrTooMany: there are too many images to look after.
var ErrTooMany = errors.New("1024 images are looked after already")

// StewardConfig sets up a Steward. All is required.
type StewardConfig struct {
	// Ask asks all members to keep their shares of an image, of which there are so
	// many copies, and returns what they say.
	Ask func(ctx context.Context, ref string, copies int) []Answer
	// Copies is how many copies there shall be.
	Copies int
}

// A Steward looks after images for a cluster.
type Steward struct {
	cfg  StewardConfig
	kick chan struct{}

	mu     sync.Mutex // guards images
	images map[string]*tended
}

// A tended image is one that a Steward looks after.
type tended struct {
	users  map[string]time.Time // until when each counts as one
	status Status
	next   time.Time // when the next round is due
}

// NewSteward returns a Steward. It starts nothing.
func NewSteward(cfg StewardConfig) *Steward {
	return &Steward{cfg: cfg, kick: make(chan struct{}, 1), images: make(map[string]*tended)}
}

// Mounted notes that a node has an image mounted, and returns what is known of the
// image.
func (s *Steward) Mounted(ref, node string) (Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.images[ref]
	if t == nil {
		if len(s.images) >= maxImages {
			return Status{}, ErrTooMany
		}
		t = &tended{users: make(map[string]time.Time), status: Status{Why: "the nodes have not been asked yet", Wanted: s.cfg.Copies}}
		s.images[ref] = t
		wake(s.kick)
	}
	t.users[node] = time.Now().Add(UseLease)
	return t.status, nil
}

// Refresh has all images be looked at now: the members have changed.
func (s *Steward) Refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.images {
		t.next = time.Time{}
	}
	wake(s.kick)
}

// Run looks after images until ctx is done. Call it once.
func (s *Steward) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		ref, copies, pause := s.due(time.Now())
		if ref == "" {
			rest(ctx, s.kick, pause)
			continue
		}
		answers := s.cfg.Ask(ctx, ref, copies)
		if ctx.Err() == nil {
			s.learn(ref, judge(answers, s.cfg.Copies, time.Now()))
		}
	}
	return nil
}

// due returns an image whose turn it is, or how long to wait for one. Images that
// nobody has mounted any more are forgotten.
func (s *Steward) due(now time.Time) (ref string, copies int, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pause = idleRound
	for name, t := range s.images {
		for node, until := range t.users {
			if now.After(until) {
				delete(t.users, node)
			}
		}
		if len(t.users) == 0 {
			delete(s.images, name)
			continue
		}
		if wait := t.next.Sub(now); wait > 0 {
			pause = min(pause, wait)
		} else if ref == "" || t.status.Copies < copies {
			ref, copies = name, t.status.Copies
		}
	}
	return ref, copies, pause
}

// learn notes the outcome of a round.
func (s *Steward) learn(ref string, status Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.images[ref]
	if t == nil {
		return
	}
	t.status = status
	t.next = status.At.Add(busyRound)
	if status.Safe {
		t.next = status.At.Add(idleRound)
	}
}

// wake has whoever rests on kick go on.
func wake(kick chan struct{}) {
	select {
	case kick <- struct{}{}:
	default: // it will go on anyway
	}
}

// rest waits for d, or until ctx is done or somebody wakes it.
func rest(ctx context.Context, kick <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-kick:
	case <-ctx.Done():
	}
}
