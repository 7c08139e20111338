package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	Files  fusefs.Files
	Reader *scheduler.Reader // fetches chunks
	remove func()            // takes the image out of what the node knows to be open
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
	t := &Tree{Image: img, View: view, Files: n.files(view), Reader: n.sched.Reader(view)}
	forget := n.catalog.add(sources)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.trees[t] = true
	t.remove = func() {
		forget()
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.trees, t)
	}
	return t, nil
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
	record *mountRecord
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
// somebody unmounts it. When Mount returns it is ready. Where the same has been
// mounted before, it is that mount.
func (n *Node) Mount(ctx context.Context, ref, dir string, opts MountOptions) (*Mount, error) {
	dir, err := fusefs.Path(dir)
	if err != nil {
		return nil, err
	}
	if err := n.restored(ctx); err != nil {
		return nil, err
	}
	unlock, err := n.dirs.lock(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var m *Mount
	err = n.withRoom(func() (err error) {
		m, err = n.mountLocked(ctx, ref, dir, opts)
		return err
	})
	return m, err
}

// mountLocked is Mount of a folder that nobody else deals with.
func (n *Node) mountLocked(ctx context.Context, ref, dir string, opts MountOptions) (*Mount, error) {
	img, err := n.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	m, err := n.mountOn(ctx, dir)
	if err != nil {
		return nil, err
	}
	if m != nil {
		if m.record.Image == img.byDigest() && len(m.tree.Image.Layers) == cmp.Or(opts.Layers, len(img.Layers)) {
			return m, nil
		}
		return nil, fmt.Errorf("%s: %s is mounted there; unmount that first", dir, m.info.Reference)
	}
	return n.mountImage(ctx, img, img.Reference, dir, opts)
}

// mountImage mounts an image on dir, where this node has mounted nothing.
func (n *Node) mountImage(ctx context.Context, img *Image, reference, dir string, opts MountOptions) (*Mount, error) {
	start := time.Now()
	tree, err := n.openPart(ctx, img, opts)
	if err != nil {
		return nil, err
	}
	rec, err := newMountRecord(dir, img, opts)
	if err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	rec.Reference, rec.View = reference, tree.View.Checksum()
	// The next node must find the mount, whenever this one is killed.
	if err := n.writeMountRecord(rec); err != nil {
		return nil, errors.Join(fmt.Errorf("note the mount: %w", err), tree.Close())
	}
	server, err := fusefs.Mount(dir, tree.View, tree.Files, n.serverConfig(dir))
	if err != nil {
		return nil, errors.Join(err, n.removeMountRecord(rec), tree.Close())
	}
	n.entrust(rec, server)
	rec.Complete = true
	if err := n.writeMountRecord(rec); err != nil {
		n.log.Warn("mount will be taken away when the node starts again", "dir", dir, "err", err)
	}
	m := n.serveTree(tree, server, rec, start)
	return m, n.start(m)
}

// openPart opens the part of an image that is to be mounted.
func (n *Node) openPart(ctx context.Context, img *Image, opts MountOptions) (*Tree, error) {
	if opts.Layers != 0 {
		var err error
		if img, err = img.lowest(opts.Layers); err != nil {
			return nil, err
		}
	}
	return n.OpenTree(ctx, img, opts.IndexOptions)
}

// serverConfig is how a mount is served.
func (n *Node) serverConfig(dir string) fusefs.Config {
	return fusefs.Config{Trace: fusefs.Trace{
		Failed: func(f fusefs.Failure) {
			n.log.Error("read failed", "dir", dir, "ino", f.Ino, "off", f.Off, "len", f.Len, "skipped", f.Skipped, "err", f.Err)
		},
		Warned: func(msg string) { n.log.Warn(msg, "dir", dir) },
	}}
}

// serveTree returns the mount that a server makes of a tree. It has to be started.
func (n *Node) serveTree(tree *Tree, server *fusefs.Server, rec *mountRecord, start time.Time) *Mount {
	m := &Mount{node: n, tree: tree, server: server, record: rec, done: make(chan struct{}), info: MountInfo{
		Dir:       server.Dir(),
		Reference: rec.Reference,
		Digest:    tree.Image.Digest,
		Stale:     tree.Image.Stale,
		Files:     tree.View.Totals().Files,
		Bytes:     tree.View.Totals().Bytes,
		Took:      time.Since(start),
	}}
	m.info.Layers, m.info.Format = reports(tree.View.Info().Layers)
	n.addMount(m)
	return m
}

// start has Run serve a mount, and returns when it is ready.
func (n *Node) start(m *Mount) error {
	select {
	case n.serve <- m:
	case <-n.ended:
		ended, cancel := context.WithCancelCause(context.Background())
		cancel(n.cause())
		m.run(ended)
		return errors.Join(errEnded, m.err)
	}
	select {
	case <-m.server.Ready():
		return nil
	case <-m.done:
		return errors.Join(errors.New("the mount ended before it was ready"), m.err)
	}
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
// meanwhile. When run returns the mount is gone, or left to the next node.
func (m *Mount) run(ctx context.Context) {
	serve, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { end(m.endCause(ctx)) })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		err := m.tree.Reader.Prefetch(serve, m.tree.View.Prefetch(), chunk.Prefetch)
		if err != nil && serve.Err() == nil {
			m.node.log.Warn("prefetch failed; what is missing is fetched when it is read", "dir", m.info.Dir, "err", err)
		}
	})
	if m.node.members != nil {
		wg.Go(func() { m.node.tellSeeds(serve, m.tree.Image) })
	}
	m.err = m.server.Run(serve)
	end(nil)
	wg.Wait()
	// What is left is served by this process until its end, if by nobody else: it
	// needs its view. It stays in the list, so that who asks for the same mount now
	// gets it, and nobody here asks it whether it is alive: who waits for an answer
	// that nobody gives can't be killed, and would keep the process from ending.
	if !errors.Is(context.Cause(serve), fusefs.ErrLeave) {
		m.node.removeMount(m)
		m.node.release(m.record)
		m.err = errors.Join(m.err, m.tree.Close(), m.node.removeMountRecord(m.record))
	}
	close(m.done)
}

// endCause says how the mount ends with the node: it is left to the next one, if
// somebody holds it until then.
func (m *Mount) endCause(ctx context.Context) error {
	if h := m.node.keeping; h != nil && h.has(m.record.name) && !errors.Is(context.Cause(ctx), ErrTakeAway) {
		return fusefs.ErrLeave
	}
	return context.Canceled
}
