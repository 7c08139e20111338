package snapshotter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// views mounts each view that somebody uses once. Who uses one is known by the ID
// of a prepared snapshot.
type views struct {
	dir    string
	images Images
	linger time.Duration // how long a view stays that nobody uses

	mu      sync.Mutex // guards entries, and users of what is in it
	entries map[View]*viewEntry
}

// A viewEntry is a view that is mounted, is about to be, or was.
type viewEntry struct {
	users map[string]bool // IDs of snapshots
	idle  time.Time       // since when there are none; zero if there are
	busy  chan struct{}   // has a value while the view is mounted or taken away
}

// path returns where a view is mounted. It is short, as it stands in the options of
// overlays, which have to fit into a page.
func (v *views) path(view View) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", view.Image, view.Layers))
	return filepath.Join(v.dir, hex.EncodeToString(sum[:12]))
}

// use notes that a snapshot uses a view.
func (v *views) use(view View, id string) *viewEntry {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.entries == nil {
		v.entries = map[View]*viewEntry{}
	}
	e := v.entries[view]
	if e == nil {
		e = &viewEntry{users: map[string]bool{}, busy: make(chan struct{}, 1)}
		v.entries[view] = e
	}
	e.users[id], e.idle = true, time.Time{}
	return e
}

// mount sees to it that a view is mounted for a snapshot.
func (v *views) mount(ctx context.Context, view View, id string) error {
	e := v.use(view, id)
	select {
	case e.busy <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-e.busy }()
	dir := v.path(view)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := v.images.Mount(ctx, view, dir); err != nil {
		return fmt.Errorf("mount %d layers of %s: %w", view.Layers, view.Image, err)
	}
	return nil
}

// ids returns who uses any view.
func (v *views) ids() map[string]bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	ids := map[string]bool{}
	for _, e := range v.entries {
		maps.Copy(ids, e.users)
	}
	return ids
}

// sweep takes away the views that nobody uses when these snapshots have gone: those
// that nobody has used for a while, and those that nobody can, as no snapshot of
// theirs is left. It returns when to look again; zero if there is no need to.
func (v *views) sweep(ctx context.Context, gone map[string]bool, served func() (map[View]bool, error)) (again time.Time, err error) {
	idle, late := v.forget(gone)
	var errs []error
	if len(idle) > len(late) {
		known, err := served()
		if err != nil {
			errs, known = append(errs, err), nil
		}
		for view, e := range idle {
			if known != nil && !known[view] {
				late[view] = e
			}
		}
	}
	for view, e := range idle {
		if late[view] != nil {
			errs = append(errs, v.leave(ctx, view, e))
		} else if end := v.end(e); again.IsZero() || end.Before(again) {
			again = end
		}
	}
	return again, errors.Join(errs...)
}

// forget notes that snapshots have gone. It returns the views that nobody uses, and
// those of them that have been there for long enough.
func (v *views) forget(gone map[string]bool) (idle, late map[View]*viewEntry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	idle, late = map[View]*viewEntry{}, map[View]*viewEntry{}
	now := time.Now()
	for view, e := range v.entries {
		maps.DeleteFunc(e.users, func(id string, _ bool) bool { return gone[id] })
		if len(e.users) > 0 {
			continue
		}
		if e.idle.IsZero() {
			e.idle = now
		}
		idle[view] = e
		if !now.Before(e.idle.Add(v.linger)) {
			late[view] = e
		}
	}
	return idle, late
}

// end returns until when a view stays that nobody uses.
func (v *views) end(e *viewEntry) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return e.idle.Add(v.linger)
}

// leave takes a view away, unless somebody has come to use it.
func (v *views) leave(ctx context.Context, view View, e *viewEntry) error {
	select {
	case e.busy <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-e.busy }()
	if v.used(e) {
		return nil
	}
	if err := v.remove(v.path(view)); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(e.users) == 0 {
		delete(v.entries, view)
	}
	return nil
}

func (v *views) used(e *viewEntry) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(e.users) > 0
}

// removeUnknown takes away views of which only the folder is known, as a
// snapshotter that was killed may leave them. Nobody must use views meanwhile.
func (v *views) removeUnknown() error {
	list, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for view := range v.entries {
		known[v.path(view)] = true
	}
	var errs []error
	for _, d := range list {
		if dir := filepath.Join(v.dir, d.Name()); !known[dir] {
			errs = append(errs, v.remove(dir))
		}
	}
	return errors.Join(errs...)
}

// remove unmounts a view and removes its folder. What still uses the mount, such
// as an overlay that is about to end, keeps it.
func (v *views) remove(dir string) error {
	if err := v.images.Unmount(dir); err != nil {
		return fmt.Errorf("unmount a view that is not used: %w", err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// inUse returns how many views are in use.
func (v *views) inUse() (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.entries {
		if len(e.users) > 0 {
			n++
		}
	}
	return n
}
