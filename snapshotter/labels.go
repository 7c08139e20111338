package snapshotter

import (
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/snapshotters"

	"graze/chunk"
)

// Labels of clients made for stargz-snapshotter, which some others send too.
const (
	stargzReference = "containerd.io/snapshot/remote/stargz.reference"
	stargzDigest    = "containerd.io/snapshot/remote/stargz.digest"
)

// remoteLabel marks snapshots that are served lazily, for containerd's clients.
const remoteLabel = "containerd.io/snapshot/remote"

// A wanted is a layer that containerd is about to pull, as the labels of a Prepare
// name it. Which layers come after it, which some clients list in another label as
// far as there is room, is known from the image.
type wanted struct {
	Chain     chunk.Blob // chain ID of the layer and those below it
	Layer     chunk.Blob // digest of the layer's blob; "" if the client did not tell
	Reference string     // of the image, as the user gave it; "" if the client did not tell
	Manifest  chunk.Blob // digest of the image's manifest; likewise
}

// parseLabels reads the labels of a Prepare. It is not ok if they are not those of
// a layer that is being pulled.
func parseLabels(labels map[string]string) (w wanted, ok bool) {
	w.Chain = chunk.Blob(labels[snapshots.LabelSnapshotRef])
	if w.Chain == "" {
		return w, false
	}
	w.Layer = chunk.Blob(either(labels, snapshotters.TargetLayerDigestLabel, stargzDigest))
	w.Reference = either(labels, snapshotters.TargetRefLabel, stargzReference)
	w.Manifest = chunk.Blob(labels[snapshotters.TargetManifestDigestLabel])
	return w, true
}

// fetchedChain returns the chain ID of a layer that containerd unpacks without having
// asked for it, by the key that its unpackers use.
func fetchedChain(key string) (chain chunk.Blob, ok bool) {
	key = key[strings.LastIndexByte(key, '/')+1:]
	if !strings.HasPrefix(key, snapshots.UnpackKeyPrefix+"-") {
		return "", false
	}
	_, after, ok := strings.Cut(key, " ")
	return chunk.Blob(after), ok
}

func either(labels map[string]string, key, other string) string {
	if v := labels[key]; v != "" {
		return v
	}
	return labels[other]
}

// image returns the name of the wanted layer's image: with its digest, if that is
// known, and its tag, by which some indexes are found.
func (w wanted) image() string {
	if w.Manifest == "" || strings.Contains(w.Reference, "@") {
		return w.Reference
	}
	return w.Reference + "@" + string(w.Manifest)
}
