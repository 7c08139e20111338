package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"graze/chunk"
	"graze/origin"
)

// A lookup is a question that only a registry can answer, and whose answer may
// change. All else that an image consists of is content: it has a digest, and
// whoever has it can be believed.
type lookup struct {
	Kind      lookupKind `json:"kind"`
	Reference string     `json:"reference"` // complete
}

type lookupKind string

// The kinds of lookups.
const (
	// manifestLookup asks what a reference stands for. If the reference has a
	// digest, that is known, and its size is asked for.
	manifestLookup lookupKind = "manifest"
	// indexesLookup asks which indexes, of any kind, refer to the image with the
	// digest that the reference has.
	indexesLookup lookupKind = "indexes"
)

// maxFound is the most manifests that a finding has. A repository has no reason to
// have more indexes of one image.
const maxFound = 32

// check returns an error unless the lookup is one that a node can be asked for.
func (q lookup) check() error {
	name, err := origin.ParseName(q.Reference)
	switch {
	case err != nil:
		return err
	case name.String() != q.Reference:
		return fmt.Errorf("reference %.200q is not complete", q.Reference)
	case q.Kind != manifestLookup && (q.Kind != indexesLookup || name.Digest == ""):
		return fmt.Errorf("lookup of kind %.40q for %.200q", string(q.Kind), q.Reference)
	}
	return nil
}

// fixed returns the digest that the lookup is for, if that is part of the
// question: then only the size is not known.
func (q lookup) fixed() chunk.Blob {
	name, err := origin.ParseName(q.Reference)
	if err != nil || q.Kind != manifestLookup {
		return ""
	}
	return name.Digest
}

// A finding is the answer to a lookup. It is also what the state folder keeps of
// it.
type finding struct {
	lookup
	Manifests []v1.Descriptor `json:"manifests"` // of a manifestLookup: one
	Checked   time.Time       `json:"checked"`   // when a registry said so, by the clock of this node

	stale bool         // no registry answers: this is what was known last
	from  chunk.PeerID // the node that said so, if it was another one: it has the manifests
}

// newFinding returns an answer that a registry has given now, without what nobody
// needs of it.
func newFinding(q lookup, list []v1.Descriptor) *finding {
	f := &finding{lookup: q, Checked: time.Now()}
	for _, d := range list[:min(len(list), maxFound)] {
		f.Manifests = append(f.Manifests, v1.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size, ArtifactType: d.ArtifactType})
	}
	return f
}

// check returns an error unless f can be an answer to q.
func (f *finding) check(q lookup) error {
	if f.lookup != q || len(f.Manifests) > maxFound || q.Kind == manifestLookup && len(f.Manifests) != 1 {
		return fmt.Errorf("%w: finding of %d manifests for %q", chunk.ErrCorrupt, len(f.Manifests), q.Reference)
	}
	for _, d := range f.Manifests {
		if d.Size <= 0 || d.Size > maxManifest || chunk.Blob(d.Digest.String()) != cmp.Or(q.fixed(), chunk.Blob(d.Digest.String())) {
			return fmt.Errorf("%w: manifest %s of %d bytes for %q", chunk.ErrCorrupt, d.Digest, d.Size, q.Reference)
		}
	}
	return nil
}

// asStale returns f as what is used because no registry answers.
func (f *finding) asStale() *finding {
	out := *f
	out.stale = f.fixed() == "" // what a digest means does not age
	return &out
}

// find answers a lookup by the registry. While that does not answer, it is what
// was known last.
func (l *Library) findHere(ctx context.Context, q lookup) (*finding, error) {
	old := l.lastFound(q)
	askCtx, cancel := ctx, func() {}
	if old != nil {
		askCtx, cancel = patient(ctx)
	}
	defer cancel()
	f, err := l.askRegistry(askCtx, q)
	if err == nil {
		l.noteFound(f)
		return f, nil
	}
	if old != nil && ctx.Err() == nil && errors.Is(err, chunk.ErrUnavailable) {
		return l.lastKnown(old, err)
	}
	return nil, err
}

// patient bounds how long a registry may take for an answer without which there
// is another one.
func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	silent := fmt.Errorf("%w: no answer for %v", chunk.ErrUnavailable, resolvePatience)
	return context.WithTimeoutCause(ctx, resolvePatience, silent)
}

// lastKnown returns what was known last as the answer, where that is allowed. Why
// is the registry's failure.
func (l *Library) lastKnown(old *finding, why error) (*finding, error) {
	f := old.asStale()
	if !f.stale {
		return f, nil
	}
	age := time.Since(old.Checked).Round(time.Second)
	if q := f.lookup; q.Kind == manifestLookup {
		switch {
		case l.stale.Deny:
			return nil, fmt.Errorf("%w (what it stood for last, %s, is not used: registry.stale is deny)", why, f.Manifests[0].Digest)
		case l.stale.MaxAge > 0 && age > l.stale.MaxAge:
			return nil, fmt.Errorf("%w (what it stood for %v ago, %s, is not used: registry.stale-max-age is %v)", why, age, f.Manifests[0].Digest, l.stale.MaxAge)
		}
		l.log.Warn("registry is unavailable; using the image that the reference stood for last",
			"reference", q.Reference, "digest", f.Manifests[0].Digest.String(), "age", age, "err", why)
	}
	return f, nil
}

// askRegistry asks the registry, and nobody else.
func (l *Library) askRegistry(ctx context.Context, q lookup) (*finding, error) {
	var list []v1.Descriptor
	var err error
	if q.Kind == manifestLookup {
		list = make([]v1.Descriptor, 1)
		list[0], err = l.client.Head(ctx, q.Reference)
	} else {
		var name origin.Name
		if name, err = origin.ParseName(q.Reference); err == nil {
			list, err = l.client.Referrers(ctx, name.Repository, name.Digest, "")
			list = slices.DeleteFunc(list, func(d v1.Descriptor) bool { return !mayBeIndex(d.ArtifactType) })
		}
	}
	if err != nil {
		return nil, err
	}
	return newFinding(q, list), nil
}

// lookupPath returns the name of the file that keeps the answer to a lookup.
func (l *Library) lookupPath(q lookup) string {
	return filepath.Join(l.dir, "refs", fileName(string(q.Kind)+" "+q.Reference)+".json")
}

// lastFound returns what the state folder knows of a lookup; nil for nothing.
func (l *Library) lastFound(q lookup) *finding {
	f := new(finding)
	if err := readRecord(l.lookupPath(q), f); err != nil || f.check(q) != nil {
		return l.foundBlob(q)
	}
	return f
}

// foundBlob answers a lookup by digest, if the manifest is here.
func (l *Library) foundBlob(q lookup) *finding {
	digest := q.fixed()
	if digest == "" {
		return nil
	}
	h, err := v1.NewHash(string(digest))
	if err != nil {
		return nil
	}
	file, err := l.blobs.open(digest)
	if err != nil {
		return nil
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil
	}
	f := newFinding(q, []v1.Descriptor{{Digest: h, Size: st.Size()}})
	if f.check(q) != nil {
		return nil
	}
	return f
}

// refreshFound is how long the age that the state folder knows may be wrong.
const refreshFound = time.Minute

// noteFound keeps an answer.
func (l *Library) noteFound(f *finding) {
	old := new(finding)
	if err := readRecord(l.lookupPath(f.lookup), old); err == nil && f.Checked.Sub(old.Checked) < refreshFound &&
		slices.EqualFunc(f.Manifests, old.Manifests, func(a, b v1.Descriptor) bool { return reflect.DeepEqual(a, b) }) {
		return
	}
	if err := writeRecord(l.lookupPath(f.lookup), f); err != nil {
		// The answer can be used all the same, with the registry there.
		l.log.Warn("what a reference stands for can't be kept", "reference", f.Reference, "err", err)
	}
}
