package imagetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// An Image is a manifest and all that it refers to.
type Image struct {
	Layers   []Blob
	Config   []byte
	Manifest []byte
}

// A descriptor refers to a blob as the OCI image specification says.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// NewImage returns the image for this machine's architecture that has the given
// layers, the lowest first. Its containers run cmd.
func NewImage(layers []Blob, cmd ...string) (*Image, error) {
	type config struct {
		Created      time.Time      `json:"created"`
		Architecture string         `json:"architecture"`
		OS           string         `json:"os"`
		Config       map[string]any `json:"config"`
		RootFS       map[string]any `json:"rootfs"`
	}
	diffIDs := make([]string, len(layers))
	descs := make([]descriptor, len(layers))
	for i, l := range layers {
		diffIDs[i] = l.DiffID
		descs[i] = descriptor{MediaType: l.MediaType, Digest: l.Digest, Size: l.Size, Annotations: l.Annotations}
	}
	cfg, err := json.Marshal(config{
		Created:      Epoch,
		Architecture: runtime.GOARCH,
		OS:           "linux",
		Config:       map[string]any{"Cmd": cmd, "Env": []string{"PATH=/bin:/usr/bin"}},
		RootFS:       map[string]any{"type": "layers", "diff_ids": diffIDs},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2,
		"mediaType":     mediaTypeManifest,
		"config":        descriptor{MediaType: mediaTypeConfig, Digest: bytesDigest(cfg), Size: int64(len(cfg))},
		"layers":        descs,
	})
	if err != nil {
		return nil, err
	}
	return &Image{Layers: layers, Config: cfg, Manifest: manifest}, nil
}

// Build encodes layers and returns the image of them.
func Build(layers []Layer, e Encoding, cmd ...string) (*Image, error) {
	blobs := make([]Blob, len(layers))
	for i, l := range layers {
		var err error
		if blobs[i], err = e.Encode(l); err != nil {
			return nil, err
		}
	}
	return NewImage(blobs, cmd...)
}

// Digest returns the digest of the manifest.
func (m *Image) Digest() string { return bytesDigest(m.Manifest) }

func bytesDigest(p []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(p)) }

// blobs returns all blobs but the manifest, each once.
func (m *Image) blobs() []Blob {
	list := []Blob{{Digest: bytesDigest(m.Config), Size: int64(len(m.Config)), Data: m.Config}}
	seen := make(map[string]bool)
	for _, b := range m.Layers {
		if !seen[b.Digest] {
			seen[b.Digest] = true
			list = append(list, b)
		}
	}
	return list
}

// Push uploads the image to the registry at addr, "host:port", over plain HTTP.
// ref is "name:tag" or "name", for which the tag is "latest". Blobs that the
// registry has are not sent again.
func (m *Image) Push(ctx context.Context, addr, ref string) error {
	name, tag, ok := strings.Cut(ref, ":")
	if !ok {
		tag = "latest"
	}
	p := pusher{base: "http://" + addr, name: name}
	for _, b := range m.blobs() {
		if err := p.blob(ctx, &b); err != nil {
			return fmt.Errorf("push blob %s: %w", b.Digest, err)
		}
	}
	u := fmt.Sprintf("%s/v2/%s/manifests/%s", p.base, name, tag)
	_, err := p.do(ctx, http.MethodPut, u, bytes.NewReader(m.Manifest), int64(len(m.Manifest)), mediaTypeManifest, http.StatusCreated)
	if err != nil {
		return fmt.Errorf("push manifest: %w", err)
	}
	return nil
}

// A pusher uploads to one repository.
type pusher struct{ base, name string }

func (p pusher) blob(ctx context.Context, b *Blob) error {
	u := fmt.Sprintf("%s/v2/%s/blobs/%s", p.base, p.name, b.Digest)
	if _, err := p.do(ctx, http.MethodHead, u, nil, 0, "", http.StatusOK); err == nil {
		return nil
	}
	start := fmt.Sprintf("%s/v2/%s/blobs/uploads/", p.base, p.name)
	resp, err := p.do(ctx, http.MethodPost, start, nil, 0, "", http.StatusAccepted)
	if err != nil {
		return err
	}
	to, err := resp.Location()
	if err != nil {
		return err
	}
	q := to.Query()
	q.Set("digest", b.Digest)
	to.RawQuery = q.Encode()
	body, err := b.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = p.do(ctx, http.MethodPut, to.String(), body, b.Size, "application/octet-stream", http.StatusCreated)
	return err
}

// do makes a request and returns the answer, whose body is used up. Another
// status than want is an error.
func (p pusher) do(ctx context.Context, method, u string, body io.Reader, size int64, mediaType string, want int) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	if mediaType != "" {
		req.Header.Set("Content-Type", mediaType)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1000))
	if resp.StatusCode != want {
		err = fmt.Errorf("%s %s: %s: %q", method, (&url.URL{Path: req.URL.Path}).Path, resp.Status, text)
	}
	return resp, err
}

// WriteLayout writes the image to dir as an OCI image layout, in which it has
// the given tag.
func (m *Image) WriteLayout(dir, tag string) error {
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	all := append(m.blobs(), Blob{Digest: m.Digest(), Data: m.Manifest})
	for _, b := range all {
		if err := writeBlob(filepath.Join(blobs, strings.TrimPrefix(b.Digest, "sha256:")), &b); err != nil {
			return err
		}
	}
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2,
		"mediaType":     mediaTypeIndex,
		"manifests": []descriptor{{
			MediaType:   mediaTypeManifest,
			Digest:      m.Digest(),
			Size:        int64(len(m.Manifest)),
			Annotations: map[string]string{"org.opencontainers.image.ref.name": tag},
			Platform:    &platform{runtime.GOARCH, "linux"},
		}},
	})
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644),
		os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644),
	)
}

func writeBlob(name string, b *Blob) error {
	r, err := b.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
