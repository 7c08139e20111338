package seed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"graze/chunk"
)

const (
	// batch is how many spans are asked for at a time.
	batch = 64
	// again is the pause after an image could not be completed, and after it was
	// looked through: a chunk may have rotted meanwhile.
	again = time.Minute
	// maxImages bounds the list.
	maxImages = 1024
)

// ErrTooMany: the list of images is full.
var ErrTooMany = errors.New("a seed keeps 1024 images at most: remove some")

// ErrNoRoom: the store is too small for one more image.
var ErrNoRoom = errors.New("no room")

// An Image is one that is open for reading.
type Image interface {
	// Chunks yields the chunks of the image.
	Chunks() iter.Seq[chunk.ID]
	// Spans returns the numbers of the image's spans in the order in which this
	// node should fetch them.
	Spans() []uint32
	// Bytes is the size of the image's chunks.
	Bytes() int64
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

// Config sets up a Keeper. All but Log is required.
type Config struct {
	// File is where the list of images is kept.
	File string
	// Open opens the image that a reference with a digest means.
	Open func(ctx context.Context, ref string) (Image, error)
	// Store has the image's chunks.
	Store Pinner
	// Budget is the most bytes that may be pinned: an image that does not fit is not
	// held, so that the store never fills with what can't be evicted.
	Budget func() int64
	// Log gets what a person should act on. Default: discard.
	Log *slog.Logger
}

// A Status says how much of an image is there.
type Status struct {
	Reference string `json:"reference"` // with the digest
	Spans     int    `json:"spans"`     // 0 until the image has been opened
	Have      int    `json:"have"`      // of them
	Error     string `json:"error,omitempty"`
}

// A Keeper holds whole images.
type Keeper struct {
	cfg  Config
	kick chan struct{} // tells Run that the list has changed

	mu     sync.Mutex // guards images
	images []*kept
}

// A kept image is one on the list.
type kept struct {
	status Status
	next   time.Time          // when it is looked at next
	bytes  int64              // pinned
	cancel context.CancelFunc // stops the work on it; nil if there is none
	gone   bool               // removed from the list
}

// New returns a Keeper with the list that cfg.File has. It starts nothing.
func New(cfg Config) (*Keeper, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{cfg: cfg, kick: make(chan struct{}, 1)}
	text, err := os.ReadFile(cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, err
	}
	var refs []string
	if err := json.Unmarshal(text, &refs); err != nil || len(refs) > maxImages {
		return nil, fmt.Errorf("list of images %s is damaged, remove it: %w", cfg.File, err)
	}
	for _, ref := range refs {
		k.images = append(k.images, &kept{status: Status{Reference: ref}})
	}
	return k, nil
}

// Add puts an image on the list, by a reference with a digest. One that is there
// already stays.
func (k *Keeper) Add(ref string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.findLocked(ref) >= 0 {
		return nil
	}
	if len(k.images) >= maxImages {
		return ErrTooMany
	}
	k.images = append(k.images, &kept{status: Status{Reference: ref}})
	k.wake()
	return k.saveLocked()
}

// Remove takes an image off the list: its chunks may be evicted from then on.
// found is false if it was not there.
func (k *Keeper) Remove(ref string) (found bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := k.findLocked(ref)
	if i < 0 {
		return false, nil
	}
	image := k.images[i]
	k.images = slices.Delete(k.images, i, i+1)
	image.gone = true
	if image.cancel != nil {
		image.cancel()
	}
	k.cfg.Store.Unpin(owner(ref))
	return true, k.saveLocked()
}

// List says how much of each image is there.
func (k *Keeper) List() []Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]Status, len(k.images))
	for i, image := range k.images {
		list[i] = image.status
	}
	return list
}

// Has reports whether an image is on the list.
func (k *Keeper) Has(ref string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.findLocked(ref) >= 0
}

func (k *Keeper) findLocked(ref string) int {
	return slices.IndexFunc(k.images, func(image *kept) bool { return image.status.Reference == ref })
}

// saveLocked writes the list, in one step.
func (k *Keeper) saveLocked() error {
	refs := make([]string, len(k.images))
	for i, image := range k.images {
		refs[i] = image.status.Reference
	}
	text, err := json.MarshalIndent(refs, "", "\t")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(k.cfg.File), ".seeds-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), k.cfg.File)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// owner is the name under which an image's chunks are pinned.
func owner(ref string) string { return "seed " + ref }

// wake has Run look at the list.
func (k *Keeper) wake() {
	select {
	case k.kick <- struct{}{}:
	default: // it will look anyway
	}
}

// Run completes the images on the list, one after the other, until ctx is done.
// Call it once.
func (k *Keeper) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		image, pause := k.due()
		if image == nil {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-k.kick:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		}
		k.work(ctx, image)
	}
	return nil
}

// due returns the image whose turn it is, or how long to wait for one.
func (k *Keeper) due() (*kept, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, pause := time.Now(), again
	for _, image := range k.images {
		if !image.next.After(now) {
			return image, 0
		}
		pause = min(pause, image.next.Sub(now))
	}
	return nil, pause
}

// work completes one image as far as that is possible now.
func (k *Keeper) work(ctx context.Context, image *kept) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k.mu.Lock()
	gone := image.gone
	image.cancel = cancel
	k.mu.Unlock()
	if gone {
		return
	}
	err := k.complete(ctx, image)

	k.mu.Lock()
	defer k.mu.Unlock()
	image.cancel = nil
	image.next = time.Now().Add(again)
	if image.gone {
		k.cfg.Store.Unpin(owner(image.status.Reference)) // it may have been pinned again meanwhile
		return
	}
	if ctx.Err() != nil {
		return
	}
	old := image.status.Error
	image.status.Error = ""
	if err != nil {
		if image.status.Error = err.Error(); old != image.status.Error {
			k.cfg.Log.Warn("image can't be completed yet", "reference", image.status.Reference, "err", err)
		}
	}
}

// complete fetches what is missing of an image.
func (k *Keeper) complete(ctx context.Context, image *kept) error {
	opened, err := k.cfg.Open(ctx, image.status.Reference)
	if err != nil {
		return err
	}
	defer opened.Close()
	if err := k.reserve(image, opened.Bytes()); err != nil {
		return err
	}
	k.cfg.Store.Pin(owner(image.status.Reference), opened.Chunks())

	spans := opened.Spans()
	missing := slices.DeleteFunc(slices.Clone(spans), func(n uint32) bool { return !opened.Missing(n) })
	have := len(spans) - len(missing)
	k.progress(image, len(spans), have)
	var failed error
	for part := range slices.Chunk(missing, batch) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := opened.Fetch(ctx, part); err != nil && failed == nil {
			failed = err // the others may be had
		}
		for _, n := range part {
			if !opened.Missing(n) {
				have++
			}
		}
		k.progress(image, len(spans), have)
	}
	if failed == nil && have < len(spans) {
		failed = fmt.Errorf("%d spans did not stay in the store: it is too small for the image", len(spans)-have)
	}
	return failed
}

// reserve takes an image's bytes from the budget, unless it is too large.
func (k *Keeper) reserve(image *kept, bytes int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	free := k.cfg.Budget() + image.bytes
	for _, other := range k.images {
		free -= other.bytes
	}
	if bytes > free {
		return fmt.Errorf("%w: image has %d bytes, and %d of what may be pinned are left", ErrNoRoom, bytes, max(0, free))
	}
	image.bytes = bytes
	return nil
}

// progress notes how much of an image is there.
func (k *Keeper) progress(image *kept, spans, have int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	image.status.Spans, image.status.Have = spans, have
}
