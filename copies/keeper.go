package copies

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"graze/chunk"
)

const (
	// again is the pause after a share could not be completed, and after it was
	// looked through: a chunk may have rotted meanwhile.
	again = time.Minute
	// retryOpen is the pause after an image could not be opened.
	retryOpen = 15 * time.Second
	// batchBytes is how much is fetched at a time, in decoded bytes.
	batchBytes = 4 << 20
	// quiet is how long no reader must have waited for more to be fetched, and
	// maxHold the longest pause that readers can cause: an image that is never
	// complete would be worse for them.
	quiet   = 500 * time.Millisecond
	maxHold = 5 * time.Second
)

// An Image is one that is open for fetching.
type Image interface {
	// View tells views of the image apart; nodes with equal ones number spans alike.
	View() string
	// Spans is the number of the image's spans.
	Spans() int
	// Share returns the spans that this node is among the first n homes of: first
	// those of which it is the first, then those of which it is the second, and so on.
	Share(n int) []uint32
	// Changed reports whether Share may return something else now.
	Changed() bool
	// Bytes is the size of a span's chunks.
	Bytes(span uint32) int64
	// Chunks yields the chunks of a span.
	Chunks(span uint32) iter.Seq[chunk.ID]
	// Missing reports whether a chunk of the span is not in the store.
	Missing(span uint32) bool
	// Fetch has spans fetched in the least urgent class.
	Fetch(ctx context.Context, spans []uint32) error
	Close() error
}

// A Pinner is a chunk store that keeps what it is told to.
type Pinner interface {
	Pin(owner string, ids iter.Seq[chunk.ID])
	Unpin(owner string)
}

// KeeperConfig sets up a Keeper. Open, Store, Copies and Budget are required.
type KeeperConfig struct {
	// Open opens the image that a reference with a digest means.
	Open func(ctx context.Context, ref string) (Image, error)
	// Store has the images' chunks.
	Store Pinner
	// Copies is how many copies there shall be of each image.
	Copies int
	// Budget is the most bytes that may be pinned.
	Budget func() int64
	// Rate is the most bytes that are fetched in a second, decoded; 0: no bound.
	Rate int64
	// Idle is how long no reader has waited for anything. Default: always long.
	Idle func() time.Duration
	// Whole reports whether the node keeps all of an image for another reason.
	// Default: none.
	Whole func(ref string) bool
	// Log gets what a person should act on. Default: discard.
	Log *slog.Logger
}

// A Keeper keeps the node's shares of images.
type Keeper struct {
	cfg  KeeperConfig
	kick chan struct{}
	pace pace

	mu     sync.Mutex // guards images, and of each what is shared
	images map[string]*kept
}

// A kept image is one of which the node has a share.
type kept struct {
	ref string

	// Guarded by the Keeper's mu.
	until  time.Time // end of the lease
	copies int       // that there are in the cluster
	report Report

	// Of Run alone.
	image Image // nil until it is open
	share []uint32
	next  int       // index in share of the first span that may be missing
	due   time.Time // when it is looked at again
	bytes int64     // pinned
	pins  int       // counts changes of the share
}

// NewKeeper returns a Keeper. It starts nothing.
func NewKeeper(cfg KeeperConfig) *Keeper {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Idle == nil {
		cfg.Idle = func() time.Duration { return quiet }
	}
	if cfg.Whole == nil {
		cfg.Whole = func(string) bool { return false }
	}
	return &Keeper{cfg: cfg, kick: make(chan struct{}, 1), images: make(map[string]*kept)}
}

// Keep has the node keep its share of an image for ShareLease, and reports how much
// of that is there. There are so many copies of the image in the cluster.
func (k *Keeper) Keep(ref string, copies int) (Report, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	image := k.images[ref]
	if image == nil {
		if len(k.images) >= maxImages {
			return Report{}, ErrTooMany
		}
		image = &kept{ref: ref}
		k.images[ref] = image
		wake(k.kick)
	}
	image.until, image.copies = time.Now().Add(ShareLease), copies
	r := image.report
	r.Held = append(Bits(nil), r.Held...)
	return r, nil
}

// Refresh has shares be looked at now: the members have changed.
func (k *Keeper) Refresh() { wake(k.kick) }

// Run keeps shares until ctx is done. Call it once.
func (k *Keeper) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		k.expire(time.Now())
		image, pause := k.choose(time.Now())
		if image == nil {
			rest(ctx, k.kick, pause)
			continue
		}
		k.work(ctx, image)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, image := range k.images {
		k.letGoLocked(image)
	}
	return nil
}

// expire lets images go whose lease is over.
func (k *Keeper) expire(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, image := range k.images {
		if now.After(image.until) {
			k.letGoLocked(image)
		}
	}
}

func (k *Keeper) letGoLocked(image *kept) {
	delete(k.images, image.ref)
	if image.image == nil {
		return
	}
	k.cfg.Store.Unpin(image.owner())
	if err := image.image.Close(); err != nil {
		k.cfg.Log.Warn("image can't be closed", "reference", image.ref, "err", err)
	}
}

// owner is the name under which the share's chunks are pinned.
func (image *kept) owner() string { return ownerOf(image.ref, image.pins) }

// choose returns the image that needs work most: one that is not open, or whose
// share has changed; then the one of whose next span there are the fewest copies.
// If there is no work, it returns how long to wait.
func (k *Keeper) choose(now time.Time) (*kept, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var best *kept
	pause := again
	for _, image := range k.images {
		pause = min(pause, image.until.Sub(now)+time.Millisecond)
		changed := image.image != nil && image.image.Changed()
		if wait := image.due.Sub(now); wait > 0 && !changed {
			pause = min(pause, wait)
			continue
		}
		if image.image == nil || changed {
			return image, 0
		}
		if best == nil || image.before(best) {
			best = image
		}
	}
	return best, pause
}

// before reports whether image is to be worked on before other: both are open.
func (image *kept) before(other *kept) bool {
	a, b := image.copies, other.copies
	if a == b {
		a, b = image.next*len(other.share), other.next*len(image.share) // the lesser part is done
	}
	return a < b || a == b && image.ref < other.ref
}
