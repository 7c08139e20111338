package node

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

const (
	// sweepEvery is how often the metadata is looked at.
	sweepEvery = 5 * time.Minute
	// usedLately is how long nothing is removed that was used: whoever resolves an
	// image, or decides about its layers, comes back for it.
	usedLately = 10 * time.Minute
	// minMetadata is the least that MetadataLimit is by default.
	minMetadata = 64 << 20
)

// MetadataStats tell what of images is kept besides their chunks: manifests, configs,
// indexes and views.
type MetadataStats struct {
	Bytes   int64 `json:"bytes"`
	Files   int64 `json:"files"`
	Limit   int64 `json:"limit"`
	InUse   int64 `json:"in_use"`  // of Bytes, what images in use need, which is never removed
	Removed int64 `json:"removed"` // files, for room
}

// metadataLimit returns the most bytes of metadata that a configuration wants, beside
// a chunk store with that limit.
func (c *Config) metadataLimit(store int64) int64 {
	return cmp.Or(c.MetadataLimit, max(store/10, minMetadata))
}

// keepMetadata bounds the metadata until ctx is done.
func (n *Node) keepMetadata(ctx context.Context) {
	if n.restored(ctx) != nil {
		return
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := n.sweep(ctx, time.Now()); err != nil && ctx.Err() == nil {
			n.log.Error("metadata of images can't be bounded", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// sweep removes metadata until it keeps to its limit: what was not used for longest
// first, and nothing that an image in use needs.
func (n *Node) sweep(ctx context.Context, now time.Time) error {
	m, err := n.markUsed(ctx)
	if err != nil {
		return err
	}
	// Who begins to use a file meanwhile touches it before it is listed.
	files, err := n.metaFiles(now)
	if err != nil {
		return err
	}
	st := MetadataStats{Files: int64(len(files)), Limit: n.metadataLimit}
	for _, f := range files {
		st.Bytes += f.size
		if m.files[f.path] {
			st.InUse += f.size
			touch(f.path)
		}
	}
	before := st.Bytes
	for _, f := range files {
		if st.Bytes <= st.Limit || now.Sub(f.used) < usedLately {
			break
		}
		if m.files[f.path] {
			continue
		}
		gone, err := f.remove()
		if err != nil {
			return err
		}
		if gone {
			st.Bytes, st.Files, st.Removed = st.Bytes-f.size, st.Files-1, st.Removed+1
		}
	}
	if st.Removed > 0 {
		n.log.Info("removed metadata of images that are not in use", "files", st.Removed, "bytes", before-st.Bytes, "limit", st.Limit)
	}
	if st.InUse > st.Limit {
		if skipped, ok := n.once.allow("metadata", ""); ok {
			n.log.Warn("images in use need more metadata than the limit", "bytes", st.InUse, "limit", st.Limit, "skipped", skipped)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	st.Removed += n.metadata.Removed
	n.metadata = st
	return nil
}

// markUsed finds what the images in use need: those that are open, for mounts, seeds
// or shares; those of mounts that live on from the node before, or are to be made
// again; those that containerd has snapshots of; and those that the node is to hold
// whole.
func (n *Node) markUsed(ctx context.Context) (*marking, error) {
	m := newMarking(n.Library)
	n.mu.Lock()
	open := slices.Collect(maps.Keys(n.trees))
	n.mu.Unlock()
	for _, t := range open {
		m.tree(t)
	}
	records, damaged, err := readMountRecords(n.dir)
	if err != nil && len(damaged) == 0 {
		return nil, err
	}
	for _, r := range records {
		m.image(ctx, r.Image, r.Layers)
	}
	if n.snaps != nil {
		views, err := n.snaps.Views(ctx)
		if err != nil {
			return nil, err
		}
		for _, v := range views {
			m.image(ctx, v.Image, v.Layers)
		}
	}
	if n.seeds != nil {
		for _, s := range n.seeds.List() {
			m.image(ctx, s.Reference, 0)
		}
	}
	m.records()
	m.findings()
	return m, nil
}

// metadataStats returns what the last sweep has found.
func (n *Node) metadataStats() MetadataStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.metadata
}
