package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/containerd/continuity/fs"
)

// A Config says where a Snapshotter keeps its state and what it serves lazily.
// Only Root is required.
type Config struct {
	// Root is the folder that everything is kept in; it is made if missing. Its file
	// system has the writable layers of containers.
	Root string

	// Policies say how images are served; the first that matches holds. Images for
	// which there is none are served lazily, or pulled if that is impossible.
	Policies []Policy

	// SmallImage is the size in bytes below which an image is pulled, unless its
	// policy forbids that. 0 means that all are served lazily.
	SmallImage int64

	// Linger is how long a view stays mounted that nobody uses, so that the next
	// container of the image finds what the kernel has read of it. It goes before that
	// if the image does. Default: not at all.
	Linger time.Duration

	// Finder finds images for clients that don't name them. Default: none.
	Finder Finder

	// Log gets what a person should act on. Default: discard.
	Log *slog.Logger
}

// A Snapshotter implements containerd's interface of that name. It is safe for
// concurrent use. One folder belongs to one Snapshotter at a time.
type Snapshotter struct {
	cfg     Config
	images  Images
	log     *slog.Logger
	meta    *storage.MetaStore
	options []string // of every overlay

	decisions decisions
	views     views
	history   history

	removed  chan struct{} // has a value if there may be something to clean up
	cleaning sync.Mutex    // held while folders and mounts are taken away
}

var (
	_ snapshots.Snapshotter = (*Snapshotter)(nil)
	_ snapshots.Cleaner     = (*Snapshotter)(nil)
)

// Open opens the snapshotter whose state is in cfg.Root. Close it after use.
func Open(cfg Config, images Images) (*Snapshotter, error) {
	if cfg.Root == "" {
		return nil, errors.New("no folder was given")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for _, p := range cfg.Policies {
		if err := p.check(); err != nil {
			return nil, err
		}
	}
	s := &Snapshotter{cfg: cfg, images: images, log: cfg.Log, removed: make(chan struct{}, 1)}
	s.views = views{dir: filepath.Join(cfg.Root, "views"), images: images, linger: cfg.Linger}
	for _, dir := range []string{s.snapshotsDir(), s.views.dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if ok, err := fs.SupportsDType(cfg.Root); err != nil {
		return nil, err
	} else if !ok {
		return nil, fmt.Errorf("the file system of %s does not tell types of directory entries, which overlayfs needs: xfs has to be made with ftype=1", cfg.Root)
	}
	s.options = overlayOptions(cfg.Root, s.log)
	var err error
	if s.meta, err = storage.NewMetaStore(filepath.Join(cfg.Root, "metadata.db")); err != nil {
		return nil, err
	}
	if err := s.recover(context.Background()); err != nil {
		return nil, errors.Join(fmt.Errorf("take up the snapshots in %s: %w", cfg.Root, err), s.meta.Close())
	}
	return s, nil
}

// overlayOptions returns those that containerd's own snapshotter uses.
func overlayOptions(root string, log *slog.Logger) (list []string) {
	if _, err := os.Stat("/sys/module/overlay/parameters/index"); err == nil {
		list = append(list, "index=off")
	}
	userxattr, err := overlayutils.NeedsUserXAttr(root)
	if err != nil {
		log.Warn("it can't be told whether overlayfs needs the option userxattr", "err", err)
	}
	if userxattr {
		list = append(list, "userxattr")
	}
	return list
}

// recover finds out which views are in use, and takes away those that are not.
func (s *Snapshotter) recover(ctx context.Context) error {
	snaps, err := s.prepared(ctx)
	if err != nil {
		return err
	}
	for _, snap := range snaps {
		chain, err := s.chain(snap.ParentIDs)
		if err != nil {
			return err
		}
		if chain.view != nil {
			s.views.use(*chain.view, snap.ID)
		}
	}
	return s.views.removeUnknown()
}

// Run cleans up what removed snapshots leave behind, until ctx is done. Views
// stay mounted after it.
func (s *Snapshotter) Run(ctx context.Context) error {
	for {
		again, err := s.cleanup(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("what removed snapshots left behind could not be taken away", "err", err)
		}
		var later <-chan time.Time
		if !again.IsZero() {
			later = time.After(time.Until(again))
		}
		select {
		case <-s.removed:
		case <-later:
		case <-ctx.Done():
			return nil
		}
	}
}

// Close implements snapshots.Snapshotter.
func (s *Snapshotter) Close() error { return s.meta.Close() }

func (s *Snapshotter) snapshotsDir() string { return filepath.Join(s.cfg.Root, "snapshots") }

func (s *Snapshotter) snapshotDir(id string) string { return filepath.Join(s.snapshotsDir(), id) }

// upperDir is the folder of what a snapshot has itself.
func (s *Snapshotter) upperDir(id string) string { return filepath.Join(s.snapshotDir(id), "fs") }

// workDir is overlayfs's work directory of a prepared snapshot.
func (s *Snapshotter) workDir(id string) string { return filepath.Join(s.snapshotDir(id), "work") }
