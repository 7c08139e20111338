package node

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"graze/chunk"
	"graze/fusefs"
	"graze/scheduler"
)

// A Tree is an image that is open for reading: its view, and a reader of its
// files. Close it after use.
type Tree struct {
	Image  *Image
	View   *View
	Reader *scheduler.Reader
	remove func() // takes the image's blobs out of the catalog
}

// OpenTree opens an image for reading. Chunks of layers that have to be indexed
// for it are kept.
func (n *Node) OpenTree(ctx context.Context, img *Image, opts IndexOptions) (*Tree, error) {
	if opts.Keep == nil {
		opts.Keep = n.keep
	}
	if n.members != nil && n.members.outside != nil {
		n.members.outside.find(ctx, []chunk.Blob{img.Digest})
	}
	view, err := n.OpenView(ctx, img, opts)
	if err != nil {
		return nil, err
	}
	sources := append(img.sources(), view.blobs...)
	for _, b := range view.blobs {
		// The blob may have been copied along with the image.
		b.Repository = img.Repository
		sources = append(sources, b)
	}
	for i := range sources {
		sources[i].image = img.Digest
	}
	return &Tree{
		Image:  img,
		View:   view,
		Reader: n.sched.Reader(view),
		remove: n.catalog.add(sources),
	}, nil
}

// Close lets go of the tree. No read may be under way.
func (t *Tree) Close() error {
	t.remove()
	return t.View.Close()
}

// A Mount is an image that is mounted on a folder.
type Mount struct {
	node   *Node
	tree   *Tree
	server *fusefs.Server
	info   MountInfo

	done chan struct{} // closed when the mount is gone
	err  error         // why it ended; set before done is closed
}

// A MountInfo says what is mounted where.
type MountInfo struct {
	Dir       string        `json:"dir"`
	Reference string        `json:"reference"`
	Digest    chunk.Blob    `json:"digest"`
	Stale     bool          `json:"stale,omitempty"` // the registry did not answer; Digest is the last known one
	Format    string        `json:"format"`          // of the layers' indexes, several with a plus
	Layers    []LayerReport `json:"layers"`
	Files     int64         `json:"files"` // regular ones
	Bytes     int64         `json:"bytes"` // sum of the files' sizes
	Took      time.Duration `json:"-"`     // from the call of Mount until the mount was there
}

// MountOptions say what of an image is mounted, and how.
type MountOptions struct {
	IndexOptions

	// Layers is how many of the image's layers are mounted, from the lowest on.
	// 0 means all.
	Layers int
}

// Mount mounts an image on dir. The mount is served by Run, until that ends or
// somebody unmounts it. When Mount returns it is ready.
func (n *Node) Mount(ctx context.Context, ref, dir string, opts MountOptions) (*Mount, error) {
	m, err := n.newMount(ctx, ref, dir, opts)
	if err != nil {
		return nil, err
	}
	select {
	case n.serve <- m:
	case <-n.ended:
		gone, cancel := context.WithCancel(ctx)
		cancel()
		m.run(gone)
		return nil, errors.Join(errors.New("the node has ended"), m.err)
	}
	select {
	case <-m.server.Ready():
		return m, nil
	case <-m.done:
		return nil, errors.Join(errors.New("the mount ended before it was ready"), m.err)
	}
}

// newMount mounts an image. The mount has to be run, also to take it away.
func (n *Node) newMount(ctx context.Context, ref, dir string, opts MountOptions) (*Mount, error) {
	start := time.Now()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	img, err := n.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	if opts.Layers != 0 {
		if img, err = img.lowest(opts.Layers); err != nil {
			return nil, err
		}
	}
	tree, err := n.OpenTree(ctx, img, opts.IndexOptions)
	if err != nil {
		return nil, err
	}
	server, err := fusefs.Mount(dir, tree.View, tree.Reader, fusefs.Config{
		Trace: fusefs.Trace{
			Failed: func(f fusefs.Failure) {
				n.log.Error("read failed", "dir", dir, "ino", f.Ino, "off", f.Off, "len", f.Len, "skipped", f.Skipped, "err", f.Err)
			},
			Warned: func(msg string) { n.log.Warn(msg, "dir", dir) },
		},
	})
	if err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	m := &Mount{node: n, tree: tree, server: server, done: make(chan struct{}), info: MountInfo{
		Dir:       server.Dir(),
		Reference: img.Reference,
		Digest:    img.Digest,
		Stale:     img.Stale,
		Files:     tree.View.Totals().Files,
		Bytes:     tree.View.Totals().Bytes,
		Took:      time.Since(start),
	}}
	m.info.Layers, m.info.Format = reports(tree.View.Info().Layers)
	n.addMount(m)
	return m, nil
}

// Info says what is mounted.
func (m *Mount) Info() MountInfo { return m.info }

// Done is closed when the mount is gone. Err says then whether anything went
// wrong.
func (m *Mount) Done() <-chan struct{} { return m.done }

// Err returns what went wrong while the mount was served and taken away. It must
// not be called before Done is closed.
func (m *Mount) Err() error { return m.err }

// run serves the mount until ctx is done, or until somebody else has unmounted
// it. What the image's builder wants to have fetched at the start is fetched
// meanwhile. When run returns the mount is gone.
func (m *Mount) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := m.tree.Reader.Prefetch(ctx, m.tree.View.Prefetch(), chunk.Prefetch)
		if err != nil && ctx.Err() == nil {
			m.node.log.Warn("prefetch failed; what is missing is fetched when it is read", "dir", m.info.Dir, "err", err)
		}
	})
	if m.node.members != nil {
		wg.Go(func() { m.node.tellSeeds(ctx, m.tree.Image) })
	}
	m.err = m.server.Run(ctx)
	cancel()
	wg.Wait()
	m.node.removeMount(m)
	m.err = errors.Join(m.err, m.tree.Close())
	close(m.done)
}

// Unmount takes a mount of graze away; the process that serves it ends. With
// lazy, one that is in use disappears at once and is served until its last user
// is gone.
func Unmount(dir string, lazy bool) error { return fusefs.Unmount(dir, lazy) }
