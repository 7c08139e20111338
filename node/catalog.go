package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"graze/chunk"
	"graze/origin"
	"graze/wire"
)

// A blobSource is a place that a blob can be read from.
type blobSource struct {
	// Repository is the name of a repository, which may begin with fromManifests,
	// or of a node, which begins with fromNode.
	Repository string     `json:"repository"`
	Digest     chunk.Blob `json:"digest"`
	Size       int64      `json:"size"`

	holder chunk.PeerID // a node that is known to have the blob; may be empty
	image  chunk.Blob   // that the blob is of; "" if that is not known
}

// A catalog knows where the blobs that spans name can be read from. It is the
// scheduler's origin: spans name blobs, and registries need repositories.
type catalog struct {
	client *origin.Client
	local  blobDir

	// Of a node in a cluster: its name, and what copies a blob from another node
	// into local.
	node     chunk.PeerID
	fromNode func(ctx context.Context, repository string, blob chunk.Blob) error

	mu      sync.Mutex                  // guards what follows
	sources map[chunk.Blob][]blobSource // of blobs in use
	hints   map[chunk.Blob]blobHint     // of blobs that other nodes asked for
	checked map[chunk.Blob]bool         // those of them that local has and that were compared with their digest
}

// A blobHint says what a request of another node knows of a blob.
type blobHint struct {
	repositories []string
	images       []chunk.Blob
}

// newCatalog returns a catalog that reads blobs from local, and the others
// through client.
func newCatalog(client *origin.Client, local blobDir) *catalog {
	return &catalog{
		client:  client,
		local:   local,
		sources: make(map[chunk.Blob][]blobSource),
		hints:   make(map[chunk.Blob]blobHint),
		checked: make(map[chunk.Blob]bool),
	}
}

// add makes blobs known until the returned function is called. A blob that is
// added several times stays until the last has been taken back.
func (c *catalog) add(list []blobSource) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range list {
		c.sources[s.Digest] = append(c.sources[s.Digest], s)
	}
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range list {
			have := c.sources[s.Digest]
			i := slices.Index(have, s)
			// Readers may hold the old slice: it is replaced, not changed.
			have = slices.Concat(have[:i], have[i+1:])
			if len(have) == 0 {
				delete(c.sources, s.Digest)
				delete(c.checked, s.Digest)
			} else {
				c.sources[s.Digest] = have
			}
		}
	})
}

// ReadRange implements scheduler.Origin. It asks one source after the other; if
// none has the blob, the error is that of a source which may have it later.
func (c *catalog) ReadRange(ctx context.Context, blob chunk.Blob, off, n int64) (io.ReadCloser, error) {
	if c.isLocal(blob) {
		f, err := c.local.open(blob)
		if err == nil {
			return newSectionReader(f, off, n)
		}
		if !isMissing(err) {
			return nil, err
		}
	}
	c.mu.Lock()
	sources := c.sources[blob]
	for _, repository := range c.hints[blob].repositories {
		sources = append(sources[:len(sources):len(sources)], blobSource{Repository: repository, Digest: blob, Size: origin.UnknownSize})
	}
	c.mu.Unlock()
	var worst error = &chunk.Error{Op: "read", What: string(blob), Err: chunk.ErrNotFound}
	for i, s := range sources {
		if s.Repository == "" || slices.Contains(sources[:i], s) {
			continue
		}
		r, err := c.readFrom(ctx, s, off, n)
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		if isMissing(worst) || errors.Is(worst, chunk.ErrDenied) {
			worst = err
		}
	}
	return nil, worst
}

// maxHints bounds the blobs whose repositories are remembered for other nodes.
const maxHints = 4096

// hint remembers where a span that another node asks for can be read from, and
// which images it is of: this node need not know them.
func (c *catalog) hint(span *chunk.Span, repositories []string, images []chunk.Blob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hintLocked(span.Blob, repositories, images)
	if span.Window != nil {
		c.hintLocked(span.Window.Span.Blob, repositories, images)
	}
}

func (c *catalog) hintLocked(blob chunk.Blob, repositories []string, images []chunk.Blob) {
	if old := c.hints[blob]; slices.Equal(old.repositories, repositories) && slices.Equal(old.images, images) {
		return
	}
	if len(c.hints) >= maxHints {
		clear(c.hints) // those in use are hinted at again with the next request
	}
	c.hints[blob] = blobHint{slices.Clone(repositories), slices.Clone(images)}
}

// appendImages appends the images that a span is of, as far as they are known and
// as many as a request can carry.
func (c *catalog) appendImages(list []chunk.Blob, span *chunk.Span) []chunk.Blob {
	c.mu.Lock()
	defer c.mu.Unlock()
	add := func(image chunk.Blob) {
		if image != "" && len(list) < wire.MaxImages && !slices.Contains(list, image) {
			list = append(list, image)
		}
	}
	for _, s := range c.sources[span.Blob] {
		add(s.image)
	}
	for _, image := range c.hints[span.Blob].images {
		add(image)
	}
	return list
}

// appendRepositories appends the repositories that have the blobs of a span, as
// many as a request can carry.
func (c *catalog) appendRepositories(list []string, span *chunk.Span) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	blobs := []chunk.Blob{span.Blob}
	if span.Window != nil {
		blobs = append(blobs, span.Window.Span.Blob)
	}
	for _, blob := range blobs {
		for _, s := range c.sources[blob] {
			repository := s.Repository
			if repository == "" {
				repository = fromNode + string(c.node) // the blob is here and nowhere else
			}
			if len(list) < wire.MaxRepositories && !slices.Contains(list, repository) {
				list = append(list, repository)
			}
		}
		for _, repository := range c.hints[blob].repositories {
			if len(list) < wire.MaxRepositories && !slices.Contains(list, repository) {
				list = append(list, repository)
			}
		}
	}
	return list
}

// readFrom reads a range of a blob from one source.
func (c *catalog) readFrom(ctx context.Context, s blobSource, off, n int64) (io.ReadCloser, error) {
	if repository, ok := strings.CutPrefix(s.Repository, fromManifests); ok {
		return c.readManifest(ctx, repository, s.Digest, off, n)
	}
	if !strings.HasPrefix(s.Repository, fromNode) {
		return c.client.Blob(s.Repository, s.Digest, s.Size).ReadRange(ctx, off, n)
	}
	if c.fromNode == nil {
		return nil, &chunk.Error{Op: "read", What: string(s.Digest), From: s.Repository, Err: chunk.ErrNotFound}
	}
	if err := c.fromNode(ctx, s.Repository, s.Digest); err != nil {
		return nil, err
	}
	f, err := c.local.open(s.Digest)
	if err != nil {
		return nil, err
	}
	return newSectionReader(f, off, n)
}

// readManifest reads a range of a manifest, all of which is fetched for that.
func (c *catalog) readManifest(ctx context.Context, repository string, digest chunk.Blob, off, n int64) (io.ReadCloser, error) {
	m, err := c.client.FetchManifest(ctx, repository, string(digest))
	if err != nil {
		return nil, err
	}
	if off < 0 || n < 0 || n > int64(len(m.Raw))-off {
		return nil, &chunk.Error{Op: "read", What: string(digest), From: repository,
			Err: fmt.Errorf("%w: it has %d bytes, and %d from %d on are wanted", chunk.ErrCorrupt, len(m.Raw), n, off)}
	}
	return io.NopCloser(bytes.NewReader(m.Raw[off : off+n])), nil
}

// isLocal reports whether the state folder has a blob, and that it is good: it is
// compared with its digest when it is first used. One that has rotted is removed.
func (c *catalog) isLocal(blob chunk.Blob) bool {
	c.mu.Lock()
	checked := c.checked[blob]
	c.mu.Unlock()
	if checked {
		return true
	}
	if c.local.check(blob) != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sources[blob] != nil {
		c.checked[blob] = true
	}
	return true
}

// newSectionReader returns a reader of n bytes of f from off on, and closes f
// with it. The caller has asked for bytes that the blob must have.
func newSectionReader(f *os.File, off, n int64) (io.ReadCloser, error) {
	st, err := f.Stat()
	if err == nil && (off < 0 || n < 0 || n > st.Size()-off) {
		err = fmt.Errorf("%w: %s has %d bytes, and %d from %d on are wanted", chunk.ErrCorrupt, f.Name(), st.Size(), n, off)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, off, n), f}, nil
}
