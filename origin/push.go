package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"graze/chunk"
)

// pushing makes what a push does to one endpoint: the registry's own if it may
// be, otherwise the first one. It is one for the whole push, as what was written
// to one host need not be on the others.
func (c *Client) pushing(ctx context.Context, op string, ref reference, f try) error {
	es, err := c.endpoints(ref.registry, canPush)
	if err != nil {
		return &chunk.Error{Op: op, What: ref.String(), Err: err}
	}
	if last := len(es) - 1; es[last].own {
		es = es[last:]
	}
	return c.each(ctx, es[:1], op, ref.String(), f)
}

// PushBlob uploads a blob whose bytes are the first d.Size of src, unless the
// repository has it already. The registry checks the digest. src may be read
// more than once.
func (c *Client) PushBlob(ctx context.Context, repository string, d v1.Descriptor, src io.ReaderAt) error {
	r, err := parseRepo(repository)
	if err == nil {
		err = checkSizes([]v1.Descriptor{d})
	}
	if err != nil {
		return &chunk.Error{Op: "push", What: d.Digest.String(), Err: err}
	}
	ref := reference{repo: r, digest: chunk.Blob(d.Digest.String())}
	return c.pushing(ctx, "push", ref, func(ctx context.Context, e *endpoint) error {
		has, err := c.hasBlob(ctx, e, ref)
		if err != nil || has {
			return err
		}
		return c.upload(ctx, e, ref, d.Size, src)
	})
}

func (c *Client) hasBlob(ctx context.Context, e *endpoint, ref reference) (bool, error) {
	a, err := c.do(ctx, e, request{
		method: http.MethodHead,
		url:    e.url(ref.repo, "blobs/"+ref.id(), nil),
		scope:  scope{ref.path, "pull,push"},
		// Where it redirects to, there is a blob; a signed URL may not do for HEAD.
		noRedirect: true,
	})
	if err != nil {
		return false, err
	}
	defer a.Body.Close()
	switch {
	case a.StatusCode == http.StatusOK, isRedirect(a.Response):
		return true, nil
	case a.StatusCode == http.StatusNotFound:
		return false, nil
	}
	return false, from(e, a.host, newStatusError(a.Response))
}

// upload sends a blob with one POST and one PUT.
func (c *Client) upload(ctx context.Context, e *endpoint, ref reference, size int64, src io.ReaderAt) error {
	a, err := c.do(ctx, e, request{
		method:     http.MethodPost,
		url:        e.url(ref.repo, "blobs/uploads/", nil),
		scope:      scope{ref.path, "pull,push"},
		noRedirect: true,
	})
	if err != nil {
		return err
	}
	a.Body.Close()
	if a.StatusCode != http.StatusAccepted {
		return fmt.Errorf("start of upload: %w", newStatusError(a.Response))
	}
	u, err := uploadURL(a, ref.id())
	if err != nil {
		return err
	}
	a, err = c.do(ctx, e, request{
		method: http.MethodPut,
		url:    u,
		header: http.Header{"Content-Type": {"application/octet-stream"}},
		scope:  scope{ref.path, "pull,push"},
		body:   func() io.ReadCloser { return io.NopCloser(io.NewSectionReader(src, 0, size)) },
		size:   size,
	})
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusCreated && a.StatusCode != http.StatusOK && a.StatusCode != http.StatusNoContent {
		return from(e, a.host, newStatusError(a.Response))
	}
	return nil
}

// uploadURL returns where an upload goes that an answer has opened.
func uploadURL(a *answer, digest string) (*url.URL, error) {
	if a.Header.Get("Location") == "" {
		return nil, errors.New("the registry has opened an upload but doesn't say where")
	}
	u, err := location(a.Response, a.url)
	if err != nil {
		return nil, err
	}
	q := u.Query()
	q.Set("digest", digest)
	u.RawQuery = q.Encode()
	return u, nil
}

// PushManifest puts a manifest or an index under a tag, or under its digest if
// tag is empty. What it refers to must be there. It returns the digest.
func (c *Client) PushManifest(ctx context.Context, repository, tag, mediaType string, raw []byte) (chunk.Blob, error) {
	r, err := parseRepo(repository)
	ref := reference{repo: r, tag: tag}
	if err == nil && tag != "" {
		ref, err = parseReference(r.String() + ":" + tag)
	}
	if err == nil && len(raw) > maxManifest {
		err = fmt.Errorf("manifest has %d bytes, over %d", len(raw), maxManifest)
	}
	if err != nil {
		return "", &chunk.Error{Op: "push", What: repository, Err: err}
	}
	digest := digestOf(raw)
	if tag == "" {
		ref.digest = digest
	}
	_, err = c.pushManifest(ctx, ref, mediaType, raw)
	if err != nil {
		return "", err
	}
	return digest, nil
}

// pushManifest puts a manifest and returns the header of the answer.
func (c *Client) pushManifest(ctx context.Context, ref reference, mediaType string, raw []byte) (header http.Header, err error) {
	err = c.pushing(ctx, "push", ref, func(ctx context.Context, e *endpoint) error {
		a, err := c.do(ctx, e, request{
			method: http.MethodPut,
			url:    e.url(ref.repo, "manifests/"+ref.id(), nil),
			header: http.Header{"Content-Type": {mediaType}},
			scope:  scope{ref.path, "pull,push"},
			body:   func() io.ReadCloser { return io.NopCloser(bytes.NewReader(raw)) },
			size:   int64(len(raw)),
		})
		if err != nil {
			return err
		}
		defer a.Body.Close()
		if a.StatusCode != http.StatusCreated && a.StatusCode != http.StatusOK {
			return from(e, a.host, newStatusError(a.Response))
		}
		if got := a.Header.Get("Docker-Content-Digest"); got != "" && got != string(digestOf(raw)) {
			return corruptf("the registry has stored the manifest as %.100q, not %s", got, digestOf(raw))
		}
		header = a.Header
		return nil
	})
	return header, err
}
