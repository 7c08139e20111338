package scenario

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// A file is one of an image, and what must be in it.
type file struct {
	path string
	size int64
	sum  [sha256.Size]byte
}

// imageLayers is how many layers an image has.
const imageLayers = 3

// files returns the files of an image: a fifth of them are large, and have four
// fifths of its bytes.
func (img Image) files(seed string) []file {
	list := make([]file, img.Files)
	large := max(1, img.Files/5)
	for i := range list {
		f := &list[i]
		f.path = fmt.Sprintf("data/%02d/%05d", i%imageLayers, i)
		if i < large {
			f.size = int64(img.Size) * 4 / 5 / int64(large)
		} else {
			f.size = int64(img.Size) / 5 / int64(img.Files-large)
		}
		f.size = max(1, f.size)
		f.sum = sha256.Sum256(f.content(seed))
	}
	return list
}

// content returns what is in the file. It does not compress.
func (f *file) content(seed string) []byte {
	p := make([]byte, f.size)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(seed + "/" + f.path))).Read(p)
	return p
}

// push pushes an image of files to a registry that speaks plain HTTP, and returns
// the digests of its layers.
func push(ctx context.Context, ref, seed string, files []file) ([]string, error) {
	img := empty.Image
	var digests []string
	for i := range imageLayers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return layerTar(seed, files, i)
		})
		if err != nil {
			return nil, err
		}
		digest, err := layer.Digest()
		if err != nil {
			return nil, err
		}
		digests = append(digests, digest.String())
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return nil, err
		}
	}
	img, err := mutate.ConfigFile(img, withPlatform(img))
	if err != nil {
		return nil, err
	}
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		return nil, err
	}
	return digests, remote.Write(tag, img, remote.WithContext(ctx))
}

// withPlatform returns an image's config, as one for this machine.
func withPlatform(img v1.Image) *v1.ConfigFile {
	config, err := img.ConfigFile()
	if err != nil {
		panic(err) // it has been made in memory
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	return config
}

// layerTar returns the archive of one layer.
func layerTar(seed string, files []file, layer int) (io.ReadCloser, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range files {
		f := &files[i]
		if i%imageLayers != layer {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Name: f.path, Mode: 0o644, Size: f.size, Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content(seed)); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return io.NopCloser(&b), nil
}
