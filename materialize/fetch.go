package materialize

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// writeSize is how many bytes are sent to containerd at a time.
const writeSize = 512 << 10

// findRepository finds out which repository has the image's blobs: that of its
// name, unless containerd remembers others, as an image may have been given
// another name since.
func (r *run) findRepository(ctx context.Context, top ocispec.Descriptor) error {
	if r.repository = r.opts.Repository; r.repository != "" {
		return nil
	}
	info, err := r.store.Info(ctx, top.Digest)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("look up %s: %w", top.Digest, err)
	}
	var known []string
	for name, value := range info.Labels {
		if host, ok := strings.CutPrefix(name, labels.LabelDistributionSource+"."); ok {
			path, _, _ := strings.Cut(value, ",")
			known = append(known, host+"/"+path)
		}
	}
	slices.Sort(known)
	host, path := hostAndPath(r.name)
	noPort, _, _ := strings.Cut(host, ":") // as containerd's labels have it
	switch {
	case host != "" && (len(known) == 0 || slices.Contains(known, noPort+"/"+path)):
		r.repository = host + "/" + path
	case len(known) > 0:
		r.repository = known[0]
	default:
		return fmt.Errorf("neither the name %q nor containerd says which repository the image is from: name it", r.name)
	}
	return nil
}

// hostAndPath splits the name of an image. CRI has images under names that are
// none, such as their digest.
func hostAndPath(name string) (host, path string) {
	named, err := reference.ParseDockerRef(name)
	if err != nil || strings.HasPrefix(name, "sha256:") {
		return "", ""
	}
	return reference.Domain(named), reference.Path(named)
}

// ensure fetches a blob that containerd has not.
func (r *run) ensure(ctx context.Context, d ocispec.Descriptor) error {
	if there, err := content.Exists(ctx, r.store, d); err != nil {
		return fmt.Errorf("look up %s: %w", d.Digest, err)
	} else if there {
		return nil
	}
	ref := "graze-" + d.Digest.String()
	w, err := content.OpenWriter(ctx, r.store, content.WithRef(ref), content.WithDescriptor(d))
	if errdefs.IsAlreadyExists(err) {
		return nil // somebody else was faster
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", d.Digest, err)
	}
	defer w.Close()
	if err := r.copy(ctx, w, d); err != nil {
		return fmt.Errorf("fetch %s of %s: %w", d.Digest, r.repository, err)
	}
	host, path, _ := strings.Cut(r.repository, "/")
	host, _, _ = strings.Cut(host, ":")
	source := content.WithLabels(map[string]string{labels.LabelDistributionSource + "." + host: path})
	err = w.Commit(ctx, d.Size, d.Digest, source)
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		// What is there is not what it should be, and must not be gone on with.
		return errors.Join(fmt.Errorf("keep %s of %s: %w", d.Digest, r.repository, err), r.store.Abort(ctx, ref))
	}
	r.fetched.Add(1)
	return nil
}

// copy writes what is missing of a blob.
func (r *run) copy(ctx context.Context, w content.Writer, d ocispec.Descriptor) error {
	st, err := w.Status()
	if err != nil || st.Offset >= d.Size {
		return err
	}
	src, err := r.src.Read(ctx, r.repository, d.Digest, d.Size, st.Offset)
	if err != nil {
		return err
	}
	defer src.Close()
	done := st.Offset
	buf := make([]byte, writeSize)
	for done < d.Size {
		n, err := io.ReadFull(src, buf[:min(int64(len(buf)), d.Size-done)])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			done += int64(n)
			r.bytes.Add(int64(n))
			if r.opts.Progress != nil {
				r.opts.Progress(d.Digest, done, d.Size)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
