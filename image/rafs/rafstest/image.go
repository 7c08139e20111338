package rafstest

import (
	"archive/tar"
	"bytes"
	"maps"
	"slices"
	"strconv"

	"github.com/klauspost/compress/gzip"

	"graze/image/imagetest"
)

// BlobMediaType is the media type of a blob in a manifest.
const BlobMediaType = "application/vnd.oci.image.layer.nydus.blob.v1"

const annotationPrefix = "containerd.io/snapshot/nydus-"

// Layers returns the image's blobs, and the layer of its bootstrap as the last
// one, as a manifest has them.
func (img *Image) Layers() ([]imagetest.Blob, error) {
	var list []imagetest.Blob
	for _, b := range img.Blobs {
		notes := map[string]string{annotationPrefix + "blob": "true"}
		if b.Reference != "" {
			notes[annotationPrefix+"ref"] = b.Reference
		}
		list = append(list, imagetest.Blob{
			MediaType: BlobMediaType, Annotations: notes,
			Digest: b.Digest, DiffID: b.Digest, Size: int64(len(b.Data)), Data: b.Data,
		})
	}
	boot, err := img.BootstrapLayer()
	return append(list, boot), err
}

// BootstrapLayer returns the layer that has the bootstrap.
func (img *Image) BootstrapLayer() (imagetest.Blob, error) {
	var archive, packed bytes.Buffer
	tw := tar.NewWriter(&archive)
	files := map[string][]byte{"image/image.boot": img.Bootstrap}
	for id, p := range img.Metas {
		files["image/"+id+".blob.meta"] = p
	}
	err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "image/", Mode: 0o755})
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err == nil {
			err = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o444, Size: int64(len(files[name]))})
		}
		if err == nil {
			_, err = tw.Write(files[name])
		}
	}
	if err == nil {
		err = tw.Close()
	}
	zw := gzip.NewWriter(&packed)
	if err == nil {
		_, err = zw.Write(archive.Bytes())
	}
	if err == nil {
		err = zw.Close()
	}
	return imagetest.Blob{
		MediaType: imagetest.MediaTypeTarGzip,
		Annotations: map[string]string{
			annotationPrefix + "bootstrap":  "true",
			annotationPrefix + "fs-version": strconv.Itoa(img.Options.Version),
		},
		Digest: "sha256:" + hexSum(packed.Bytes()),
		DiffID: "sha256:" + hexSum(archive.Bytes()),
		Size:   int64(packed.Len()),
		Data:   packed.Bytes(),
	}, err
}
